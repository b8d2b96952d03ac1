"""Overload, deadlines, clients that leave or do not read: refusals, cancellations, released
resources.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Message

from hocket.server.admission import Admission
from hocket.server.app import create_app
from hocket.server.errors import ApiError
from hocket.server.services import Services
from hocket.server.settings import ServerSettings
from tests.support.fake_engine import FakePool
from tests.support.loopback import new_store, on_loopback, wait_until

SPEECH = "/v1/audio/speech"


@contextmanager
def serving(engine: FakePool, tmp: Path, **settings: Any) -> Iterator[tuple[str, Admission]]:
    app = create_app(engine, ServerSettings(**settings), new_store(tmp))
    services = app.state.services
    assert isinstance(services, Services)
    assert isinstance(services.admission, Admission)
    with on_loopback(app) as address:
        yield address, services.admission


def body(frames: int = 5, **fields: Any) -> dict[str, Any]:
    return {"input": "x" * frames, "response_format": "pcm", **fields}


def raw_request(fields: dict[str, Any]) -> bytes:
    content = json.dumps(fields).encode()
    head = (
        f"POST {SPEECH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def at_once(address: str, bodies: list[dict[str, Any]], **headers: str) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=address, limits=limits, timeout=30, headers=headers
        ) as client:
            return list(
                await asyncio.gather(*(client.post(SPEECH, json=fields) for fields in bodies))
            )

    return asyncio.run(run())


def nothing_is_left(engine: FakePool, admission: Admission) -> bool:
    return engine.open_requests == engine.running == admission.open == 0


# ---- overload


def test_four_times_the_capacity(tmp_path: Path) -> None:
    engine = FakePool(rows=4, frame_seconds=0.05)
    with serving(engine, tmp_path, max_queue=4) as (address, admission):
        answers = at_once(address, [body(10)] * 32)
        wait_until(lambda: nothing_is_left(engine, admission))
    served = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert (len(served), len(refused), engine.finished, engine.most_running) == (8, 24, 8, 4)
    assert {len(answer.content) for answer in served} == {2 * 1920 * 10}
    for answer in refused:
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.json()["error"]["code"] == "overloaded"


def test_a_refusal_is_quick(tmp_path: Path) -> None:
    engine = FakePool(rows=1, prefill_seconds=30)
    with (
        serving(engine, tmp_path, max_queue=0) as (address, _),
        httpx.Client(base_url=address) as http,
    ):
        url = urlsplit(address)
        with socket.create_connection((url.hostname, url.port)) as first:
            first.sendall(raw_request(body()))
            wait_until(lambda: engine.running == 1)
            seconds = []
            for _ in range(20):
                started = time.perf_counter()
                assert http.post(SPEECH, json=body()).status_code == 503
                seconds.append(time.perf_counter() - started)
    assert sorted(seconds)[10] < 0.1  # the others may meet with something else on the machine


def test_a_caller_gets_its_share(tmp_path: Path) -> None:
    engine = FakePool(rows=8, frame_seconds=0.02)
    with serving(engine, tmp_path, max_open_per_key=2, api_keys=("a", "b")) as (address, admission):
        answers = at_once(address, [body(10)] * 5, authorization="Bearer a")
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429, 429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert refused.headers["retry-after"]
        assert at_once(address, [body()], authorization="Bearer a")[0].status_code == 200
        assert at_once(address, [body()], authorization="Bearer b")[0].status_code == 200
        wait_until(lambda: nothing_is_left(engine, admission))


def test_slots() -> None:
    now = 0.0
    admission = Admission(ServerSettings(max_queue=2), clock=lambda: now)
    first = admission.take("a", 2)
    now = 101.0
    admission.give_back(first)
    held = [admission.take(caller, 2) for caller in "abaa"]
    with pytest.raises(ApiError) as caught:
        admission.take("a", 2)
    # The mean is 0.9 * 1 s + 0.1 * 101 s = 11 s; the two who wait and the next one share two rows.
    assert caught.value.retry_after_seconds == 17
    assert (admission.open, admission.refused) == (4, 1)
    for slot in held:
        admission.give_back(slot)
    assert admission.open == 0


def test_the_engine_s_own_queue_may_be_full(tmp_path: Path) -> None:
    engine = FakePool(rows=1, max_waiting=1, frame_seconds=0.02)
    with serving(engine, tmp_path, max_queue=100) as (address, admission):
        answers = at_once(address, [body(10)] * 6)
        assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503, 503]
        wait_until(lambda: nothing_is_left(engine, admission))


def test_a_burst_is_refused_before_anything_is_worked_on(tmp_path: Path) -> None:
    """A request without a slot is refused in the first turn of its task; one with a slot does no
    more in its own.
    """
    app = create_app(FakePool(rows=2), ServerSettings(max_queue=1), new_store(tmp_path))
    content = json.dumps(body()).encode()
    answers: list[int] = []

    async def ask() -> None:
        unread: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> Message:
            return unread.pop() if unread else await asyncio.get_running_loop().create_future()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answers.append(message["status"])

        headers = [(b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": SPEECH,
            "query_string": b"",
            "headers": headers,
        }
        await app(scope, receive, send)

    async def run() -> None:
        asking = [asyncio.create_task(ask()) for _ in range(50)]
        await asyncio.sleep(0)
        assert answers == [503] * 47
        await asyncio.gather(*asking)
        assert answers[47:] == [200] * 3

    asyncio.run(run())


def test_a_slow_body_holds_no_place(tmp_path: Path) -> None:
    with serving(FakePool(rows=1), tmp_path, max_queue=0) as (address, admission):
        url = urlsplit(address)
        with socket.create_connection((url.hostname, url.port)) as slow:
            slow.sendall(raw_request(body())[:-5])
            time.sleep(0.2)
            assert admission.open == 0
            assert httpx.post(address + SPEECH, json=body()).status_code == 200
            for _ in range(500):  # its place is given back a little after its last byte
                if admission.open == 0:
                    break
                time.sleep(0.01)
            slow.sendall(raw_request(body())[-5:])
            assert slow.recv(100).startswith(b"HTTP/1.1 200 ")


# ---- deadlines and states


def test_the_first_audio_has_a_deadline(tmp_path: Path) -> None:
    engine = FakePool(prefill_seconds=30)
    with serving(engine, tmp_path, first_audio_seconds=0.2) as (address, admission):
        started = time.monotonic()
        for fields in (body(), body(stream=False), body(stream_format="sse")):
            answer = httpx.post(address + SPEECH, json=fields)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
            assert answer.headers["retry-after"]
        assert time.monotonic() - started < 20
        assert engine.cancelled == 3
        wait_until(lambda: nothing_is_left(engine, admission))


def test_the_whole_has_a_deadline(tmp_path: Path) -> None:
    engine = FakePool(frame_seconds=0.02)
    with serving(engine, tmp_path, request_seconds=1.5) as (address, admission):
        answer = httpx.post(address + SPEECH, json=body(500, stream=False))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline")
        events = httpx.post(address + SPEECH, json=body(500, stream_format="sse")).text
        assert "speech.audio.delta" in events
        assert "speech.audio.done" not in events
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(address + SPEECH, json=body(500))
        wait_until(lambda: nothing_is_left(engine, admission))
        assert engine.cancelled == 3


@pytest.mark.parametrize("state", ["starting", "draining", "down"])
def test_health_says_what_is(tmp_path: Path, state: Any) -> None:
    engine = FakePool()
    with serving(engine, tmp_path) as (address, _):
        document = httpx.get(f"{address}/health").json()
        assert document == {
            "status": "ready",
            "live": True,
            "ready": True,
            "draining": False,
            "rows": 4,
            "speaking": 0,
            "waiting": 0,
            "workers": [{"status": "ready", "rows": 4, "open_requests": 0}],
        }
        engine.state = state
        health = httpx.get(f"{address}/health")
        assert (health.status_code, health.json()["status"], health.json()["ready"]) == (
            503,
            state,
            False,
        )
        assert health.json()["draining"] == (state == "draining")
        assert httpx.get(f"{address}/health/live").status_code == 200
        assert httpx.get(f"{address}/metrics").status_code == 200
        answer = httpx.post(address + SPEECH, json=body())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
        engine.state = "ready"
        assert httpx.post(address + SPEECH, json=body()).status_code == 200


# ---- clients that leave


@pytest.mark.parametrize(
    ("speed", "wait"),
    [
        (
            {"rows": 1, "frame_seconds": 0.02},
            lambda engine: engine.open_requests == 5,
        ),  # four are queued
        ({"prefill_seconds": 30}, lambda engine: engine.running == 4),
        ({"frame_seconds": 0.02}, lambda engine: engine.running == 4),
    ],
    ids=["queued", "prefill", "streaming"],
)
@pytest.mark.parametrize(
    "fields", [{}, {"stream": False}, {"stream_format": "sse"}, {"response_format": "mp3"}]
)
def test_a_disconnect_cancels_wherever_it_happens(
    tmp_path: Path, speed: dict[str, Any], wait: Callable[[FakePool], bool], fields: dict[str, Any]
) -> None:
    engine = FakePool(**speed)
    with serving(engine, tmp_path) as (address, admission):
        url = urlsplit(address)
        sockets = [socket.create_connection((url.hostname, url.port)) for _ in range(5)]
        for each in sockets:
            each.sendall(raw_request(body(3000, **fields)))
        wait_until(lambda: wait(engine))
        for each in sockets:
            each.close()
        left = time.monotonic()
        wait_until(lambda: nothing_is_left(engine, admission))
        assert time.monotonic() - left < 3
        assert engine.cancelled == 5
        engine.prefill_seconds = 0
        assert httpx.post(address + SPEECH, json=body()).status_code == 200


def test_200_random_disconnects_leave_nothing(tmp_path: Path) -> None:
    engine = FakePool(rows=8, prefill_seconds=0.01, frame_seconds=0.005)
    draw = random.Random(0)
    forms: list[dict[str, Any]] = [
        {},
        {"stream": False},
        {"stream_format": "sse"},
        {"response_format": "opus"},
    ]

    async def leave_early(host: str, port: int) -> None:
        await asyncio.sleep(draw.random())
        reader, writer = await asyncio.open_connection(host, port)
        request = raw_request(body(draw.randint(1, 60), **draw.choice(forms)))
        sent = draw.choice([50, len(request) - 5, len(request), len(request), len(request)])
        writer.write(request[:sent])
        await asyncio.sleep(draw.random() * 0.2)
        if sent == len(request) and draw.random() < 0.5:
            await reader.read(draw.randint(1, 10_000))
        writer.transport.abort()

    async def run(host: str, port: int) -> None:
        await asyncio.gather(*(leave_early(host, port) for _ in range(200)))

    with serving(engine, tmp_path, max_queue=1000) as (address, admission):
        url = urlsplit(address)
        assert url.hostname is not None
        assert url.port is not None
        asyncio.run(run(url.hostname, url.port))
        wait_until(lambda: nothing_is_left(engine, admission), 3)
        assert engine.cancelled > 20
        assert len(engine.requests) == engine.cancelled + engine.finished
        assert len(httpx.post(address + SPEECH, json=body()).content) == 2 * 1920 * 5


def test_a_client_that_does_not_read_is_cancelled_and_blocks_no_other(tmp_path: Path) -> None:
    engine = FakePool(frame_seconds=0.0005, buffer_bytes=2**27)
    with serving(engine, tmp_path, stall_seconds=0.5, segment_characters=10_000) as (
        address,
        admission,
    ):
        url = urlsplit(address)
        with socket.create_connection((url.hostname, url.port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(raw_request(body(9000)))  # 35 MB
            wait_until(lambda: bool(engine.requests))
            assert httpx.post(address + SPEECH, json=body()).status_code == 200
            wait_until(lambda: nothing_is_left(engine, admission), 8)
        assert (engine.finished, engine.cancelled) == (1, 1)


def test_what_waits_for_a_client_is_bounded(tmp_path: Path) -> None:
    engine = FakePool(frame_seconds=0.0005, buffer_bytes=500_000)
    with serving(engine, tmp_path, segment_characters=10_000) as (address, admission):
        url = urlsplit(address)
        with socket.create_connection((url.hostname, url.port)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(raw_request(body(9000)))
            wait_until(lambda: engine.cancelled == 1)
            assert engine.running == 0
        wait_until(lambda: nothing_is_left(engine, admission))


def test_a_body_that_does_not_come(tmp_path: Path) -> None:
    with serving(FakePool(), tmp_path, body_seconds=0.2) as (address, _):
        url = urlsplit(address)
        with socket.create_connection((url.hostname, url.port)) as slow:
            slow.sendall(raw_request(body())[:-3])
            slow.settimeout(10)
            answer = b""
            while b"did not arrive within 0.2 s" not in answer:  # head and body may come apart
                piece = slow.recv(10_000)
                assert piece, answer
                answer += piece
            assert answer.startswith(b"HTTP/1.1 408 ")


def test_http_1_0(tmp_path: Path) -> None:
    with serving(FakePool(), tmp_path) as (address, _):
        url = urlsplit(address)
        with socket.create_connection((url.hostname, url.port)) as old:
            old.sendall(raw_request(body()).replace(b"HTTP/1.1", b"HTTP/1.0"))
            answer = b""
            while data := old.recv(65_536):
                answer += data
        head, _, content = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"chunked" not in head.lower()
        assert len(content) == 2 * 1920 * 5
