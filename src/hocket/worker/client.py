"""Asyncio client of an engine that runs in a process of its own.

    async with await EngineClient.start(EngineSpec()) as client:
        await client.wait_ready()
        async with await client.submit(SpeechRequest(text="Hello.")) as stream:
            async for chunk in stream:
                ...

Several front ends may share a worker: one starts it, the others `connect` to its `endpoint`. Not
thread-safe: a client belongs to its event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import zmq
from numpy.typing import NDArray

from hocket.audio.io import to_float32
from hocket.audio.reference_cache import ReferenceCache
from hocket.config import ReferenceCacheConfig
from hocket.core import (
    AudioChunk,
    EncodedReference,
    EngineInfo,
    PreparedReference,
    Speech,
    SpeechRequest,
)
from hocket.errors import (
    CapacityError,
    EngineStoppedError,
    HocketError,
    InvalidRequestError,
)
from hocket.text.normalize import normalize_request
from hocket.worker.connection import Connection
from hocket.worker.messages import (
    HEARTBEAT_SECONDS,
    AskStats,
    Cancel,
    Chunk,
    Encoded,
    EngineSpec,
    FromWorker,
    Heartbeat,
    OutMessage,
    Planned,
    Ready,
    Rejected,
    Stats,
    Stopped,
    convert_message,
    prepare_message,
    read_chunk,
    read_encoded,
    submit_message,
)
from hocket.worker.references import ReferencePreparer
from hocket.worker.stream import SpeechStream
from hocket.worker.supervisor import Supervisor

_LOG = logging.getLogger("hocket.worker")

State = Literal["starting", "ready", "draining", "down"]

#: Audio that may wait for the reader of a stream: 64 MiB are 175 s of 48 kHz stereo.
BUFFER_BYTES = 64 * 2**20
#: A worker without a heartbeat for this long hangs. A healthy worker is silent for one engine step
#: at most.
HANG_SECONDS = 30.0
#: Delay between the loss of a worker and the first attempt to reach the next.
_RECONNECT_SECONDS = 0.1
#: Texts up to this length are normalized on the event loop: a few milliseconds.
_SHORT_TEXT_CHARACTERS = 1_000
_NO_HEARTBEAT = Heartbeat(draining=False, other_requests=0, other_front_ends=0)


class EngineClient:
    """Made by `start` or `connect`; ends with `stop`, or by leaving `async with`."""

    def __init__(
        self,
        endpoint: str,
        supervisor: Supervisor | None,
        references: ReferencePreparer,
        buffer_bytes: int,
        hang_seconds: float,
    ) -> None:
        #: What this front end knows of recordings.
        self.references = references
        #: Where other front ends can `connect` to the same worker.
        self.endpoint = endpoint
        self._supervisor = supervisor
        self._buffer_bytes, self._hang_seconds = buffer_bytes, hang_seconds
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        #: Requests that the worker may still send chunks for, by id.
        self._streams: dict[str, SpeechStream] = {}
        #: Recordings that the worker is reading, by id.
        self._recordings: dict[str, asyncio.Future[EncodedReference]] = {}
        self._stats: list[asyncio.Future[Stats]] = []
        self._last_id = 0
        #: Requests whose references are still being prepared.
        self._preparing = 0
        self._connection: Connection | None = None
        #: Sent by the present worker; None while there is none.
        self._ready: Ready | None = None
        #: The last heartbeat, and the open requests of this client when it came.
        self._heartbeat = _NO_HEARTBEAT
        self._open_then = 0
        self._ever_ready = self._draining = self._stopped = False
        self._failure: HocketError | None = None
        #: Set while `wait_ready` can return or raise.
        self._settled = asyncio.Event()
        self._all_done = asyncio.Event()
        self._received = False
        self._connect()
        self._watch_task = asyncio.create_task(self._watch())

    @classmethod
    async def start(
        cls,
        spec: EngineSpec,
        *,
        references: ReferencePreparer | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        hang_seconds: float = HANG_SECONDS,
    ) -> EngineClient:
        """Start a worker and keep one running; `wait_ready` waits until it has loaded its engine.

        `references` are shared with the clients of other workers; None: the client has its own,
        with the cache of `spec`. `buffer_bytes` of audio may wait for the reader of a stream. A
        worker that is silent for `hang_seconds` is killed and replaced. Raises ConfigError.
        """
        if references is None:
            references = ReferencePreparer(ReferenceCache(spec.config.reference_cache))
        supervisor = Supervisor(spec)
        client = cls(supervisor.endpoint, supervisor, references, buffer_bytes, hang_seconds)
        supervisor.failure.add_done_callback(lambda failure: client._fail(failure.result()))
        return client

    @classmethod
    async def connect(
        cls,
        endpoint: str,
        *,
        references: ReferencePreparer | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        hang_seconds: float = HANG_SECONDS,
    ) -> EngineClient:
        """Use the worker that another front end has started and keeps running.

        Without `references` the client keeps its own, in memory.
        """
        references = references or ReferencePreparer(ReferenceCache(ReferenceCacheConfig()))
        return cls(endpoint, None, references, buffer_bytes, hang_seconds)

    @property
    def state(self) -> State:
        """`down`: the worker was lost (its successor is starting), could not be started, or was
        stopped.
        """
        if self._failure is not None or self._stopped or (self._ready is None and self._ever_ready):
            return "down"
        if self._ready is None:
            return "starting"
        return "draining" if self._draining or self._heartbeat.draining else "ready"

    @property
    def info(self) -> EngineInfo:
        """What the engine is. Raises EngineStoppedError while there is none."""
        return self._worker().info

    @property
    def pid(self) -> int:
        """The worker's process. Raises EngineStoppedError while there is none."""
        return self._worker().pid

    @property
    def open_requests(self) -> int:
        """Open requests of this client."""
        return len(self._streams) + self._preparing

    @property
    def other_requests(self) -> int:
        """Open requests of other front ends at the worker's last heartbeat."""
        return self._heartbeat.other_requests

    @property
    def load(self) -> int:
        """Requests that the worker is likely to have: a guess, because heartbeats are rare.

        Other front ends see the same heartbeats, so each is taken to have done since the last one
        what this one did. Without that, all of them would send what comes next to one worker.
        """
        done = self.open_requests - self._open_then
        return (
            self.open_requests
            + self._heartbeat.other_requests
            + self._heartbeat.other_front_ends * done
        )

    async def planned(self) -> Planned:
        """Wait for the plan of the worker that this client has started.

        Raises the ConfigError or CheckpointError that speaks against loading it.
        """
        assert self._supervisor is not None, "another front end started the worker"
        planned, failure = self._supervisor.planned, self._supervisor.failure
        await asyncio.wait((planned, failure), return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            raise failure.result()
        return planned.result()

    async def wait_ready(self, timeout_seconds: float | None = None) -> EngineInfo:
        """Wait for a worker that has its engine.

        Raises ConfigError or CheckpointError when it could not be loaded, or EngineStoppedError.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._settled.wait()
        except TimeoutError:
            raise EngineStoppedError(
                f"the engine was not ready within {timeout_seconds:g} s"
            ) from None
        return self.info

    async def submit(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> SpeechStream:
        """Send a request to the engine; see `Engine.add`. If the engine refuses it, the stream
        raises.

        Recordings are looked up and decoded and texts normalized here, because they would hold up
        the worker's single loop. Raises InvalidRequestError, ReferenceAudioError, CapacityError,
        EngineStoppedError.
        """
        if request_id is None:
            self._last_id += 1
            request_id = f"request-{self._last_id}"
        info = self._serving()
        request = await _spoken(request, info)
        self._preparing += 1
        try:
            references = [
                await self.references.encoded(reference, self) for reference in request.references
            ]
        finally:
            self._preparing -= 1
        self._serving()  # the state may have changed meanwhile
        if request_id in self._streams or request_id in self._recordings:
            raise InvalidRequestError(
                f"a request {request_id!r} is open already; use another id", param="request_id"
            )
        message = submit_message(
            request_id, request, references, priority=priority, streaming=streaming
        )
        return self._open(request_id, message)

    async def prepare(self, recording: PreparedReference) -> EncodedReference:
        """Let the engine read all that its model can read from a recording in its form; nothing is
        kept.

        Raises InvalidRequestError, ReferenceAudioError, CapacityError, EngineStoppedError.
        """
        self._serving()
        assert self._connection is not None
        self._last_id += 1
        name = f"recording-{self._last_id}"
        self._connection.send(prepare_message(name, recording))
        answer = asyncio.get_running_loop().create_future()
        self._recordings[name] = answer
        try:
            return await answer
        finally:
            if self._recordings.pop(name, None) is not None and self._connection is not None:
                with suppress(CapacityError):  # a worker that does not read is about to be replaced
                    self._connection.send(Cancel(name))

    async def encode(
        self, samples_CS: NDArray[np.float32], n_codebooks: int | None = None
    ) -> NDArray[np.int64]:
        """Codes [frames, codebooks] of float32 audio at the engine's rate and channels, with all
        codebooks when None.

        The engine encodes in pieces, between steps of speech. Raises InvalidRequestError,
        CapacityError, EngineStoppedError.
        """
        content = PreparedReference(samples_CS, self._serving().sample_rate)
        return np.concatenate([chunk.codes for chunk in await self._convert(content, n_codebooks)])

    async def decode(self, codes_FN: NDArray[np.int64]) -> NDArray[np.float32]:
        """Audio float32 [C, S] of codes of the first N codebooks. In pieces and with the errors of
        `encode`.
        """
        self._serving()
        return to_float32(
            np.concatenate([chunk.samples for chunk in await self._convert(codes_FN, None)], axis=1)
        )

    async def generate(self, request: SpeechRequest, *, priority: int = 0) -> Speech:
        """Speak `request` to its end, as `Engine.generate` does. Raises what a stream raises."""
        async with await self.submit(request, priority=priority, streaming=False) as stream:
            chunks = [chunk async for chunk in stream]
        end = chunks[-1].end
        assert end is not None
        return Speech(
            samples=np.concatenate([chunk.samples for chunk in chunks], axis=1),
            sample_rate=chunks[-1].sample_rate,
            codes=np.concatenate([chunk.codes for chunk in chunks]),
            finish_reason=end.finish_reason,
            seed=end.seed,
            timings=end.timings,
        )

    async def stats(self) -> Stats:
        """The engine's current counters. Raises EngineStoppedError."""
        _ = self.info
        assert self._connection is not None
        answer: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._stats.append(answer)
        self._connection.send(AskStats())
        return await answer

    async def drain(self, timeout_seconds: float) -> bool:
        """Accept no new requests and wait for the open ones. At the timeout, cancel them and return
        False.
        """
        self._draining = True
        if not self._streams:
            return True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._all_done.wait()
        except TimeoutError:
            for stream in list(self._streams.values()):
                stream.cancel()
            return False
        return True

    async def stop(self) -> None:
        """End the open requests, and the worker if this client started it. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._watch_task.cancel()
        self._end_all(EngineStoppedError("the engine has been stopped"))
        if self._supervisor is not None:
            await self._supervisor.stop()
        await asyncio.gather(self._watch_task, return_exceptions=True)
        self._context.destroy(linger=0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # ---- the worker comes and goes

    def _connect(self) -> None:
        if not self._stopped and self._failure is None:
            self._connection = Connection(
                self._context, self.endpoint, self._on_message, self._on_lost
            )

    def _on_message(self, message: FromWorker, frames: Sequence[zmq.Frame]) -> None:
        self._received = True
        if isinstance(message, Chunk):
            self._on_chunk(read_chunk(message, frames))
        elif isinstance(message, Encoded):
            self._on_recording(message.request_id, read_encoded(message, frames))
        elif isinstance(message, Rejected):
            if message.request_id in self._streams:
                self._forget(message.request_id).fail(message.error.error())
            else:
                self._on_recording(message.request_id, message.error.error())
        elif isinstance(message, Heartbeat):
            self._heartbeat, self._open_then = message, self.open_requests
        elif isinstance(message, Stats):
            answer = self._stats.pop(0)
            if not answer.done():  # its caller may have been cancelled
                answer.set_result(message)
        elif isinstance(message, Ready):
            self._ready, self._ever_ready = message, True
            self._settled.set()
            if self._supervisor is not None:
                self._supervisor.note_ready()
        else:
            assert isinstance(message, Stopped)
            self._on_lost(message.error.error())

    def _on_chunk(self, chunk: AudioChunk) -> None:
        stream = (
            self._streams[chunk.request_id] if chunk.end is None else self._forget(chunk.request_id)
        )
        stream.put(chunk)

    def _on_recording(self, name: str, result: EncodedReference | HocketError) -> None:
        answer = self._recordings.pop(name, None)
        if answer is None or answer.done():  # its caller has been cancelled
            return
        if isinstance(result, EncodedReference):
            answer.set_result(result)
        else:
            answer.set_exception(result)

    def _on_lost(self, error: HocketError) -> None:
        self._end_all(error)
        asyncio.get_running_loop().call_later(_RECONNECT_SECONDS, self._connect)

    def _end_all(self, error: HocketError) -> None:
        """Fail all streams and questions of the present worker."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._ready = None
        self._heartbeat, self._open_then = _NO_HEARTBEAT, 0
        if self._failure is None:
            self._settled.clear()
        streams, self._streams = self._streams, {}
        answers: list[asyncio.Future[Any]] = [*self._stats, *self._recordings.values()]
        self._stats, self._recordings = [], {}
        for stream in streams.values():
            # One instance each: raising an exception sets its traceback.
            stream.fail(type(error)(error.message, param=error.param))
        for answer in answers:
            if not answer.done():
                answer.set_exception(type(error)(error.message, param=error.param))
        self._all_done.set()

    def _fail(self, error: HocketError) -> None:
        self._failure = error
        self._end_all(error)
        self._settled.set()

    async def _watch(self) -> None:
        """Replace a worker that is connected but sends no heartbeats."""
        silent = 0
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            # Counts turns and not time: after a pause of this process, the messages of the pause
            # are still unread.
            silent = 0 if self._received or self._ready is None else silent + 1
            self._received = False
            if silent * HEARTBEAT_SECONDS >= self._hang_seconds:
                if self._supervisor is not None:
                    self._supervisor.kill("no_heartbeat")
                self._on_lost(
                    EngineStoppedError("the engine did not answer any more; send the request again")
                )

    # ---- requests

    def _unavailable(self) -> HocketError:
        if self._failure is not None:
            return type(self._failure)(self._failure.message, param=self._failure.param)
        return EngineStoppedError(f"the engine is {self.state}; try again later")

    def _serving(self) -> EngineInfo:
        if self.state != "ready":
            raise self._unavailable()
        return self.info

    def _worker(self) -> Ready:
        if self._ready is None:
            raise self._unavailable()
        return self._ready

    async def _convert(
        self, content: PreparedReference | NDArray[np.int64], n_codebooks: int | None
    ) -> list[AudioChunk]:
        """Chunks of a conversion, without the last one, which only says how it ended."""
        self._last_id += 1
        name = f"conversion-{self._last_id}"
        async with self._open(name, convert_message(name, content, n_codebooks)) as stream:
            chunks = [chunk async for chunk in stream]
        assert chunks[-1].end is not None
        if chunks[-1].end.finish_reason == "cancelled":
            raise EngineStoppedError("the engine is about to stop; send the request again")
        return chunks[:-1]

    def _open(self, request_id: str, message: OutMessage) -> SpeechStream:
        assert self._connection is not None
        self._connection.send(message)
        stream = SpeechStream(request_id, self._buffer_bytes, self._cancel)
        self._streams[request_id] = stream
        self._all_done.clear()
        return stream

    def _forget(self, request_id: str) -> SpeechStream:
        stream = self._streams.pop(request_id)
        if not self._streams:
            self._all_done.set()
        return stream

    def _cancel(self, stream: SpeechStream) -> None:
        if self._connection is None or self._streams.get(stream.request_id) is not stream:
            return
        with suppress(CapacityError):  # a worker that does not read is about to be replaced
            self._connection.send(Cancel(stream.request_id))


async def _spoken(request: SpeechRequest, info: EngineInfo) -> SpeechRequest:
    """Normalize the request's texts; a long one on a thread, so that the event loop goes on."""
    if len(request.text) <= _SHORT_TEXT_CHARACTERS:
        return normalize_request(request, info.text_front)
    return await asyncio.to_thread(normalize_request, request, info.text_front)
