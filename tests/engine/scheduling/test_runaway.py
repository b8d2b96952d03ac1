"""The frame budget of a text, and codes that repeat."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.config import RunawayPolicy
from hocket.engine.scheduling.runaway import LoopDetector, frame_budget, speech_seconds

FRAME = 0.08
POLICY = RunawayPolicy()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("a" * 12, 1.0),
        ("人人人人", 1.0),
        ("한국 말", 0.75 + 1 / 12),
        ("1987", 2.0),
        ("5 €", 1.0 + 1 / 12),
        ("[pause 3.2s]", 3.2 + 1 / 12),
        ("a[pause 2s]b[Pause 0.5 s]c", 2.5 + 5 / 12),
        ("[pause]", 7 / 12),
    ],
)
def test_speech_seconds(text: str, seconds: float) -> None:
    assert speech_seconds(POLICY, text) == pytest.approx(seconds)


def test_budget_is_a_multiple_of_the_reading_time() -> None:
    text = "word " * 120  # 600 letters, 50 s
    assert frame_budget(POLICY, text, FRAME) == 2500
    assert frame_budget(RunawayPolicy(multiple=2.0), text, FRAME) == 1250
    assert frame_budget(POLICY, text, 2 * FRAME) == 1250


def test_short_text_has_the_least_budget() -> None:
    assert frame_budget(POLICY, "Hi", FRAME) == 125
    assert frame_budget(RunawayPolicy(min_seconds=4.0), "Hi", FRAME) == 50


def test_wanted_length_counts_where_it_is_longer() -> None:
    assert frame_budget(POLICY, "Hi", FRAME, wanted_frames=500) == 2000
    assert frame_budget(POLICY, "word " * 120, FRAME, wanted_frames=5) == 2500


def test_multiple_of_zero_turns_the_budget_off() -> None:
    assert frame_budget(RunawayPolicy(multiple=0.0), "Hi", FRAME) is None


@pytest.mark.parametrize("seed", range(8))
def test_loops_are_found_as_by_definition(seed: int) -> None:
    rows, n_vq, min_run = 5, 3, 6
    random, detector = np.random.default_rng(seed), LoopDetector(rows, n_vq, min_run)
    said: list[list[tuple[int, ...]]] = [[] for _ in range(rows)]
    # One row never repeats, so that not all do; the others repeat with periods of 1 to 9 frames, of
    # which the last is too long, broken off now and then.
    found = 0
    for _ in range(120):
        rows_B = np.sort(random.permutation(rows)[: random.integers(1, rows + 1)])
        if random.random() < 0.03:
            row = int(random.integers(rows))
            detector.start(row)
            said[row] = []
        codes_BN = random.integers(0, 1024, (len(rows_B), n_vq))
        for i, row in enumerate(rows_B.tolist()):
            period = 2 * row + 1
            if row > 0 and len(said[row]) >= period and random.random() < 0.97:
                codes_BN[i] = said[row][-period]
            said[row].append(tuple(codes_BN[i].tolist()))
        expected = [i for i, row in enumerate(rows_B.tolist()) if _is_loop(said[row], min_run)]
        assert detector.observe(rows_B, codes_BN) == expected
        found += len(expected)
    assert found > 0


def _is_loop(frames: list[tuple[int, ...]], min_run: int) -> bool:
    """The last `min_run` frames each equal the one a period before them."""
    return any(
        len(frames) >= min_run + period
        and all(frames[-i] == frames[-i - period] for i in range(1, min_run + 1))
        for period in range(1, LoopDetector.MAX_PERIOD + 1)
    )


def test_loops_of_zero_frames_turn_it_off() -> None:
    detector, codes_BN = LoopDetector(1, 2, 0), np.zeros((1, 2), np.int64)
    assert not any(detector.observe(np.array([0]), codes_BN) for _ in range(50))
