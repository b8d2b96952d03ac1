"""One HTTP request at a time, with the arrival of every piece of the answer timed where the socket hands it over.

Clients such as httpx tell when a task got to see a piece; under load that is later than when it arrived. Here the clock
is read in the event loop's own callback, and HTTP/1.1 itself is left to h11.
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

#: Read from the socket at once; h11 bounds headers by it as well.
_MAX_HEADER_BYTES = 64 * 1024
_HTTP_OK = 200
_PAGE_SECONDS = 5.0
_MAX_PAGE_BYTES = 4 * 2**20
#: A shorter one is a word such as EMPTY, which a server that wants no key is given.
_SHORTEST_KEY = 8
#: A quarter of an hour of 48 kHz stereo. Answers are held in memory until they end, and some never do.
MAX_BODY_BYTES = 192 * 2**20


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    #: In front of every path: "" or "/something".
    prefix: str
    tls: ssl.SSLContext | None
    #: As in the header `Host`.
    authority: str

    @classmethod
    def parse(cls, base_url: str) -> Target:
        """An address such as http://127.0.0.1:8000, with or without /v1 at its end. Raises ConfigError."""
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError:
            raise ConfigError("the address is not valid; give one such as http://127.0.0.1:8000") from None
        if not base_url.isascii() or not base_url.isprintable() or " " in base_url:
            raise ConfigError("write the address in ASCII and without spaces (xn--… for other letters)")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError("the address does not begin with http:// or https:// and a host", param="base_url")
        try:
            parts.hostname.encode("idna")
        except UnicodeError:
            raise ConfigError("the address has no valid name of a host", param="base_url") from None
        if parts.username is not None or parts.query or parts.fragment:
            raise ConfigError("leave user, query and fragment out of the address; keys go into HOCKET_API_KEY")
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
        """The address again, without what `parse` left out."""
        return f"http{'s' if self.tls else ''}://{self.authority}{self.prefix}"


@dataclass(slots=True)
class Response:
    """What came back, and when. Times are `perf_counter` seconds."""

    #: Before the connection was opened.
    sent_at: float
    connected_at: float | None = None
    status: int = 0
    #: Names in lower case.
    headers: dict[str, str] = field(default_factory=dict)
    #: Of each piece of the body: when it arrived, and the bytes of the body that had arrived by then.
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    body: bytes = b""
    ended_at: float = 0.0
    #: Why the answer is not whole: "connect", "timeout", "http", "incomplete", "too_big"; and in words.
    broken: str | None = None
    detail: str = ""


def bearer(api_key: str | None) -> dict[str, str]:
    """The header that carries a key. Raises ConfigError for a key that no header can carry, without repeating it."""
    if api_key is None:
        return {}
    if not api_key.isascii() or not api_key.isprintable() or api_key != api_key.strip():
        raise ConfigError("the API key has characters that no header can carry; was it copied whole?", param="api_key")
    return {"Authorization": f"Bearer {api_key}"}


def without_key(document: Any, api_key: str | None) -> Any:
    """`document`, a piece of JSON, in which nothing that a server said repeats the key."""
    if api_key is None or len(api_key) < _SHORTEST_KEY:
        return document
    if isinstance(document, dict):
        return {name: without_key(value, api_key) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [without_key(value, api_key) for value in document]
    return document.replace(api_key, "***") if isinstance(document, str) else document


async def page(target: Target, path: str, api_key: str | None = None) -> bytes | None:
    """The body of a small page, with an end to time and size; None where there is no such page."""
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
    """One request on a connection of its own, of whose answer at most `max_bytes` bytes are taken.

    What goes wrong is in the answer, nothing is raised.
    """
    response = Response(sent_at=perf_counter())
    exchange = _Exchange(response, max_bytes)
    lines = {"Host": target.authority, "Content-Length": str(len(body)), "Connection": "close", **headers}
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
    """Feeds h11 and writes down what it says."""

    def __init__(self, response: Response, max_bytes: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pieces: list[bytes] = []
        self._response = response
        self._bytes, self._max_bytes = 0, max_bytes
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEADER_BYTES)

    def begin(self, request: h11.Request, body: bytes) -> bytes:
        """What to send."""
        parts = [self._http.send(request), self._http.send(h11.Data(data=body)), self._http.send(h11.EndOfMessage())]
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
            self._response.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.EndOfMessage):
            self._response.ended_at = now
            self._end()

    def _end(self, broken: str | None = None, detail: str = "") -> None:
        if not self.done.done():
            self._response.broken, self._response.detail = broken, detail
            self.done.set_result(None)
