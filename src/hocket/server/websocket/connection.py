"""The two directions of a WebSocket, with time limits for a silent client and for one that does not
read.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable

from fastapi import WebSocket, WebSocketDisconnect

from hocket.errors import HocketError
from hocket.server.errors import ApiError, error_code, error_fields, internal_error
from hocket.server.services import services_of
from hocket.server.websocket.dialects import Dialect, hocket_events

_CLOSE_NORMAL = 1000
_CLOSE_INTERNAL_ERROR = 1011
_CLOSE_TRY_AGAIN_LATER = 1013


class HangUpError(Exception):
    """Ends the session: the socket is closed with `code` because of `error`."""

    def __init__(self, code: int, error: HocketError) -> None:
        super().__init__(str(error))
        self.code, self.error = code, error


class SocketConnection:
    """A socket whose client may be gone, silent or not reading. Any task may send."""

    def __init__(self, socket: WebSocket, stall_seconds: float, idle_seconds: float) -> None:
        self._socket = socket
        self._metrics = services_of(socket).metrics
        self._stall_seconds, self._idle_seconds = stall_seconds, idle_seconds
        self._sending = asyncio.Lock()
        #: Form of the events.
        self.dialect: Dialect = hocket_events
        #: Bytes of audio sent so far.
        self.audio_bytes = 0

    async def accept(self) -> None:
        """Accept the connection, before anything else."""
        await self._socket.accept()

    async def receive(self, is_idle: Callable[[], bool]) -> str | None:
        """The next message, or None if it is binary.

        Raises WebSocketDisconnect, and HangUpError when none arrives in time while `is_idle()`.
        """
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    message = await self._socket.receive()
            except TimeoutError:
                if not is_idle():
                    continue
                seconds = f"{self._idle_seconds:g} s"
                error = ApiError(
                    408, f"nothing was said for {seconds}; connect again", code="idle_timeout"
                )
                raise HangUpError(_CLOSE_NORMAL, error) from None
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"])
            text: str | None = message.get("text")
            return text

    async def send_event(self, kind: str, **fields: object) -> None:
        """Send a JSON message. Like all sends, raises HangUpError when the client does not read."""
        event = self.dialect(kind, fields)
        if event is not None:
            await self._send(json.dumps(event, ensure_ascii=False))

    async def send_error(self, error: HocketError, *, fatal: bool = False) -> None:
        """Send `error` in OpenAI's form; `fatal` when the socket will be closed because of it."""
        self._metrics.errors.labels(error_code(error)).inc()
        await self.send_event("error", error=error_fields(error), fatal=fatal)

    async def send_audio(self, data: bytes, *, as_base64: bool) -> None:
        """Send encoded audio."""
        self.audio_bytes += len(data)
        if as_base64:
            await self.send_event("audio", audio=base64.b64encode(data).decode())
        else:
            await self._send(data)

    async def end(self, error: BaseException | None) -> None:
        """Send the error that ended the session, if there is one and a client to read it, and
        close.
        """
        code = _CLOSE_NORMAL
        try:
            if isinstance(error, WebSocketDisconnect):
                return
            if isinstance(error, HangUpError):
                code = error.code
                # A client that does not read would not read this either.
                if code != _CLOSE_TRY_AGAIN_LATER:
                    await self.send_error(error.error, fatal=True)
            elif isinstance(error, Exception):
                code = _CLOSE_INTERNAL_ERROR
                await self.send_error(internal_error(error), fatal=True)
            await self._socket.close(code)
        except (WebSocketDisconnect, HangUpError):
            return

    async def _send(self, message: str | bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_seconds), self._sending:
                if isinstance(message, str):
                    await self._socket.send_text(message)
                else:
                    await self._socket.send_bytes(message)
        except TimeoutError:
            error = ApiError(
                408, f"the client took nothing for {self._stall_seconds:g} s", code="stalled"
            )
            raise HangUpError(_CLOSE_TRY_AGAIN_LATER, error) from None
