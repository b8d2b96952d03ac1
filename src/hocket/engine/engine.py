"""The engine: many requests in one process, one row each, driven by one synchronous `step()`.

    engine = Engine.load()
    speech = engine.generate(SpeechRequest(text="Hello."))

`generate`, `generate_many` and `stream` drive `step()` themselves; a server calls `add`, `step` and
`cancel`.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import FrameType

import numpy as np
from numpy.typing import NDArray

from hocket.checkpoint.voices import Voices
from hocket.config import EngineConfig
from hocket.core import (
    AudioChunk,
    EncodedReference,
    FinishReason,
    PreparedReference,
    RequestEnd,
    Samples,
    Speech,
    SpeechRequest,
    drawn_seed,
)
from hocket.engine import driver
from hocket.engine.build import EngineParts, load_parts, new_scheduler
from hocket.engine.intake import Intake
from hocket.engine.job import Job
from hocket.engine.pipeline import CodecPipeline, TalkerPipeline
from hocket.engine.runners.codec import DecodedChunk
from hocket.engine.scheduling.request import DecodeItem
from hocket.engine.stats import EngineStats, Meter
from hocket.errors import EngineStoppedError, HocketError, InvalidRequestError, not_finite

#: Interval at which a waiting step polls the device.
_POLL_SECONDS = 50e-6
#: Polls before a waiting step looks for chunks that have become due: 1 to 2 ms, against margins of
#: 40 ms and more.
_POLLS = 20


class Engine:
    """One model on one device. `Engine.load` makes one; calls from several threads are serialised.

    A failure inside a step stops the engine for good: every open request ends with an
    `EngineStoppedError`.
    """

    def __init__(self, parts: EngineParts, *, clock: Callable[[], float] = perf_counter) -> None:
        self.config = parts.config
        #: The parts that the engine drives, for reading.
        self.parts = parts
        self._clock = clock
        self.info = parts.info
        self._meter = Meter()
        self._scheduler = new_scheduler(parts)
        self._intake = Intake(parts, self._scheduler)
        self._talker = TalkerPipeline(parts, self._scheduler, self._meter, clock)
        self._codec = None
        if parts.codec is not None:
            self._codec = CodecPipeline(
                parts.codec, self._scheduler, self._meter, clock, self._talker.codes
            )
        #: Open requests by id.
        self._jobs: dict[str, Job] = {}
        #: Requests that the next step cancels.
        self._cancelling: list[Job] = []
        #: Chunks that the next `step` returns.
        self._ready: list[AudioChunk] = []
        self._names = map("request-{}".format, itertools.count(1))
        self._is_stepping = False
        #: Guards all engine state.
        self._lock = threading.RLock()
        #: Set when the engine has stopped.
        self._failure: EngineStoppedError | None = None

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        codec: str | Path | None = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        rows: int | None = None,
        strict: bool | None = None,
        config: EngineConfig | None = None,
    ) -> Engine:
        """Load a checkpoint folder or hub id; without `model`, the built-in one.

        `codec` is a folder, a hub id, `None` for the codec that the model names, or "none" to make
        codes only. `rows` and `strict` override `config`. Raises ConfigError, CheckpointError.
        """
        overrides = {
            name: value for name, value in (("rows", rows), ("strict", strict)) if value is not None
        }
        config = EngineConfig.model_validate((config or EngineConfig()).model_dump() | overrides)
        return cls(load_parts(model, codec, device=device, dtype=dtype, config=config))

    @property
    def sample_rate(self) -> int:
        """Output sample rate in Hz."""
        return self.info.sample_rate

    @property
    def channels(self) -> int:
        """Output channels."""
        return self.info.channels

    @property
    def frame_seconds(self) -> float:
        """Length of one frame."""
        return self.info.frame_seconds

    @property
    def voices(self) -> Voices:
        """The checkpoint's own voices by name: the values of `SpeechRequest.voice`."""
        return self.parts.voices

    @property
    def context_rows(self) -> int:
        """Longest prompt and speech together, in K/V rows."""
        return self.info.context_rows

    # ---- requests in one call

    def generate(self, request: SpeechRequest) -> Speech:
        """Speak `request` to its end. Raises InvalidRequestError, ReferenceAudioError,
        EngineStoppedError.
        """
        return self.generate_many([request])[0]

    def generate_many(self, requests: Iterable[SpeechRequest]) -> list[Speech]:
        """Speak all `requests`, as many at a time as there are rows; results in the order given.

        Shows one progress bar on a terminal. Raises the first error, after ending the other
        requests.
        """
        return driver.generate_many(self, requests)

    def stream(self, request: SpeechRequest) -> Generator[AudioChunk, None, None]:
        """Yield audio as it is made, in chunks of `config.chunks`; the last chunk has the end and
        no samples.

        Raises the errors of `generate`, and CapacityError. Closing the iterator cancels the
        request. Other open requests advance meanwhile.
        """
        return driver.stream(self, request)

    # ---- requests step by step

    def add(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
        outbox: deque[AudioChunk] | None = None,
    ) -> str:
        """Queue a request and return its id; `step` returns its chunks, or appends them to `outbox`
        if one is given.

        With `streaming=False` the audio is wanted as a whole, so it is decoded in large chunks.
        Higher `priority` goes first. Raises InvalidRequestError, ReferenceAudioError, CapacityError
        when the queue is full, and EngineStoppedError. An error that is found later, such as a
        reference too long for the context, ends the request with reason `error`.
        """
        request = self._intake.resolve(request)
        added_at = self._clock()
        with self._lock:
            if request_id is None:
                request_id = next(name for name in self._names if name not in self._jobs)
            if request_id in self._jobs:
                raise InvalidRequestError(
                    f"a request {request_id!r} is open already; use another id", param="request_id"
                )
            job = Job(
                id=request_id,
                request=request,
                seed=drawn_seed() if request.seed is None else request.seed,
                sampling=self.parts.sampling.overridden_by(request.sampling),
                priority=priority,
                streaming=streaming,
                added_at=added_at,
                outbox=outbox,
            )
            if self._failure is not None:
                raise self._failure
            self._intake.open(job)
            self._jobs[job.id] = job
        return job.id

    def prepare(
        self,
        recording: PreparedReference,
        done: Callable[[EncodedReference | HocketError], None],
        *,
        request_id: str,
    ) -> None:
        """Read from `recording` all that the model can read from one, beside all speech.

        A later `step` calls `done`; requests with the result as their reference have nothing to
        wait for. Nothing is kept here. Raises InvalidRequestError, ReferenceAudioError,
        CapacityError when the queue is full, and EngineStoppedError.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            self._intake.prepare(request_id, recording, done)

    def cancel(self, request_id: str) -> None:
        """End a request in the next step; its last chunk says `cancelled`. No effect on a request
        that has ended. A recording that is cancelled is dropped without a word.
        """
        # The next step does it: the garbage collector may close an iterator in the middle of this
        # one.
        with self._lock:
            job = self._jobs.get(request_id)
            if job is not None:
                self._cancelling.append(job)
            self._intake.forget(request_id)

    @property
    def idle(self) -> bool:
        """No request is open, no recording and no chunk is waiting, so `step` would do nothing."""
        return not (self._jobs or self._ready or self._intake.reads_for_others)

    @property
    def has_room(self) -> bool:
        """The queue is not full and at most one request per row is waiting."""
        return len(self._jobs) < 2 * self.config.rows and not self._intake.is_full

    def step(self) -> list[AudioChunk]:
        """Advance every request and return the audio that became ready, in order for each request.

        A step drops what was cancelled. If the last frame has been read, it prepares references,
        admits requests, prefills, and launches a frame. Then it collects frames and chunks,
        launches the chunks that are due, delivers audio, and waits only until something has come
        back.
        """
        with self._lock:
            if self._failure is None:
                with self._guarded():
                    self._drop_cancelled()
                    if not self._talker.busy:
                        self._prepare_references()
                        self._admit()
                        self._talker.prefill_and_launch()
                    while True:
                        has_frames = self._talker.collect()
                        chunks = self._decode()
                        self._deliver(chunks)
                        if has_frames or chunks or not self._must_wait:
                            break
                        self._wait()
                    self._finish()
            ready, self._ready = self._ready, []
            return ready

    def advance(self) -> bool:
        """Do a `step` for a caller with an outbox; the next caller of `step` gets the chunks of
        other requests.

        Inside a step it does nothing and returns False.
        """
        with self._lock:
            if self._is_stepping:
                return False
            self._ready = self.step()
            return True

    def stats(self) -> EngineStats:
        """A snapshot of rows, pages, queues, batches and times."""
        return EngineStats.of(
            self._meter,
            self._scheduler.stats(),
            preparing=self._intake.preparing,
            reference_hits=self._intake.hits,
            reference_misses=self._intake.misses,
        )

    def check_integrity(self) -> None:
        """Raise HocketError unless rows, pages and requests agree."""
        self._scheduler.check_integrity()

    # ---- the phases of a step, in order

    def _drop_cancelled(self) -> None:
        if not self._cancelling:
            return
        dropped = {job.id for job in self._cancelling if job.end is None}
        self._ready = [chunk for chunk in self._ready if chunk.request_id not in dropped]
        for job in self._cancelling:
            if job.scheduled is not None:
                self._scheduler.finish(job.scheduled, "cancelled", self._clock())
            job.cancelled = True
        self._cancelling = []

    def _prepare_references(self) -> None:
        """Encode the next part of the references that requests wait for."""
        if not self._intake.preparing:
            return
        self._meter.host()
        over = self._intake.step()
        self._meter.reference_seconds += self._meter.lap()
        for job in over:
            self._end(job, "cancelled" if job.cancelled else "error")

    def _admit(self) -> None:
        """Give rows to requests from the queue."""
        for scheduled in self._scheduler.admit(self._clock()):
            job = self._jobs[scheduled.id]
            if job.row is not None:  # it was preempted: its row has kept everything but the K/V
                continue
            job.row = scheduled.row
            self._talker.start(job, scheduled.row)
            if self._codec is not None:
                self._codec.start(scheduled, job.prompt.prefix_codes)

    def _decode(self) -> list[tuple[DecodeItem, DecodedChunk]]:
        """Collect finished chunks and launch those that are due.

        Chunks must not wait for a frame, which takes as long as several of them. Launches come
        before deliveries, so that the device is busy meanwhile.
        """
        if self._codec is None:
            return []
        chunks = self._codec.collect()
        self._codec.launch()
        return chunks

    def _deliver(self, chunks: list[tuple[DecodeItem, DecodedChunk]]) -> None:
        """Emit the audio of `chunks` up to the end of each request."""
        for item, chunk in chunks:
            scheduled, frames, samples_CS = item.request, item.count, chunk.samples_CS
            if not scheduled.wants_audio or item.start >= scheduled.frames:
                continue
            job = self._jobs[scheduled.id]
            if not np.isfinite(chunk.power_F).all():
                job.error = not_finite()
                self._scheduler.finish(scheduled, "error", self._clock())
                continue
            silent = None if job.silence is None else job.silence.observe(chunk.power_F)
            if silent is not None:
                self._scheduler.cut(scheduled, item.start + silent, self._clock())
                samples_CS = samples_CS[:, : samples_CS.shape[1] // frames * silent]
                frames = silent
            self._emit(job, samples_CS, self._codes(job, item.start, frames))

    @property
    def _must_wait(self) -> bool:
        """The device must finish something before anything can be launched."""
        in_flight = self._talker.busy or (self._codec is not None and self._codec.busy)
        return in_flight and not self._talker.goes_on

    def _wait(self) -> None:
        """Poll until a launch completes or the poll budget is spent."""
        self._meter.host()
        for _ in range(_POLLS):
            time.sleep(_POLL_SECONDS)
            if self._talker.done or (self._codec is not None and self._codec.done):
                break
        self._meter.waited(for_frames=self._talker.busy)

    def _finish(self) -> None:
        """End the requests that hold nothing any more; check integrity when none is left."""
        for scheduled in self._scheduler.release_finished():
            assert scheduled.finish_reason is not None
            self._end(self._jobs[scheduled.id], scheduled.finish_reason)
        if not self._jobs:
            self.check_integrity()

    # ---- chunks and ends

    def _emit(
        self,
        job: Job,
        samples_CS: Samples,
        codes_FN: NDArray[np.int64],
        end: RequestEnd | None = None,
    ) -> None:
        chunk = AudioChunk(job.id, samples_CS, self.sample_rate, codes_FN, end)
        (self._ready if job.outbox is None else job.outbox).append(chunk)

    def _codes(self, job: Job, first: int, count: int) -> NDArray[np.int64]:
        """Frames of a request, int64 [count, N]; valid until its row is given to another
        request.
        """
        row = 0 if job.row is None else job.row  # without a row there are no frames
        return self._talker.codes(row, first, count).copy()

    def _end(self, job: Job, reason: FinishReason) -> None:
        """The only place where requests leave the engine."""
        del self._jobs[job.id]
        end = job.ended(reason, self._clock(), self.frame_seconds)
        scheduled, frames = job.scheduled, 0
        if self._codec is None and scheduled is not None and scheduled.wants_audio:
            frames = scheduled.frames  # without a codec, the last chunk delivers the codes
        self._emit(
            job, np.zeros((self.channels, 0), self.config.samples), self._codes(job, 0, frames), end
        )
        job.end = end

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Guard a step: Ctrl-C waits for its end, its time is metered, and a failure stops the
        engine.
        """
        with deferred_interrupt():
            self._is_stepping = True
            self._meter.begin()
            try:
                yield
            except BaseException as error:  # the state is undefined now: no request may wait for it
                self._stop(error)
                if not isinstance(error, Exception):
                    raise
            finally:
                self._is_stepping = False
                self._meter.host()

    def _stop(self, error: BaseException) -> None:
        """End every request: the engine's state cannot be trusted any more."""
        # The text of `error` may quote a user, so it stays in `__cause__`: no message and no log
        # shows it.
        self._failure = EngineStoppedError(
            f"the engine has stopped ({type(error).__name__}); load it again"
        )
        self._failure.__cause__ = error
        for job in list(self._jobs.values()):
            job.error = self._failure
            if job.scheduled is not None:
                job.scheduled.finish_reason = "error"
            self._end(job, "error")
        self._intake.fail_preparations(self._failure)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block; a second Ctrl-C takes effect at once.

    Does nothing in threads other than the main one, which get no signals, and where Ctrl-C is
    ignored or not handled in Python.
    """
    handler = (
        signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread()
        else None
    )
    if not callable(handler):
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append((number, frame))
        if len(waiting) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if len(waiting) == 1:
            handler(*waiting[0])
