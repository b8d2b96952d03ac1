"""The loop around the engine: takes requests from front ends, steps, sends audio back."""

from __future__ import annotations

import logging
import math
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import zmq

from hocket.core import AudioChunk, EngineInfo, PreparedReference, RequestEnd, SpeechRequest, Timings
from hocket.engine.references.conversions import Conversions
from hocket.engine.stats import EngineStats
from hocket.errors import CapacityError, EngineStoppedError, HocketError, InvalidRequestError
from hocket.worker.messages import (
    HEARTBEAT_SECONDS,
    QUEUE_MESSAGES,
    VERSION,
    AskStats,
    Cancel,
    Convert,
    Heartbeat,
    Hello,
    OutMessage,
    Ready,
    Rejected,
    Stats,
    Stopped,
    Submit,
    WireError,
    chunk_message,
    decode_to_worker,
    encode,
    read_content,
    read_request,
)

_LOG = logging.getLogger("hocket.worker")

#: A burst of arrivals holds up running streams for this long, or for this share of a step, and one request more; the
#: rest waits for the next step.
_OPENING_SECONDS = 0.005
_OPENING_SHARE = 0.1
#: Last words get this long to leave the process.
_LINGER_MS = 1000
#: The exit code of sysexits.h for "internal software error".
_INTERNAL_ERROR = 70


class DrivenEngine(Protocol):
    """What the worker asks of `Engine`, which says what each call does."""

    @property
    def info(self) -> EngineInfo: ...
    @property
    def idle(self) -> bool: ...
    def add(
        self, request: SpeechRequest, *, request_id: str | None = None, priority: int = 0, streaming: bool = True
    ) -> str: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> list[AudioChunk]: ...
    def stats(self) -> EngineStats: ...


@dataclass(slots=True, eq=False)
class _FrontEnd:
    """Somebody who has said hello; `open` holds the engine's ids by the front end's own."""

    identity: bytes
    open: dict[str, str] = field(default_factory=dict)


class Worker:
    """The loop between a ROUTER socket and an engine. Not thread-safe, except for `drain`."""

    def __init__(
        self,
        engine: DrivenEngine,
        socket: zmq.Socket[bytes],
        *,
        conversions: Conversions | None = None,
        drain_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._socket, self._conversions, self._clock = engine, socket, conversions, clock
        # Messages for a front end that has gone away, or that has stopped reading, are errors and not silence.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._drain_seconds = drain_seconds
        self._drain_wished = False
        #: When draining ends; None while new requests are taken.
        self._leave_at: float | None = None
        self._front_ends: dict[bytes, _FrontEnd] = {}
        #: Those that were dropped because they did not read, and have yet to be told.
        self._deaf: list[bytes] = []
        #: Whose a request is, and what it is called there, by the engine's id.
        self._owners: dict[str, tuple[_FrontEnd, str]] = {}
        #: Requests that have arrived and were not opened yet, in that order. Whatever else arrives overtakes them: one
        #: that is cancelled here has cost nothing.
        self._inbox: dict[tuple[bytes, str], tuple[_FrontEnd, Submit | Convert, Sequence[zmq.Frame]]] = {}
        #: What the last step took.
        self._step_seconds = 0.0
        self._names = 0
        self._next_beat = 0.0

    def drain(self) -> None:
        """Take no new requests, finish the open ones, leave. Safe in a signal handler: the loop sees it at its next
        turn, within a heartbeat.
        """
        self._drain_wished = True

    def run(self) -> int:
        """Serve until drained; returns the exit code, which is not 0 when the engine broke."""
        try:
            while not self._done():
                self._receive()
                self._open()
                if not self._idle:
                    self._step()
                self._beat()
        except Exception as error:
            cause = error.__cause__ or error
            # Only where it happened: an exception's text may quote what the user wrote.
            _LOG.error("event=worker_failed pid=%d error=%s at=%s", os.getpid(), type(cause).__name__, _place(cause))
            reason = f"the engine failed ({type(cause).__name__}) and is being restarted; send the request again"
            self._stop_all(EngineStoppedError(reason))
            return _INTERNAL_ERROR
        self._stop_all(EngineStoppedError("the engine has been stopped; send the request again"))
        return 0

    def _step(self) -> None:
        failure: EngineStoppedError | None = None
        started = self._clock()
        chunks = [] if self._engine.idle else self._engine.step()
        if self._conversions is not None and not self._conversions.idle:
            chunks += self._conversions.step()
        self._step_seconds = self._clock() - started
        for chunk in chunks:
            self._deliver(chunk)
            if chunk.end is not None and isinstance(chunk.end.error, EngineStoppedError):
                failure = chunk.end.error
        if failure is not None:
            raise failure

    @property
    def _idle(self) -> bool:
        return self._engine.idle and not self._inbox and (self._conversions is None or self._conversions.idle)

    def _done(self) -> bool:
        if self._drain_wished and self._leave_at is None:
            self._leave_at = self._clock() + self._drain_seconds
            self._next_beat = 0.0  # front ends hear of it at once
        return self._leave_at is not None and (self._idle or self._clock() >= self._leave_at)

    # ---- in

    def _receive(self) -> None:
        """Take what has arrived. Waits for it when there is nothing else to do."""
        if self._idle:
            self._socket.poll(max(0, math.ceil((self._next_beat - self._clock()) * 1e3)))
        for _ in range(QUEUE_MESSAGES):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._handle(identity.bytes, frames)

    def _open(self) -> None:
        """Open requests, for as long as those that run may wait."""
        until = self._clock() + max(_OPENING_SECONDS, _OPENING_SHARE * self._step_seconds)
        while self._inbox and self._clock() < until:
            front_end, message, frames = self._inbox.pop(next(iter(self._inbox)))
            self._submit(front_end, message, frames)

    def _handle(self, identity: bytes, frames: Sequence[zmq.Frame]) -> None:
        front_end = self._front_ends.get(identity)
        try:
            message = decode_to_worker(frames[0])
        except msgspec.MsgspecError:
            self._refuse(identity, "this front end's message cannot be read; run the same Hocket at both ends")
            return
        if isinstance(message, Hello):
            self._welcome(identity, message)
        elif front_end is None:
            pass  # it was dropped, and finds out by the silence
        elif isinstance(message, Submit | Convert):
            if len(self._inbox) < self._engine.info.max_waiting:
                self._inbox[identity, message.request_id] = (front_end, message, frames[1:])
            else:
                self._reject(front_end, message, CapacityError(f"{len(self._inbox)} requests wait; try again later"))
        elif isinstance(message, Cancel):
            if self._inbox.pop((identity, message.request_id), None) is not None:
                self._send(front_end, chunk_message(message.request_id, self._nothing(message.request_id)))
            elif message.request_id in front_end.open:
                self._cancel(front_end.open[message.request_id])
        else:
            assert isinstance(message, AskStats)
            stats = Stats(self._engine.stats(), len(self._front_ends), len(self._owners) + len(self._inbox))
            self._send(front_end, [encode(stats)])

    def _welcome(self, identity: bytes, hello: Hello) -> None:
        if hello.version != VERSION:
            versions = f"this front end speaks version {hello.version} of the protocol, the worker {VERSION}"
            self._refuse(identity, f"{versions}; run the same Hocket at both ends")
            return
        front_end = self._front_ends.setdefault(identity, _FrontEnd(identity))
        self._send(front_end, [encode(Ready(os.getpid(), self._engine.info))])
        self._send(front_end, [encode(Heartbeat(self._leave_at is not None))])

    def _refuse(self, identity: bytes, reason: str) -> None:
        front_end = self._front_ends.get(identity, _FrontEnd(identity))
        self._send(front_end, [encode(Stopped(WireError.of(EngineStoppedError(reason))))])
        self._drop(front_end)

    def _submit(self, front_end: _FrontEnd, message: Submit | Convert, frames: Sequence[zmq.Frame]) -> None:
        if self._leave_at is not None:
            self._reject(front_end, message, EngineStoppedError("the engine is about to stop; try again later"))
            return
        # Ids of different front ends may be equal; the engine's own never are.
        self._names += 1
        engine_id = f"{self._names}"
        try:
            if isinstance(message, Convert):
                self._convert(engine_id, message, frames)
            else:
                self._engine.add(
                    read_request(message, frames),
                    request_id=engine_id,
                    priority=message.priority,
                    streaming=message.streaming,
                )
        except HocketError as error:
            self._reject(front_end, message, error)
            if isinstance(error, EngineStoppedError):
                raise
        except Exception as error:
            # `Engine.add` changes nothing before it succeeds, so a request that trips over a bug harms nobody else.
            kind = type(error).__name__
            _LOG.error("event=request_failed pid=%d error=%s at=%s", os.getpid(), kind, _place(error))
            self._reject(front_end, message, HocketError(f"internal error ({kind}) while the request was being read"))
        else:
            front_end.open[message.request_id] = engine_id
            self._owners[engine_id] = (front_end, message.request_id)

    def _convert(self, engine_id: str, message: Convert, frames: Sequence[zmq.Frame]) -> None:
        """Raises InvalidRequestError, CapacityError."""
        if self._conversions is None:
            raise InvalidRequestError("this engine has no codec, so there is nothing to encode or decode with")
        content = read_content(message, frames)
        if isinstance(content, PreparedReference):
            self._conversions.encode(engine_id, content.samples, message.n_codebooks)
        else:
            self._conversions.decode(engine_id, content)

    def _nothing(self, request_id: str) -> AudioChunk:
        """All that comes of a request that was cancelled before it was opened."""
        info = self._engine.info
        silence_CS = np.zeros((info.channels, 0), info.samples)
        codes_FN, end = np.zeros((0, 0), np.int64), RequestEnd("cancelled", 0, Timings())
        return AudioChunk(request_id, silence_CS, info.sample_rate, codes_FN, end)

    def _cancel(self, engine_id: str) -> None:
        self._engine.cancel(engine_id)
        if self._conversions is not None:
            self._conversions.cancel(engine_id)

    # ---- out

    def _deliver(self, chunk: AudioChunk) -> None:
        front_end, request_id = self._owners[chunk.request_id]
        if chunk.end is not None:
            del self._owners[chunk.request_id]
            del front_end.open[request_id]
        if front_end.identity in self._front_ends:
            self._send(front_end, chunk_message(request_id, chunk))

    def _reject(self, front_end: _FrontEnd, message: Submit | Convert, error: HocketError) -> None:
        self._send(front_end, [encode(Rejected(message.request_id, WireError.of(error)))])

    def _beat(self) -> None:
        now = self._clock()
        if now < self._next_beat:
            return
        self._next_beat = now + HEARTBEAT_SECONDS
        for front_end in list(self._front_ends.values()):
            self._send(front_end, [encode(Heartbeat(self._leave_at is not None))])
        if not self._deaf:
            return
        told: OutMessage = [
            encode(Stopped(WireError.of(EngineStoppedError("this front end did not read; its requests ended"))))
        ]
        self._deaf = [identity for identity in self._deaf if self._try_send(identity, told) == zmq.EAGAIN]

    def _send(self, front_end: _FrontEnd, message: OutMessage) -> None:
        """Never waits. A front end that has gone away or lets `QUEUE_MESSAGES` pile up loses its requests."""
        problem = self._try_send(front_end.identity, message)
        if problem:
            self._drop(front_end)
        if problem == zmq.EAGAIN:
            self._deaf.append(front_end.identity)

    def _try_send(self, identity: bytes, message: OutMessage) -> int:
        """0, or EHOSTUNREACH: the front end has gone away, or EAGAIN: it does not read."""
        try:
            self._socket.send_multipart([identity, *message], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return error.errno
        return 0

    def _drop(self, front_end: _FrontEnd) -> None:
        self._front_ends.pop(front_end.identity, None)
        for key in [key for key in self._inbox if key[0] == front_end.identity]:
            del self._inbox[key]
        for engine_id in front_end.open.values():
            self._cancel(engine_id)

    def _stop_all(self, error: HocketError) -> None:
        """Last words; whoever misses them hears of it by the lost connection."""
        for identity in self._front_ends:
            self._try_send(identity, [encode(Stopped(WireError.of(error)))])
        self._front_ends.clear()


def open_socket(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """The socket that a worker listens on."""
    socket = context.socket(zmq.ROUTER)
    socket.set_hwm(QUEUE_MESSAGES)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.bind(endpoint)
    return socket


def _place(error: BaseException) -> str:
    """File and line of the innermost calls."""
    calls = traceback.extract_tb(error.__traceback__)[-5:]
    return "<".join(f"{Path(call.filename).name}:{call.lineno}" for call in reversed(calls))
