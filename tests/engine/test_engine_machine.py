"""The real engine, strict, driven in random order against a simple model: each request alone."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.tiny_engine import STRICT, Heard, Listener, TickingClock, alone, engine, traffic

#: Calls to draw from: 10 keeps the runs alone few.
CALLS = 10
FEW = settings(max_examples=3, stateful_step_count=20, derandomize=True, deadline=None)


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        rows=st.integers(1, 4),
        prefix_cache=st.booleans(),
        talker=st.sampled_from(["patient", "endless", "endless qwen3"]),
        seed=st.integers(0, 9),
    )
    def start(self, rows: int, prefix_cache: bool, talker: str, seed: int) -> None:
        update = {"rows": rows, "prefix_cache": prefix_cache, "kv_rows": 280, "max_waiting": 64}
        model, self.calls = traffic(talker)
        self.talker = talker
        self.listener = Listener(
            engine(STRICT.model_copy(update=update), model, clock=TickingClock(seed))
        )
        self.numbers: dict[str, int] = {}
        #: Steps since each open request was cancelled.
        self.cancelled: dict[str, int] = {}
        self.ended: set[str] = set()

    @property
    def open(self) -> list[str]:
        return [name for name in self.numbers if name not in self.ended]

    @precondition(lambda self: len(self.numbers) < 9)
    @rule(number=st.integers(0, CALLS - 1))
    def add(self, number: int) -> None:
        call = self.calls[number]
        name = self.listener.add(call.request, priority=call.priority, streaming=call.streaming)
        self.numbers[name] = number

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.open))
        self.listener.engine.cancel(name)
        self.cancelled.setdefault(name, 0)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def teardown(self) -> None:
        if not hasattr(self, "listener"):
            return
        for _ in range(5000):
            if self.listener.engine.idle:
                break
            self._step()
        self.listener.assert_all_is_back()
        assert self.ended == set(self.numbers)
        for name, number in self.numbers.items():
            heard: Heard = self.listener.heard[name]
            if name in self.cancelled:
                heard.assert_begins(alone(number, self.talker))
            else:
                heard.assert_same(alone(number, self.talker))

    def _step(self) -> None:
        for chunk in self.listener.step():
            if chunk.end is not None:
                assert chunk.request_id not in self.ended
                self.ended.add(chunk.request_id)
            if chunk.request_id in self.cancelled:
                assert chunk.end is not None
                assert chunk.end.finish_reason == "cancelled"
        for name in self.cancelled.keys() - self.ended:
            self.cancelled[name] += 1
            assert self.cancelled[name] < 2, (
                "a cancelled request holds its row for more than two steps"
            )


def test_random_driving() -> None:
    run_state_machine_as_test(EngineMachine, settings=FEW)


@pytest.mark.slow
def test_much_random_driving() -> None:
    run_state_machine_as_test(
        EngineMachine, settings=settings(FEW, max_examples=60, stateful_step_count=40)
    )
