"""An HTTP client that timestamps each chunk of a response in the socket's callback.

Clients such as httpx show when a task saw a chunk, which under load is later than its arrival.
HTTP/1.1 itself is h11's.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

import h11

from hocket.errors import ConfigError

#: Largest header block that h11 accepts.
_MAX_HEADER_BYTES = 64 * 1024
_HTTP_OK = 200
_PAGE_SECONDS = 5.0
_MAX_PAGE_BYTES = 4 * 2**20
#: A shorter key is a placeholder such as EMPTY, for servers without authentication.
_SHORTEST_KEY = 8
#: A quarter of an hour of 48 kHz stereo. Responses are held in memory until they end, and some
#: never do.
MAX_BODY_BYTES = 192 * 2**20


@dataclass(frozen=True, slots=True)
class Target:
    """The server that requests go to."""

    host: str
    port: int
    #: Prefix of every path: "" or "/something".
    prefix: str
    tls: ssl.SSLContext | None
    #: Value of the header `Host`.
    authority: str

    @classmethod
    def parse(cls, base_url: str) -> Target:
        """Parse an address such as http://127.0.0.1:8000, with or without a final /v1. Raises
        ConfigError.
        """
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError:
            raise ConfigError(
                "the address is not valid; give one such as http://127.0.0.1:8000"
            ) from None
        if not base_url.isascii() or not base_url.isprintable() or " " in base_url:
            raise ConfigError(
                "write the address in ASCII and without spaces (xn--… for other letters)"
            )
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(
                "the address does not begin with http:// or https:// and a host", param="base_url"
            )
        try:
            parts.hostname.encode("idna")
        except UnicodeError:
            raise ConfigError("the address has no valid name of a host", param="base_url") from None
        if parts.username is not None or parts.query or parts.fragment:
            raise ConfigError(
                "leave user, query and fragment out of the address; keys go into HOCKET_API_KEY"
            )
        is_tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (443 if is_tls else 80),
            prefix=parts.path.rstrip("/").removesuffix("/v1"),
            tls=ssl.create_default_context() if is_tls else None,
            authority=parts.netloc,
        )

    @property
    def url(self) -> str:
        """The address in its normal form."""
        return f"http{'s' if self.tls else ''}://{self.authority}{self.prefix}"


@dataclass(slots=True)
class Response:
    """One response and its times, in `perf_counter` seconds."""

    #: Before the connection was opened.
    sent_at: float
    connected_at: float | None = None
    status: int = 0
    #: Names in lower case.
    headers: dict[str, str] = field(default_factory=dict)
    #: (time, bytes of the body received by then), one for each read from the socket.
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    body: bytes = b""
    ended_at: float = 0.0
    #: Why the response is not whole: "connect", "timeout", "http", "incomplete" or "too_big"; then
    #: in words.
    broken: str | None = None
    detail: str = ""


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries a key. Raises ConfigError, without the key in its text, for an
    invalid one.
    """
    if api_key is None:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or api_key != api_key.strip():
        raise ConfigError(
            "the API key has characters that no header can carry; was it copied whole?",
            param="api_key",
        )
    return {"Authorization": f"Bearer {api_key}"}


def without_key(document: Any, api_key: str | None) -> Any:
    """Mask the key in every string of a JSON `document`: servers may repeat it."""
    if api_key is None or len(api_key) < _SHORTEST_KEY:
        return document
    if isinstance(document, dict):
        return {name: without_key(value, api_key) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [without_key(value, api_key) for value in document]
    return document.replace(api_key, "***") if isinstance(document, str) else document


async def page(target: Target, path: str, api_key: str | None = None) -> bytes | None:
    """Fetch a small page, within 5 s and 4 MiB; None where there is no such page."""
    response = await send(target, "GET", path, bearer(api_key), b"", _PAGE_SECONDS, _MAX_PAGE_BYTES)
    return response.body if response.broken is None and response.status == _HTTP_OK else None


async def send(
    target: Target,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    timeout: float,
    max_bytes: int = MAX_BODY_BYTES,
) -> Response:
    """Send one request on a connection of its own, and read up to `max_bytes` of the response.

    Raises nothing: a failure is in the response.
    """
    response = Response(sent_at=perf_counter())
    exchange = _Exchange(response, max_bytes)
    lines = {
        "Host": target.authority,
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    request = h11.Request(method=method, target=target.prefix + path, headers=list(lines.items()))
    transport = None
    try:
        async with asyncio.timeout(timeout):
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: exchange, target.host, target.port, ssl=target.tls
            )
            response.connected_at = perf_counter()
            transport.write(exchange.begin(request, body))
            await exchange.done
    except TimeoutError:
        response.broken, response.detail = "timeout", f"not complete after {timeout:g} s"
    except OSError as error:
        response.broken, response.detail = "connect", error.strerror or type(error).__name__
    finally:
        if transport is not None:
            transport.abort()
    response.ended_at = response.ended_at or perf_counter()
    response.body = b"".join(exchange.pieces)
    return response


class _Exchange(asyncio.Protocol):
    """Feeds h11 with received bytes, and records its events in the response."""

    def __init__(self, response: Response, max_bytes: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pieces: list[bytes] = []
        self._response = response
        self._bytes, self._max_bytes = 0, max_bytes
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADER_BYTES)

    def begin(self, request: h11.Request, body: bytes) -> bytes:
        """The bytes of the request."""
        parts = [
            self._http.send(request),
            self._http.send(h11.Data(data=body)),
            self._http.send(h11.EndOfMessage()),
        ]
        return b"".join(part for part in parts if part)

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        self._take(data, now)

    def eof_received(self) -> None:
        self._take(b"", perf_counter())

    def connection_lost(self, error: Exception | None) -> None:
        reason = "it was reset" if isinstance(error, ConnectionError) else "it was closed"
        self._end("incomplete", f"{reason} in the middle of the answer")

    def _take(self, data: bytes, now: float) -> None:
        if self.done.done():
            return
        before = self._bytes
        try:
            self._http.receive_data(data)
            while not self.done.done():
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    break
                self._note(event, now)
        except h11.RemoteProtocolError as error:
            if data:
                self._end("http", str(error).partition("\n")[0])
            elif self._response.status == 0:
                self._end("incomplete", "it was closed before an answer came")
            else:
                self._end("incomplete", str(error).partition("\n")[0])
        if self._bytes != before:
            self._response.arrivals.append((now, self._bytes))

    def _note(self, event: object, now: float) -> None:
        if isinstance(event, h11.Data):
            self.pieces.append(bytes(event.data))
            self._bytes += len(event.data)
            if self._bytes > self._max_bytes:
                self._end("too_big", f"more than {self._max_bytes} bytes")
        elif isinstance(event, h11.Response):
            self._response.status = event.status_code
            self._response.headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers
            }
        elif isinstance(event, h11.EndOfMessage):
            self._response.ended_at = now
            self._end()

    def _end(self, broken: str | None = None, detail: str = "") -> None:
        if not self.done.done():
            self._response.broken, self._response.detail = broken, detail
            self.done.set_result(None)
