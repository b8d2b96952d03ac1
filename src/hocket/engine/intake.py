"""Takes requests in: encodes references, builds the prompt, sets the frame limit and queues at the
scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hocket.audio.reference import load_reference_codes, prepare_reference
from hocket.checkpoint.voices import with_reference_of_voice
from hocket.core import Reference, ReferenceNeeds, SpeechRequest
from hocket.engine.build import EngineParts
from hocket.engine.job import Job
from hocket.engine.scheduling.runaway import SilenceDetector, frame_budget
from hocket.engine.scheduling.scheduler import Scheduler
from hocket.errors import (
    CapacityError,
    HocketError,
    InvalidRequestError,
    ReferenceAudioError,
    Template,
)
from hocket.models.family import COMMON_FIELDS
from hocket.text.normalize import normalize_request

_LOG = logging.getLogger("hocket.engine")


def check_fields(request: SpeechRequest, takes: frozenset[str]) -> None:
    """Raise InvalidRequestError for the first field that the request sets and the model's family
    does not take.
    """
    for name in SpeechRequest.model_fields:
        if name not in COMMON_FIELDS and name not in takes and getattr(request, name) is not None:
            raise InvalidRequestError(
                Template("this model does not know {param}; leave it out"), param=name
            )


class Intake:
    """Holds the requests that wait for their references. The encoders have work only while there
    are some.
    """

    def __init__(self, parts: EngineParts, scheduler: Scheduler) -> None:
        self._parts = parts
        self._config, self._info = parts.config, parts.info
        self._scheduler = scheduler
        #: In order of arrival.
        self._preparing: list[Job] = []

    @property
    def preparing(self) -> int:
        """Requests that wait for their references."""
        return len(self._preparing)

    def resolve(self, request: SpeechRequest) -> SpeechRequest:
        """The request with its text normalised and with the reference of the voice that it names.

        Raises InvalidRequestError.
        """
        if not isinstance(request, SpeechRequest):
            raise InvalidRequestError(
                f"a request is a SpeechRequest, not a {type(request).__name__}"
            )
        request = normalize_request(request, self._info.text_front)
        return (
            request
            if request.voice is None
            else with_reference_of_voice(request, self._parts.voices)
        )

    @property
    def is_full(self) -> bool:
        """`open` would raise `CapacityError`."""
        return len(self._preparing) + self._scheduler.waiting >= self._config.max_waiting

    def open(self, job: Job) -> None:
        """Queue a request at the scheduler, at once or when its references are encoded.

        Raises InvalidRequestError, ReferenceAudioError, and CapacityError when the queue is full.
        """
        if self.is_full:
            raise CapacityError(
                f"{self._config.max_waiting} requests are waiting already; try again later"
            )
        check_fields(job.request, self._parts.prompt.takes)
        self._take_references(job, self._parts.prompt.needs(job.request))
        if job.missing_references:
            self._preparing.append(job)
        else:
            self._schedule(job)

    def step(self) -> list[Job]:
        """Encode the next part of the references and queue the requests whose references are
        complete.

        Returns the requests that end here instead: cancelled ones, and those with an `error`.
        """
        wanted = {
            key for job in self._preparing if not job.cancelled for key in job.missing_references
        }
        codes = {} if self._parts.references is None else self._parts.references.step(wanted)
        vectors = (
            {} if self._parts.voice_vectors is None else self._parts.voice_vectors.step(wanted)
        )
        over, waiting = [], []
        for job in self._preparing:
            job.take_references(codes, vectors)
            if job.cancelled:
                over.append(job)
            elif job.missing_references or self._scheduler.queue_is_full:
                waiting.append(job)
            else:
                try:
                    self._schedule(job)
                except HocketError as error:
                    # For example a prompt that turns out too long for the model.
                    job.error = error
                    over.append(job)
                except Exception as error:
                    # A bug that one request triggers must not end the others. The error's text may
                    # quote a user.
                    _LOG.error("event=request_failed id=%s error=%s", job.id, type(error).__name__)
                    job.error = HocketError(
                        f"internal error ({type(error).__name__}); please report it"
                    )
                    over.append(job)
        self._preparing = waiting
        return over

    def _take_references(self, job: Job, needs: ReferenceNeeds) -> None:
        """Set the job's codes and vectors, or the keys of those that are still being made."""
        # All are checked before the first is submitted, so that a refused request leaves nothing at
        # the encoders.
        prepared = [self._read(reference, needs) for reference in job.request.references]
        self._check_lengths(prepared, needs)
        for content in prepared:
            if np.issubdtype(content.dtype, np.integer):
                job.references.append(content.astype(np.int64, copy=False))
                continue
            samples_CS = content.astype(np.float32, copy=False)
            if needs.voice:
                assert self._parts.voice_vectors is not None  # every family that needs it has it
                key, vector = self._parts.voice_vectors.submit(samples_CS)
                job.voices.append(key if vector is None else vector)
            if needs.codes:
                assert self._parts.references is not None  # `_read` has checked it
                key, codes = self._parts.references.submit(samples_CS)
                job.references.append(key if codes is None else codes)

    def _check_lengths(
        self, prepared: Sequence[NDArray[np.int64] | NDArray[np.float32]], needs: ReferenceNeeds
    ) -> None:
        """Refuse, before anything is encoded, recordings that are too short, and those that cannot
        fit a prompt.
        """
        info, total = self._info, 0
        for content in prepared:
            is_codes = np.issubdtype(content.dtype, np.integer)
            frames = (
                len(content)
                if is_codes
                else int(content.shape[1] / info.sample_rate / info.frame_seconds + 1e-6)
            )
            if frames == 0:
                raise ReferenceAudioError(
                    "a reference is shorter than one frame of the codec "
                    f"({1000 * info.frame_seconds:.0f} ms)",
                    param="reference",
                )
            total += frames
        if total >= info.context_rows:
            raise InvalidRequestError(
                f"the references have {total} frames, and a context holds {info.context_rows} "
                "rows; give fewer or shorter ones",
                param="reference",
            )
        if needs.voice and prepared:
            assert self._parts.voice_vectors is not None  # a family that reads references has it
            for content in prepared:
                self._parts.voice_vectors.check_length(content.shape[1])

    def _read(
        self, reference: Reference, needs: ReferenceNeeds
    ) -> NDArray[np.int64] | NDArray[np.float32]:
        """The codes [F, N] or the samples [C, S] of a reference."""
        codes = load_reference_codes(reference)
        if codes is not None and needs.voice:
            raise InvalidRequestError(
                "this model hears a voice in its recording; give that, not codes", param="reference"
            )
        if codes is not None:
            return codes
        if needs.codes and self._parts.references is None:
            instead = "leave its words out" if needs.voice else "give codes"
            raise InvalidRequestError(
                f"reference audio needs a codec; load one, or {instead}", param="reference"
            )
        return prepare_reference(
            reference,
            sample_rate=self._info.sample_rate,
            channels=self._info.channels,
            limits=self._config.reference,
            level=self._info.voice_traits.levels_references,
        )

    def _schedule(self, job: Job) -> None:
        """Build the prompt and queue the request. Raises InvalidRequestError, CapacityError."""
        job.prompt = self._parts.prompt.build(job.request, job.reference_codes, job.voice_vectors)
        max_frames = self._frame_limit(job, len(job.prompt.rows))
        job.silence = SilenceDetector.of(
            self._config.runaway, job.request.text, self._info.frame_seconds
        )
        job.scheduled = self._scheduler.add(
            job.id,
            job.prompt.rows,
            max_frames=max_frames,
            now=job.added_at,
            priority=job.priority,
            streaming=job.streaming,
            codec_ready=len(job.prompt.prefix_codes) == 0,
            # The rows do not show the voice vector, on which their K/V depends.
            prefix_salt=job.prompt.voice.tobytes(),
        )

    def _frame_limit(self, job: Job, prompt_rows: int) -> int:
        """The maximum frames of the request; also sets the reason to report when it is reached."""
        room = self._info.context_rows - prompt_rows
        if room < 1:
            raise InvalidRequestError(
                f"text and references take {prompt_rows} rows of a context of "
                f"{self._info.context_rows}; shorten them",
                param="text",
            )
        wanted = job.request.max_frames
        if wanted is not None and wanted > room:
            raise InvalidRequestError(
                Template(
                    "{param} is {asked}, but after {prompt_rows} prompt rows only {room} fit the "
                    "context",
                    asked=wanted,
                    prompt_rows=prompt_rows,
                    room=room,
                ),
                param="max_frames",
            )
        default = min(self._config.max_frames, job.sampling.max_frames or self._config.max_frames)
        limit = min(room, default if wanted is None else wanted)
        min_frames = job.request.min_frames
        budget = frame_budget(
            self._config.runaway,
            job.request.text,
            self._info.frame_seconds,
            wanted_frames=max(job.request.tokens or 0, min_frames),
        )
        if budget is not None and budget < limit:
            job.limit_reason = "runaway"
            limit = budget
        if min_frames > limit:
            raise InvalidRequestError(
                Template(
                    "{param} is {asked}, but this request ends at {limit} frames at the latest; "
                    "lower it",
                    asked=min_frames,
                    limit=limit,
                ),
                param="min_frames",
            )
        return limit
