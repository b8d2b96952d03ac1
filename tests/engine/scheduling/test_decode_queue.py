"""Chunk sizes, deadlines and the wait for larger batches, on hand-made streams and a manual
clock.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from hocket.config import ChunkPolicy
from hocket.engine.scheduling.decode_queue import DecodeQueue
from hocket.engine.scheduling.request import DecodeBatch, Request

FRAME = 0.08


def policy(
    min_batch: int = 1,
    max_batch: int = 32,
    max_wait_ms: float = 20.0,
    max_in_flight: int = 2,
    margin_ms: float = 40.0,
) -> ChunkPolicy:
    return ChunkPolicy(
        first_chunk_frames=1,
        ramp_frames=(2, 4, 8),
        steady_chunk_frames=15,
        min_batch=min_batch,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        max_in_flight=max_in_flight,
        deadline_margin_ms=margin_ms,
    )


class World:
    """A queue and its streams; `launch` asks for a batch and returns it as (name, start, count)
    with its width.
    """

    def __init__(self, policy: ChunkPolicy, pack_frames: int = 0) -> None:
        self.queue = DecodeQueue(policy, FRAME, pack_frames=pack_frames)

    def stream(self, name: str, *, streaming: bool = True) -> Request:
        prompt = np.zeros((1, 2), dtype=np.int64)
        request = Request(
            name, 0, 0, prompt, max_frames=1000, streaming=streaming, digests=(), added_at=0.0
        )
        self.queue.start(request)
        return request

    def playing(self, name: str, *, since: float, decoded: int) -> Request:
        """A stream past its ramp whose first audio came at `since`."""
        request = self.stream(name)
        request.frames = request.sent = request.decoded = decoded
        request.stage, request.chunk_frames = 4, 15
        request.first_audio_at = request.play_start = since
        return request

    def frames(self, request: Request, count: int, now: float) -> None:
        request.frames += count
        self.queue.update(request, now)

    def launch(
        self, now: float, generating: int = 100
    ) -> tuple[list[tuple[str, int, int]], int] | None:
        self.batch = self.queue.next_batch(now, generating)
        if self.batch is None:
            return None
        return [
            (item.request.id, item.start, item.count) for item in self.batch.items
        ], self.batch.chunk_frames

    def collect(self, now: float) -> None:
        assert isinstance(self.batch, DecodeBatch)
        self.queue.collect(self.batch, now)


class TestSizes:
    def test_chunks_grow_from_first_through_ramp_to_steady(self) -> None:
        world = World(policy())
        request = world.stream("a")
        seen = []
        for frame in range(62):
            now = frame * FRAME
            world.frames(request, 1, now)
            if launched := world.launch(now):
                seen.append(launched[0][0][1:])
                world.collect(now)
        assert seen == [(0, 1), (1, 2), (3, 4), (7, 8), (15, 15), (30, 15), (45, 15)]

    def test_what_piled_up_goes_in_steady_chunks_except_the_first(self) -> None:
        world = World(policy(max_in_flight=9))
        world.frames(world.stream("a"), 33, 0.0)
        batches = [world.launch(0.0) for _ in range(4)]
        assert batches == [([("a", 0, 1)], 1), ([("a", 1, 15)], 15), ([("a", 16, 15)], 15), None]

    def test_tail_is_ready_whatever_its_size_and_takes_the_next_width(self) -> None:
        world = World(policy())
        request = world.playing("a", since=0.0, decoded=30)
        world.frames(request, 3, 2.0)
        assert world.launch(9.0) is None
        request.finish_reason = "stop"
        world.queue.update(request, 9.0)
        assert world.launch(9.0) == ([("a", 30, 3)], 4)

    def test_request_that_does_not_stream_decodes_in_steady_chunks(self) -> None:
        world = World(policy())
        request = world.stream("a", streaming=False)
        world.frames(request, 14, 0.0)
        assert world.launch(9.0) is None
        world.frames(request, 1, 9.0)
        assert world.launch(9.0) == ([("a", 0, 15)], 15)

    def test_nothing_new_is_not_ready(self) -> None:
        world = World(policy())
        request = world.playing("a", since=0.0, decoded=30)
        request.finish_reason = "stop"
        world.queue.update(request, 1.0)
        assert (world.queue.ready, world.launch(9.0)) == (0, None)

    @pytest.mark.parametrize(
        "sizes", [{"first_chunk_frames": 3}, {"ramp_frames": (4, 2)}, {"steady_chunk_frames": 7}]
    )
    def test_shrinking_sizes_are_refused(self, sizes: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="must not shrink"):
            ChunkPolicy(**{"ramp_frames": (2, 4, 8), **sizes})  # type: ignore[arg-type]

    def test_min_batch_above_max_batch_is_refused(self) -> None:
        with pytest.raises(ValueError, match="min_batch 9 is above max_batch 8"):
            ChunkPolicy(min_batch=9, max_batch=8)


class TestOrder:
    def test_earliest_deadline_goes_first(self) -> None:
        world = World(policy(max_batch=2))
        # Runs dry at: a 30 * 0.08 = 2.4, b 1.0 + 1.2 = 2.2, c 0.5 + 1.2 = 1.7.
        for name, since, decoded in [("a", 0.0, 30), ("b", 1.0, 15), ("c", 0.5, 15)]:
            world.frames(world.playing(name, since=since, decoded=decoded), 15, 1.1)
        assert world.launch(1.2) == ([("c", 15, 15), ("b", 15, 15)], 15)
        assert world.launch(1.2) == ([("a", 30, 15)], 15)

    def test_first_chunks_go_ahead_alone(self) -> None:
        world = World(policy())
        world.frames(world.playing("a", since=0.0, decoded=30), 15, 1.0)
        for name in "bc":
            world.frames(world.stream(name), 1, 1.1)
        assert world.launch(1.1) == ([("b", 0, 1), ("c", 0, 1)], 1)
        assert world.launch(1.1) == ([("a", 30, 15)], 15)

    def test_overdue_stream_goes_before_a_first_chunk_which_travels_with_it(self) -> None:
        world = World(policy())
        world.frames(world.playing("a", since=0.0, decoded=15), 15, 1.0)  # dry at 1.2, due at 1.16
        world.frames(world.stream("b"), 1, 1.17)
        assert world.launch(1.17) == ([("a", 15, 15), ("b", 0, 1)], 15)

    def test_short_tail_joins_first_chunks_and_long_one_joins_the_regular_batch(self) -> None:
        world = World(policy())
        world.frames(world.playing("regular", since=0.0, decoded=30), 15, 1.0)
        for name, left in (("one", 1), ("five", 5)):
            tail = world.playing(name, since=0.0, decoded=45)
            tail.finish_reason = "stop"
            world.frames(tail, left, 1.0)
        world.frames(world.stream("first"), 1, 1.1)
        assert world.launch(1.1) == ([("first", 0, 1), ("one", 45, 1)], 1)
        assert world.launch(1.1) == ([("regular", 30, 15), ("five", 45, 5)], 15)

    def test_stream_without_listener_is_served_after_its_slack_even_under_constant_first_chunks(
        self,
    ) -> None:
        world = World(policy(max_batch=1, max_in_flight=1))
        world.frames(world.stream("offline", streaming=False), 15, 0.0)
        served = []
        for step in range(60):
            now = step * 0.01
            world.frames(world.stream(f"s{step}"), 1, now)
            launched = world.launch(now)
            assert launched is not None
            served.append(launched[0][0][0])
            world.collect(now)
        # With one stream a batch, s0 .. s49 are due before the slack of 500 ms is over; then it is
        # its turn.
        assert served.index("offline") in (50, 51)

    def test_late_chunk_moves_the_following_deadlines(self) -> None:
        world = World(policy())
        request = world.playing("a", since=1.0, decoded=15)  # dry at 2.2
        world.frames(request, 15, 2.0)
        world.launch(2.2)
        world.collect(2.5)
        assert request.play_start == pytest.approx(1.3)
        assert request.late_seconds == pytest.approx(0.3)
        assert world.queue.underruns == 1
        world.frames(request, 15, 2.6)
        world.launch(3.66)  # dry at 1.3 + 30 * 0.08 = 3.7
        world.collect(3.69)
        assert world.queue.underruns == 1

    def test_first_audio_starts_the_clock(self) -> None:
        world = World(policy())
        request = world.stream("a")
        world.frames(request, 1, 1.0)
        world.launch(1.0)
        assert math.isnan(request.first_audio_at)
        world.collect(1.3)
        assert (request.first_audio_at, request.play_start, request.late_seconds) == (1.3, 1.3, 0.0)


class TestWait:
    def ready(self, **settings: float) -> World:
        """Two ready streams that run dry at 2.4 and are due at 2.36, ready since 1.0 and 1.01."""
        world = World(policy(**{"min_batch": 3, **settings}))  # type: ignore[arg-type]
        for name, now in (("a", 1.0), ("b", 1.01)):
            world.frames(world.playing(name, since=0.0, decoded=30), 15, now)
        return world

    def test_waits_for_company_but_no_longer_than_max_wait(self) -> None:
        world = self.ready()
        assert world.launch(1.019) is None
        assert world.launch(1.0201) == ([("a", 30, 15), ("b", 30, 15)], 15)

    def test_goes_when_company_has_come(self) -> None:
        world = self.ready()
        world.frames(world.playing("c", since=0.0, decoded=30), 15, 1.011)
        launched = world.launch(1.011)
        assert launched is not None
        assert len(launched[0]) == 3

    def test_does_not_wait_when_nobody_else_can_become_ready(self) -> None:
        assert self.ready().launch(1.011, generating=3) is None
        assert self.ready().launch(1.011, generating=2) is not None

    def test_tail_waits_for_generating_streams_only(self) -> None:
        world = World(policy(min_batch=3))
        tail = world.playing("t", since=0.0, decoded=30)
        tail.finish_reason = "stop"
        world.frames(tail, 2, 1.0)
        assert world.launch(1.001, generating=1) is None
        assert world.launch(1.001, generating=0) == ([("t", 30, 2)], 2)

    def test_does_not_wait_when_a_deadline_is_within_the_margin(self) -> None:
        world = self.ready(max_wait_ms=5000.0)
        assert world.launch(2.35) is None
        assert world.launch(2.361) is not None

    def test_first_chunk_never_waits(self) -> None:
        world = World(policy(min_batch=8, max_wait_ms=1000.0))
        world.frames(world.stream("a"), 1, 1.0)
        assert world.launch(1.0) == ([("a", 0, 1)], 1)

    def test_no_more_than_max_in_flight_are_launched(self) -> None:
        world = World(policy(max_batch=1, max_in_flight=2))
        for name in "abc":
            world.frames(world.stream(name), 1, 0.0)
        assert [world.launch(0.0) is None for _ in range(2)] == [False, False]
        second = world.batch
        assert world.launch(0.0) is None
        assert second is not None
        world.queue.collect(second, 0.1)
        assert world.launch(0.1) == ([("c", 0, 1)], 1)

    def test_discarded_stream_is_not_decoded(self) -> None:
        world = self.ready()
        (gone,) = [request for request in world.queue._ready if request.id == "a"]
        world.queue.discard(gone)
        assert world.launch(9.0) == ([("b", 30, 15)], 15)


class TestPacks:
    """Chunks of any sizes go together, first chunks beside the others."""

    def test_first_chunks_go_beside_what_is_in_flight(self) -> None:
        world = World(policy(max_in_flight=1), pack_frames=480)
        world.frames(world.playing("a", since=0.0, decoded=30), 15, 1.0)
        assert world.launch(1.0) == ([("a", 30, 15)], 15)
        world.frames(
            world.stream("b"), 3, 1.0
        )  # only the first of them: its size depends on nothing else
        assert world.launch(1.0) == ([("b", 0, 1)], 1)
        batch = world.batch
        assert batch is not None
        assert batch.is_first
        world.frames(world.stream("c"), 1, 1.0)
        assert world.launch(1.0) is None
        world.queue.collect(batch, 1.1)
        assert world.launch(1.1) == ([("c", 0, 1)], 1)

    def test_a_second_chunk_waits_for_the_return_of_the_first(self) -> None:
        world = World(policy(), pack_frames=480)
        request = world.stream("a")
        world.frames(request, 9, 0.0)
        assert world.launch(0.0) == ([("a", 0, 1)], 1)
        batch = world.batch
        assert batch is not None
        world.frames(request, 9, 0.0)
        assert (world.queue.ready, world.launch(9.0)) == (0, None)
        world.queue.collect(batch, 9.0)
        assert world.launch(9.0) == ([("a", 1, 15)], 15)

    def test_a_cancelled_stream_does_not_go_on_after_its_first_chunk(self) -> None:
        world = World(policy(), pack_frames=480)
        request = world.stream("a")
        world.frames(request, 9, 0.0)
        assert world.launch(0.0) == ([("a", 0, 1)], 1)
        request.finish_reason = "cancelled"
        world.queue.discard(request)
        world.collect(0.1)
        assert world.queue.ready == 0

    def test_packs_are_filled_with_whatever_there_is(self) -> None:
        world = World(policy(), pack_frames=32)
        for name, count in (("a", 7), ("b", 15), ("c", 15)):
            request = world.playing(name, since=0.0, decoded=30)
            request.finish_reason = "stop"
            world.frames(request, count, 2.0)
        assert world.launch(9.0) == ([("a", 30, 7), ("b", 30, 15), ("c", 30, 10)], 15)
        assert world.launch(9.0) == ([("c", 40, 5)], 8)

    def test_what_does_not_stream_has_no_first_chunk(self) -> None:
        world = World(policy(), pack_frames=480)
        world.frames(world.stream("a", streaming=False), 15, 0.0)
        assert world.launch(9.0) == ([("a", 0, 15)], 15)
        assert not world.batch.is_first  # type: ignore[union-attr]

    def test_a_batch_of_first_chunks_is_bounded(self) -> None:
        world = World(policy().model_copy(update={"first_batch_frames": 2}), pack_frames=480)
        for name in "abc":
            world.frames(world.stream(name), 1, 0.0)
        assert world.launch(0.0) == ([("a", 0, 1), ("b", 0, 1)], 1)

    def test_first_chunks_may_go_with_the_others(self) -> None:
        world = World(policy().model_copy(update={"first_batch_frames": 0}), pack_frames=480)
        world.frames(world.playing("a", since=0.0, decoded=30), 15, 1.0)
        request = world.stream("b")
        world.frames(request, 3, 1.0)
        assert world.launch(1.0) == ([("b", 0, 3), ("a", 30, 15)], 15)
        world.frames(request, 2, 1.0)
        assert world.launch(1.0) == ([("b", 3, 2)], 2)
