"""The frame budget of a text."""

from __future__ import annotations

import pytest

from hocket.engine.runaway import RunawayGuard

FRAME = 0.08
GUARD = RunawayGuard()


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
    assert GUARD.speech_seconds(text) == pytest.approx(seconds)


def test_budget_is_a_multiple_of_the_reading_time() -> None:
    text = "word " * 120  # 600 letters, 50 s
    assert GUARD.frame_budget(text, FRAME) == 2500
    assert RunawayGuard(multiple=2.0).frame_budget(text, FRAME) == 1250
    assert GUARD.frame_budget(text, 2 * FRAME) == 1250


def test_short_text_has_the_least_budget() -> None:
    assert GUARD.frame_budget("Hi", FRAME) == 125
    assert RunawayGuard(min_seconds=4.0).frame_budget("Hi", FRAME) == 50


def test_wanted_length_counts_where_it_is_longer() -> None:
    assert GUARD.frame_budget("Hi", FRAME, wanted_frames=500) == 2000
    assert GUARD.frame_budget("word " * 120, FRAME, wanted_frames=5) == 2500


def test_multiple_of_zero_turns_the_budget_off() -> None:
    assert RunawayGuard(multiple=0.0).frame_budget("Hi", FRAME) is None
