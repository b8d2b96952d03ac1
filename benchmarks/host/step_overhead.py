"""CPU cost of the scheduler alone: full rows, arriving and ending requests, runners that take no
time.

    python -m benchmarks.host.step_overhead [--rows 256] [--steps 3000]

Prints one JSON line; times are milliseconds per step. Requests have 250 prompt rows, 200 of which
are one of eight voices, and 75 to 149 frames, so the figures include admission, prefill, growth,
decode batches and endings. Adding requests, which hashes their prompts, happens between steps and
is in `parts_ms` alone.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hocket.bench.environment import cpu_name, python_version
from hocket.config import ChunkPolicy
from hocket.engine.scheduling.config import SchedulerConfig
from hocket.engine.scheduling.request import DecodeBatch
from hocket.engine.scheduling.scheduler import Scheduler

T = TypeVar("T")

FRAME_SECONDS = 0.08
PROMPT_ROWS = 250
SHARED_ROWS = 200
MAX_FRAMES = 150


class Driver:
    """Drives a scheduler as the engine does, and sums the time of each part."""

    def __init__(self, rows: int, step_seconds: float) -> None:
        pages_per_request = -(-(PROMPT_ROWS + MAX_FRAMES) // 32) + 1  # one page to grow into
        config = SchedulerConfig(
            rows=rows, pages=rows * pages_per_request + 1, max_waiting=4 * rows
        )
        self.scheduler = Scheduler(config, ChunkPolicy(), frame_seconds=FRAME_SECONDS)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.frames = 0
        self._step_seconds = step_seconds
        self._now = 0.0
        self._added = 0
        self._random = np.random.default_rng(0)
        self._voices = self._random.integers(0, 1024, (8, SHARED_ROWS, 13))
        self._decodes_in_flight: deque[DecodeBatch] = deque()

    def add(self) -> None:
        text = self._random.integers(0, 1024, (PROMPT_ROWS - SHARED_ROWS, 13))
        prompt = np.concatenate([self._voices[self._added % len(self._voices)], text])
        max_frames = int(self._random.integers(MAX_FRAMES // 2, MAX_FRAMES))
        self._timed(
            "add",
            lambda: self.scheduler.add(
                str(self._added), prompt, max_frames=max_frames, now=self._now
            ),
        )
        self._added += 1

    def step(self) -> float:
        """Run one step; returns its seconds."""
        before = sum(self.seconds.values())
        scheduler, now = self.scheduler, self._now
        self._timed("admit", lambda: scheduler.admit(now))
        items = self._timed("prefill", scheduler.next_prefill)
        self._timed("prefill", lambda: scheduler.finish_prefill(items, now))
        batch = self._timed("frames", scheduler.next_frames)
        self._timed(
            "collect", lambda: scheduler.collect_frames(batch, [False] * len(batch.requests), now)
        )
        self.frames += len(batch.requests)
        decode = self._timed("decode", lambda: scheduler.next_decode(now))
        if decode is not None:
            self._decodes_in_flight.append(decode)
        if len(self._decodes_in_flight) > 1 or (decode is None and self._decodes_in_flight):
            oldest = self._decodes_in_flight.popleft()
            self._timed("decode", lambda: scheduler.collect_decode(oldest, now))
        finished = self._timed("release", scheduler.release_finished)
        self._now += self._step_seconds
        spent = sum(self.seconds.values()) - before
        for _ in finished:
            self.add()
        return spent

    def _timed(self, part: str, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        result = work()
        self.seconds[part] += time.perf_counter() - started
        return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--step-ms", type=float, default=12.0, help="simulated length of a step")
    arguments = parser.parse_args()

    driver = Driver(arguments.rows, arguments.step_ms / 1000)
    for _ in range(2 * arguments.rows):
        driver.add()
    while driver.scheduler.stats().running < arguments.rows * 9 // 10:
        driver.step()
    driver.seconds.clear()
    driver.frames = 0
    spent_ms = np.array([driver.step() for _ in range(arguments.steps)]) * 1e3
    driver.scheduler.check_integrity()
    report = {
        "benchmark": "step_overhead",
        "rows": arguments.rows,
        "steps": arguments.steps,
        "frames_per_step": round(driver.frames / arguments.steps, 1),
        "mean_ms": round(float(spent_ms.mean()), 4),
        "p50_ms": round(float(np.quantile(spent_ms, 0.5)), 4),
        "p99_ms": round(float(np.quantile(spent_ms, 0.99)), 4),
        "parts_ms": {
            part: round(s / arguments.steps * 1e3, 4) for part, s in driver.seconds.items()
        },
        "python": python_version(),
        "processor": cpu_name(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
