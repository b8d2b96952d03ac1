"""Many short requests, a fifth of them cancelled, with a full queue: memory does not grow."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hocket.core import SpeechRequest
from hocket.engine.engine import Engine
from hocket.errors import CapacityError
from tests.support.tiny_engine import EAGER, TickingClock, codes, engine, noise, talker

STATM = Path("/proc/self/statm")
QUEUE = 24


def resident_bytes() -> int:
    gc.collect()
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """Keeps an engine's queue full and cancels at random."""

    def __init__(self) -> None:
        update = {"rows": 8, "max_waiting": QUEUE, "kv_rows": 1200, "page_rows": 32}
        self.engine: Engine = engine(
            EAGER.model_copy(update=update), talker(), clock=TickingClock()
        )
        self.random = np.random.default_rng(0)
        self.voices = [None, None, codes(1, 9), codes(2, 30), noise(3, 1.0), noise(4, 2.0)]
        self.open: set[str] = set()
        self.reasons: Counter[str] = Counter()
        self.frames = 0
        self.refused = 0

    @property
    def ended(self) -> int:
        return self.reasons.total()

    def run(self, requests: int) -> None:
        """Run until `requests` requests have ended in total."""
        while self.ended < requests:
            self._fill()
            if self.random.random() < 0.3:
                self.engine.cancel(str(self.random.choice(sorted(self.open))))
            self._step()

    def drain(self) -> None:
        while not self.engine.idle:
            self._step()

    def _fill(self) -> None:
        while True:
            seed = int(self.random.integers(2**40))
            voice = self.voices[seed % len(self.voices)]
            try:
                self.open.add(
                    self.engine.add(
                        SpeechRequest(
                            text=f"Text {seed % 97}.",
                            seed=seed,
                            reference=voice,
                            max_frames=1 + seed % 9,
                        ),
                        priority=seed % 2,
                        streaming=seed % 3 > 0,
                    )
                )
            except CapacityError:
                self.refused += 1
                return

    def _step(self) -> None:
        for chunk in self.engine.step():
            self.frames += len(chunk.codes)
            if chunk.end is not None:
                self.open.remove(chunk.request_id)
                self.reasons[chunk.end.finish_reason] += 1


def soak(requests: int, warm: int) -> dict[str, float]:
    """Figures of a run; growth is measured after the first `warm` requests."""
    world = Soak()
    world.run(warm)
    bytes_before, objects_before = resident_bytes(), len(gc.get_objects())
    world.run(requests)
    bytes_after, objects_after = resident_bytes(), len(gc.get_objects())
    stats = world.engine.stats()
    assert stats.preparing + stats.scheduler.waiting > QUEUE // 2
    world.drain()
    world.engine.check_integrity()
    stats = world.engine.stats()
    assert world.open == set()
    assert stats.scheduler.rows_free == 8
    assert stats.scheduler.pages_free + stats.scheduler.pages_kept == 38
    assert stats.preparing == 0
    assert world.refused > 0
    return {
        "requests": world.ended,
        "cancelled": world.reasons["cancelled"] / world.ended,
        "frames": world.frames,
        "steps": stats.steps,
        "resident_mb": bytes_before / 2**20,
        "resident_growth": bytes_after / bytes_before - 1,
        "objects": objects_before,
        "objects_growth": objects_after - objects_before,
    }


@pytest.mark.skipif(not STATM.exists(), reason="reads the resident size from /proc")
@pytest.mark.parametrize(
    ("requests", "warm"),
    [pytest.param(5000, 500, marks=pytest.mark.slow), (500, 200)],
)
def test_soak(requests: int, warm: int) -> None:
    numbers = soak(requests, warm)
    print(numbers)
    assert 0.1 < numbers["cancelled"] < 0.3
    assert numbers["resident_growth"] <= 0.02
    # An object kept of every request would be thousands.
    assert numbers["objects_growth"] <= 500
