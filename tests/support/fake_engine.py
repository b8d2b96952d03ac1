"""The one fake engine, for tests and benchmarks of what lies around an engine: it speaks tones and
computes nothing.

FakeEngine    driven step by step, as `hocket.engine.engine.Engine` is
FakePool      the same behind the calls of `hocket.worker.pool.EnginePool`, on a running event loop
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.audio.io import to_int16
from hocket.audio.reference import load_encoded, prepare_reference
from hocket.audio.reference_cache import ReferenceCache
from hocket.config import ReferenceCacheConfig, ReferenceLimits
from hocket.core import (
    AudioChunk,
    EncodedReference,
    EngineInfo,
    FinishReason,
    PreparedReference,
    RequestEnd,
    SampleFormat,
    Samples,
    SpeechRequest,
    TextNormalizer,
    Timings,
)
from hocket.engine.scheduling.request import SchedulerStats
from hocket.engine.stats import EngineStats, Meter
from hocket.errors import CapacityError, EngineStoppedError, HocketError
from hocket.worker.client import State
from hocket.worker.messages import Stats
from hocket.worker.pool import WorkerStatus
from hocket.worker.references import ReferencePreparer
from hocket.worker.stream import SpeechStream

RATE = 24_000
FRAME_SAMPLES = 1920
#: Prompt length that every request reports.
PROMPT_ROWS = 107

_INFO = EngineInfo(
    model=None,
    sample_rate=RATE,
    channels=1,
    frame_seconds=FRAME_SAMPLES / RATE,
    rows=4,
    max_waiting=1000,
    context_rows=1024,
    codec_id="fake",
    reference_id="fake preparation",
    reference_min_seconds=0.5,
    reference_max_seconds=60.0,
    reference_min_rms=1e-4,
    reference_max_file_bytes=2**20,
)


def fake_info(**changes: Any) -> EngineInfo:
    """A small mono engine, but for `changes`."""
    return replace(_INFO, **changes)


def tone(info: EngineInfo, request: SpeechRequest, first: int, count: int) -> NDArray[np.float32]:
    """Frames of a sine whose pitch follows the seed, [C, S]."""
    frame_samples = round(info.frame_seconds * info.sample_rate)
    time_S = np.arange(first * frame_samples, (first + count) * frame_samples) / info.sample_rate
    pitch = 200 + (request.seed or 0) % 400
    return np.tile(
        (0.4 * np.sin(2 * math.pi * pitch * time_S)).astype(np.float32), (info.channels, 1)
    )


def silence(info: EngineInfo, request: SpeechRequest, first: int, count: int) -> Samples:
    """Frames of zeros, [C, S]."""
    return np.zeros(
        (info.channels, count * round(info.frame_seconds * info.sample_rate)), info.samples
    )


def characters(request: SpeechRequest) -> int:
    """A frame per character, up to `max_frames`."""
    return (
        len(request.text)
        if request.max_frames is None
        else min(len(request.text), request.max_frames)
    )


OnEncoded = Callable[[EncodedReference | HocketError], None]


@dataclass(slots=True)
class Speaking:
    """An open request and how far it has come."""

    request: SpeechRequest
    frames: int
    chunks_made: int = 0
    frames_made: int = 0
    is_running: bool = False


@dataclass(eq=False)
class FakeSpeaker:
    """Requests, and their chunks as they become due: what both fakes share."""

    rows: int = 4
    channels: int = 1
    sample_rate: int = RATE
    frame_samples: int = FRAME_SAMPLES
    samples: SampleFormat = "float32"
    max_waiting: int = 1000
    text_front: TextNormalizer | None = None
    segment_characters: int | None = None
    #: How long a chunk waits for each frame of the one before it, and the first for its prompt; the
    #: end waits for none.
    frame_seconds: float = 0.0
    prefill_seconds: float = 0.0
    #: Frames of each chunk; the last size repeats.
    chunk_frames: Sequence[int] = (1,)
    #: How long a request speaks, in frames, and its sound: `tone` says with which arguments.
    length: Callable[[SpeechRequest], int] = characters
    sound: Callable[[EngineInfo, SpeechRequest, int, int], Samples] = tone
    #: Raised for every new request.
    error: HocketError | None = None
    #: Ends requests with an error after so many chunks.
    error_after: int | None = None
    #: The part of `EncodedReference` beside codes.
    voice_size: int | None = None
    silent: bool = False
    reason: FinishReason = "stop"
    late_seconds: float = 0.0

    requests: list[SpeechRequest] = field(default_factory=list)
    #: Recordings that were read, in order.
    recordings: list[PreparedReference] = field(default_factory=list)
    #: By id, in order of arrival.
    speaking: dict[str, Speaking] = field(default_factory=dict)
    running: int = 0
    most_running: int = 0
    finished: int = 0
    cancelled: int = 0
    _cancelling: list[str] = field(default_factory=list)
    #: A heap of when a request's next chunk is due, and its id.
    _due: list[tuple[float, str]] = field(default_factory=list)

    @cached_property
    def described(self) -> EngineInfo:
        return fake_info(
            sample_rate=self.sample_rate,
            channels=self.channels,
            frame_seconds=self.frame_samples / self.sample_rate,
            rows=self.rows,
            max_waiting=self.max_waiting,
            text_front=self.text_front,
            segment_characters=self.segment_characters,
            samples=self.samples,
        )

    @property
    def open_requests(self) -> int:
        """Requests that hold or await a row."""
        return len(self.speaking)

    @property
    def idle(self) -> bool:
        return not (self.speaking or self._cancelling)

    def tone(self, request: SpeechRequest) -> NDArray[np.float32]:
        """All that `request` sounds like by default, [C, S]."""
        return tone(self.described, request, 0, self.length(request))

    def add(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> str:
        if self.error is not None:
            raise type(self.error)(self.error.message, param=self.error.param)
        if len(self.speaking) >= self.rows + self.max_waiting:
            raise CapacityError("the fake engine is full; try again later")
        for reference in request.references:
            recording = load_encoded(reference)
            if not isinstance(recording, EncodedReference):
                limits = ReferenceLimits.of(self.described)
                prepare_reference(
                    recording, sample_rate=self.sample_rate, channels=self.channels, limits=limits
                )
        frames = self.length(request)
        self.requests.append(request)
        name = request_id or f"{len(self.requests)}"
        self.speaking[name] = Speaking(request, 0 if self.silent else frames)
        return name

    def encoded(self, recording: PreparedReference) -> EncodedReference:
        """Codes that follow the samples, and a vector where the model reads one."""
        if self.error is not None:
            raise type(self.error)(self.error.message, param=self.error.param)
        self.recordings.append(recording)
        frames = max(1, recording.samples.shape[1] // self.frame_samples)
        first = int(abs(float(recording.samples.sum())) * 1000)
        codes_FN = (first + np.arange(frames * 4).reshape(frames, 4)) % 16
        size = self.voice_size
        return EncodedReference(codes_FN, None if size is None else np.full(size, 0.5, np.float32))

    def cancel(self, request_id: str) -> None:
        if request_id in self.speaking and request_id not in self._cancelling:
            self.cancelled += 1
            self._cancelling.append(request_id)

    def due_chunks(self) -> list[AudioChunk]:
        """The next chunk of every request whose chunk is due."""
        now, chunks = time.monotonic(), []
        cancelling, self._cancelling = self._cancelling, []
        chunks += [self._end(name, "cancelled") for name in cancelling]
        for name, speaking in self.speaking.items() if self.running < self.rows else ():
            if not speaking.is_running:
                speaking.is_running = True
                self.running += 1
                heapq.heappush(self._due, (now + self.prefill_seconds, name))
                if self.running == self.rows:
                    break
        self.most_running = max(self.most_running, self.running)
        due = []
        while self._due and self._due[0][0] <= now:
            due.append(heapq.heappop(self._due)[1])
        return chunks + [self._next(name, now) for name in due if name in self.speaking]

    def due_seconds(self) -> float:
        """How long until `due_chunks` has something."""
        return max(0.0, self._due[0][0] - time.monotonic()) if self._due else 0.0

    def _next(self, name: str, now: float) -> AudioChunk:
        speaking, info = self.speaking[name], self.described
        if speaking.chunks_made == self.error_after:
            error = EngineStoppedError("the engine has gone away; send the request again")
            return self._end(name, "error", error)
        if speaking.frames_made >= speaking.frames:
            self.finished += 1
            limit = speaking.request.max_frames
            is_cut = limit is not None and limit < len(speaking.request.text)
            return self._end(name, "length" if is_cut else self.reason)
        count = self.chunk_frames[min(speaking.chunks_made, len(self.chunk_frames) - 1)]
        count = min(count, speaking.frames - speaking.frames_made)
        samples_CS = self.sound(info, speaking.request, speaking.frames_made, count)
        speaking.chunks_made += 1
        speaking.frames_made += count
        is_last = speaking.frames_made == speaking.frames
        heapq.heappush(self._due, (now + (0.0 if is_last else count * self.frame_seconds), name))
        made_CS = to_int16(samples_CS) if self.samples == "int16" else samples_CS
        return AudioChunk(name, made_CS, self.sample_rate, np.zeros((count, 4), np.int64))

    def _end(self, name: str, reason: FinishReason, error: HocketError | None = None) -> AudioChunk:
        self.running -= self.speaking.pop(name).is_running
        empty_CS, none_FN = np.zeros((self.channels, 0), self.samples), np.zeros((0, 4), np.int64)
        timings = Timings(late_seconds=self.late_seconds)
        end = RequestEnd(reason, 0, timings, error, prompt_rows=PROMPT_ROWS)
        return AudioChunk(name, empty_CS, self.sample_rate, none_FN, end)


@dataclass(eq=False)
class FakeEngine(FakeSpeaker):
    """A step makes the next chunk of every running request."""

    #: Called before every step.
    before_step: Callable[[], None] = lambda: None
    #: How long a request takes to be opened.
    add_seconds: float = 0.0
    steps: int = 0
    #: Recordings to be read by the next step, by id.
    reading: dict[str, tuple[PreparedReference, OnEncoded]] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return super().idle and not self.reading

    def prepare(self, recording: PreparedReference, done: OnEncoded, *, request_id: str) -> None:
        self.reading[request_id] = (recording, done)

    def cancel(self, request_id: str) -> None:
        self.reading.pop(request_id, None)
        super().cancel(request_id)

    @property
    def info(self) -> EngineInfo:
        return self.described

    def add(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> str:
        time.sleep(self.add_seconds)
        return super().add(request, request_id=request_id, priority=priority, streaming=streaming)

    def step(self) -> list[AudioChunk]:
        self.before_step()
        self.steps += 1
        reading, self.reading = self.reading, {}
        for recording, done in reading.values():
            try:
                done(self.encoded(recording))
            except HocketError as error:
                done(error)
        return self.due_chunks()

    def stats(self) -> EngineStats:
        return _stats(self, self.steps)


@dataclass(eq=False)
class FakePool(FakeSpeaker):
    """One worker that is as ready as `state` says."""

    buffer_bytes: int = 2**20
    state: State = "ready"
    _streams: dict[str, SpeechStream] = field(default_factory=dict)
    _timer: asyncio.Handle | None = None

    @property
    def info(self) -> EngineInfo:
        if self.state in ("starting", "down"):
            raise EngineStoppedError(f"the engine is {self.state}; try again later")
        return self.described

    @property
    def load(self) -> int:
        return self.open_requests

    @property
    def workers(self) -> list[WorkerStatus]:
        return [WorkerStatus(self.state, self.rows, self.open_requests)]

    async def submit(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> SpeechStream:
        if self.state != "ready":
            raise EngineStoppedError(f"the engine is {self.state}; try again later")
        name = self.add(request, request_id=request_id, priority=priority, streaming=streaming)
        self._streams[name] = SpeechStream(name, self.buffer_bytes, self._cancel)
        self._soon(0.0)
        return self._streams[name]

    async def stats(self) -> list[Stats | None]:
        if self.state in ("starting", "down"):
            return [None]
        return [Stats(_stats(self, 0), 1, self.open_requests)]

    @property
    def reference_counts(self) -> tuple[int, int]:
        return 0, len(self.recordings)

    async def read(self, content: bytes) -> PreparedReference:
        references = ReferencePreparer(ReferenceCache(ReferenceCacheConfig()))
        return await references.read(content, self.info)

    async def prepare(self, recording: PreparedReference) -> EncodedReference:
        return self.encoded(recording)

    async def encode(
        self, samples_CS: NDArray[np.float32], n_codebooks: int | None = None
    ) -> NDArray[np.int64]:
        if self.error is not None:
            raise self.error
        frames = -(-samples_CS.shape[1] // self.frame_samples)
        return np.arange(frames * (n_codebooks or 4)).reshape(frames, -1) % 16

    async def decode(self, codes_FN: NDArray[np.int64]) -> NDArray[np.float32]:
        level = np.repeat(codes_FN.mean(axis=1) / 32, self.frame_samples).astype(np.float32)
        return np.tile(level, (self.channels, 1))

    def cancel_all(self) -> None:
        for stream in list(self._streams.values()):
            stream.cancel()

    def _cancel(self, stream: SpeechStream) -> None:
        self.cancel(stream.request_id)
        self._soon(0.0)

    def _soon(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._deliver)

    def _deliver(self) -> None:
        """Hand over all that is due by now."""
        while chunks := self.due_chunks():
            for chunk in chunks:
                stream = (
                    self._streams[chunk.request_id]
                    if chunk.end is None
                    else self._streams.pop(chunk.request_id)
                )
                stream.put(chunk)
        if not self.idle:
            self._soon(self.due_seconds())


def _stats(speaker: FakeSpeaker, steps: int) -> EngineStats:
    counts = dict.fromkeys(SchedulerStats.__dataclass_fields__, 0) | {"running": speaker.running}
    return EngineStats.of(
        Meter(steps=steps),
        SchedulerStats(**counts),
        preparing=0,
        reference_hits=0,
        reference_misses=0,
    )
