"""Strict mode: the result of a request does not depend on anything around it, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from hocket.config import EngineConfig
from tests.support.tiny_engine import (
    EAGER,
    STRICT,
    TALKERS,
    Call,
    Heard,
    Listener,
    TickingClock,
    alone,
    calls,
    engine,
    hidden_alone,
    patient_talker,
    traffic,
)

#: K/V rows of an engine of so many rows, without and with a prefix cache: less than its requests
#: come to want.
KV_ROWS = {1: (320, 320), 2: (400, 260), 7: (1000, 500), 16: (2000, 700)}
#: Prompts of Qwen3-TTS are shorter.
QWEN3_KV_ROWS = {1: (128, 128), 2: (160, 128), 7: (180, 160), 16: (400, 360)}


def check(config: EngineConfig, talker: str, numbers: list[int], schedule: int) -> int:
    """Requests arrive in random order at random steps and some are cancelled; returns the number of
    preemptions.

    Each request gets the same as alone, and a cancelled one the beginning of it.
    """
    random = np.random.default_rng(schedule)
    model, made = traffic(talker)
    listener = Listener(engine(config, model, clock=TickingClock(schedule)))
    waiting = [int(number) for number in random.permutation(numbers)]
    names: dict[int, str] = {}
    cancelled: set[int] = set()
    while waiting or not listener.engine.idle:
        while waiting and random.random() < 0.7:
            number = waiting.pop()
            call = made[number]
            names[number] = listener.add(
                call.request, priority=call.priority, streaming=call.streaming
            )
        for number in names.keys() - cancelled:
            if (
                number % 5 == 0
                and listener.heard[names[number]].end is None
                and random.random() < 0.05
            ):
                listener.engine.cancel(names[number])
                cancelled.add(number)
        listener.step()
        assert listener.engine.stats().steps < 20_000
    listener.assert_all_is_back()
    for number in numbers:
        heard = listener.heard[names[number]]
        assert (heard.reason == "cancelled") == (number in cancelled)
        if number in cancelled:
            heard.assert_begins(alone(number, talker))
        else:
            heard.assert_same(alone(number, talker))
        hidden = listener.hidden_of(names[number])
        assert hidden == hidden_alone(number, talker)[: len(hidden)]
    stats = listener.engine.stats().scheduler
    assert (stats.prefix_hit_rows > 0) == config.prefix_cache
    return stats.preemptions


def tight(rows: int, talker: str, *, prefix_cache: bool) -> EngineConfig:
    kv_rows = (QWEN3_KV_ROWS if "qwen3" in talker else KV_ROWS)[rows][prefix_cache]
    update = {"kv_rows": kv_rows, "prefix_cache": prefix_cache}
    return STRICT.model_copy(update={"rows": rows} | update)


@pytest.mark.parametrize("talker", ["patient", "patient qwen3"])
def test_traffic_is_worth_playing(talker: str) -> None:
    """The traffic has speech of many lengths, ended by the talker and by the cap."""
    heard = [alone(number, talker) for number in range(0, 64, 2 if talker == "patient" else 8)]
    assert len({len(one.all_codes) for one in heard}) >= len(heard) // 3
    reasons = [one.reason for one in heard]
    assert reasons.count("stop") >= len(heard) // 6
    assert reasons.count("length") >= len(heard) // 6


@pytest.mark.parametrize(
    ("rows", "talker", "prefix_cache", "share"),
    [
        (1, "patient", True, 4),
        (2, "endless", True, 12),
        (7, "patient", True, 2),
        (7, "endless", False, 4),
        (16, "patient", False, 2),
        pytest.param(16, "endless", True, 3, marks=pytest.mark.slow),
        (2, "patient qwen3", True, 8),
        pytest.param(7, "endless qwen3", True, 8, marks=pytest.mark.slow),
    ],
)
def test_alone_or_in_company(rows: int, talker: str, prefix_cache: bool, share: int) -> None:
    config = tight(rows, talker, prefix_cache=prefix_cache)
    preemptions = check(config, talker, list(range(0, 64, share)), schedule=rows)
    if "endless" in talker:
        assert preemptions > 0


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [101, 102, 103])
@pytest.mark.parametrize("talker", TALKERS)
@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_alone_or_in_company_full(rows: int, talker: str, schedule: int) -> None:
    config = tight(rows, talker, prefix_cache=schedule != 102)
    preemptions = check(config, talker, list(range(64)), schedule)
    if "endless" in talker and rows > 1:
        assert preemptions > 0


def at_once(config: EngineConfig, load: list[Call], seed: int = 0) -> list[Heard]:
    listener = Listener(engine(config, patient_talker(), clock=TickingClock(seed)))
    names = [
        listener.add(call.request, priority=call.priority, streaming=call.streaming)
        for call in load
    ]
    listener.run()
    return [listener.heard[name] for name in names]


def test_same_load_gives_the_same_codes_without_strict() -> None:
    """Even if the clock differs, so that the codec's batches differ."""
    config = EAGER.model_copy(update={"rows": 7, "kv_rows": 700})
    first, again = (at_once(config, calls()[:24], seed) for seed in (1, 2))
    for one, other in zip(first, again, strict=True):
        assert one.reason == other.reason
        assert np.array_equal(one.all_codes, other.all_codes)
        assert np.allclose(one.all_samples, other.all_samples, atol=1e-5)
