"""Rules for browsers: the names that the server answers to, the pages that may use it, and headers.

A page from anywhere can make its reader's browser send requests to a server on the reader's own
machine or network. It may do so under a name of its own that points there (DNS rebinding), from
another site, or in a frame. Clients that are no browsers send no Origin, and a Host that fits.
"""

from __future__ import annotations

import ipaddress
import re

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from hocket.server.errors import ApiError, error_response
from hocket.server.settings import ServerSettings

#: Of every answer. A route that needs more of its page sends a policy of its own.
_HEADERS = {
    b"content-security-policy": b"default-src 'none'; base-uri 'none'; form-action 'none'; "
    b"frame-ancestors 'none'",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}
#: Methods that change nothing; without leave of `cors_origins`, other sites cannot read the answer.
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_EXPOSED = (
    *("X-Sample-Rate", "X-Channels", "X-Seed", "X-Request-Id", "X-Audio-Seconds"),
    *("X-Finish-Reason", "X-Input-Tokens", "X-Output-Tokens", "Retry-After"),
)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/\s]+?)\.?(?::([0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": "80", "https": "443"}


class BrowserRules:
    """Which Host and Origin requests may have."""

    def __init__(self, settings: ServerSettings) -> None:
        self._allowed_hosts = frozenset(name.lower() for name in settings.allowed_hosts)
        self._origins = frozenset(settings.cors_origins)
        self._is_local = is_loopback(settings.host)
        # A page that comes under a name of its own does not know the key.
        self._takes_any_host = "*" in self._allowed_hosts or (
            bool(settings.api_keys) and not self._is_local
        )

    def check(self, connection: HTTPConnection) -> None:
        """Raises ApiError: 421 for a foreign Host, 403 for the page of another site."""
        host = connection.headers.get("host")
        if host is not None and not self._takes_any_host:
            self._check_host(host)
        origin = connection.headers.get("origin")
        if origin is not None and connection.scope.get("method") not in _READING:
            self._check_origin(origin, host or "")

    def _check_host(self, host: str) -> None:
        match = _AUTHORITY.fullmatch(host.lower())
        name = match[1] if match else ""
        if not (name in self._allowed_hosts or self._is_safe_name(name)):
            raise ApiError(
                421,
                f"this server does not answer to the name {host[:100]!a}; add it to "
                "server.allowed_hosts",
                code="host_not_allowed",
            )

    def _is_safe_name(self, name: str) -> bool:
        """Whether no stranger can have `name` point at this server."""
        if self._is_local:
            return is_loopback(name.strip("[]"))
        # Bound to a network: addresses, and names of that network, which have no dot.
        return bool(name) and (_address(name.strip("[]")) is not None or "." not in name)

    def _check_origin(self, origin: str, host: str) -> None:
        if "*" in self._origins or origin in self._origins or _is_same(origin, host):
            return
        raise ApiError(
            403,
            f"pages of {origin[:100]!a} may not use this server; add it to server.cors_origins",
            code="origin_not_allowed",
        )


class CrossOriginMiddleware(CORSMiddleware):
    """Lets pages of the given origins read answers; preflights are answered here, without a key."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("Authorization", "X-Request-Id"),
            expose_headers=_EXPOSED,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight; a refusal has the form of every error."""
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        reason = bytes(response.body).decode()
        return error_response(ApiError(403, f"{reason}; see server.cors_origins", code="cors"))


def add_browser_headers(message: Message) -> None:
    """Add the headers of every answer to an `http.response.start`, but those that it has."""
    present = {name.lower() for name, _ in message["headers"]}
    added = [(name, value) for name, value in _HEADERS.items() if name not in present]
    message["headers"] = [*message["headers"], *added]


def _is_same(origin: str, host: str) -> bool:
    """Whether a page of `origin` comes from `host`, whatever proxy did the TLS between them."""
    scheme, _, authority = origin.lower().partition("://")
    page, server = _AUTHORITY.fullmatch(authority), _AUTHORITY.fullmatch(host.lower())
    if page is None or server is None or scheme not in _DEFAULT_PORTS:
        return False
    default = _DEFAULT_PORTS[scheme]
    return (page[1], page[2] or default) == (server[1], server[2] or default)


def is_loopback(name: str) -> bool:
    """Whether `name` is `localhost` or a loopback address."""
    address = _address(name)
    return name == "localhost" if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
