"""The frame budget of a text."""

from __future__ import annotations

import pytest

from hocket.config import RunawayPolicy
from hocket.engine.runaway import frame_budget, speech_seconds

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
