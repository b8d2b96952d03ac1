"""The generator: its schedule, its clock, and its own load."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import numpy as np
import pytest
import uvloop

from hocket.bench.http import Response, Target, send
from hocket.bench.load.generator import (
    Load,
    StageRun,
    due_seconds,
    edge_requests,
    max_open,
    parse_ramp,
    run_stage,
)
from hocket.bench.load.self_check import self_check, stub_server
from hocket.errors import ConfigError
from tests.support.faulty_server import FaultyServer, faulty_server


class Server:
    """Responds after `seconds`, without a network."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.open, self.most, self.sent = seconds, 0, 0, list[int]()

    async def __call__(self, index: int) -> Response:
        response = Response(sent_at=time.perf_counter())
        self.sent.append(index)
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(self.seconds)
        self.open -= 1
        response.ended_at = time.perf_counter()
        return response


def drive(load: Load, server: Server) -> StageRun:
    return asyncio.run(run_stage(load, server, seed=7))


def test_a_closed_loop_keeps_so_many_open_and_asks_for_each_once() -> None:
    server = Server(0.02)
    run = drive(Load(20, clients=4), server)
    assert server.most == run.max_open == 4
    assert sorted(server.sent) == list(range(20))
    assert [one.phase for one in run.sent] == ["fill"] * 4 + ["steady"] * 12 + ["drain"] * 4
    first, last = run.window
    assert run.began <= first < last < run.ended


def test_an_open_loop_does_not_wait_for_answers() -> None:
    class AnswersWhenAllHaveAsked(Server):
        async def __call__(self, index: int) -> Response:
            response = Response(sent_at=time.perf_counter())
            self.open += 1
            while self.open < 30:
                await asyncio.sleep(0.005)
            response.ended_at = time.perf_counter()
            return response

    load = run_stage(
        Load(30, rate=100.0, arrivals="constant"), AnswersWhenAllHaveAsked(0.0), seed=7
    )
    run = asyncio.run(asyncio.wait_for(load, 30.0))
    assert run.max_open == 30
    dues = np.array([one.due for one in run.sent]) - run.began
    assert dues == pytest.approx(np.arange(30) / 100)
    # Latencies count from the due time, so that a late generator shows.
    assert all(one.response.sent_at >= one.due for one in run.sent)


def test_poisson_arrivals_are_those_of_the_seed_and_as_many_as_they_should_be() -> None:
    dues = []
    for _ in range(2):
        run = drive(Load(400, rate=2000.0), Server(0.0))
        dues.append(np.array([one.due for one in run.sent]) - run.began)
    assert dues[0] == pytest.approx(dues[1])
    assert dues[0][-1] == pytest.approx(0.2, rel=0.2)
    gaps = np.diff(dues[0])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.2)


def test_arrivals_are_planned_before_anything_is_asked() -> None:
    assert due_seconds(Load(4, rate=2.0, arrivals="constant"), 0).tolist() == [0.0, 0.5, 1.0, 1.5]
    planned = due_seconds(Load(50, rate=2000.0), 7)
    run = drive(Load(50, rate=2000.0), Server(0.0))
    assert [one.due - run.began for one in run.sent] == pytest.approx(planned.tolist(), abs=1e-6)


def test_what_is_open_at_a_time_and_what_of_it_is_an_edge() -> None:
    assert max_open([(0.0, 1.0), (1.0, 2.0), (1.5, 3.0), (1.6, 1.7)]) == 3
    assert max_open([(0.0, 1.0), (1.0, 2.0)]) == 1  # a client with an answer sends its next request
    assert [edge_requests(open_now, 40) for open_now in (1, 10, 11, 40)] == [1, 10, 10, 10]


def test_short_runs_keep_half_their_requests_as_steady() -> None:
    run = drive(Load(8, clients=8), Server(0.01))
    assert [one.phase for one in run.sent].count("steady") == 4


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "a", "", "1/m", "1,,2", "nan/s", "1e9"])
def test_what_is_no_ramp(text: str) -> None:
    with pytest.raises(ConfigError, match="--ramp"):
        parse_ramp(text, None, "poisson")


def test_ramps() -> None:
    loads = parse_ramp("1, 8,2.5/s", 50, "constant")
    assert [load.name for load in loads] == ["1 client", "8 clients", "2.5/s constant"]
    assert {load.requests for load in loads} == {50}


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://host.example/v1/", "https://host.example"),
        ("http://[::1]:81/speech/v1", "http://[::1]:81/speech"),
    ],
)
def test_addresses(address: str, url: str) -> None:
    assert Target.parse(address).url == url


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8000",
        "ftp://x",
        "http://",
        "http://x:port",
        "http://user:key@host/",
        "http://x/?key=1",
    ],
)
def test_what_is_no_address_is_refused_without_repeating_a_key(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Target.parse(address)
    assert "key@" not in str(caught.value)


def get(url: str, path: str, timeout: float = 5.0) -> Response:
    return asyncio.run(send(Target.parse(url), "GET", path, {}, b"", timeout))


def test_a_refused_connection_a_timeout_and_a_close_are_answers() -> None:
    with faulty_server() as url:
        assert get(url, "/nothing").status == 404
    assert get(url, "/nothing").broken == "connect"

    with socket.create_server(
        ("127.0.0.1", 0)
    ) as listener:  # the system accepts the connection; no process responds
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert get(url, "/", 0.2).broken == "timeout"
        listener.accept()[0].close()

        def rude() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0 hello\r\n\r\n")

        thread = threading.Thread(target=rude)
        thread.start()
        assert get(url, "/").broken == "http"
        thread.join()


def test_pieces_are_timed_as_they_arrive() -> None:
    server = FaultyServer(seconds_per_chunk=0.1)
    body = b'{"input": "one two three four", "response_format": "pcm"}'
    with faulty_server(server) as url:
        response = asyncio.run(send(Target.parse(url), "POST", "/v1/audio/speech", {}, body, 10.0))
    times = np.array([at for at, _ in response.arrivals])
    assert len(times) == 6
    assert (np.diff(times) > 0.08).all()
    assert response.arrivals[-1][1] == len(response.body)
    assert response.connected_at is not None
    assert response.sent_at <= response.connected_at <= times[0]
    assert times[-1] <= response.ended_at


def test_the_generators_own_floor_is_measured() -> None:
    floor = asyncio.run(self_check(8, seconds=0.4))
    assert floor["failures"] == 0
    # 8 streams of 48 kHz stereo, at playback speed after the first piece.
    assert 0.0 < floor["megabytes_per_s"] < 8 * 0.192 * 1.5
    assert 0.0 < floor["first_byte_p50_ms"] <= floor["first_byte_p95_ms"]
    assert floor["cores"] > 0


@pytest.mark.slow
def test_256_streams_of_48_khz_stereo_take_less_than_a_core() -> None:
    async def one(_: int) -> Response:
        response = await send(target, "POST", "/v1/audio/speech", {}, b"{}", 120.0)
        response.body = b""
        return response

    with (
        stub_server(seconds=5.0) as target,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        run = runner.run(run_stage(Load(512, clients=256), one, seed=0))
    assert all(sent.response.broken is None for sent in run.sent)
    received = sum(sent.response.arrivals[-1][1] for sent in run.sent)
    assert received == 512 * 62 * 3840 * 4
    # Processor time does not depend on the machine's other load; playback of all takes 10 s.
    assert run.cpu_seconds < 10.0
