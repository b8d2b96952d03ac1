"""The generator measured against a stub server: its own share of the figures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hocket.bench.dialects import SPEECH_PATH
from hocket.bench.http import Response, Target, send
from hocket.bench.load.generator import Load, StageRun, run_stage
from hocket.bench.load.stub_server import HOST
from hocket.errors import HocketError

_SECONDS = 1.0
_TIMEOUT_SECONDS = 60.0
RATE, CHANNELS = 48_000, 2


@contextmanager
def stub_server(*, seconds: float, pace: float = 1.0) -> Iterator[Target]:
    """Run `hocket.bench.load.stub_server` in another process: 48 kHz stereo PCM in chunks of 80
    ms.
    """
    command = [
        sys.executable,
        "-m",
        "hocket.bench.load.stub_server",
        "--seconds",
        str(seconds),
        "--pace",
        str(pace),
    ]
    shape = ["--rate", str(RATE), "--channels", str(CHANNELS)]
    with subprocess.Popen(
        command + shape, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port.isdecimal():
            raise HocketError("the stub server for the generator's self check did not start")
        try:
            yield Target.parse(f"http://{HOST}:{port}")
        finally:
            process.stdin.close()


async def self_check(streams: int, seconds: float = _SECONDS) -> dict[str, Any]:
    """Receive `streams` answers at once at the speed of a player: first byte, processor time,
    lateness.
    """

    async def one(_: int) -> Response:
        return await send(target, "POST", SPEECH_PATH, {}, b"{}", _TIMEOUT_SECONDS)

    with stub_server(seconds=seconds) as target:
        run = await run_stage(Load(streams, clients=streams), one, seed=0)
    first = [
        1e3 * (o.response.arrivals[0][0] - o.response.sent_at)
        for o in run.sent
        if o.response.arrivals
    ]
    received = sum(len(o.response.body) for o in run.sent)
    return {
        "streams": streams,
        "sample_rate": RATE,
        "channels": CHANNELS,
        "failures": sum(o.response.broken is not None for o in run.sent),
        "megabytes_per_s": round(received / run.seconds / 1e6, 2),
        "first_byte_p50_ms": round(float(np.percentile(first, 50)), 3),
        "first_byte_p95_ms": round(float(np.percentile(first, 95)), 3),
        **generator_load(run),
    }


def generator_load(run: StageRun) -> dict[str, float]:
    """The generator's own load: cores, and the delays of its event loop."""
    lags = np.array(run.lags or [0.0]) * 1e3
    return {
        "cores": round(run.cpu_seconds / max(run.seconds, 1e-9), 3),
        "lag_p50_ms": round(float(np.percentile(lags, 50)), 3),
        "lag_p99_ms": round(float(np.percentile(lags, 99)), 3),
        "lag_max_ms": round(float(lags.max()), 3),
    }
