"""Cost of the process boundary: a fake engine in a worker process, and a front end in this one.

    python -m benchmarks.host.worker_overhead [--streams 256] [--seconds 2]

Prints one JSON line. Latency runs from the time when the engine returns a chunk to the time when
the reader of its stream has it. Chunks are float32 stereo at 48 kHz, like a real codec's; the fake
makes them at a fixed rate. A rate counts as sustained when 95 % of it arrives with no request lost.
15-frame chunks at 1,500 a second are 1,800 seconds of audio a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time

import numpy as np
import zmq
from tests.support.fake_engine import FakeEngine

from hocket.bench.environment import cores, cpu_name, python_version
from hocket.core import AudioChunk, SpeechRequest
from hocket.errors import HocketError
from hocket.worker.client import EngineClient
from hocket.worker.messages import HEARTBEAT_SECONDS
from hocket.worker.stream import SpeechStream

FRAME_SAMPLES = 3840


class PacedEngine(FakeEngine):
    """Streams take turns; a chunk carries its time of birth as its only code. Texts say "frames
    rate".
    """

    def __init__(self) -> None:
        # The prompt takes for ever: only `step` below makes chunks.
        super().__init__(rows=1024, channels=2, sample_rate=48_000, prefill_seconds=math.inf)
        self._samples = np.zeros((2, 0), np.float32)
        self._rate = 1.0
        self._next_at = 0.0

    def add(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> str:
        frames, rate = map(int, request.text.split())
        self._samples, self._rate = np.zeros((2, frames * FRAME_SAMPLES), np.float32), rate
        self._next_at = time.perf_counter() + 0.2
        return super().add(request, request_id=request_id, priority=priority, streaming=streaming)

    def step(self) -> list[AudioChunk]:
        time.sleep(0.002)
        chunks = super().step()
        while self.speaking and time.perf_counter() >= self._next_at:
            self._next_at += 1 / self._rate
            name = next(iter(self.speaking))
            self.speaking[name] = self.speaking.pop(name)
            born = np.array([[time.perf_counter_ns()]])
            chunks.append(AudioChunk(name, self._samples.copy(), self.sample_rate, born))
        return chunks


def serve(endpoint: str) -> None:
    from hocket.worker.worker import Worker, open_socket

    with zmq.Context() as context, open_socket(context, endpoint) as socket:
        Worker(PacedEngine(), socket).run()


async def measure(
    client: EngineClient, streams: int, frames: int, rate: int, seconds: float
) -> dict[str, float | bool]:
    spans_ns: list[int] = []

    async def read(stream: SpeechStream) -> None:
        async for chunk in stream:
            if chunk.end is None:
                spans_ns.append(time.perf_counter_ns() - int(chunk.codes[0, 0]))

    opened = [await client.submit(SpeechRequest(text=f"{frames} {rate}")) for _ in range(streams)]
    readers = [asyncio.create_task(read(stream)) for stream in opened]
    await asyncio.sleep(0.5)
    spans_ns.clear()
    started, cpu_started = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    taken, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    spans_ms = np.array(spans_ns) / 1e6
    for stream in opened:
        stream.cancel()
    results = await asyncio.gather(*readers, return_exceptions=True)
    lost = any(isinstance(result, HocketError) for result in results)
    await asyncio.sleep(2 * HEARTBEAT_SECONDS)
    return {
        "streams": streams,
        "chunk_frames": frames,
        "wanted_per_second": rate,
        "got_per_second": round(len(spans_ms) / taken),
        "sustained": not lost and len(spans_ms) / taken >= 0.95 * rate,
        "p50_ms": round(float(np.quantile(spans_ms, 0.5)), 3),
        "p95_ms": round(float(np.quantile(spans_ms, 0.95)), 3),
        "front_end_cpu": round(cpu / taken, 2),
    }


async def run(endpoint: str, streams: int, seconds: float) -> list[dict[str, float | bool]]:
    loads = [
        (1, 1, 100),
        (streams, 15, 1500),
        *((streams, 1, rate) for rate in (1500, 3000, 6000, 12000)),
    ]
    async with await EngineClient.connect(endpoint) as client:
        await client.wait_ready(20)
        return [await measure(client, *load, seconds) for load in loads]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--serve", metavar="ENDPOINT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    with tempfile.TemporaryDirectory(prefix="hocket-") as folder:
        endpoint = f"ipc://{folder}/s"
        worker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.host.worker_overhead", "--serve", endpoint]
        )
        try:
            results = asyncio.run(run(endpoint, arguments.streams, arguments.seconds))
        finally:
            worker.kill()
            worker.wait()
    report = {
        "benchmark": "worker_overhead",
        "results": results,
        "cores": cores(),
        "python": python_version(),
        "processor": cpu_name(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
