"""How much speech HTTP processes can hand out, and what each costs, around an engine that needs no
time.

    python -m benchmarks.host.http_processes [--processes 1 2] [--clients 32] [--seconds 10]
        [--output FILE]

Prints one JSON line. A worker process speaks noise (48 kHz stereo, 16 bit) as fast as it is taken,
in chunks of the default policy; `--processes` says how many HTTP processes serve it, one after the
other: 1 is the server of `hocket serve`, more are those of `--http-workers`. The clients of another
process stay busy: first one with requests of one frame (`first_ms` is the time to the first byte,
with the connection), then `clients` with requests of one frame, then with 8 s of speech, then an
eighth of them with the same as mp3. `cores` are those that the HTTP processes took, `parent_cores`
what their parent took, and `ms_per_request` is the processor time of both for a request. On a
machine with few cores the clients and the engine take their share of them: there the processor time
counts, not the rate.
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

import numpy as np
import uvloop
import zmq
from tests.support.fake_engine import FakeEngine

from benchmarks.host.server_overhead import (
    FRAME_SAMPLES,
    FRAME_SECONDS,
    HOST,
    RATE,
    STREAM_FRAMES,
    cpu_seconds,
    listen,
)
from hocket.audio.reference_cache import ReferenceCache
from hocket.bench.environment import (
    cores,
    cpu_name,
    module_command,
    package_versions,
    python_version,
    today,
)
from hocket.checkpoint.voices import ONLY_DEFAULT
from hocket.config import ChunkPolicy, ReferenceCacheConfig
from hocket.core import EngineInfo, Samples, SpeechRequest
from hocket.server.admission import Admission
from hocket.server.app import create_app
from hocket.server.processes.channel import Start
from hocket.server.processes.supervisor import HttpProcesses
from hocket.server.serve import configure_logging, uvicorn_server
from hocket.server.settings import ServerSettings
from hocket.server.voice_store import VoiceStore
from hocket.worker.pool import EnginePool
from hocket.worker.worker import Worker, open_socket

_NOISE_CS = np.random.default_rng(0).integers(
    -3000, 3000, (2, STREAM_FRAMES * FRAME_SAMPLES), np.int16
)
SETTINGS = ServerSettings(port=0, max_queue=1024)


def noise(info: EngineInfo, request: SpeechRequest, first: int, count: int) -> Samples:
    """Frames of noise, [C, S]."""
    return _NOISE_CS[:, first * FRAME_SAMPLES : (first + count) * FRAME_SAMPLES]


def serve_engine(endpoint: str) -> None:
    """Be a worker at `endpoint` until killed."""
    engine = FakeEngine(
        rows=1024,
        channels=2,
        sample_rate=RATE,
        frame_samples=FRAME_SAMPLES,
        samples="int16",
        chunk_frames=ChunkPolicy().sizes,
        length=lambda request: request.max_frames or 1,
        sound=noise,
    )
    with zmq.Context() as context, open_socket(context, endpoint) as bound:
        Worker(engine, bound).run()


async def serve_http(count: int, listener: socket.socket, endpoint: str, folder: Path) -> None:
    """Serve from `count` processes until the parent closes standard input; print their ids."""
    configure_logging()
    if count == 1:
        async with await EnginePool.connect([endpoint], 0) as pool:
            await pool.wait_ready()
            app = create_app(pool, SETTINGS, VoiceStore(folder, ONLY_DEFAULT))
            server = uvicorn_server(app, SETTINGS)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            print(json.dumps([os.getpid()]), flush=True)
            await asyncio.to_thread(sys.stdin.read)
            server.should_exit = server.force_exit = True
            await serving
        return
    start = Start(
        settings=SETTINGS.model_dump_json(),
        model_name="noise",
        voices_folder=str(folder),
        voices=dict(ONLY_DEFAULT),
        endpoints=[endpoint],
        reference_cache="{}",
        metrics_folder=str(folder),
        number=0,
    )
    references = ReferenceCache(ReferenceCacheConfig())
    processes = HttpProcesses(
        count, listener, start, Admission(SETTINGS), references, close_seconds=1
    )
    serving = asyncio.create_task(processes.serve())
    await processes.wait_ready()
    print(json.dumps(processes.pids), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    processes.end(at_once=True)
    await serving


async def load(
    port: int, clients: int, frames: int, response_format: str, seconds: float
) -> list[float]:
    """Milliseconds to the first audio of all requests that `clients` make in so many seconds."""
    end = time.perf_counter() + seconds
    spans_ms: list[float] = []

    async def client() -> None:
        while time.perf_counter() < end:
            spans_ms.append(await listen(port, frames, response_format))

    await asyncio.gather(*(client() for _ in range(clients)))
    return spans_ms


async def measure(
    port: int,
    parent: int,
    pids: list[int],
    clients: int,
    frames: int,
    response_format: str,
    seconds: float,
) -> dict[str, float | str]:
    await load(port, clients, frames, response_format, 1.0)
    before, started = [cpu_seconds(pid) for pid in (parent, *pids)], time.perf_counter()
    spans_ms = await load(port, clients, frames, response_format, seconds)
    taken = time.perf_counter() - started
    own, *each = [
        cpu_seconds(pid) - then for pid, then in zip((parent, *pids), before, strict=True)
    ]
    if parent in pids:
        own = 0.0
    requests = len(spans_ms)
    return {
        "processes": len(pids),
        "clients": clients,
        "format": response_format,
        "audio_seconds_per_request": round(frames * FRAME_SECONDS, 2),
        "requests_per_second": round(requests / taken, 1),
        "audio_seconds_per_second": round(requests * frames * FRAME_SECONDS / taken, 1),
        "cores": round(sum(each) / taken, 2),
        "least_busy": round(min(each) / taken, 2),
        "parent_cores": round(own / taken, 3),
        "ms_per_request": round(1e3 * (sum(each) + own) / requests, 3),
        "first_ms_p50": round(float(np.percentile(spans_ms, 50)), 3),
        "first_ms_p95": round(float(np.percentile(spans_ms, 95)), 3),
    }


@contextmanager
def process(*arguments: str, pass_fds: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """This module in another process, until the end of the block."""
    command = [sys.executable, "-m", "benchmarks.host.http_processes", *arguments]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # the log has a line for each request
        pass_fds=pass_fds,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            assert started.stdin is not None
            started.stdin.close()
            try:
                started.wait(3)
            except subprocess.TimeoutExpired:
                started.kill()


def run(count: int, clients: int, seconds: float) -> list[dict[str, float | str]]:
    """All measurements of `count` HTTP processes."""
    cases = (
        (1, 1, "pcm"),
        (clients, 1, "pcm"),
        (clients, STREAM_FRAMES, "pcm"),
        (max(1, clients // 8), STREAM_FRAMES, "mp3"),  # which takes much longer
    )
    with (
        tempfile.TemporaryDirectory(prefix="hocket-") as folder,
        socket.create_server((HOST, 0), backlog=2048) as listener,
        process("--engine", f"ipc://{folder}/engine"),
        process(
            "--http",
            *(str(count), str(listener.fileno()), f"ipc://{folder}/engine", f"{folder}/voices"),
            pass_fds=(listener.fileno(),),
        ) as server,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        assert server.stdout is not None
        pids, port = json.loads(server.stdout.readline()), listener.getsockname()[1]
        return [runner.run(measure(port, server.pid, pids, *case, seconds)) for case in cases]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--output", type=Path, help="keep the report in this file, too")
    parser.add_argument("--engine", metavar="ENDPOINT", help=argparse.SUPPRESS)
    parser.add_argument("--http", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine is not None:
        serve_engine(arguments.engine)
        return
    if arguments.http is not None:
        count, descriptor, endpoint, folder = arguments.http
        Path(folder).mkdir()
        with (
            socket.socket(fileno=int(descriptor)) as listener,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(serve_http(int(count), listener, endpoint, Path(folder)))
        return
    report = {
        "benchmark": "http_processes",
        "command": module_command(),
        "date": today(),
        "results": [
            result
            for count in arguments.processes
            for result in run(count, arguments.clients, arguments.seconds)
        ],
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
