"""Fetches the recordings that requests name: by URL, as a data: URI, or as a file in one folder of
the server.

Any client can make the server open these, so the policy is enforced for every access: a host is
resolved once, all of its addresses are checked, and the connection goes to a checked address, for
the first URL as for every redirect. Messages show a URL without its query, which may hold a
signature; nothing is logged.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import http
import ipaddress
import re
import socket
import ssl
import urllib.parse
import zlib
from collections.abc import Awaitable, Callable, Sequence

import httpx

from hocket.errors import ReferenceAudioError
from hocket.server.settings import FetchPolicy

#: Resolves a host, for a port, to addresses as text. Raises OSError.
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

_MAX_URL_CHARACTERS = 8_192
_MAX_SHOWN_CHARACTERS = 100


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Addresses of `host` from the system's resolver. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def fetch_reference(
    source: str, policy: FetchPolicy, *, resolve: Resolver = resolve_host
) -> bytes:
    """The bytes at `source`: an http:, https:, data: or file: URL, or a path in the policy's
    folder.

    Raises ReferenceAudioError (`reference_audio`): not allowed, unreachable, too big, too slow, not
    a recording.
    """
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)", source)
    kind = "" if scheme is None else scheme.group().lower()
    if kind == "data":
        return await asyncio.to_thread(_read_data_uri, source, policy.max_bytes)
    if len(source) > _MAX_URL_CHARACTERS:
        raise _refusal(
            f"a reference's address has {_MAX_URL_CHARACTERS} characters at most; send audio as a "
            "data: URI"
        )
    if kind in {"http", "https"}:
        return await _fetch_url(source, policy, resolve)
    if kind in {"file", ""}:
        return await asyncio.to_thread(_read_file, source, policy)
    raise _refusal(f"references by {kind[:20]!r} are not supported; give an https: or data: URL")


def _refusal(message: str) -> ReferenceAudioError:
    return ReferenceAudioError(message, param="reference_audio")


# --------------------------------------------------------------------------------------------------
# http


async def _fetch_url(source: str, policy: FetchPolicy, resolve: Resolver) -> bytes:
    if not policy.allow_urls:
        raise _refusal("this server fetches no URLs; send the recording as a data: URI")
    url = _parsed(source)
    try:
        async with asyncio.timeout(policy.total_seconds):
            for _ in range(policy.max_redirects + 1):
                answer = await _fetch_hop(url, policy, resolve)
                if isinstance(answer, bytes):
                    return answer
                url = answer
    except TimeoutError:
        raise _refusal(
            f"{_shown(url)} took longer than {policy.total_seconds:g} s; send a data: URI"
        ) from None
    raise _refusal(
        f"{_shown(url)} is the end of more than {policy.max_redirects} redirects; give the final "
        "address"
    )


def _parsed(source: str, base: httpx.URL | None = None) -> httpx.URL:
    try:
        url = httpx.URL(source) if base is None else base.join(source)
        host = url.host  # raises for a name in Punycode that says nothing
    except (httpx.InvalidURL, ValueError):
        raise _refusal("the reference's address is not a valid URL; check it") from None
    if url.scheme not in {"http", "https"}:
        raise _refusal(
            f"{_shown(base or url)} leads to a {url.scheme[:20]!r} address; only http and https "
            "are fetched"
        )
    if not host or not 0 < (url.port or 80) < 2**16:
        raise _refusal("the reference's URL names no host, or an impossible port; check it")
    if url.userinfo:
        raise _refusal(
            f"{_shown(url)} comes with a user name or password, which is not supported; use a "
            "signed URL"
        )
    return url


def _shown(url: httpx.URL) -> str:
    """The URL for messages, without the parts that may be secret."""
    port = "" if url.port is None else f":{url.port}"
    text = f"{url.scheme}://{url.host}{port}{url.path}"
    return repr(text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…")


async def _fetch_hop(url: httpx.URL, policy: FetchPolicy, resolve: Resolver) -> bytes | httpx.URL:
    """The body at `url`, or the URL of a redirect."""
    host = url.raw_host.decode("ascii")
    addresses = await _checked_addresses(url, host, policy, resolve)
    # Every hop has a transport of its own: a kept connection could answer for another host at the
    # same address. It is used without httpx.Client, which would log the URL.
    async with httpx.AsyncHTTPTransport(verify=_tls(), trust_env=False) as transport:
        for i, address in enumerate(addresses):
            request = httpx.Request(
                "GET",
                url.copy_with(host=address),
                headers={
                    "Host": url.netloc.decode("ascii"),
                    "Accept": "audio/*, */*",
                    "Accept-Encoding": "identity",
                },
                extensions={"sni_hostname": host, "timeout": {"connect": policy.connect_seconds}},
            )
            try:
                response = await transport.handle_async_request(request)
                try:
                    return await _read_response(url, response, policy.max_bytes)
                finally:
                    await response.aclose()
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if i + 1 == len(addresses):
                    raise _refusal(
                        f"{_shown(url)} cannot be reached; check it, or send a data: URI"
                    ) from None
            except httpx.TransportError:
                raise _refusal(
                    f"the connection to {_shown(url)} broke; try again, or send a data: URI"
                ) from None
    raise AssertionError("a host without addresses is refused before")


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)


async def _read_response(
    url: httpx.URL, response: httpx.Response, max_bytes: int
) -> bytes | httpx.URL:
    if response.has_redirect_location:
        return _parsed(response.headers["Location"], url)
    if response.status_code != http.HTTPStatus.OK:
        raise _refusal(
            f"{_shown(url)} answers with status {response.status_code}; check the address"
        )
    stated = response.headers.get("Content-Length", "")
    if stated.isdecimal() and int(stated[:20]) > max_bytes:
        raise _too_big(_shown(url), max_bytes)
    content_type = response.headers.get("Content-Type", "")
    _check_content(_shown(url), content_type, b"")
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"identity", "gzip"}:
        raise _refusal(
            f"{_shown(url)} sends its content as {encoding[:20]!r} though no compression was asked "
            "for"
        )
    body = await _read_body(_shown(url), response, encoding == "gzip", max_bytes)
    _check_content(_shown(url), content_type, body)
    return body


async def _read_body(name: str, response: httpx.Response, gzipped: bool, max_bytes: int) -> bytes:
    """The body, limited to `max_bytes` before and after decompression: 64 KiB of gzip can expand to
    64 MiB.
    """
    inflater = zlib.decompressobj(wbits=31) if gzipped else None
    body, received = bytearray(), 0
    async for data in response.aiter_raw():
        received += len(data)
        try:
            body += (
                data if inflater is None else inflater.decompress(data, max_bytes + 1 - len(body))
            )
        except zlib.error:
            raise _refusal(f"{name} sends broken gzip; check it, or send a data: URI") from None
        if max(len(body), received) > max_bytes:
            raise _too_big(name, max_bytes)
    if inflater is not None and not inflater.eof:
        raise _refusal(f"{name} sends gzip that is cut short; try again, or send a data: URI")
    return bytes(body)


def _too_big(name: str, max_bytes: int) -> ReferenceAudioError:
    return _refusal(
        f"{name} has more than {max_bytes} bytes, which is the limit; give a shorter or compressed "
        "recording"
    )


def _check_content(name: str, content_type: str, body: bytes) -> None:
    """Refuse content that is clearly not a recording. The decoder judges the rest."""
    media = content_type.partition(";")[0].strip().lower()
    start = body[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if media in {"text/html", "application/xhtml+xml"} or start.startswith(
        (b"<!doctype html", b"<html")
    ):
        raise _refusal(
            f"{name} is a web page (HTML), not a recording; give the address of the audio file "
            "itself"
        )
    kind = media.partition("/")[0]
    if kind in {"image", "font"} or media in {
        "application/json",
        "application/xml",
        "application/pdf",
        "text/xml",
    }:
        raise _refusal(
            f"{name} is {media[:40]!r}, not a recording; give the address of an audio file"
        )


# --------------------------------------------------------------------------------------------------
# addresses

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")
_DOCUMENTATION = ipaddress.IPv6Network("3fff::/20")
#: Not public, although Python may say so: protocol assignments, the 6to4 relay, and Azure's host
#: agent.
_SPECIAL_V4 = tuple(
    map(ipaddress.IPv4Network, ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"))
)


def is_public(address: str) -> bool:
    """Whether `address` is on the public internet.

    An IPv4 address within IPv6 (mapped, NAT64) is judged as such.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        elif parsed in _NAT64:
            parsed = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        else:
            outside = (
                parsed not in _GLOBAL_UNICAST or parsed in _SIX_TO_FOUR or parsed in _DOCUMENTATION
            )
            return parsed.is_global and not outside
    special = (
        parsed.is_multicast
        or parsed.is_reserved
        or any(parsed in network for network in _SPECIAL_V4)
    )
    return parsed.is_global and not special


async def _checked_addresses(
    url: httpx.URL, host: str, policy: FetchPolicy, resolve: Resolver
) -> list[str]:
    try:
        found = await resolve(host, url.port or (443 if url.scheme == "https" else 80))
    except (OSError, UnicodeError):
        found = ()
    addresses = list(dict.fromkeys(found))
    if not addresses:
        raise _refusal(f"the host of {_shown(url)} is not found; check the address")
    # A single private address among public ones is refused, too: no honest host has one.
    if not policy.allow_private and not all(is_public(address) for address in addresses):
        raise _refusal(
            f"{_shown(url)} is not at a public address, and only those are fetched; send a data: "
            "URI"
        )
    return addresses


# --------------------------------------------------------------------------------------------------
# data: and file:


def _read_data_uri(source: str, max_bytes: int) -> bytes:
    """Decode an RFC 2397 URI, base64 or percent-encoded.

    Like browsers, ignores white space and missing padding.
    """
    header, comma, payload = source[len("data:") :].partition(",")
    if not comma:
        raise _refusal(
            "the data: URI has no comma before its data; the form is data:audio/wav;base64,..."
        )
    if len(payload) > 4 * max_bytes:
        raise _too_big("the data: URI", max_bytes)
    media, *parameters = (part.strip().lower() for part in header.split(";"))
    data = urllib.parse.unquote_to_bytes(payload)
    if parameters and parameters[-1] == "base64":
        packed = b"".join(data.split()).rstrip(b"=")
        try:
            data = base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
        except binascii.Error:
            raise _refusal(
                "the data: URI does not hold valid base64; encode the recording again"
            ) from None
    if len(data) > max_bytes:
        raise _too_big("the data: URI", max_bytes)
    _check_content("the data: URI", media, data)
    return data


def _read_file(source: str, policy: FetchPolicy) -> bytes:
    if policy.files_folder is None:
        raise _refusal("this server reads no files of its own; send the recording as a data: URI")
    try:
        folder = policy.files_folder.resolve(strict=True)
        path = (folder / _file_path(source)).resolve()  # links are followed before the check
        # The same error whether a path outside exists or not.
        if not path.is_relative_to(folder):
            raise _refusal(
                "the reference's path is outside the server's folder of references; name a file "
                "in it"
            )
        if not path.is_file():
            raise _refusal(
                "the reference's path names no file in the server's folder of references; check it"
            )
        with path.open("rb") as file:
            data = file.read(policy.max_bytes + 1)
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # a long path, a loop of links, a NUL, no permission
        raise _refusal("the reference's path cannot be read on the server; check it") from None
    if len(data) > policy.max_bytes:
        raise _too_big("the reference's file", policy.max_bytes)
    return data


def _file_path(source: str) -> str:
    """The path in a `file:` URL, or `source` as it is."""
    if source[:5].lower() != "file:":
        return source
    parts = urllib.parse.urlsplit(source)
    if parts.netloc not in {"", "localhost"}:
        raise _refusal(
            "a file: URL names a file of this server; leave out its host, as in file:///path"
        )
    return urllib.parse.unquote(parts.path)
