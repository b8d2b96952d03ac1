"""An engine in process for tests of the server, and a server on loopback around any app."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray

from hocket.audio.io import to_int16
from hocket.audio.reference import load_reference_codes, prepare_reference
from hocket.checkpoint.voices import ONLY_DEFAULT
from hocket.config import ReferenceLimits
from hocket.core import (
    AudioChunk,
    EngineInfo,
    FinishReason,
    RequestEnd,
    SampleFormat,
    SpeechRequest,
    TextFront,
    Timings,
)
from hocket.engine.scheduling.request import SchedulerStats
from hocket.engine.stats import EngineStats, Meter
from hocket.errors import CapacityError, EngineStoppedError, HocketError
from hocket.server.serve import uvicorn_server
from hocket.server.voice_store import VoiceStore
from hocket.worker.client import State
from hocket.worker.messages import Stats
from hocket.worker.pool import WorkerStatus
from hocket.worker.stream import SpeechStream
from tests.support.fake_engine import fake_info

RATE = 24_000
FRAME_SAMPLES = 1920
#: Of every request's prompt.
PROMPT_ROWS = 107


@dataclass
class FakeEngine:
    """Speaks tones: as many frames as the text has characters, `frame_seconds` each, `rows` requests at a time."""

    rows: int = 4
    channels: int = 1
    samples: SampleFormat = "float32"
    #: How long a frame takes to make.
    frame_seconds: float = 0.0
    #: How long the first one takes longer.
    prefill_seconds: float = 0.0
    max_waiting: int = 1000
    buffer_bytes: int = 2**20
    state: State = "ready"
    #: What the next requests come to, if not to speech.
    error: HocketError | None = None
    silent: bool = False
    #: Ends the speech with an error after so many frames.
    error_after: int | None = None
    reason: FinishReason = "stop"
    late_seconds: float = 0.0
    text_front: TextFront | None = None
    segment_characters: int | None = None

    requests: list[SpeechRequest] = field(default_factory=list)
    finished: int = 0
    cancelled: int = 0
    running: int = 0
    most_running: int = 0
    _open: dict[SpeechStream, asyncio.Task[None]] = field(default_factory=dict)
    _turns: asyncio.Semaphore | None = None

    @property
    def info(self) -> EngineInfo:
        if self.state in ("starting", "down"):
            raise EngineStoppedError(f"the engine is {self.state}; try again later")
        return fake_info(
            channels=self.channels,
            rows=self.rows,
            max_waiting=self.max_waiting,
            text_front=self.text_front,
            segment_characters=self.segment_characters,
            samples=self.samples,
        )

    @property
    def workers(self) -> list[WorkerStatus]:
        return [WorkerStatus(self.state, self.rows, self.open)]

    @property
    def open(self) -> int:
        """Requests that hold or await a row."""
        return len(self._open)

    async def submit(
        self, request: SpeechRequest, *, request_id: str | None = None, priority: int = 0, streaming: bool = True
    ) -> SpeechStream:
        if self.state != "ready":
            raise EngineStoppedError(f"the engine is {self.state}; try again later")
        if self.error is not None:
            raise type(self.error)(self.error.message, param=self.error.param)
        if len(self._open) >= self.rows + self.max_waiting:
            raise CapacityError("the fake engine is full; try again later")
        for reference in request.references:
            if load_reference_codes(reference) is None:
                limits = ReferenceLimits.of(self.info)
                prepare_reference(reference, sample_rate=RATE, channels=self.channels, limits=limits)
        self.requests.append(request)
        stream = SpeechStream(request_id or f"{len(self.requests)}", self.buffer_bytes, self._cancel)
        self._open[stream] = asyncio.create_task(self._speak(stream, request))
        return stream

    async def stats(self) -> list[Stats | None]:
        if self.state in ("starting", "down"):
            return [None]
        scheduler = SchedulerStats(**dict.fromkeys(SchedulerStats.__dataclass_fields__, 0) | {"running": self.running})
        engine = EngineStats.of(Meter(), scheduler, preparing=0, reference_hits=0, reference_misses=0)
        return [Stats(engine, 1, len(self._open))]

    async def encode(self, samples_CS: NDArray[np.float32], n_codebooks: int | None = None) -> NDArray[np.int64]:
        if self.error is not None:
            raise self.error
        frames = -(-samples_CS.shape[1] // FRAME_SAMPLES)
        return np.arange(frames * (n_codebooks or 4)).reshape(frames, -1) % 16

    async def decode(self, codes_FN: NDArray[np.int64]) -> NDArray[np.float32]:
        level = np.repeat(codes_FN.mean(axis=1) / 32, FRAME_SAMPLES).astype(np.float32)
        return np.tile(level, (self.channels, 1))

    def tone(self, request: SpeechRequest) -> NDArray[np.float32]:
        """What `request` sounds like, float32 [C, S]."""
        frames = len(request.text) if request.max_frames is None else min(len(request.text), request.max_frames)
        time_S = np.arange(frames * FRAME_SAMPLES) / RATE
        pitch = 200 + (request.seed or 0) % 400
        return np.tile((0.4 * np.sin(2 * math.pi * pitch * time_S)).astype(np.float32), (self.channels, 1))

    def _cancel(self, stream: SpeechStream) -> None:
        if stream in self._open:
            self.cancelled += 1
            self._open.pop(stream).cancel()
            stream.put(self._end(stream, "cancelled"))

    async def _speak(self, stream: SpeechStream, request: SpeechRequest) -> None:
        self._turns = self._turns or asyncio.Semaphore(self.rows)
        async with self._turns:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await asyncio.sleep(self.prefill_seconds)
                samples_CS = self.tone(request)
                count = 0 if self.silent else samples_CS.shape[1] // FRAME_SAMPLES
                for i in range(count):
                    if self.frame_seconds:
                        await asyncio.sleep(self.frame_seconds)
                    if self.error_after == i:
                        stream.fail(EngineStoppedError("the engine has gone away; send the request again"))
                        return
                    piece = samples_CS[:, i * FRAME_SAMPLES : (i + 1) * FRAME_SAMPLES]
                    made = to_int16(piece) if self.samples == "int16" else piece
                    stream.put(AudioChunk(stream.request_id, made, RATE, np.zeros((1, 4), np.int64)))
                full = request.max_frames is not None and request.max_frames < len(request.text)
                stream.put(self._end(stream, "length" if full else self.reason))
                self.finished += 1
            finally:
                self.running -= 1
                self._open.pop(stream, None)

    def _end(self, stream: SpeechStream, reason: FinishReason) -> AudioChunk:
        empty, none = np.zeros((self.channels, 0), self.samples), np.zeros((0, 4), np.int64)
        end = RequestEnd(reason, 0, Timings(late_seconds=self.late_seconds), prompt_rows=PROMPT_ROWS)
        return AudioChunk(stream.request_id, empty, RATE, none, end)


@contextmanager
def on_loopback(app: FastAPI) -> Iterator[str]:
    """Serve `app` as `hocket serve` does, in a thread; its address."""
    server = uvicorn_server(app, app.state.services.settings)
    server.config.port = 0
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        port = cast(int, server.servers[0].sockets[0].getsockname()[1])
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


def wait_until(condition: object, seconds: float = 10.0) -> None:
    """Poll a condition that another thread makes true."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


def new_store(folder: Path) -> VoiceStore:
    """A store of voices in `folder`, as `hocket serve` makes it."""
    return VoiceStore(folder / "voices", ONLY_DEFAULT)
