"""Attacks by HTTP alone: keys, paths, framing, ids, and the pages of other sites."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.security.attacks.target import (
    BATCH,
    DECODE,
    ENCODE,
    SPEECH,
    STREAM,
    VOICES,
    Attack,
    Target,
    Verdict,
    judged,
)

ROUTES = (
    ("POST", SPEECH),
    ("POST", BATCH),
    ("GET", STREAM),
    ("GET", VOICES),
    ("POST", VOICES),
    ("DELETE", f"{VOICES}/anna"),
    ("GET", f"{VOICES}/default/preview"),
    ("POST", ENCODE),
    ("POST", DECODE),
    ("GET", "/v1/models"),
    ("HEAD", "/v1/models"),
    ("OPTIONS", SPEECH),
    ("PUT", f"{VOICES}/anna"),
    ("PATCH", SPEECH),
    ("GET", "/v1/nothing"),
)
#: Ways to write the path of a guarded route.
PATHS = (
    *("//v1/models", "/v1//models", "/%76%31/models", "/v1/%6dodels", "/./v1/models"),
    *("/x/../v1/models", "/v1/../v1/models", "/v1;/models", "/v1;x=y/models", "/v1/models;"),
    *("/V1/models", "/v1/MODELS", "/v1\\models", "/\\v1/models", "/v1/models/", "/v1/models/."),
    *("/v1/models%00", "/v1/models%20", "/v1%2fmodels", "/health/../v1/models", "/v1/models?x"),
    *("/studio/../v1/models", "/studio/%2e%2e/v1/models", "/docs/../v1/models", "/v1/models%2f"),
    *("/%2e/v1/models", "/.//v1/models", "/v1/models%3f", "http://x/v1/models", "/v1/models#x"),
    *("http://localhost/v1/models", "*"),
)
MODELS = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"


def attacks(target: Target) -> Iterator[Attack]:
    """All of them."""
    yield from _keys(target)
    yield from _paths(target)
    yield from _framing(target)
    yield from _request_ids(target)
    yield from _browsers(target)


def _keys(target: Target) -> Iterator[Attack]:
    ways: dict[str, tuple[dict[str, str], str]] = {
        "none": ({}, ""),
        "wrong": ({"Authorization": f"Bearer {target.key}x"}, ""),
        "empty": ({"Authorization": "Bearer"}, ""),
        "basic": ({"Authorization": f"Basic {target.key}"}, ""),
        "query": ({}, f"?api_key={target.key}"),
    }
    for method, path in ROUTES:
        for way, (headers, query) in ways.items():

            def act(
                method: str = method,
                path: str = path + query,
                headers: dict[str, str] = headers,
            ) -> Verdict:
                return judged(target.client.request(method, path, headers=headers), 401)

            yield Attack("keys", f"{method} {path} {way}", act)


def _paths(target: Target) -> Iterator[Attack]:
    for method in ("GET", "POST"):
        for path in PATHS:

            def act(method: str = method, path: str = path) -> Verdict:
                head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                answer = target.raw(head.encode("latin-1"))
                if b'"data"' in answer or re.match(rb"HTTP/1.1 (2|3|5)", answer):
                    return repr(answer[:100])
                return None

            yield Attack("paths", f"{method} {path}", act)


def _framing(target: Target) -> Iterator[Attack]:
    post = f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\n".encode()
    smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    cases = {
        "two lengths": post + b"Content-Length: 4\r\nContent-Length: 40\r\n\r\n" + smuggled,
        "length and chunks": post
        + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        + smuggled,
        "length of no digit": post + "Content-Length: ²\r\n\r\n".encode() + smuggled,
        "negative length": post + b"Content-Length: -1\r\n\r\n" + smuggled,
        "length with a sign": post + b"Content-Length: +4\r\n\r\n" + smuggled,
        "length without end": post + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n",
        "odd coding": post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + smuggled,
        "hidden coding": post + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled,
        "bad chunk": post + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n" + smuggled,
        "long header": MODELS + b"X: " + b"x" * 300_000 + b"\r\n\r\n",
        "many headers": MODELS + b"".join(b"X%d: y\r\n" % i for i in range(20_000)) + b"\r\n",
        "folded header": MODELS + b"Authorization: Bearer\r\n x\r\n\r\n",
        "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
        "two hosts": MODELS + b"Host: evil.example\r\n\r\n",
        "NUL in a header": MODELS + b"X: a\0b\r\n\r\n",
        "bare CR": MODELS + b"X: a\rAuthorization: x\r\n\r\n",
        "space before the colon": MODELS + b"Content-Length : 5\r\n\r\nabcde",
        "TLS hello": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"\0" * 300,
        "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 50,
        "HTTP/0.9": b"GET /v1/models\r\n",
        "unknown version": b"GET /v1/models HTTP/9.9\r\nHost: localhost\r\n\r\n",
        "lines": b"\r\n" * 100_000,
        "binary": bytes(range(256)) * 100,
        "long path": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "upgrade to h2c": MODELS + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
    }
    for name, data in cases.items():

        def act(data: bytes = data) -> Verdict:
            answer = target.raw(data, seconds=0.5)
            if b'"data"' in answer or re.search(rb"HTTP/1.1 (2|5)", answer):
                return repr(answer[:100])
            return None

        yield Attack("framing", name, act)


def _request_ids(target: Target) -> Iterator[Attack]:
    values = (
        *("a b", "a=b", 'a"b', "a\tb", "../x", "<script>", "%0d%0aX: y", "x" * 129, "x" * 60_000),
        *("\u00e9", "", "a;b", "${jndi:ldap://x}", "a\\nevent=request"),
    )
    for value in values:

        def act(value: str = value) -> Verdict:
            given = {"X-Request-Id": value.encode("latin-1")}
            answer = target.client.get("/version", headers=given)  # type: ignore[arg-type]
            shown = answer.headers.get("x-request-id", "")
            is_own = re.fullmatch(r"req-[0-9a-f]{16}", shown) is not None
            return None if answer.status_code == 400 or is_own else f"shown as {shown[:50]!r}"

        yield Attack("request ids", f"{value[:20]} ({len(value)})", act)


def _browsers(target: Target) -> Iterator[Attack]:
    host = ":".join(map(str, target.address))
    origins = (
        *("http://evil.example", "null", "file://", f"http://{host}.evil.example", f"ftp://{host}"),
        *("http://localhost:1", f"http://{host}@evil.example", f"http://evil.example/{host}", ""),
    )
    for method, path in ROUTES:
        if method in ("GET", "HEAD", "OPTIONS"):
            continue
        for origin in origins:

            def cross(method: str = method, path: str = path, origin: str = origin) -> Verdict:
                return judged(target.ask(method, path, headers={"Origin": origin}), 403)

            yield Attack("browsers", f"{method} {path} from {origin}", cross)
    hosts = ("evil.example", f"localhost.evil.example:{target.address[1]}", "127.0.0.1.nip.io", "")
    for path in ("/", "/v1/models", "/metrics", "/health", "/docs", SPEECH):
        for name in hosts:

            def rebound(path: str = path, name: str = name) -> Verdict:
                return judged(target.ask("GET", path, headers={"Host": name}), 400, 421)

            yield Attack("browsers", f"{path} under {name}", rebound)
    for path in ("/", "/docs", "/version", "/v1/models", "/nothing", "/studio/studio.js"):

        def headers(path: str = path) -> Verdict:
            answer = target.ask("GET", path)
            policy = answer.headers.get("content-security-policy", "")
            is_strict = policy.startswith("default-src 'none'") and "script-src *" not in policy
            sniffs = answer.headers.get("x-content-type-options") != "nosniff"
            return "no policy, or sniffed" if sniffs or not is_strict else None

        yield Attack("browsers", f"headers of {path}", headers)
    for path in ("/health/", "/docs/", "//evil.example/", "/\\evil.example"):

        def redirected(path: str = path) -> Verdict:
            answer = target.raw(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), seconds=1
            )
            return repr(answer[:100]) if b"\nlocation:" in answer.lower() else None

        yield Attack("browsers", f"redirect of {path}", redirected)
