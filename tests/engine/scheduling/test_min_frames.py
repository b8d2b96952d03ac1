"""`min_frames`: the model may not stop before it, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from hocket.config import EngineConfig, RunawayPolicy
from hocket.core import Sampling, SpeechRequest
from hocket.errors import InvalidRequestError
from tests.support.tiny_engine import (
    EAGER,
    STRICT,
    Listener,
    engine,
    hear,
    mute_talker,
    patient_talker,
    talker,
)

NO_GUARD = RunawayPolicy(multiple=0.0, loop_seconds=0.0, silence_seconds=0.0)


def config(*, strict: bool = False, rows: int = 4) -> EngineConfig:
    base = STRICT if strict else EAGER
    return base.model_copy(update={"runaway": NO_GUARD, "rows": rows})


@pytest.mark.parametrize("least", [0, 1, 7])
def test_a_talker_that_wants_to_stop_at_once_may_not(least: int) -> None:
    request = SpeechRequest(text="One.", seed=1, min_frames=least, max_frames=20)
    (heard,) = hear(engine(config(), mute_talker()), [request])
    assert (len(heard.all_codes), heard.reason) == (least, "stop")


def test_greedy_stops_are_held_back_too() -> None:
    request = SpeechRequest(
        text="One.", sampling=Sampling(temperature=0.0), min_frames=5, max_frames=20
    )
    (heard,) = hear(engine(config(), mute_talker()), [request])
    assert len(heard.all_codes) == 5


def test_the_frames_are_those_of_a_speech_that_would_not_have_stopped() -> None:
    """The bound changes the end, not the codes. A bound below the speech's length changes
    nothing.
    """
    plain = [SpeechRequest(text=f"Text {i}.", seed=i, max_frames=30) for i in range(12)]
    longer = [request.model_copy(update={"min_frames": 12}) for request in plain]
    before = hear(engine(config(strict=True), patient_talker()), plain)
    after = hear(engine(config(strict=True), patient_talker()), longer)
    lengths = [len(heard.all_codes) for heard in before]
    assert min(lengths) < 12 < max(lengths), "the test needs speeches on both sides of the bound"
    for old, new in zip(before, after, strict=True):
        frames = len(old.all_codes)
        assert np.array_equal(new.all_codes[:frames], old.all_codes)
        assert len(new.all_codes) >= 12
        if frames >= 12:
            new.assert_same(old)


def test_the_bound_is_the_requests_own_whoever_had_the_row_before() -> None:
    speaking = engine(config(rows=1), mute_talker())
    bounds = [9, 0, 4, 0]
    heard = hear(
        speaking, [SpeechRequest(text="One.", seed=1, min_frames=least) for least in bounds]
    )
    assert [len(one.all_codes) for one in heard] == bounds


def test_neighbours_do_not_notice_to_the_last_bit() -> None:
    victim = SpeechRequest(text="Good morning.", seed=3, max_frames=30)
    (alone,) = hear(engine(config(strict=True), patient_talker()), [victim])
    others = [
        SpeechRequest(text=f"Text {i}.", seed=i, min_frames=10 + i, max_frames=30) for i in range(3)
    ]
    hear(engine(config(strict=True), patient_talker()), [victim, *others])[0].assert_same(alone)


def test_a_preempted_request_keeps_its_bound() -> None:
    # Two requests that outgrow the pages: one gives its own up, is computed again, and still may
    # not stop.
    requests = [SpeechRequest(text="One voice.", seed=i, min_frames=70) for i in range(2)]
    prompt = talker().prompt.build(requests[0], [])
    tight = {"kv_rows": 2 * len(prompt.rows) + 100, "prefix_cache": False}
    listener = Listener(engine(config(strict=True, rows=2).model_copy(update=tight), mute_talker()))
    names = [listener.add(request) for request in requests]
    heard = listener.run()
    assert listener.engine.stats().scheduler.preemptions > 0
    assert [len(heard[name].all_codes) for name in names] == [70, 70]


def test_the_frame_budget_makes_room_for_it() -> None:
    policy = RunawayPolicy(multiple=1.5, min_seconds=0.5, loop_seconds=0.0, silence_seconds=0.0)
    guarded = config().model_copy(update={"runaway": policy})
    (heard,) = hear(
        engine(guarded, mute_talker()), [SpeechRequest(text="One.", seed=1, min_frames=60)]
    )
    assert (len(heard.all_codes), heard.reason) == (60, "stop")


def test_bounds_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValidationError, match="min_frames 5 is above max_frames 4"):
        SpeechRequest(text="One.", min_frames=5, max_frames=4)
    with pytest.raises(InvalidRequestError, match="ends at") as caught:
        engine(config(), talker()).generate(SpeechRequest(text="One.", min_frames=100_000))
    assert caught.value.param == "min_frames"


def test_the_end_counts_the_rows_of_the_prompt() -> None:
    """The rows of template, text and references."""
    plain = SpeechRequest(text="One.", seed=1, max_frames=2)
    cloned = plain.model_copy(update={"reference": (np.zeros((20, 12), np.int64),)})
    rows = []
    for request in (plain, cloned):
        speaking = engine(config(), talker())
        (heard,) = hear(speaking, [request])
        assert heard.end is not None
        rows.append(heard.end.prompt_rows)
        references: list[Any] = list(request.references)
        expected = speaking.parts.prompt.build(request, references)
        assert rows[-1] == len(expected.rows)
    assert rows[1] >= rows[0] + 20
