"""The two directions of a WebSocket, and when to give up on its client."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable

from fastapi import WebSocket, WebSocketDisconnect

from hocket.errors import HocketError
from hocket.server.errors import ApiError, error_code, error_fields, internal_error
from hocket.server.services import services_of
from hocket.server.websocket.dialects import Dialect, own_words

_CLOSE_NORMAL = 1000
_CLOSE_INTERNAL_ERROR = 1011
_CLOSE_TRY_AGAIN_LATER = 1013


class HangUpError(Exception):
    """The socket is to be closed with `code`, because of `error`."""

    def __init__(self, code: int, error: HocketError) -> None:
        super().__init__(str(error))
        self.code, self.error = code, error


class Wire:
    """A socket whose client may be gone, silent or deaf. Any task may send."""

    def __init__(self, socket: WebSocket, stall_seconds: float, idle_seconds: float) -> None:
        self._socket = socket
        self._metrics = services_of(socket).metrics
        self._stall_seconds, self._idle_seconds = stall_seconds, idle_seconds
        self._sending = asyncio.Lock()
        #: What events are called.
        self.dialect: Dialect = own_words
        #: Of audio that was sent.
        self.audio_bytes = 0

    async def accept(self) -> None:
        """Before anything else."""
        await self._socket.accept()

    async def receive(self, may_be_idle: Callable[[], bool]) -> str | None:
        """The next message, None if it is binary.

        Raises WebSocketDisconnect, and HangUpError when none comes for long while `may_be_idle`.
        """
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    message = await self._socket.receive()
            except TimeoutError:
                if not may_be_idle():
                    continue
                seconds = f"{self._idle_seconds:g} s"
                error = ApiError(408, f"nothing was said for {seconds}; connect again", code="idle_timeout")
                raise HangUpError(_CLOSE_NORMAL, error) from None
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"])
            text: str | None = message.get("text")
            return text

    async def send_event(self, kind: str, **fields: object) -> None:
        """A JSON message. Raises HangUpError when the client takes nothing, as all that sends does."""
        event = self.dialect(kind, fields)
        if event is not None:
            await self._send(json.dumps(event, ensure_ascii=False))

    async def send_error(self, error: HocketError, *, fatal: bool = False) -> None:
        """`error` in OpenAI's form; `fatal` when the socket will be closed for it."""
        self._metrics.errors.labels(error_code(error)).inc()
        await self.send_event("error", error=error_fields(error), fatal=fatal)

    async def send_audio(self, data: bytes, *, as_base64: bool) -> None:
        """Encoded audio."""
        self.audio_bytes += len(data)
        if as_base64:
            await self.send_event("audio", audio=base64.b64encode(data).decode())
        else:
            await self._send(data)

    async def end(self, error: BaseException | None) -> None:
        """Say what has ended the session, if it is of interest and anybody is there, and close."""
        code = _CLOSE_NORMAL
        try:
            if isinstance(error, WebSocketDisconnect):
                return
            if isinstance(error, HangUpError):
                code = error.code
                if code != _CLOSE_TRY_AGAIN_LATER:  # who takes nothing does not take this either
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
            error = ApiError(408, f"the client took nothing for {self._stall_seconds:g} s", code="stalled")
            raise HangUpError(_CLOSE_TRY_AGAIN_LATER, error) from None
