"""Takes requests in: reads references, builds the prompt, sets the frame limit and queues at the
scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket.audio.reference import (
    RecordingForm,
    load_encoded,
    name_of,
    prepare_reference,
    read_content,
)
from hocket.audio.reference_cache import Key, ReferenceCache, content_key
from hocket.checkpoint.voices import with_reference_of_voice
from hocket.core import (
    AudioArray,
    EncodedReference,
    PreparedReference,
    Recording,
    Reference,
    ReferenceNeeds,
    SpeechRequest,
)
from hocket.engine.build import EngineParts
from hocket.engine.job import Job
from hocket.engine.scheduling.runaway import SilenceDetector, frame_budget
from hocket.engine.scheduling.scheduler import Scheduler
from hocket.errors import (
    CapacityError,
    HocketError,
    InvalidRequestError,
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


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A recording that is not in the cache."""

    key: Key
    #: float32 [C, S], ready to be encoded; None while it is encoded for another request.
    samples: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class _Preparation:
    """A recording that a front end wants to be read."""

    #: The encoder's.
    key: Key
    done: Callable[[EncodedReference | HocketError], None]


class Intake:
    """Holds the requests that wait for their references. The encoder has work only while there are
    some.
    """

    def __init__(self, parts: EngineParts, scheduler: Scheduler) -> None:
        self._parts = parts
        self._config, self._info = parts.config, parts.info
        self._scheduler = scheduler
        self._form = RecordingForm.of(parts.info)
        self._cache = ReferenceCache(parts.config.reference_cache)
        #: The encoder's keys of recordings that are being encoded, by the cache's.
        self._making: dict[Key, Key] = {}
        #: In order of arrival.
        self._preparing: list[Job] = []
        self._preparations: dict[str, _Preparation] = {}
        #: Recordings that were in the cache, or on their way to it; and those that were not.
        self.hits = 0
        self.misses = 0

    @property
    def preparing(self) -> int:
        """Requests that wait for their references, and recordings that front ends wait for."""
        return len(self._preparing) + len(self._preparations)

    @property
    def reads_for_others(self) -> bool:
        """There are recordings that front ends wait for."""
        return bool(self._preparations)

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
        return self.preparing + self._scheduler.waiting >= self._config.max_waiting

    def open(self, job: Job) -> None:
        """Queue a request at the scheduler, at once or when its references are encoded.

        Raises InvalidRequestError, ReferenceAudioError, and CapacityError when the queue is full.
        """
        self._check_room()
        check_fields(job.request, self._parts.prompt.takes)
        self._take_references(job, self._parts.prompt.needs(job.request))
        if job.missing_references:
            self._preparing.append(job)
        else:
            self._schedule(job)

    def prepare(
        self,
        name: str,
        recording: PreparedReference,
        done: Callable[[EncodedReference | HocketError], None],
    ) -> None:
        """Read from `recording` all that the model can read; a later `step` calls `done`.

        Raises InvalidRequestError, ReferenceAudioError, and CapacityError when the queue is full.
        """
        self._check_room()
        references = self._parts.references
        if references is None:
            raise self._no_codec(ReferenceNeeds(codes=True, voice=False))
        key = references.submit(
            self._samples(recording, None),
            codes=references.makes_codes,
            voice=references.makes_voices,
        )
        self._preparations[name] = _Preparation(key, done)

    def forget(self, name: str) -> None:
        """Drop a preparation, whose `done` is not called."""
        self._preparations.pop(name, None)

    def fail_preparations(self, error: HocketError) -> None:
        """End all preparations with `error`."""
        preparations, self._preparations = self._preparations, {}
        for preparation in preparations.values():
            preparation.done(error)

    def step(self) -> list[Job]:
        """Encode the next part of the references and queue the requests whose references are
        complete.

        Returns the requests that end here instead: cancelled ones, and those with an `error`.
        """
        made = self._encode()
        over, waiting = [], []
        for job in self._preparing:
            job.take_references(made)
            if job.cancelled or job.error is not None:
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

    def _encode(self) -> dict[Key, EncodedReference | HocketError]:
        """Do the next part of the encoding; what was completed, by the cache's keys."""
        if self._parts.references is None:
            return {}
        wanted = {
            key for job in self._preparing if not job.cancelled for key in job.missing_references
        }
        self._making = {key: work for key, work in self._making.items() if key in wanted}
        prepared = {preparation.key for preparation in self._preparations.values()}
        done = self._parts.references.step({*self._making.values(), *prepared})
        for name, preparation in list(self._preparations.items()):
            if preparation.key in done:
                del self._preparations[name]
                preparation.done(done[preparation.key])
        made = {key: done[work] for key, work in self._making.items() if work in done}
        for key, result in made.items():
            del self._making[key]
            if isinstance(result, EncodedReference):
                self._cache.remember(key, result)
                self._cache.store(key, result)
        return made

    def _take_references(self, job: Job, needs: ReferenceNeeds) -> None:
        """Set what is known of the job's references, and the keys of those that are still being
        encoded.
        """
        # All are checked before the first is submitted, so that a refused request leaves nothing at
        # the encoder.
        taken = [self._take(reference, needs) for reference in job.request.references]
        self._check_lengths(taken, needs)
        for one in taken:
            if isinstance(one, EncodedReference):
                job.references.append(one)
                continue
            job.references.append(one.key)
            if one.key in self._making:  # for another request, or for this one
                self.hits += 1
                continue
            assert self._parts.references is not None
            assert one.samples is not None
            self.misses += 1
            self._making[one.key] = self._parts.references.submit(
                one.samples, codes=needs.codes, voice=needs.voice
            )

    def _check_lengths(
        self, taken: Sequence[EncodedReference | _Prepared], needs: ReferenceNeeds
    ) -> None:
        """Refuse, before anything is encoded, recordings that are too short, and those that cannot
        fit a prompt.
        """
        info, total = self._info, 0
        for one in taken:
            if isinstance(one, EncodedReference):
                total += 0 if one.codes is None else len(one.codes)
            elif one.samples is not None:
                assert self._parts.references is not None
                self._parts.references.check(one.samples, codes=needs.codes, voice=needs.voice)
                total += int(one.samples.shape[1] / info.sample_rate / info.frame_seconds + 1e-6)
        if needs.codes and total >= info.context_rows:
            raise InvalidRequestError(
                f"the references have {total} frames, and a context holds {info.context_rows} "
                "rows; give fewer or shorter ones",
                param="reference",
            )

    def _take(self, reference: Reference, needs: ReferenceNeeds) -> EncodedReference | _Prepared:
        """What is known of a reference, or its samples."""
        one = load_encoded(reference)
        if isinstance(one, EncodedReference):
            self._check_encoded(one, needs)
            return one
        if needs.codes and self._info.codec_id == "":
            raise self._no_codec(needs)
        return self._take_recording(one, needs)

    def _check_encoded(self, encoded: EncodedReference, needs: ReferenceNeeds) -> None:
        """Raise InvalidRequestError where the part that the request needs was not read."""
        if needs.voice and encoded.voice is None:
            raise InvalidRequestError(
                "this model hears a voice in its recording; give that, not codes", param="reference"
            )
        if needs.codes and encoded.codes is None:
            raise self._no_codec(needs)

    def _no_codec(self, needs: ReferenceNeeds) -> InvalidRequestError:
        instead = "leave its words out" if needs.voice else "give codes"
        return InvalidRequestError(
            f"reference audio needs a codec; load one, or {instead}", param="reference"
        )

    def _take_recording(
        self, recording: Recording, needs: ReferenceNeeds
    ) -> EncodedReference | _Prepared:
        references = self._parts.references
        assert references is not None  # a family that needs no codes needs vectors, and has them
        content = read_content(recording, self._form.limits)
        preparation = self._info.reference_id
        if (needs.codes, needs.voice) != (references.makes_codes, references.makes_voices):
            preparation += f" codes={needs.codes} voice={needs.voice}"
        key = content_key(preparation, content)
        if key in self._making:
            return _Prepared(key, None)
        found = self._cache.recall(key)
        if found is None:
            found = self._cache.load(key)
            if found is not None:
                self._cache.remember(key, found)
        if found is not None:
            self.hits += 1
            return found
        return _Prepared(key, self._samples(content, name_of(recording)))

    def _samples(
        self, content: bytes | AudioArray | PreparedReference, name: str | None
    ) -> NDArray[np.float32]:
        form = self._form
        return prepare_reference(
            content,
            sample_rate=form.sample_rate,
            channels=form.channels,
            limits=form.limits,
            level=form.level,
            name=name,
        )

    def _check_room(self) -> None:
        if self.is_full:
            raise CapacityError(
                f"{self._config.max_waiting} requests are waiting already; try again later"
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
