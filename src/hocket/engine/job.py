"""The engine's record of an open request. `Job.scheduled` is the scheduler's record of the same
request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hocket.audio.reference_cache import Key
from hocket.core import (
    AudioChunk,
    EncodedReference,
    FinishReason,
    PromptRows,
    RequestEnd,
    SpeechRequest,
    Timings,
)
from hocket.engine.scheduling.request import Request
from hocket.engine.scheduling.runaway import SilenceDetector
from hocket.errors import HocketError
from hocket.models.sampling import ResolvedSampling

_NO_PROMPT = PromptRows(np.empty((0, 0), np.int64), np.empty((0, 0), np.int64))


@dataclass(slots=True, eq=False)
class Job:
    """One open request. Only the engine writes to it."""

    # Set by the caller
    id: str
    request: SpeechRequest
    seed: int
    sampling: ResolvedSampling
    priority: int
    streaming: bool
    added_at: float
    #: Takes the chunks of the request; None: `step` returns them.
    outbox: deque[AudioChunk] | None

    # Set by intake
    #: What was read from each reference, or the key of one that is still being read.
    references: list[EncodedReference | Key] = field(default_factory=list)
    #: Has no rows until it is built.
    prompt: PromptRows = _NO_PROMPT
    #: Set when the request is queued at the scheduler.
    scheduled: Request | None = None

    # Set while it speaks
    #: The row of the request, also after it was released; None until it is admitted.
    row: int | None = None
    #: The reason to report at the frame limit: "length" for the caller's cap, "runaway" for the
    #: budget of the text.
    limit_reason: FinishReason = "length"
    silence: SilenceDetector | None = None
    cancelled: bool = False
    error: HocketError | None = None
    #: Set when the request has ended.
    end: RequestEnd | None = None

    @property
    def missing_references(self) -> list[Key]:
        """Keys of the references that are still being read."""
        return [reference for reference in self.references if isinstance(reference, str)]

    @property
    def reference_codes(self) -> list[NDArray[np.int64]]:
        """Codes of the references that have them."""
        return [one.codes for one in self._encoded if one.codes is not None]

    @property
    def voice_vectors(self) -> list[NDArray[np.float32]]:
        """Vectors of the references that have them."""
        return [one.voice for one in self._encoded if one.voice is not None]

    @property
    def _encoded(self) -> list[EncodedReference]:
        return [one for one in self.references if isinstance(one, EncodedReference)]

    def take_references(self, made: Mapping[Key, EncodedReference | HocketError]) -> None:
        """Replace keys by what was read; sets `error` where a reference could not be."""
        for i, one in enumerate(self.references):
            found = made.get(one) if isinstance(one, str) else None
            if isinstance(found, EncodedReference):
                self.references[i] = found
            elif found is not None:
                # One instance for each request: raising an exception sets its traceback.
                self.error = type(found)(found.message, param=found.param)

    def timings(self, now: float, frame_seconds: float) -> Timings:
        """Times of the request so far."""
        if self.scheduled is None:
            return Timings(total_seconds=now - self.added_at)
        return Timings(
            admitted_seconds=self.scheduled.admitted_at - self.added_at,
            prefilled_seconds=self.scheduled.prefilled_at - self.added_at,
            first_audio_seconds=self.scheduled.first_audio_at - self.added_at,
            total_seconds=now - self.added_at,
            late_seconds=self.scheduled.late_seconds,
            speech_seconds=self.scheduled.frames * frame_seconds,
        )

    def ended(self, reason: FinishReason, now: float, frame_seconds: float) -> RequestEnd:
        """The end of the request, for its last chunk."""
        return RequestEnd(
            finish_reason=self.limit_reason if reason == "length" else reason,
            seed=self.seed,
            timings=self.timings(now, frame_seconds),
            error=self.error,
            prompt_rows=len(self.prompt.rows),
        )
