"""A front end's connection to one worker process, on the running event loop; it never blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from hocket.errors import CapacityError, EngineStoppedError, HocketError
from hocket.worker.messages import (
    QUEUE_MESSAGES,
    VERSION,
    AskStats,
    Cancel,
    FromWorker,
    Hello,
    OutMessage,
    decode_from_worker,
    encode,
)

#: Interval between attempts to connect while no worker listens.
_RECONNECT_MS = 50
#: Messages handled before other tasks of the event loop run.
_MESSAGES_PER_TURN = 64

OnMessage = Callable[[FromWorker, Sequence[zmq.Frame]], None]
OnLost = Callable[[HocketError], None]


class Connection:
    """Connects, sends `Hello`, and calls `on_message` until the worker is lost; then it calls
    `on_lost`, once.

    A connection ends with its worker process: messages to a dead worker must not reach the next
    one.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        on_message: OnMessage,
        on_lost: OnLost,
    ) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._loop = asyncio.get_running_loop()
        self._socket = context.socket(zmq.DEALER)
        self._socket.set_hwm(QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        # The kernel reports the end of the other process at once; no polling and no timeout is
        # needed.
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(endpoint)
        # zmq's descriptor is edge-triggered: read until nothing is left, and check again after
        # every send, which may have consumed the edge.
        self._loop.add_reader(self._socket.FD, self._read)
        self._loop.add_reader(self._monitor.FD, self._read_monitor)
        self._closed = False
        self.send([encode(Hello(VERSION))])
        self._read_monitor()

    def send(self, message: OutMessage | Cancel | AskStats) -> None:
        """Raises CapacityError when the worker does not read."""
        frames = message if isinstance(message, list) else [encode(message)]
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.Again:
            raise CapacityError(
                "the engine does not keep up with its requests; try again later"
            ) from None
        self._loop.call_soon(self._read)

    def close(self) -> None:
        """Close; no callback follows."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.FD)
        self._loop.remove_reader(self._monitor.FD)
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _read(self) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            if self._closed:
                return
            try:
                header, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                message = decode_from_worker(header)
            except msgspec.MsgspecError:
                self._end("the engine's message cannot be read; run the same Hocket at both ends")
                return
            self._on_message(message, frames)
        self._loop.call_soon(self._read)

    def _read_monitor(self) -> None:
        while not self._closed:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            if event["event"] == zmq.EVENT_DISCONNECTED:
                # Its last messages may still be unread.
                self._read()
                self._end("the engine has gone away; send the request again")

    def _end(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._on_lost(EngineStoppedError(reason))
