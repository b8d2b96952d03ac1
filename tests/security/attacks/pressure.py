"""Attacks on time, memory and places, and what all the attacks have left in log and memory."""

from __future__ import annotations

import base64
import contextlib
import io
import re
import socket
import threading
import time
from collections.abc import Iterator

import httpx

from hocket.audio.io import FORMATS, encode_audio
from tests.security.attacks.recordings import TONE
from tests.security.attacks.target import ENCODE, SPEECH, VOICES, Attack, Target, Verdict, judged

MIB = 2**20
_CONNECTIONS = 150
_HEADER_SECONDS = 25.0


def attacks(target: Target) -> Iterator[Attack]:
    """All of them; the log last."""
    yield from _slow(target)
    if target.pid is not None:
        yield from _memory(target)
    yield from _places(target)
    if target.folder is not None:
        yield from _log(target)


def _slow(target: Target) -> Iterator[Attack]:
    head = f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {target.key}\r\n"
    for name, data in {
        "say nothing": b"",
        "half a header": b"GET /version HTTP/1.1\r\nHost: loc",
        "a header without end": b"GET /version HTTP/1.1\r\nHost: localhost\r\nX: y\r\n",
    }.items():

        def act(data: bytes = data) -> Verdict:
            with contextlib.ExitStack() as stack:
                opened = []
                for _ in range(_CONNECTIONS):
                    with contextlib.suppress(OSError):
                        sock = stack.enter_context(socket.create_connection(target.address, 5))
                        sock.sendall(data)
                        opened.append(sock)
                verdict = judged(target.ask("GET", "/version"), 200)
                deadline = time.monotonic() + _HEADER_SECONDS
                left = [sock for sock in opened if not _closed(sock, deadline)]
            return verdict or (f"{len(left)} of {_CONNECTIONS} are kept" if left else None)

        yield Attack("slow connections", name, act)

    def unread() -> Verdict:
        """Bodies that come without a key are not kept."""
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                sock = stack.enter_context(socket.create_connection(target.address, 5))
                with contextlib.suppress(OSError):
                    sock.settimeout(2)
                    sock.sendall(b"POST /health HTTP/1.1\r\nHost: localhost\r\n")
                    sock.sendall(b"Content-Length: 33000000\r\n\r\n")
                    for _ in range(31):
                        sock.sendall(bytes(MIB))
            return judged(target.ask("GET", "/version"), 200)

    def trickle() -> Verdict:
        with socket.create_connection(target.address, 5) as sock:
            sock.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode())
            for _ in range(20):
                sock.sendall(b"x")
                time.sleep(0.05)
            return judged(target.ask("GET", "/version"), 200)

    yield Attack("slow connections", "bodies without a key", unread)
    yield Attack("slow connections", "a body byte by byte", trickle)


def _closed(sock: socket.socket, deadline: float) -> bool:
    sock.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def _memory(target: Target) -> Iterator[Attack]:
    def grown(act: object) -> Verdict:
        assert callable(act)
        most, stop = [target.resident_bytes], threading.Event()
        before = most[0]

        def look() -> None:
            while not stop.wait(0.02):
                most.append(target.resident_bytes)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            verdict = act()
        finally:
            stop.set()
            thread.join()
        growth = (max(most) - before) / MIB
        return verdict or (f"the front end grew by {growth:.0f} MiB" if growth > 200 else None)

    def decoded(data: bytes) -> Verdict:
        address = "data:audio/wav;base64," + base64.b64encode(data).decode()
        return target.post(ENCODE, {"audio": address}, 200, 400)

    bombs = {
        "silence, 8 channels at 192 kHz": _silence(120, 8),
        "silence, mono": _silence(300, 1),
        "large picture": _picture(12_000),
        "wav that claims 4 GiB": TONE[:4]
        + b"\xff\xff\xff\xff"
        + TONE[8:40]
        + b"\xff" * 4
        + TONE[44:],
    }
    for name, data in bombs.items():
        yield Attack("memory", name, lambda data=data: grown(lambda: decoded(data)))  # type: ignore[misc]
    body = b'{"input": "a", "x": [' + b"[]," * (10 * MIB) + b"[]]}"
    yield Attack(
        "memory", "31 MiB of lists", lambda: grown(lambda: target.post(SPEECH, body, 400, 413))
    )


def _silence(seconds: int, channels: int) -> bytes:
    import numpy as np

    rate = 192_000 if channels > 1 else 48_000
    samples_CS = np.zeros((channels, seconds * rate), np.float32)
    if channels <= 2:
        return encode_audio(FORMATS[".flac"], samples_CS, rate)
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=rate, layout="7.1")
        for start in range(0, samples_CS.shape[1], rate):
            samples = np.zeros((1, channels * min(rate, samples_CS.shape[1] - start)), np.int16)
            frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="7.1")
            frame.sample_rate = rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def _picture(side: int) -> bytes:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = zlib.compressobj(9)
    data = b"".join(rows.compress(bytes(1 + 4 * side)) for _ in range(side)) + rows.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )


def _places(target: Target) -> Iterator[Attack]:
    body = {"input": "One, two, three, four. " * 20, "response_format": "pcm"}

    def come_back() -> Verdict:
        """Clients that vanish leave their places at once."""
        for _ in range(30):
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(target.url + SPEECH, json=body, headers=target.bearer, timeout=0.2)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            health = target.ask("GET", "/health").json()
            if health["speaking"] + health["waiting"] == 0:
                return None
            time.sleep(0.1)
        return f"{health['speaking']} speak and {health['waiting']} wait"

    def refused_at_once() -> Verdict:
        """Requests beyond all places are refused, in the form of every error."""
        answers: list[int] = []

        def one() -> None:
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.post(
                    target.url + SPEECH, json=body, headers=target.bearer, timeout=1.0
                )
                answers.append(answer.status_code)

        threads = [threading.Thread(target=one) for _ in range(120)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return None if set(answers) <= {200, 429, 503} else str(sorted(set(answers)))

    def same_twice() -> Verdict:
        """A recording heard twice is the same one, and a changed one another."""
        codes = []
        for data in (TONE, TONE[:-2] + b"\x01\x20", TONE):
            address = "data:audio/wav;base64," + base64.b64encode(data).decode()
            codes.append(target.ask("POST", ENCODE, json={"audio": address}).content)
        return None if codes[0] == codes[2] else "the same recording has other codes"

    yield Attack("places", "clients that vanish", come_back)
    yield Attack("places", "more than there is room for", refused_at_once)
    yield Attack("cache", "a recording twice", same_twice)


def _log(target: Target) -> Iterator[Attack]:
    assert target.folder is not None
    log = target.folder / "log"
    words = {
        "text": lambda word: target.post(
            SPEECH, {"input": word, "response_format": "pcm", "max_new_tokens": 2}, 200, 400
        ),
        "voice": lambda word: target.post(SPEECH, {"input": "a", "voice": word}, 400),
        "voice in a path": lambda word: judged(target.ask("DELETE", f"{VOICES}/{word}"), 404),
        "unknown path": lambda word: judged(target.ask("GET", f"/{word}"), 404),
        "query": lambda word: judged(target.ask("GET", f"/version?{word}"), 200),
        "wrong key": lambda word: judged(
            target.client.get("/v1/models", headers={"Authorization": f"Bearer {word}"}), 401
        ),
        "address": lambda word: target.post(ENCODE, {"audio": f"http://127.0.0.1/{word}"}, 400),
        "signature": lambda word: target.post(
            ENCODE, {"audio": f"https://127.0.0.1/a?sig={word}"}, 400
        ),
        "data": lambda word: target.post(ENCODE, {"audio": f"data:,{word}"}, 400),
        "unknown field": lambda word: target.post(SPEECH, {"input": "a", word: 1}, 400),
        "header": lambda word: judged(target.ask("GET", "/version", headers={"X-A": word}), 200),
        "host": lambda word: judged(
            target.ask("GET", "/version", headers={"Host": f"{word}.example"}), 421
        ),
        "origin": lambda word: judged(
            target.ask("POST", SPEECH, headers={"Origin": f"http://{word}.example"}), 403
        ),
    }
    for number, (name, send) in enumerate(words.items()):

        def act(word: str = f"zebra{number}crossing", send: object = send) -> Verdict:
            assert callable(send)
            verdict: Verdict = send(word)
            time.sleep(0.05)
            written = log.read_text(encoding="utf-8", errors="replace")
            return verdict or ("it is in the log" if word in written else None)

        yield Attack("log", name, act)

    def never(pattern: str) -> Verdict:
        found = re.search(pattern, log.read_text(encoding="utf-8", errors="replace"))
        return None if found is None else f"the log has {found[0][:200]!r}"

    for name, pattern in {
        "the key": re.escape(target.key),
        "a traceback": "Traceback",
        "a panic": "panicked",
        "an internal error": "event=internal_error.*",
    }.items():
        yield Attack("log", f"after all: {name}", lambda pattern=pattern: never(pattern))  # type: ignore[misc]

    def metrics() -> Verdict:
        page = target.ask("GET", "/metrics").text
        labels = set(re.findall(r'route="([^"]*)"', page)) | set(
            re.findall(r'path="([^"]*)"', page)
        )
        return f"{len(labels)} routes" if len(labels) > 40 or "zebra" in page else None

    yield Attack("log", "metrics have no label of a client's", metrics)
