"""What happens to every request before and after its route: id, API key, body, disconnect, log line, last resort."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http
import logging
import secrets
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hocket.errors import HocketError
from hocket.server.admission import Admission
from hocket.server.errors import ApiError, error_code, error_response, internal_error
from hocket.server.metrics import Metrics
from hocket.server.services import services_of
from hocket.server.settings import ServerSettings

_LOG = logging.getLogger("hocket.request")
_RECORD = "hocket.record"
#: Everything else (health, metrics, documentation, the studio's page) says nothing about users.
_GUARDED = "/v1/"
#: Browsers, load balancers and Prometheus ask for these all day; their lines are for whoever debugs.
_POLLED = ("/health", "/metrics", "/studio/")
#: Requests that take one place: where there is none, they are refused before anything is read, parsed or looked up.
_ONE_PLACE = {("POST", f"/v1/audio/{name}") for name in ("speech", "voices", "tokens/encode", "tokens/decode")}
_LONGEST_ID = 128
_CLOSE_POLICY_VIOLATION = 1008


@dataclass(slots=True)
class RequestRecord:
    """What the log line of a request says; routes fill in what they know."""

    id: str
    method: str
    path: str
    #: Whose limits apply: a digest of the API key, or the address where there are no keys.
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
        """Since the request arrived."""
        return time.perf_counter() - self.arrived

    def line(self) -> str:
        """key=value pairs; nothing of it comes out of a user's text."""
        first = "-" if self.first_audio_seconds is None else f"{1e3 * self.first_audio_seconds:.1f}"
        rtf = f"{self.age_seconds / self.audio_seconds:.3f}" if self.audio_seconds else "-"
        return (
            f"event=request id={self.id} method={self.method} path={self.path} status={self.status} "
            f"model={self.model} frames={self.frames} audio_seconds={self.audio_seconds:.2f} first_audio_ms={first} "
            f"rtf={rtf} seconds={self.age_seconds:.3f} reason={self.reason}"
        )


def record_of(connection: HTTPConnection) -> RequestRecord:
    """The record of the request that `connection` is."""
    record = connection.scope[_RECORD]
    assert isinstance(record, RequestRecord)
    return record


class RequestMiddleware:
    """ASGI middleware around the whole app.

    The body is read here, whole and bounded, so that from then on the connection can be watched: when the client
    goes away, whatever the request was waiting for is cancelled, and every `async with` on the way gives back what it
    holds. Nothing else in the server has to think of disconnects.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        method = str(scope.get("method", "WEBSOCKET"))
        record = RequestRecord(_request_id(connection), method, _log_safe(scope["path"]), self._caller(connection))
        scope[_RECORD] = record
        if scope["type"] == "websocket":
            await self._websocket(connection, receive, send)
            return
        try:
            await self._request(connection, record, receive, send)
        finally:
            self._metrics.requests.labels(_route(scope), str(record.status)).inc()
            if record.status >= http.HTTPStatus.BAD_REQUEST:
                self._metrics.errors.labels(record.reason).inc()
            is_polled = record.path == "/" or record.path.startswith(_POLLED)
            _LOG.log(logging.DEBUG if is_polled else logging.INFO, "%s", record.line())

    async def _request(self, connection: HTTPConnection, record: RequestRecord, receive: Receive, send: Send) -> None:
        async def watched_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", record.id.encode())]
            await send(message)

        try:
            self._check_key(connection)
            place = _Place(connection, record)
            place.check()
            body = await self._read(connection, receive)
            if body is None:
                record.reason = "disconnected"
                return
            with place.held():
                await self._answer(connection.scope, body, receive, watched_send, record)
        except HocketError as error:
            record.reason = error_code(error)
            await error_response(error)(connection.scope, receive, watched_send)

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send, record: RequestRecord) -> None:
        """Let the app answer, for as long as the client is there."""
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
            return await asyncio.get_running_loop().create_future()  # until this task is cancelled

        try:
            await self._app(scope, receive, send)
        except Exception as error:
            problem = internal_error(error)
            record.reason = problem.code
            if not record.status:  # nothing was sent; otherwise the connection just ends, which a client notices
                await error_response(problem)(scope, receive, send)

    async def _read(self, connection: HTTPConnection, receive: Receive) -> bytes | None:
        """The body, or None when the client has gone away. Raises ApiError."""
        most = self._settings.max_body_bytes
        announced = connection.headers.get("content-length", "")
        if announced.isdigit() and int(announced[:20]) > most:
            raise _too_large(most)
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    if size > most:
                        raise _too_large(most)
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError:
            seconds = self._settings.body_seconds
            raise ApiError(408, f"the body did not arrive within {seconds:g} s", code="body_timeout") from None

    async def _websocket(self, connection: HTTPConnection, receive: Receive, send: Send) -> None:
        try:
            self._check_key(connection)
        except ApiError as error:
            await send({"type": "websocket.close", "code": _CLOSE_POLICY_VIOLATION, "reason": str(error)})
            return
        await self._app(connection.scope, receive, send)

    # ---- keys

    def _check_key(self, connection: HTTPConnection) -> None:
        if not self._keys or not connection.scope["path"].startswith(_GUARDED):
            return
        given = _given_key(connection).encode()
        # Every key is compared, each in constant time, so that the time taken says nothing.
        if not sum(hmac.compare_digest(given, key) for key in self._keys):
            how = "send 'Authorization: Bearer KEY'"
            what = "this is not a valid API key" if given else "an API key is needed"
            raise ApiError(401, f"{what}; {how}", code="invalid_api_key")

    def _caller(self, connection: HTTPConnection) -> str:
        if self._keys:
            return hashlib.blake2b(_given_key(connection).encode(), digest_size=8).hexdigest()
        return connection.client.host if connection.client else "local"


class _Place:
    """What a request takes of the server's room: one place, for the routes in `_ONE_PLACE`.

    It is taken before any other task has a turn, so that of many that come at once those that find none are refused
    first, and the others worked on after that. Others take none here: batches and sockets take theirs as they go.
    """

    def __init__(self, connection: HTTPConnection, record: RequestRecord) -> None:
        """Raises EngineStoppedError."""
        self._admission: Admission | None = None
        if (record.method, connection.scope["path"]) in _ONE_PLACE:
            services = services_of(connection)
            self._admission, self._caller, self._rows = services.admission, record.caller, services.client.info.rows

    def check(self) -> None:
        """Raises ApiError where there is none."""
        if self._admission is not None:
            self._admission.check(self._caller, self._rows)

    def held(self) -> AbstractContextManager[None]:
        """Entering it raises ApiError where there is none any more."""
        return nullcontext() if self._admission is None else self._admission.slot(self._caller, self._rows)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes, which is the most", code="body_too_large")


def _given_key(connection: HTTPConnection) -> str:
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    # A browser cannot set headers on a WebSocket.
    return connection.query_params.get("api_key", "") if connection.scope["type"] == "websocket" else ""


def _request_id(connection: HTTPConnection) -> str:
    """The client's own, if it is plain, so that both logs can be joined; else a new one."""
    given = connection.headers.get("x-request-id", "")
    plain = 0 < len(given) <= _LONGEST_ID and given.isascii() and given.replace("-", "").replace("_", "").isalnum()
    return given if plain else f"req-{secrets.token_hex(8)}"


def _log_safe(path: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() and c not in ' "=' else "?" for c in path)[:200]


def _route(scope: Scope) -> str:
    """The route's pattern, not the path: paths are the client's choice and would fill the metrics."""
    if (scope["method"], scope["path"]) in _ONE_PLACE:  # a refused one has met no route
        return str(scope["path"])
    return getattr(scope.get("route"), "path", "none")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
