"""Middleware around every request: id, API key, body, disconnects, log line, unexpected errors."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http
import logging
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hocket.errors import HocketError
from hocket.server.admission import Slots
from hocket.server.browsers import BrowserRules, add_browser_headers
from hocket.server.errors import ApiError, error_code, error_response, internal_error
from hocket.server.metrics import Metrics
from hocket.server.services import services_of
from hocket.server.settings import ServerSettings

_LOG = logging.getLogger("hocket.request")
_RECORD = "hocket.record"
#: Other paths (health, metrics, documentation, the studio's page) say nothing about users and need
#: no key.
_GUARDED = "/v1/"
#: Polled by browsers, load balancers and Prometheus; logged at DEBUG.
_POLLED = ("/health", "/metrics", "/studio/")
#: Requests that hold one slot. Without a free slot, they are refused before their body is read.
_ONE_SLOT = {
    ("POST", f"/v1/audio/{name}") for name in ("speech", "voices", "tokens/encode", "tokens/decode")
}
_CLOSE_POLICY_VIOLATION = 1008


@dataclass(slots=True)
class RequestRecord:
    """The facts of a request's log line; routes fill in those that they know."""

    id: str
    method: str
    #: Pattern of the route. The path itself may hold the name of a voice, or any words.
    path: str
    #: Identity for limits and for the owner of voices: a digest of the API key, the same after a
    #: restart, or the address where no keys are set.
    caller: str
    arrived: float = field(default_factory=time.perf_counter)
    status: int = 0
    model: str = "-"
    frames: int = 0
    audio_seconds: float = 0.0
    first_audio_seconds: float | None = None
    reason: str = "-"

    @property
    def age_seconds(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self.arrived

    def line(self) -> str:
        """The log line, as key=value pairs without any user text."""
        first = "-" if self.first_audio_seconds is None else f"{1e3 * self.first_audio_seconds:.1f}"
        rtf = f"{self.age_seconds / self.audio_seconds:.3f}" if self.audio_seconds else "-"
        return (
            f"event=request id={self.id} method={self.method} path={self.path} "
            f"status={self.status} model={self.model} frames={self.frames} "
            f"audio_seconds={self.audio_seconds:.2f} first_audio_ms={first} rtf={rtf} "
            f"seconds={self.age_seconds:.3f} reason={self.reason}"
        )


def record_of(connection: HTTPConnection) -> RequestRecord:
    """The record of the request on `connection`."""
    record = connection.scope[_RECORD]
    assert isinstance(record, RequestRecord)
    return record


class RequestMiddleware:
    """ASGI middleware around the whole app.

    The body is read here, whole and bounded, so that the connection can be watched from then on.
    When the client goes away, the request's task is cancelled, and every `async with` in it
    releases what it holds. No other part of the server handles disconnects.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        metrics: Metrics,
        routes: Sequence[Route | WebSocketRoute],
    ) -> None:
        self._routes = [(route.path_regex, route.path) for route in routes]
        self._app, self._settings, self._metrics = app, settings, metrics
        self._keys = [key.encode() for key in settings.api_keys]
        self._browsers = BrowserRules(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        method = str(scope.get("method", "WEBSOCKET"))
        record = RequestRecord(
            _request_id(connection), method, self._pattern(scope), self._caller(connection)
        )
        scope[_RECORD] = record
        if scope["type"] == "websocket":
            await self._websocket(connection, receive, send)
            return
        try:
            await self._request(connection, record, receive, send)
        finally:
            self._metrics.requests.labels(record.path, str(record.status)).inc()
            if record.status >= http.HTTPStatus.BAD_REQUEST:
                self._metrics.errors.labels(record.reason).inc()
            is_polled = record.path == "/" or record.path.startswith(_POLLED)
            _LOG.log(logging.DEBUG if is_polled else logging.INFO, "%s", record.line())

    async def _request(
        self, connection: HTTPConnection, record: RequestRecord, receive: Receive, send: Send
    ) -> None:
        async def watched_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", record.id.encode())]
                add_browser_headers(message)
            await send(message)

        try:
            self._browsers.check(connection)
            self._check_key(connection)
            slot = _Slot(connection, record)
            await slot.check()
            body = await self._read(connection, receive)
            if body is None:
                record.reason = "disconnected"
                return
            async with slot.held():
                await self._answer(connection.scope, body, receive, watched_send, record)
        except HocketError as error:
            record.reason = error_code(error)
            await error_response(error)(connection.scope, receive, watched_send)

    async def _answer(
        self, scope: Scope, body: bytes, receive: Receive, send: Send, record: RequestRecord
    ) -> None:
        """Run the app until it has answered or the client has disconnected."""
        task = asyncio.create_task(self._respond(scope, body, send, record))
        watch = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                record.reason = "disconnected"
        finally:
            for other in (task, watch):
                other.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)

    async def _respond(self, scope: Scope, body: bytes, send: Send, record: RequestRecord) -> None:
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if unread:
                return unread.pop()
            return (
                await asyncio.get_running_loop().create_future()
            )  # waits until this task is cancelled

        try:
            await self._app(scope, receive, send)
        except Exception as error:
            problem = internal_error(error)
            record.reason = problem.code
            # Once a response has begun, the connection ends early, which clients notice.
            if not record.status:
                await error_response(problem)(scope, receive, send)

    async def _read(self, connection: HTTPConnection, receive: Receive) -> bytes | None:
        """The body, or None after a disconnect. Raises ApiError."""
        max_bytes = self._settings.max_body_bytes
        announced = connection.headers.get("content-length", "")
        if announced.isdigit() and int(announced[:20]) > max_bytes:
            raise _too_large(max_bytes)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > max_bytes:
                        raise _too_large(max_bytes)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            seconds = self._settings.body_seconds
            raise ApiError(
                408, f"the body did not arrive within {seconds:g} s", code="body_timeout"
            ) from None

    async def _websocket(self, connection: HTTPConnection, receive: Receive, send: Send) -> None:
        try:
            self._browsers.check(connection)
            self._check_key(connection)
        except ApiError as error:
            await send(
                {"type": "websocket.close", "code": _CLOSE_POLICY_VIOLATION, "reason": str(error)}
            )
            return
        await self._app(connection.scope, receive, send)

    def _pattern(self, scope: Scope) -> str:
        """The route's pattern. Clients choose paths freely, so a label per path would have no
        bound.
        """
        path = scope["path"]
        return next((pattern for regex, pattern in self._routes if regex.match(path)), "none")

    # ---- keys

    def _check_key(self, connection: HTTPConnection) -> None:
        if not self._keys or not connection.scope["path"].startswith(_GUARDED):
            return
        given = _given_key(connection).encode()
        # All keys are compared, each in constant time, so that timing leaks nothing.
        if not sum(hmac.compare_digest(given, key) for key in self._keys):
            how = "send 'Authorization: Bearer KEY'"
            what = "this is not a valid API key" if given else "an API key is needed"
            raise ApiError(401, f"{what}; {how}", code="invalid_api_key")

    def _caller(self, connection: HTTPConnection) -> str:
        if self._keys:
            return hashlib.blake2b(_given_key(connection).encode(), digest_size=8).hexdigest()
        return connection.client.host if connection.client else "local"


class _Slot:
    """The admission slot of a request on a route in `_ONE_SLOT`.

    It is taken before any other task runs, so that in a burst the requests without a slot are
    refused first. Other routes hold none here: batches and sockets take slots as they go.
    """

    def __init__(self, connection: HTTPConnection, record: RequestRecord) -> None:
        """Raises EngineStoppedError."""
        self._admission: Slots | None = None
        if (record.method, connection.scope["path"]) in _ONE_SLOT:
            services = services_of(connection)
            self._admission, self._caller, self._rows = (
                services.admission,
                record.caller,
                services.client.info.rows,
            )

    async def check(self) -> None:
        """Raises ApiError where none is free."""
        if self._admission is not None:
            await self._admission.check(self._caller, self._rows)

    def held(self) -> AbstractAsyncContextManager[None]:
        """Hold the slot. Entering raises ApiError where none is free any more."""
        return (
            nullcontext()
            if self._admission is None
            else self._admission.slot(self._caller, self._rows)
        )


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than {max_bytes} bytes, which is the most", code="body_too_large"
    )


def _given_key(connection: HTTPConnection) -> str:
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    # Browsers cannot set headers on a WebSocket.
    return (
        connection.query_params.get("api_key", "")
        if connection.scope["type"] == "websocket"
        else ""
    )


def _request_id(connection: HTTPConnection) -> str:
    """The client's own id if it is plain, so that both logs can be joined; else a new one."""
    given = connection.headers.get("x-request-id", "")
    is_plain = re.fullmatch(r"[A-Za-z0-9_-]{1,128}", given) is not None
    return given if is_plain else f"req-{secrets.token_hex(8)}"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
