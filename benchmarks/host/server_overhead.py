"""The HTTP server's own share of the time to first audio: a server around an engine that needs no
time.

    python -m benchmarks.host.server_overhead [--streams 256] [--seconds 15] [--output FILE]

Prints one JSON line. The server runs as in `hocket serve`, around an engine in the same process
that returns the first frame at once and the rest at the speed of a player, in chunks of the default
policy (48 kHz stereo). The clients share another process. A span runs from before a client connects
to its first byte of PCM, so it includes the connection, the request, its checks, the response, and
the client. First one client sends requests in a loop, then `streams` clients listen at all times,
each to 8 seconds of speech after another.

The share of the machine and the client is the `floor`: the same request to a process that only
reads it and sends the same bytes. With one client every other request goes there, so both see the
same machine, and the server's own share is the difference of the percentiles (`over_floor`). `lag`
is the delay of a task that sleeps for 10 ms, in the same process at the same time. The server's
processor time per request is free of such noise; with many streams it includes all of their audio,
and the requests before the counted ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import uvloop
from tests.support.fake_engine import FakePool, silence

from hocket.bench.environment import (
    cores,
    cpu_name,
    module_command,
    package_versions,
    python_version,
    scheduler_name,
    today,
)
from hocket.checkpoint.voices import ONLY_DEFAULT
from hocket.config import ChunkPolicy
from hocket.server.app import create_app
from hocket.server.serve import uvicorn_server
from hocket.server.settings import ServerSettings
from hocket.server.voice_store import VoiceStore

RATE = 48_000
FRAME_SAMPLES = 3840
FRAME_SECONDS = FRAME_SAMPLES / RATE
STREAM_FRAMES = 100
NAP_SECONDS = 0.01
#: Time limit of a request, and of the server's start.
TIMEOUT_SECONDS = 60.0
HOST = "127.0.0.1"


def new_engine() -> FakePool:
    """An engine that speaks `max_frames` of silence: the first frame at once, the rest at a
    player's pace.
    """
    return FakePool(
        rows=1024,
        channels=2,
        sample_rate=RATE,
        frame_samples=FRAME_SAMPLES,
        frame_seconds=FRAME_SECONDS,
        chunk_frames=ChunkPolicy().sizes,
        length=lambda request: request.max_frames or 1,
        sound=silence,
        buffer_bytes=ServerSettings().buffer_bytes,
    )


async def serve(listener: socket.socket) -> None:
    """Serve until the parent closes standard input."""
    with tempfile.TemporaryDirectory(prefix="hocket-") as folder:
        settings = ServerSettings()
        app = create_app(new_engine(), settings, VoiceStore(Path(folder), ONLY_DEFAULT))
        server = uvicorn_server(app, settings)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = server.force_exit = True
        await serving


class Floor(asyncio.Protocol):
    """Responds to any request with the first frame of speech, as the server does."""

    HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: audio/pcm\r\ntransfer-encoding: chunked\r\n"
    HEAD += b"connection: close\r\n\r\n"
    ANSWER = HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (4 * FRAME_SAMPLES, bytes(4 * FRAME_SAMPLES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        self._request += data
        if self._request.endswith(b"}"):
            self._transport.write(self.ANSWER)
            self._transport.close()


async def serve_floor(listener: socket.socket) -> None:
    """Serve until the parent closes standard input."""
    server = await asyncio.get_running_loop().create_server(Floor, sock=listener)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


class Listener(asyncio.Protocol):
    """One request over its own connection; `first_ms` and `done` are its results."""

    def __init__(self, frames: int, response_format: str) -> None:
        self._frames, self._format = frames, response_format
        self._head = b""
        self.started = time.perf_counter()
        self.first_ms: float | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        body = json.dumps(
            {"input": "Hello.", "response_format": self._format, "max_new_tokens": self._frames}
        ).encode()
        cast(asyncio.Transport, transport).write(  # uvloop's transport has another class
            b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )

    def data_received(self, data: bytes) -> None:
        if self.first_ms is not None:
            return
        self._head += data
        head, separator, body = self._head.partition(b"\r\n\r\n")
        if separator and body:
            assert head.startswith(b"HTTP/1.1 200"), head
            self.first_ms = 1e3 * (time.perf_counter() - self.started)

    def connection_lost(self, error: Exception | None) -> None:
        self.done.set_result(None)


async def listen(port: int, frames: int, response_format: str = "pcm") -> float:
    """Receive a whole request of so many frames; returns milliseconds to its first audio."""
    listener = Listener(frames, response_format)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await asyncio.get_running_loop().create_connection(lambda: listener, HOST, port)
        await listener.done
    assert listener.first_ms is not None, "a request ended without audio"
    return listener.first_ms


async def one_client(port: int, floor: int, seconds: float) -> tuple[list[float], list[float]]:
    """Waiting times for the server and, alternating, for the floor."""
    end = time.perf_counter() + seconds
    spans_ms: list[float] = []
    floors_ms: list[float] = []
    while time.perf_counter() < end:
        spans_ms.append(await listen(port, 1))
        floors_ms.append(await listen(floor, 1))
    return spans_ms, floors_ms


async def many_clients(port: int, streams: int, seconds: float) -> list[float]:
    """Waiting times of streams that start evenly over the length of a speech, once all of them
    speak.
    """
    length = STREAM_FRAMES * FRAME_SECONDS
    begin = time.perf_counter()
    spans_ms: list[float] = []

    async def client(i: int) -> None:
        await asyncio.sleep(i * length / streams)
        while (asked := time.perf_counter()) < begin + length + seconds:
            first_ms = await listen(port, STREAM_FRAMES)
            if asked >= begin + length:
                spans_ms.append(first_ms)

    await asyncio.gather(*(client(i) for i in range(streams)))
    return spans_ms


async def lags(into: list[float]) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(NAP_SECONDS)
        into.append(1e3 * (time.perf_counter() - started - NAP_SECONDS))


async def measure(
    port: int, floor: int, server: int, streams: int, seconds: float
) -> dict[str, float]:
    lags_ms: list[float] = []
    floors_ms: list[float] = []
    lagging = asyncio.create_task(lags(lags_ms))
    started, own, servers = time.perf_counter(), time.process_time(), cpu_seconds(server)
    if streams == 1:
        spans_ms, floors_ms = await one_client(port, floor, seconds)
    else:
        spans_ms = await many_clients(port, streams, seconds)
    taken, server_seconds = time.perf_counter() - started, cpu_seconds(server) - servers
    lagging.cancel()
    return {
        "streams": streams,
        "requests": len(spans_ms),
        "mean_ms": round(float(np.mean(spans_ms)), 3),
        **{f"p{q}_ms": _percentile(spans_ms, q) for q in (50, 95, 99)},
        **{f"floor_p{q}_ms": _percentile(floors_ms, q) for q in (50, 95, 99) if floors_ms},
        **{
            f"over_floor_p{q}_ms": round(_percentile(spans_ms, q) - _percentile(floors_ms, q), 3)
            for q in (50, 95, 99)
            if floors_ms
        },
        **{f"lag_p{q}_ms": _percentile(lags_ms, q) for q in (50, 95)},
        "server_cpu": round(server_seconds / taken, 2),
        "server_cpu_ms_per_request": round(1e3 * server_seconds / len(spans_ms), 3),
        "clients_cpu": round((time.process_time() - own) / taken, 2),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _percentile(values: list[float], q: int) -> float:
    return round(float(np.percentile(values, q)), 3)


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def process(role: str) -> Iterator[tuple[int, int]]:
    """Run this module in another process, in that role; yields its port and process id."""
    with socket.create_server((HOST, 0), backlog=2048) as listener:
        port = listener.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "benchmarks.host.server_overhead",
            role,
            str(listener.fileno()),
        ]
        started = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
    try:
        yield port, started.pid
    finally:
        started.kill()
        started.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--output", type=Path, help="keep the report in this file, too")
    parser.add_argument("--serve", type=int, metavar="FD", help=argparse.SUPPRESS)
    parser.add_argument("--floor", type=int, metavar="FD", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None or arguments.floor is not None:
        listener = socket.socket(
            fileno=arguments.floor if arguments.serve is None else arguments.serve
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_floor(listener) if arguments.serve is None else serve(listener))
        return
    with (
        process("--serve") as (port, server),
        process("--floor") as (floor, _),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(
            one_client(port, floor, 1.0)
        )  # warms all up; the first request waits until the server is there
        results = [
            runner.run(measure(port, floor, server, n, arguments.seconds))
            for n in (1, arguments.streams)
        ]
    report = {
        "benchmark": "server_overhead",
        "command": module_command(),
        "date": today(),
        "scheduler": scheduler_name(),
        "results": results,
        "cores": cores(),
        "python": python_version(),
        **package_versions("uvicorn", "h11", "uvloop", "fastapi", "starlette", "numpy"),
        "processor": cpu_name(),
    }
    line = json.dumps(report)
    print(line)
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
