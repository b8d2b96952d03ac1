"""The worker's loop: receives requests from front ends, steps the engine, sends audio back."""

from __future__ import annotations

import logging
import math
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import zmq

from hocket.core import (
    AudioChunk,
    EncodedReference,
    EngineInfo,
    PreparedReference,
    RequestEnd,
    SpeechRequest,
    Timings,
)
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
    Prepare,
    Ready,
    Rejected,
    Stats,
    Stopped,
    Submit,
    WireError,
    chunk_message,
    decode_to_worker,
    encode,
    encoded_message,
    read_content,
    read_request,
)

_LOG = logging.getLogger("hocket.worker")

#: Between two steps, arrivals are opened for this long, or for this share of a step; the rest
#: waits. Running streams are held up by that and one request more.
_OPEN_SECONDS = 0.005
_OPEN_SHARE = 0.1
#: Time for the last messages to leave the process.
_LINGER_MS = 1000
#: The exit code of sysexits.h for "internal software error".
_INTERNAL_ERROR = 70

#: The messages that open something.
Opening = Submit | Convert | Prepare


class DrivenEngine(Protocol):
    """The part of `Engine` that the worker calls; `Engine` documents each call."""

    @property
    def info(self) -> EngineInfo: ...
    @property
    def idle(self) -> bool: ...
    def add(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> str: ...
    def prepare(
        self,
        recording: PreparedReference,
        done: Callable[[EncodedReference | HocketError], None],
        *,
        request_id: str,
    ) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def step(self) -> list[AudioChunk]: ...
    def stats(self) -> EngineStats: ...


@dataclass(slots=True, eq=False)
class _FrontEnd:
    """A client that has sent `Hello`; `open` maps its request ids to the engine's."""

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
        self._engine, self._socket, self._conversions, self._clock = (
            engine,
            socket,
            conversions,
            clock,
        )
        # Sending to a front end that has disconnected or does not read raises, instead of dropping
        # the message.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._drain_seconds = drain_seconds
        self._drain_requested = False
        #: When draining ends; None while new requests are accepted.
        self._drain_deadline: float | None = None
        self._front_ends: dict[bytes, _FrontEnd] = {}
        #: Slow consumers that were disconnected and still need a `Stopped`.
        self._slow_consumers: list[bytes] = []
        #: The front end of a request and its id there, by the engine's id.
        self._owners: dict[str, tuple[_FrontEnd, str]] = {}
        #: Recordings that the engine reads for a front end, by the engine's id; no chunk ends them.
        self._preparations: set[str] = set()
        #: Set when the engine has stopped for good.
        self._failure: EngineStoppedError | None = None
        #: Requests that arrived and are not opened yet, in order. Other messages overtake them: a
        #: request that is cancelled here has cost nothing.
        self._inbox: dict[tuple[bytes, str], tuple[_FrontEnd, Opening, Sequence[zmq.Frame]]] = {}
        #: Duration of the last step.
        self._step_seconds = 0.0
        self._last_id = 0
        self._heartbeat_at = 0.0

    def drain(self) -> None:
        """Accept no new requests, finish the open ones, return from `run`.

        Safe in a signal handler: the loop notices within a heartbeat.
        """
        self._drain_requested = True

    def run(self) -> int:
        """Serve until drained; returns the exit code, which is 0 unless the engine failed."""
        try:
            while not self._done():
                self._receive()
                self._open_arrivals()
                if not self._idle:
                    self._step()
                self._send_heartbeats()
        except Exception as error:
            cause = error.__cause__ or error
            # The place only: an exception's text may quote the user's.
            _LOG.error(
                "event=worker_failed pid=%d error=%s at=%s",
                os.getpid(),
                type(cause).__name__,
                _traceback_lines(cause),
            )
            reason = (
                f"the engine failed ({type(cause).__name__}) and is being restarted; send the "
                "request again"
            )
            self._stop_all(EngineStoppedError(reason))
            return _INTERNAL_ERROR
        self._stop_all(EngineStoppedError("the engine has been stopped; send the request again"))
        return 0

    def _step(self) -> None:
        started = self._clock()
        chunks = [] if self._engine.idle else self._engine.step()
        if self._conversions is not None and not self._conversions.idle:
            chunks += self._conversions.step()
        self._step_seconds = self._clock() - started
        for chunk in chunks:
            self._deliver(chunk)
            if chunk.end is not None and isinstance(chunk.end.error, EngineStoppedError):
                self._failure = chunk.end.error
        if self._failure is not None:
            raise self._failure

    @property
    def _idle(self) -> bool:
        return (
            self._engine.idle
            and not self._inbox
            and (self._conversions is None or self._conversions.idle)
        )

    def _done(self) -> bool:
        if self._drain_requested and self._drain_deadline is None:
            self._drain_deadline = self._clock() + self._drain_seconds
            self._heartbeat_at = 0.0  # front ends are told at once
        return self._drain_deadline is not None and (
            self._idle or self._clock() >= self._drain_deadline
        )

    # ---- in

    def _receive(self) -> None:
        """Handle the messages that have arrived; wait for one when the worker is idle."""
        if self._idle:
            self._socket.poll(max(0, math.ceil((self._heartbeat_at - self._clock()) * 1e3)))
        for _ in range(QUEUE_MESSAGES):
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._handle(identity.bytes, frames)

    def _open_arrivals(self) -> None:
        """Open arrived requests, for as long as running streams may wait."""
        until = self._clock() + max(_OPEN_SECONDS, _OPEN_SHARE * self._step_seconds)
        while self._inbox and self._clock() < until:
            front_end, message, frames = self._inbox.pop(next(iter(self._inbox)))
            self._submit(front_end, message, frames)

    def _handle(self, identity: bytes, frames: Sequence[zmq.Frame]) -> None:
        front_end = self._front_ends.get(identity)
        try:
            message = decode_to_worker(frames[0])
        except msgspec.MsgspecError:
            self._refuse(
                identity,
                "this front end's message cannot be read; run the same Hocket at both ends",
            )
            return
        if isinstance(message, Hello):
            self._welcome(identity, message)
        elif front_end is None:
            pass  # it was dropped, and notices the missing heartbeats
        elif isinstance(message, Opening):
            if len(self._inbox) < self._engine.info.max_waiting:
                self._inbox[identity, message.request_id] = (front_end, message, frames[1:])
            else:
                self._reject(
                    front_end,
                    message,
                    CapacityError(f"{len(self._inbox)} requests wait; try again later"),
                )
        elif isinstance(message, Cancel):
            waiting = self._inbox.pop((identity, message.request_id), None)
            if waiting is not None:
                if not isinstance(waiting[1], Prepare):
                    cancelled = self._cancelled_chunk(message.request_id)
                    self._send(front_end, chunk_message(message.request_id, cancelled))
            elif message.request_id in front_end.open:
                self._cancel(front_end.open[message.request_id])
        else:
            assert isinstance(message, AskStats)
            stats = Stats(
                self._engine.stats(), len(self._front_ends), len(self._owners) + len(self._inbox)
            )
            self._send(front_end, [encode(stats)])

    def _welcome(self, identity: bytes, hello: Hello) -> None:
        if hello.version != VERSION:
            versions = (
                f"this front end speaks version {hello.version} of the protocol, the worker "
                f"{VERSION}"
            )
            self._refuse(identity, f"{versions}; run the same Hocket at both ends")
            return
        front_end = self._front_ends.setdefault(identity, _FrontEnd(identity))
        self._send(front_end, [encode(Ready(os.getpid(), self._engine.info))])
        self._send_heartbeat(front_end, self._open_counts())

    def _refuse(self, identity: bytes, reason: str) -> None:
        front_end = self._front_ends.get(identity, _FrontEnd(identity))
        self._send(front_end, [encode(Stopped(WireError.of(EngineStoppedError(reason))))])
        self._drop(front_end)

    def _submit(self, front_end: _FrontEnd, message: Opening, frames: Sequence[zmq.Frame]) -> None:
        if self._drain_requested:
            self._reject(
                front_end,
                message,
                EngineStoppedError("the engine is about to stop; try again later"),
            )
            return
        # Front ends may use equal ids, so the engine gets ids of its own.
        self._last_id += 1
        engine_id = f"{self._last_id}"
        try:
            if isinstance(message, Convert):
                self._convert(engine_id, message, frames)
            elif isinstance(message, Prepare):
                self._prepare(engine_id, message, frames)
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
            # `Engine.add` changes nothing before it succeeds, so a bug in it ends this request
            # alone.
            kind = type(error).__name__
            _LOG.error(
                "event=request_failed pid=%d error=%s at=%s",
                os.getpid(),
                kind,
                _traceback_lines(error),
            )
            self._reject(
                front_end,
                message,
                HocketError(f"internal error ({kind}) while the request was being read"),
            )
        else:
            front_end.open[message.request_id] = engine_id
            self._owners[engine_id] = (front_end, message.request_id)

    def _convert(self, engine_id: str, message: Convert, frames: Sequence[zmq.Frame]) -> None:
        """Raises InvalidRequestError, CapacityError."""
        if self._conversions is None:
            raise InvalidRequestError(
                "this engine has no codec, so there is nothing to encode or decode with"
            )
        content = read_content(message, frames)
        if isinstance(content, PreparedReference):
            self._conversions.encode(engine_id, content.samples, message.n_codebooks)
        else:
            self._conversions.decode(engine_id, content)

    def _prepare(self, engine_id: str, message: Prepare, frames: Sequence[zmq.Frame]) -> None:
        """Raises InvalidRequestError, ReferenceAudioError, CapacityError."""
        recording = read_content(message, frames)
        if not isinstance(recording, PreparedReference):
            raise InvalidRequestError("a recording to be read has no sample rate")
        self._engine.prepare(
            recording, partial(self._deliver_encoded, engine_id), request_id=engine_id
        )
        self._preparations.add(engine_id)

    def _cancelled_chunk(self, request_id: str) -> AudioChunk:
        """The only chunk of a request that was cancelled before it was opened."""
        info = self._engine.info
        silence_CS = np.zeros((info.channels, 0), info.samples)
        codes_FN, end = np.zeros((0, 0), np.int64), RequestEnd("cancelled", 0, Timings())
        return AudioChunk(request_id, silence_CS, info.sample_rate, codes_FN, end)

    def _cancel(self, engine_id: str) -> None:
        self._engine.cancel(engine_id)
        if self._conversions is not None:
            self._conversions.cancel(engine_id)
        if engine_id in self._preparations:
            self._forget(engine_id)

    # ---- out

    def _deliver(self, chunk: AudioChunk) -> None:
        front_end, request_id = self._owners[chunk.request_id]
        if chunk.end is not None:
            self._forget(chunk.request_id)
        if front_end.identity in self._front_ends:
            self._send(front_end, chunk_message(request_id, chunk))

    def _deliver_encoded(self, engine_id: str, result: EncodedReference | HocketError) -> None:
        if isinstance(result, EngineStoppedError):
            self._failure = result
        front_end, request_id = self._forget(engine_id)
        if front_end.identity not in self._front_ends:
            return
        if isinstance(result, EncodedReference):
            self._send(front_end, encoded_message(request_id, result))
        else:
            self._send(front_end, [encode(Rejected(request_id, WireError.of(result)))])

    def _forget(self, engine_id: str) -> tuple[_FrontEnd, str]:
        """The owner of a request that has ended, and its id there."""
        front_end, request_id = self._owners.pop(engine_id)
        del front_end.open[request_id]
        self._preparations.discard(engine_id)
        return front_end, request_id

    def _reject(self, front_end: _FrontEnd, message: Opening, error: HocketError) -> None:
        self._send(front_end, [encode(Rejected(message.request_id, WireError.of(error)))])

    def _send_heartbeats(self) -> None:
        now = self._clock()
        if now < self._heartbeat_at:
            return
        self._heartbeat_at = now + HEARTBEAT_SECONDS
        counts = self._open_counts()
        for front_end in list(self._front_ends.values()):
            self._send_heartbeat(front_end, counts)
        if not self._slow_consumers:
            return
        message: OutMessage = [
            encode(
                Stopped(
                    WireError.of(
                        EngineStoppedError("this front end did not read; its requests ended")
                    )
                )
            )
        ]
        self._slow_consumers = [
            identity
            for identity in self._slow_consumers
            if self._try_send(identity, message) == zmq.EAGAIN
        ]

    def _send_heartbeat(self, front_end: _FrontEnd, counts: Counter[bytes]) -> None:
        own = counts[front_end.identity]
        draining = self._drain_deadline is not None
        others = counts.total() - own, len(self._front_ends) - 1
        self._send(front_end, [encode(Heartbeat(draining, *others))])

    def _open_counts(self) -> Counter[bytes]:
        """Open requests of each front end that has any, by identity."""
        counts = Counter(identity for identity, _ in self._inbox)
        for front_end in self._front_ends.values():
            if front_end.open:
                counts[front_end.identity] += len(front_end.open)
        return counts

    def _send(self, front_end: _FrontEnd, message: OutMessage) -> None:
        """Send without blocking. A front end that has disconnected or has `QUEUE_MESSAGES` unread
        loses its requests.
        """
        problem = self._try_send(front_end.identity, message)
        if problem:
            self._drop(front_end)
        if problem == zmq.EAGAIN:
            self._slow_consumers.append(front_end.identity)

    def _try_send(self, identity: bytes, message: OutMessage) -> int:
        """Send and return 0, EHOSTUNREACH (the front end has disconnected) or EAGAIN (it does not
        read).
        """
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
        for engine_id in list(front_end.open.values()):
            self._cancel(engine_id)

    def _stop_all(self, error: HocketError) -> None:
        """Best-effort goodbye; a client that misses it sees the socket close."""
        for identity in self._front_ends:
            self._try_send(identity, [encode(Stopped(WireError.of(error)))])
        self._front_ends.clear()


def open_socket(context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
    """Open the socket that a worker listens on."""
    socket = context.socket(zmq.ROUTER)
    socket.set_hwm(QUEUE_MESSAGES)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.bind(endpoint)
    return socket


def _traceback_lines(error: BaseException) -> str:
    """File and line of the innermost five calls."""
    calls = traceback.extract_tb(error.__traceback__)[-5:]
    return "<".join(f"{Path(call.filename).name}:{call.lineno}" for call in reversed(calls))
