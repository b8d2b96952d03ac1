"""The scheduler under random traffic: requests come, are cancelled and end while pages, rows and
budgets are scarce.

The simulation checks every launch (own K/V rows, order, budgets, decoded ranges) and the integrity
after every step. This module makes the traffic and checks that every request ends exactly once and
leaves nothing behind.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hocket.config import ChunkPolicy
from hocket.engine.scheduling.config import SchedulerConfig
from hocket.errors import CapacityError, InvalidRequestError
from tests.support.scheduler_simulation import Simulation, prompt_of

SMALL_CHUNKS = ChunkPolicy(
    first_chunk_frames=1,
    ramp_frames=(2,),
    steady_chunk_frames=4,
    min_batch=2,
    max_batch=3,
    max_wait_ms=30.0,
)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        rows=st.integers(1, 5),
        pages=st.integers(5, 12),
        page_rows=st.integers(1, 3),
        budget=st.integers(4, 12),
        prefix_cache=st.booleans(),
        codec=st.booleans(),
    )
    def start(
        self, rows: int, pages: int, page_rows: int, budget: int, prefix_cache: bool, codec: bool
    ) -> None:
        config = SchedulerConfig(
            rows=rows,
            pages=pages,
            page_rows=page_rows,
            max_context_rows=24,
            prefill_rows_per_step=budget,
            max_waiting=6,
            prefix_cache=prefix_cache,
        )
        self.world = Simulation(config, SMALL_CHUNKS if codec else None)
        self.submitted = 0

    # Long shared beginnings, so that prefixes are found, shared while in use, and evicted.
    @rule(
        voice=st.integers(0, 1),
        voice_rows=st.integers(0, 5),
        text_rows=st.integers(1, 5),
        max_frames=st.integers(1, 16),
        stop_at=st.integers(0, 40),
        priority=st.sampled_from([0, 0, 0, 1]),
        streaming=st.booleans(),
    )
    def add(
        self,
        voice: int,
        voice_rows: int,
        text_rows: int,
        max_frames: int,
        stop_at: int,
        priority: int,
        streaming: bool,
    ) -> None:
        prompt = prompt_of(*[voice] * voice_rows, *range(2, 2 + text_rows))
        config, world = self.world.config, self.world
        rows = len(prompt) + max_frames
        refused: type[Exception] | None = None
        if rows > min(config.max_context_rows, (config.pages - 1) * config.page_rows):
            refused = InvalidRequestError
        elif world.scheduler.stats().waiting >= config.max_waiting:
            refused = CapacityError
        with nullcontext() if refused is None else pytest.raises(refused):
            world.add(
                prompt,
                max_frames=max_frames,
                stop_at=stop_at,
                priority=priority,
                streaming=streaming,
            )
            self.submitted += 1

    @precondition(lambda self: self.world.live)
    @rule(data=st.data(), reason=st.sampled_from(["cancelled", "runaway", "error"]))
    def finish(self, data: st.DataObject, reason: str) -> None:
        request = data.draw(st.sampled_from(self.world.live))
        self.world.cancel(request, reason)  # type: ignore[arg-type]
        assert request.finish_reason is not None

    @rule(steps=st.integers(1, 6), talker_is_done=st.booleans(), codec_is_done=st.booleans())
    def step(self, steps: int, talker_is_done: bool, codec_is_done: bool) -> None:
        for _ in range(steps):
            self.world.step(talker_is_done=talker_is_done, codec_is_done=codec_is_done)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.run(limit=800)
        assert len(world.over) == self.submitted
        stats = world.scheduler.stats()
        assert stats.rows_free == world.config.rows
        assert stats.pages_free + stats.pages_kept == world.config.pages - 1
        if not world.config.prefix_cache:
            assert stats.pages_kept == 0


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=80, stateful_step_count=40, derandomize=True, deadline=None
)
