"""Cost of the engine's own Python per frame: the throughput profile and its workload on a device
that only waits.

    python -m benchmarks.host.engine_step [--rows 128 256] [--seconds 20] [--json host.json]

The fake device takes as long as an H200 (`--draw-ms` ...), so requests queue at the codec, steps
poll and chunks are batched as they are there; it computes and copies nothing. As many requests are
open as there are rows, each a continuation of one of 123 voices with 64 frames on average:
admission, prefill accounting, page growth, loop and silence detection, priming, chunks by deadline,
their codes, endings and counters are all in the figures.

Milliseconds per frame step of all running rows:

    host_ms     the engine's own meter: everything but the calls of the runners and waiting
    cpu_ms      CPU time of this thread inside `step`: the above, arrays for the device, and polling
                every 0.1 ms
    add_ms      CPU time of adding a request, which happens between steps, once in 64 frames of a
                row
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tests.support.fake_engine import fake_info

from hocket.bench.engine.random_model import plans
from hocket.bench.engine.workload import read_workload
from hocket.bench.environment import (
    cpu_name,
    module_command,
    package_versions,
    python_version,
    today,
)
from hocket.config import EngineConfig
from hocket.core import PromptRows
from hocket.engine.build import EngineParts
from hocket.engine.engine import Engine
from hocket.engine.runners.codec import DecodedChunk, SamplesInFlight, StateSlot
from hocket.engine.runners.device import HostCopy
from hocket.engine.runners.padding import frame_batch, packed_batch, prefill_batch, split_prefill
from hocket.engine.runners.talker import FramesInFlight, PageTable
from hocket.engine.scheduling.request import DecodeBatch, FrameBatch, PrefillItem
from hocket.models.family import TalkerPlan
from hocket.models.sampling import ResolvedSampling
from hocket.server.profiles import load_profile

MODEL = "moss-tts-local-v1.5"
FRAME_SAMPLES, SAMPLE_RATE, CHANNELS = 3840, 48_000, 2
#: Time until 256 rows are in their steady state: each row has finished some requests.
WARMUP_SECONDS = 10.0


@dataclass(slots=True)
class Lane:
    """A stream of the fake device: each launch runs behind the one before."""

    free_at: float = 0.0
    launched: int = 0

    def run(self, seconds: float) -> float:
        """End time of work that is launched now and takes `seconds`."""
        self.free_at = max(self.free_at, time.perf_counter()) + seconds
        self.launched += 1
        return self.free_at


@dataclass(slots=True)
class DoneAt:
    """A CUDA event, as far as the engine uses it."""

    at: float

    def query(self) -> bool:
        return time.perf_counter() >= self.at

    def synchronize(self) -> None: ...


def done_at(at: float) -> torch.cuda.Event:
    return cast("torch.cuda.Event", DoneAt(at))


def on_its_way(at: float) -> HostCopy:
    return HostCopy(torch.zeros(0), done_at(at))


class WaitingTalker:
    """Makes random codes and never stops."""

    joins_prefill = True

    def __init__(
        self, rows: int, n_vq: int, page_rows: int, draw_seconds: float, backbone_seconds: float
    ) -> None:
        results = np.random.default_rng(0).integers(0, 1024, (64, rows, n_vq))
        self._codes_KBN = results
        self._page_rows, self._scratch_row = page_rows, rows
        self._draw_seconds, self._backbone_seconds = draw_seconds, backbone_seconds
        self._lane = Lane()

    def start(
        self, row: int, sampling: ResolvedSampling, seed: int, min_frames: int, prompt: PromptRows
    ) -> None: ...

    def prefill(self, items: Sequence[PrefillItem], page_table: PageTable) -> None:
        pieces = [
            slice_
            for item in items
            for slice_ in split_prefill(
                item.request.row,
                item.request.prompt[item.start : item.start + item.count],
                item.start,
                self._page_rows,
            )
        ]
        if pieces:
            prefill_batch(pieces, len(pieces), self._page_rows, self._scratch_row)

    def launch(
        self, batch: FrameBatch, page_table: PageTable, items: Sequence[PrefillItem] = ()
    ) -> FramesInFlight:
        frame_batch(batch.frame_index_3B, len(batch.requests), self._scratch_row)
        self.prefill(items, page_table)
        drawn = on_its_way(self._lane.run(self._draw_seconds))
        self._lane.run(self._backbone_seconds)
        return FramesInFlight(batch, [drawn])

    def collect(self, flight: FramesInFlight) -> tuple[list[bool], NDArray[np.int64]]:
        count = len(flight.batch.requests)
        return [False] * count, self._codes_KBN[self._lane.launched % 64, :count]


class WaitingCodec:
    """Returns the same loud samples for every chunk."""

    pack_frames = 480
    priming_slots = 4

    def __init__(
        self, config: EngineConfig, n_vq: int, call_seconds: float, frame_seconds: float
    ) -> None:
        most = config.chunks.steady_chunk_frames
        self.kept, self.priming_sizes = config.kept_streams, (most, 4 * most, 8 * most)
        self._rows, self._n_vq = config.rows, n_vq
        self._call_seconds, self._frame_seconds = call_seconds, frame_seconds
        self._lane = Lane()
        samples_CS = np.full((CHANNELS, most * FRAME_SAMPLES), 0.1, np.float32)
        power_F = np.full(most, 0.01, np.float32)
        self._chunks = [
            DecodedChunk(samples_CS[:, : count * FRAME_SAMPLES], power_F[:count])
            for count in range(most + 1)
        ]

    def start(self, slot: StateSlot) -> None: ...

    def copy(self, source: StateSlot, target: StateSlot, frames: int) -> None: ...

    def prime(
        self, slots: Sequence[int], pieces: Sequence[NDArray[np.int64]], frames: int
    ) -> torch.cuda.Event:
        return done_at(self._decode(slots, pieces))

    def launch(self, batch: DecodeBatch, pieces: Sequence[NDArray[np.int64]]) -> SamplesInFlight:
        samples = on_its_way(self._decode([item.request.row for item in batch.items], pieces))
        return SamplesInFlight(batch, samples, samples)

    def collect(self, flight: SamplesInFlight) -> list[DecodedChunk]:
        return [self._chunks[item.count] for item in flight.batch.items]

    def _decode(self, rows: Sequence[int], pieces: Sequence[NDArray[np.int64]]) -> float:
        """End time of decoding."""
        frames = sum(map(len, pieces))
        packed_batch(rows, pieces, frames, len(rows), self._rows)
        return self._lane.run(self._call_seconds + frames * self._frame_seconds)


def new_engine(rows: int, plan: TalkerPlan, arguments: argparse.Namespace) -> Engine:
    talker = plan.config
    base = load_profile("throughput").profile.engine
    config = base.model_copy(update={"rows": rows, "kv_rows": None, "max_context_rows": 1024})
    milliseconds = 1e-3
    parts = EngineParts(
        config=config,
        prompt=plan.workload_prompt(),
        sampling=plan.sampling,
        info=fake_info(
            sample_rate=SAMPLE_RATE,
            channels=CHANNELS,
            frame_seconds=FRAME_SAMPLES / SAMPLE_RATE,
            rows=rows,
            context_rows=config.max_context_rows,
            samples=config.samples,
        ),
        n_vq=talker.n_vq,
        pages=1 + rows * config.max_context_rows // config.page_rows,
        talker=WaitingTalker(
            rows,
            talker.n_vq,
            config.page_rows,
            arguments.draw_ms * milliseconds,
            arguments.backbone_ms * milliseconds,
        ),
        codec=WaitingCodec(
            config,
            talker.n_vq,
            arguments.codec_ms * milliseconds,
            arguments.codec_frame_ms * milliseconds,
        ),
        references=None,
    )
    return Engine(parts)


def measure(rows: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure a steady state with as many requests as rows."""
    plan = plans(MODEL, None, torch.bfloat16)[0]
    requests = read_workload(plan.config, plan.workload_prompt(), 0)
    engine, workload = new_engine(rows, plan, arguments), itertools.cycle(requests)
    numbers = itertools.count()
    add_seconds = step_seconds = 0.0
    steps = adds = 0

    def add() -> None:
        nonlocal add_seconds, adds
        request = next(workload).request(next(numbers), ignore_stop=True)
        started = time.thread_time()
        engine.add(request)
        add_seconds += time.thread_time() - started
        adds += 1

    def drive(seconds: float) -> None:
        nonlocal step_seconds, steps
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            started = time.thread_time()
            chunks = engine.step()
            step_seconds += time.thread_time() - started
            steps += 1
            for chunk in chunks:
                if chunk.end is not None:
                    add()

    for _ in range(rows):
        add()
    drive(WARMUP_SECONDS)
    before = engine.stats()
    add_seconds = step_seconds = 0.0
    steps = adds = 0
    drive(arguments.seconds)
    after = engine.stats()
    engine.check_integrity()
    frames, decodes = (
        after.frame_batches - before.frame_batches,
        after.decode_batches - before.decode_batches,
    )
    frame_rows = (
        after.mean_frame_rows * after.frame_batches - before.mean_frame_rows * before.frame_batches
    )
    streams = (
        after.mean_decode_rows * after.decode_batches
        - before.mean_decode_rows * before.decode_batches
    )
    return {
        "rows": rows,
        "host_ms": round(1e3 * (after.host_seconds - before.host_seconds) / frames, 4),
        "cpu_ms": round(1e3 * step_seconds / frames, 4),
        "add_ms": round(1e3 * add_seconds / adds, 4),
        "frames": frames,
        "frame_ms": round(1e3 * arguments.seconds / frames, 3),
        "steps_per_frame": round(steps / frames, 2),
        "requests_per_frame": round(adds / frames, 2),
        "mean_frame_rows": round(frame_rows / frames, 1),
        "mean_decode_streams": round(streams / decodes, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring, for each")
    parser.add_argument(
        "--draw-ms", type=float, default=2.4, help="from a frame's launch to its codes"
    )
    parser.add_argument(
        "--backbone-ms", type=float, default=9.6, help="and to the end of the frame"
    )
    parser.add_argument("--codec-ms", type=float, default=4.0, help="of a codec call")
    parser.add_argument(
        "--codec-frame-ms", type=float, default=0.035, help="more for each of its frames"
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    report = {
        "benchmark": "engine_step",
        "command": module_command(),
        "date": today(),
        "python": python_version(),
        **package_versions("torch", "numpy"),
        "processor": cpu_name(),
        "runs": [measure(rows, arguments) for rows in arguments.rows],
    }
    print(json.dumps(report, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
