"""The engine's record of an open request. `Job.scheduled` is the scheduler's record of the same
request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hocket.core import (
    AudioChunk,
    FinishReason,
    PromptRows,
    RequestEnd,
    SpeechRequest,
    Timings,
)
from hocket.engine.references.encoder import Key
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
    #: Codes int64 [F, N] of each reference, or the key of codes that are still being made.
    references: list[NDArray[np.int64] | Key] = field(default_factory=list)
    #: Voice vector float32 [D] of each reference, or its key; empty in families without voice
    #: vectors.
    voices: list[NDArray[np.float32] | Key] = field(default_factory=list)
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
        """Keys of the codes and vectors that are still being made."""
        return [
            reference
            for reference in (*self.references, *self.voices)
            if isinstance(reference, str)
        ]

    @property
    def reference_codes(self) -> list[NDArray[np.int64]]:
        """Codes of the references that have them."""
        return [reference for reference in self.references if not isinstance(reference, str)]

    @property
    def voice_vectors(self) -> list[NDArray[np.float32]]:
        """Vectors of the references that have them."""
        return [voice for voice in self.voices if not isinstance(voice, str)]

    def take_references(
        self, codes: Mapping[Key, NDArray[np.int64]], vectors: Mapping[Key, NDArray[np.float32]]
    ) -> None:
        """Replace keys by the codes and vectors that were made for them."""
        self.references = [
            codes.get(one, one) if isinstance(one, str) else one for one in self.references
        ]
        self.voices = [
            vectors.get(one, one) if isinstance(one, str) else one for one in self.voices
        ]

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
