"""CPU cost of `Engine.step()` itself: full rows, requests coming and going, runners that take no time.

    python benchmarks/engine_step.py [--rows 276] [--steps 3000] [--output benchmarks/results/engine_step_cpu.json]

Prints JSON. Times are milliseconds of this thread's CPU time per step, so other processes do not count.
Requests have 250 prompt rows, 200 of them one of eight voices, and 75 to 149 frames of 12 codes. A step holds
admission, prefill accounting, page growth, loop and silence detection, decode batches by deadline, chunks with their
codes, endings and the counters. Adding requests, which hashes their prompts, happens between steps and is given apart.
The clock is simulated. Some rows prefill or wait for their last audio; `mean_frame_rows` of them launch a frame.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.config import ChunkPolicy, EngineConfig
from hocket.core import PromptRows, ReferenceNeeds, ResolvedSampling, SpeechRequest
from hocket.engine.codec_places import Place
from hocket.engine.codec_runner import DecodedChunk, SamplesInFlight
from hocket.engine.engine import Engine
from hocket.engine.loading import AudioFormat, EngineParts
from hocket.engine.request import DecodeBatch, FrameBatch, PrefillItem
from hocket.engine.talker_runner import FramesInFlight, PageTable
from hocket.engine.transfer import HostCopy

N_VQ = 12
FRAME_SAMPLES = 3840
PROMPT_ROWS, SHARED_ROWS = 250, 200
MAX_FRAMES = 150
NOTHING = HostCopy(torch.zeros(0), None)


class InstantTalker:
    """Makes random codes and never stops."""

    def __init__(self, rows: int) -> None:
        codes = np.random.default_rng(0).integers(0, 1024, (64, rows, N_VQ))
        self._codes = [codes[:, :count] for count in range(rows + 1)]
        self._stops = [[False] * count for count in range(rows + 1)]
        self._calls = 0

    def start(self, row: int, sampling: ResolvedSampling, seed: int, min_frames: int, prompt: PromptRows) -> None: ...

    def prefill(self, items: Sequence[PrefillItem], page_table: PageTable) -> None: ...

    joins_prefill = True

    def launch(self, batch: FrameBatch, page_table: PageTable, items: Sequence[PrefillItem] = ()) -> FramesInFlight:
        return FramesInFlight(batch, [NOTHING])

    def collect(self, flight: FramesInFlight) -> tuple[list[bool], NDArray[np.int64]]:
        count = len(flight.batch.requests)
        self._calls += 1
        return self._stops[count], self._codes[count][self._calls % 64]


class InstantCodec:
    """Hands out the same loud samples for every chunk."""

    def __init__(self, max_chunk_frames: int) -> None:
        self.hearing_sizes = (max_chunk_frames,)
        samples_CS = np.full((2, max_chunk_frames * FRAME_SAMPLES), 0.1, np.float32)
        power_F = np.full(max_chunk_frames, 0.01, np.float32)
        self._chunks = [
            DecodedChunk(samples_CS[:, : count * FRAME_SAMPLES], power_F[:count])
            for count in range(max_chunk_frames + 1)
        ]

    packs = True
    kept = 0
    hearing_slots = 4

    def start(self, place: Place) -> None: ...

    def copy(self, source: Place, target: Place, frames: int) -> None: ...

    def hear(self, slots: Sequence[int], pieces: Sequence[NDArray[np.int64]], frames: int) -> HostCopy:
        return NOTHING

    def launch(self, batch: DecodeBatch, pieces: Sequence[NDArray[np.int64]]) -> SamplesInFlight:
        return SamplesInFlight(batch, NOTHING, NOTHING)

    def collect(self, flight: SamplesInFlight) -> list[DecodedChunk]:
        return [self._chunks[item.count] for item in flight.batch.items]


class RandomPrompt:
    """One of eight voices, then random text."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)
        self._voices = self._random.integers(0, 1024, (8, SHARED_ROWS, 1 + N_VQ))
        self._built = 0

    def needs(self, request: SpeechRequest) -> ReferenceNeeds:
        return ReferenceNeeds(codes=True, voice=False)

    def build(
        self,
        request: SpeechRequest,
        references: Sequence[NDArray[np.int64]],
        voices: Sequence[NDArray[np.float32]] = (),
    ) -> PromptRows:
        self._built += 1
        text = self._random.integers(0, 1024, (PROMPT_ROWS - SHARED_ROWS, 1 + N_VQ))
        rows = np.concatenate([self._voices[self._built % len(self._voices)], text])
        return PromptRows(rows, np.empty((0, N_VQ), np.int64))


class SimulatedClock:
    """Moves on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def new_engine(rows: int, clock: SimulatedClock) -> Engine:
    # Large decode batches, so that no row waits for the codec and as many as possible launch frames.
    chunks = ChunkPolicy(max_batch=64)
    config = EngineConfig(rows=rows, max_waiting=4 * rows, chunks=chunks)
    context_rows = 512
    parts = EngineParts(
        config=config,
        prompt=RandomPrompt(),
        sampling=ResolvedSampling(1.7, 0.8, 25, 1.0),
        audio=AudioFormat(sample_rate=48_000, channels=2, frame_seconds=FRAME_SAMPLES / 48_000),
        n_vq=N_VQ,
        context_rows=context_rows,
        pages=1 + rows * context_rows // config.page_rows,
        talker=InstantTalker(rows),
        codec=InstantCodec(max(config.chunks.sizes)),
        references=None,
        lookahead=True,
    )
    return Engine(parts, clock=clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=276)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--step-ms", type=float, default=12.0, help="simulated length of a step")
    parser.add_argument("--output", type=Path, help="also write the JSON here")
    arguments = parser.parse_args()

    clock = SimulatedClock()
    engine = new_engine(arguments.rows, clock)
    random = np.random.default_rng(2)
    text = "One voice, then another, note by note. " * 8
    add_seconds: list[float] = []

    def add() -> None:
        request = SpeechRequest(text=text, max_frames=int(random.integers(MAX_FRAMES // 2, MAX_FRAMES)))
        started = time.thread_time()
        engine.add(request)
        add_seconds.append(time.thread_time() - started)

    def step() -> float:
        started = time.thread_time()
        chunks = engine.step()
        seconds = time.thread_time() - started
        clock.now += arguments.step_ms / 1000
        for chunk in chunks:
            if chunk.end is not None:
                add()
        return seconds

    for _ in range(2 * arguments.rows):
        add()
    for _ in range(4 * MAX_FRAMES):  # until arrivals and endings are spread evenly
        step()
    before = engine.stats()
    add_seconds.clear()
    spent_ms = np.array([step() for _ in range(arguments.steps)]) * 1e3
    engine.check_integrity()
    after = engine.stats()
    batches = after.frame_batches - before.frame_batches
    rows = after.mean_frame_rows * after.frame_batches - before.mean_frame_rows * before.frame_batches
    report = {
        "benchmark": "engine_step",
        "command": " ".join(["python", *sys.argv]),
        "date": datetime.now(UTC).date().isoformat(),
        "rows": arguments.rows,
        "steps": arguments.steps,
        "mean_frame_rows": round(rows / batches, 1),
        "chunks_per_step": round(
            (after.mean_decode_rows * after.decode_batches - before.mean_decode_rows * before.decode_batches)
            / arguments.steps,
            1,
        ),
        "mean_ms": round(float(spent_ms.mean()), 4),
        "p50_ms": round(float(np.quantile(spent_ms, 0.5)), 4),
        "p99_ms": round(float(np.quantile(spent_ms, 0.99)), 4),
        "add_ms": round(float(np.mean(add_seconds)) * 1e3, 4),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "processor": _processor(),
    }
    print(json.dumps(report, indent=2))
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=2) + "\n")


def _processor() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.machine()


if __name__ == "__main__":
    main()
