"""Attacks on the WebSocket: its handshake, its messages, and floods of them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.security.attacks.target import STREAM, Attack, Target, Verdict, is_plain

KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
START = {"type": "start", "response_format": "pcm", "max_new_tokens": 2}
#: Close codes that say why; 1006 and 1011 do not.
_SAID = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1013)


def attacks(target: Target) -> Iterator[Attack]:
    """All of them."""
    yield from _handshakes(target)
    yield from _messages(target)
    yield from _floods(target)


def _opened(target: Target, **options: Any) -> contextlib.AbstractContextManager[ClientConnection]:
    host, port = target.address
    headers = {**target.bearer, **options.pop("headers", {})}
    query = options.pop("query", "")
    return connect(
        f"ws://{host}:{port}{STREAM}{query}",
        additional_headers=headers,
        proxy=None,
        compression=None,
        max_size=None,
        **options,
    )


def _handshakes(target: Target) -> Iterator[Attack]:
    refused: dict[str, dict[str, Any]] = {
        "no key": {"headers": {"Authorization": ""}},
        "wrong key": {"headers": {"Authorization": "Bearer x"}},
        "wrong key in the query": {"headers": {"Authorization": ""}, "query": "?api_key=x"},
        "two keys": {
            "headers": {"Authorization": ""},
            "query": f"?api_key=x&api_key={target.key}x",
        },
        "empty key": {"headers": {"Authorization": ""}, "query": "?api_key="},
        "foreign page": {"origin": Origin("http://evil.example")},
        "no page": {"origin": Origin("null")},
        "page of another port": {"origin": Origin("http://localhost:1")},
        "another name": {"headers": {"Host": "evil.example"}},
        "another route": {"query": "/x"},
    }
    for name, options in refused.items():

        def act(options: dict[str, Any] = options) -> Verdict:
            try:
                with _opened(target, **dict(options)):
                    return "it was opened"
            except InvalidHandshake:
                return None

        yield Attack("sockets: handshake", name, act)
    head = f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {target.key}\r\n"
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    for name, rest in {
        "no version": upgrade + KEY,
        "old version": upgrade + KEY + "Sec-WebSocket-Version: 8\r\n",
        "no nonce": upgrade + "Sec-WebSocket-Version: 13\r\n",
        "short nonce": upgrade + "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n",
        "no upgrade": KEY + "Sec-WebSocket-Version: 13\r\n",
        "a body": upgrade + KEY + "Sec-WebSocket-Version: 13\r\nContent-Length: 9\r\n",
    }.items():

        def broken(rest: str = rest) -> Verdict:
            answer = target.raw(f"{head}{rest}\r\n".encode(), seconds=0.5)
            return repr(answer[:100]) if b" 500 " in answer[:20] else None

        yield Attack("sockets: handshake", name, broken)


def _said(socket: ClientConnection, seconds: float = 5.0) -> list[dict[str, Any]]:
    """Events until an error, or the end."""
    events: list[dict[str, Any]] = []
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ConnectionClosed, TimeoutError):
        while (left := deadline - time.monotonic()) > 0:
            message = socket.recv(left)
            if isinstance(message, str):
                events.append(json.loads(message))
                if events[-1]["type"] == "error":
                    break
    return events


def _messages(target: Target) -> Iterator[Attack]:
    start = json.dumps(START)
    cases: dict[str, Sequence[str | bytes]] = {
        "nothing": [""],
        "no JSON": ["{"],
        "a list": ["[]"],
        "a number": ["7"],
        "null": ["null"],
        "no type": ["{}"],
        "unknown type": ['{"type": "nope"}'],
        "type of a number": ['{"type": 7}'],
        "type of a list": ['{"type": ["start"]}'],
        "long type": [json.dumps({"type": "x" * 100_000})],
        "binary": [b"\0" * 100],
        "text before start": ['{"type": "text", "text": "a"}'],
        "flush before start": ['{"type": "flush"}'],
        "unknown field": ['{"type": "start", "x": 1}'],
        "deep": ["[" * 100_000],
        "surrogate": [start, r'{"type": "text", "text": "\ud800"}'],
        "NUL": [start, r'{"type": "text", "text": "\u0000"}'],
        "text of a number": [start, '{"type": "text", "text": 7}'],
        "long text": [start, json.dumps({"type": "text", "text": "a" * 10_001})],
        "30 MiB of text": [start, json.dumps({"type": "text", "text": "a" * (30 << 20)})],
        "30 MiB of lists": ['{"type": "start", "x": [' + "[]," * (10 << 20) + "[]]}"],
        "file": ['{"type": "start", "ref_audio": "file:///etc/passwd"}'],
        "private address": ['{"type": "start", "ref_audio": "http://127.0.0.1:1/a.wav"}'],
        "unknown voice": ['{"type": "start", "voice": "../../etc/passwd"}'],
        "huge seed": ['{"type": "start", "seed": 1e400}'],
        "another format": ['{"type": "start", "response_format": "exe"}'],
    }
    for name, messages in cases.items():

        def act(messages: Sequence[str | bytes] = messages) -> Verdict:
            with _opened(target) as socket:
                with contextlib.suppress(ConnectionClosed):
                    for message in messages:
                        socket.send(message)
                events = _said(socket)
                code = socket.close_code
            if events and events[-1]["type"] == "error":
                message = events[-1]["error"]["message"]
                return None if is_plain(message) else f"the message is {message[:200]!r}"
            return None if code in _SAID else f"no error, closed with {code}"

        yield Attack("sockets: messages", name, act)


def _floods(target: Target) -> Iterator[Attack]:
    def marks(socket: ClientConnection) -> None:
        text = json.dumps({"type": "text", "text": "\u0301" * 9_999})
        socket.send(json.dumps({**START, "text": "a"}))
        for _ in range(150):
            socket.send(text)

    def one_by_one(socket: ClientConnection) -> None:
        socket.send(json.dumps({**START, "text": "a"}))
        for _ in range(20_000):
            socket.send('{"type": "text", "text": "\\u0301"}')

    def wrong(socket: ClientConnection) -> None:
        for _ in range(50_000):
            socket.send('{"type":"nope"}')

    def cancels(socket: ClientConnection) -> None:
        socket.send(json.dumps(START))
        for _ in range(5_000):
            socket.send('{"type":"text","text":"a"}')
            socket.send('{"type":"cancel"}')

    def flushes(socket: ClientConnection) -> None:
        socket.send(json.dumps(START))
        for _ in range(5_000):
            socket.send('{"type":"flush"}')

    def starts(socket: ClientConnection) -> None:
        for _ in range(2_000):
            socket.send(json.dumps(START))

    def fragments(socket: ClientConnection) -> None:
        socket.send(iter(["a"] * 50_000))

    def pings(socket: ClientConnection) -> None:
        for _ in range(20_000):
            socket.ping()

    def dots(socket: ClientConnection) -> None:
        socket.send(json.dumps({**START, "text": "a"}))
        for _ in range(200):
            socket.send(json.dumps({"type": "text", "text": ". " * 4_999}))

    floods: tuple[Callable[[ClientConnection], None], ...] = (
        *(marks, one_by_one, wrong, cancels, flushes, starts, fragments, pings, dots),
    )
    for flood in floods:

        def act(flood: Callable[[ClientConnection], None] = flood) -> Verdict:
            # A server that closes has held.
            closed = contextlib.suppress(ConnectionClosed, OSError)
            with _opened(target, close_timeout=1, ping_interval=None) as socket, closed:
                flood(socket)
                socket.send('{"type":"cancel"}')
                time.sleep(0.5)
            return None

        yield Attack("sockets: floods", flood.__name__, act)
