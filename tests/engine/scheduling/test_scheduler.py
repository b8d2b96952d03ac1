"""One behaviour of the scheduler per test. The simulation checks the launches; these tests check
the order of service.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from hocket.config import ChunkPolicy
from hocket.core import FinishReason
from hocket.engine.scheduling.config import SchedulerConfig
from hocket.engine.scheduling.memory import SCRATCH_PAGE
from hocket.engine.scheduling.request import NO_ROW, Request, RequestState
from hocket.errors import CapacityError, HocketError, InvalidRequestError
from tests.support.scheduler_simulation import Simulation, prompt_of

CHUNKS = ChunkPolicy(first_chunk_frames=1, ramp_frames=(2,), steady_chunk_frames=4, min_batch=1)
WHEREVER = ["queued", "prefill", "running", "preempted", "decoding"]


def config(
    rows: int = 4,
    pages: int = 33,
    page_rows: int = 4,
    prefill_rows_per_step: int = 64,
    max_waiting: int = 16,
    prefix_cache: bool = True,
) -> SchedulerConfig:
    return SchedulerConfig(
        rows=rows,
        pages=pages,
        page_rows=page_rows,
        max_context_rows=128,
        prefill_rows_per_step=prefill_rows_per_step,
        max_waiting=max_waiting,
        prefix_cache=prefix_cache,
    )


def different(index: int, rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """A prompt that shares no page with one of another index."""
    return prompt_of(*range(1000 * index, 1000 * index + rows))


class TestAdmission:
    def test_rows_are_given_in_order_of_arrival_within_priority(self) -> None:
        world = Simulation(config(rows=1))
        for index, priority in enumerate([0, 0, 1, 0, 1]):
            world.add(different(index, 3), priority=priority)
        world.run()
        assert [request.id for request in world.admitted] == ["r2", "r4", "r0", "r1", "r3"]

    def test_nobody_overtakes_a_head_that_does_not_fit(self) -> None:
        world = Simulation(config(pages=9))
        world.add(different(0, 12), max_frames=8)  # 5 of 8 pages in the end
        world.step()
        large, small = (
            world.add(different(1, 24), max_frames=4),
            world.add(different(2, 2), max_frames=1),
        )
        world.step()
        assert (large.state, small.state) == (RequestState.WAITING, RequestState.WAITING)
        world.run()
        assert world.admitted[1:] == [large, small]

    def test_newcomer_leaves_every_active_request_a_page_to_grow(self) -> None:
        world = Simulation(config(pages=7))  # 6 pages: 2 + 2 held, 1 + 1 to grow
        for index in range(2):
            world.add(different(index, 8), max_frames=4)
        third = world.add(different(2, 1), max_frames=1)
        world.step()
        assert world.scheduler.stats().running == 2
        assert third.state is RequestState.WAITING
        world.run()
        assert world.scheduler.stats().preemptions == 0

    def test_pool_for_the_longest_request_in_every_row_makes_nobody_wait(self) -> None:
        world = Simulation(config(rows=3, pages=16))  # 3 rows of 5 pages: 20 K/V rows each
        first, second = (
            world.add(different(0, 12), max_frames=8),
            world.add(different(1, 12), max_frames=8),
        )
        while first.launched < 7:
            world.step()
        assert (len(first.pages), len(second.pages)) == (5, 5)
        third = world.add(different(2, 18), max_frames=2)
        world.step()
        assert third.state is RequestState.RUNNING

    def test_kept_pages_that_the_newcomer_shares_are_not_counted_as_room(self) -> None:
        world = Simulation(config(pages=7))
        world.add(different(5, 8), max_frames=1)
        world.run()
        world.add(different(0, 9), max_frames=15)
        world.step()
        assert (world.scheduler.stats().pages_free, world.scheduler.stats().pages_kept) == (1, 2)
        sharing = world.add(
            different(5, 11), max_frames=1
        )  # 2 kept pages and the free one, which is the other's to grow
        world.step()
        assert sharing.state is RequestState.WAITING
        world.run()

    def test_queue_is_bounded(self) -> None:
        world = Simulation(config(rows=1, max_waiting=2))
        for index in range(2):
            world.add(different(index, 2))
        with pytest.raises(CapacityError, match="2 requests are waiting already; try again later"):
            world.add(different(2, 2))
        world.step()
        world.add(different(3, 2))
        world.run()

    @pytest.mark.parametrize(("pages", "limit"), [(9, 32), (65, 128)])
    def test_what_cannot_fit_alone_is_refused_and_what_just_fits_runs(
        self, pages: int, limit: int
    ) -> None:
        world = Simulation(config(pages=pages))
        with pytest.raises(
            InvalidRequestError, match=f"make {limit + 1} rows, and {limit} is the most"
        ) as error:
            world.add(different(0, 5), max_frames=limit - 4)
        assert error.value.param == "max_frames"
        world.add(different(0, 5), max_frames=limit - 5)
        world.run()
        assert world.over[0].frames == limit - 5

    @pytest.mark.parametrize(("rows", "max_frames"), [(0, 1), (1, 0)])
    def test_empty_prompt_or_no_frames_is_refused(self, rows: int, max_frames: int) -> None:
        with pytest.raises(InvalidRequestError, match="needs a prompt row and a frame"):
            Simulation(config()).add(different(0, rows), max_frames=max_frames)

    def test_config_that_could_never_prefill_is_refused(self) -> None:
        with pytest.raises(ValueError, match="under page_rows"):
            config(page_rows=32, prefill_rows_per_step=31)


class TestPrefill:
    def test_burst_is_spread_over_steps_within_the_budget_while_running_streams_go_on(self) -> None:
        world = Simulation(config(rows=8, pages=200, prefill_rows_per_step=8))
        running = world.add(different(0, 4), max_frames=40)
        world.step()
        for index in range(1, 7):
            world.add(different(index, 10), max_frames=2)
        for launched in range(2, 12):
            world.step()  # the simulation checks the budget
            assert running.launched == launched
        counts = [[item.count for item in items] for items in world.prefilled[1:6]]
        # 10 rows are 8 + 2: cuts lie on page boundaries, so a rest of 6 takes 4 of the next prompt.
        assert counts == [[8], [2, 4], [6], [8], [2, 4]]

    def test_prompt_is_cut_on_page_boundaries_only(self) -> None:
        world = Simulation(config(prefill_rows_per_step=7))
        world.add(different(0, 9))
        world.run()
        assert [
            [(item.start, item.count) for item in items] for items in world.prefilled if items
        ] == [
            [(0, 4)],
            [(4, 5)],
        ]

    def test_first_frame_launches_in_the_step_of_the_last_prefill(self) -> None:
        world = Simulation(config())
        request = world.add(different(0, 9))
        world.step()
        assert (request.state, request.launched, request.prefilled_at) == (
            RequestState.RUNNING,
            1,
            world.now,
        )

    def test_higher_priority_is_prefilled_first(self) -> None:
        world = Simulation(config(prefill_rows_per_step=8))
        slow = world.add(different(0, 20))
        world.step()
        urgent = world.add(different(1, 12), priority=1)
        for _ in range(3):
            world.step()
        assert [[item.request for item in items] for items in world.prefilled] == [
            [slow],
            [urgent],
            [urgent, slow],
            [slow],
        ]

    def test_known_prefix_is_not_computed_again(self) -> None:
        world = Simulation(config())
        first = world.add(prompt_of(*range(10)))
        world.step()
        second = world.add(prompt_of(*range(8), 77, 78))
        world.step()
        assert second.pages[:2] == first.pages[:2]
        assert [(item.start, item.count) for item in world.prefilled[1]] == [(8, 2)]
        world.run()
        stats = world.scheduler.stats()
        assert (stats.prefix_hit_rows, stats.prefix_miss_rows) == (8, 8)

    def test_prefix_that_another_request_computes_meanwhile_is_taken_over(self) -> None:
        world = Simulation(config(prefill_rows_per_step=12))
        first, second = world.add(prompt_of(*range(10))), world.add(prompt_of(*range(9), 77))
        world.scheduler.admit(0.0)
        assert not set(first.pages) & set(
            second.pages
        )  # nothing is computed yet, so nothing is shared
        pages_before = world.scheduler.stats().pages_free
        world.step()
        world.step()
        assert second.pages[:2] == first.pages[:2]
        assert world.scheduler.stats().pages_free == pages_before + 2
        assert [(item.start, item.count) for item in world.prefilled[1]] == [(8, 2)]
        world.run()

    def test_identical_prompt_still_computes_its_last_row(self) -> None:
        world = Simulation(config())
        for _ in range(2):
            world.add(prompt_of(*range(8)))
            world.run()
        assert [(item.start, item.count) for items in world.prefilled for item in items] == [
            (0, 8),
            (4, 4),
        ]

    def test_cache_off_computes_everything(self) -> None:
        world = Simulation(config(prefix_cache=False))
        for _ in range(2):
            world.add(prompt_of(*range(8)))
            world.run()
        assert [(item.start, item.count) for items in world.prefilled for item in items] == [
            (0, 8),
            (0, 8),
        ]
        assert world.scheduler.stats().pages_kept == 0

    def test_prefill_that_was_not_finished_is_not_shared(self) -> None:
        world = Simulation(config())
        first = world.add(prompt_of(*range(10)))
        scheduler = world.scheduler
        scheduler.admit(0.0)
        items = scheduler.next_prefill()
        scheduler.finish(first, "error", 0.0)  # the runner failed
        scheduler.finish_prefill(items, 0.0)
        assert scheduler.release_finished() == [first]
        assert scheduler.stats().pages_kept == 0


class TestFrames:
    def test_frame_batch_says_row_frame_and_kv_row(self) -> None:
        world = Simulation(config())
        world.add(different(0, 5))
        world.step()
        world.add(different(1, 3))
        world.scheduler.admit(0.0)
        world.scheduler.finish_prefill(world.scheduler.next_prefill(), 0.0)
        batch = world.scheduler.next_frames()
        assert batch.frame_index_3B.tolist() == [[0, 1], [1, 0], [6, 3]]

    def test_page_table_holds_the_pages_then_scratch(self) -> None:
        world = Simulation(config())
        request = world.add(different(0, 5))
        world.step()
        row = world.scheduler.page_table[request.row]
        assert row.tolist() == [*request.pages, *[SCRATCH_PAGE] * (32 - len(request.pages))]
        world.run()
        assert not world.scheduler.page_table.any()

    @pytest.mark.parametrize(
        ("stop_at", "frames", "reason"),
        [(0, 0, "stop"), (3, 3, "stop"), (5, 5, "stop"), (6, 6, "length")],
    )
    @pytest.mark.parametrize("chunks", [None, CHUNKS])
    def test_frames_before_the_stop_count(
        self, stop_at: int, frames: int, reason: str, chunks: ChunkPolicy | None
    ) -> None:
        world = Simulation(config(), chunks)
        request = world.add(different(0, 5), max_frames=6, stop_at=stop_at)
        world.run(limit=20)
        assert (request.frames, request.finish_reason) == (frames, reason)
        assert request.launched == min(stop_at + 1, 6)
        assert request.decoded == (frames if chunks else 0)

    def test_pages_are_back_before_a_long_tail_is_decoded(self) -> None:
        world = Simulation(config(), CHUNKS)
        request = world.add(different(0, 5), max_frames=30, stop_at=20)
        while request.finish_reason is None:
            world.step(codec_is_done=False)  # at most two batches go out, the rest piles up
        world.step(codec_is_done=False)
        assert (request.state, request.pages, request.row) == (RequestState.ENDING, [], 0)
        world.run()


class TestPreemption:
    def crowd(self, prefix_cache: bool = True) -> tuple[Simulation, Request, Request]:
        """Two requests that need all 6 pages and more: 2 + 2 at first, 4 + 4 in the end."""
        world = Simulation(config(pages=7, prefix_cache=prefix_cache), CHUNKS)
        old, young = (world.add(different(index, 8), max_frames=8) for index in range(2))
        while young.state is not RequestState.WAITING or not young.preemptions:
            world.step()
        return world, old, young

    def test_youngest_gives_its_pages_back_and_keeps_its_row(self) -> None:
        world, old, young = self.crowd()
        assert (old.preemptions, young.preemptions) == (0, 1)
        assert (young.pages, young.computed_rows, young.row) == ([], 0, 1)
        assert old.state is RequestState.RUNNING
        assert world.scheduler.stats().preemptions == 1

    @pytest.mark.parametrize("prefix_cache", [False, True])
    def test_prompt_and_frames_are_computed_again_and_the_output_is_whole(
        self, prefix_cache: bool
    ) -> None:
        world, _, young = self.crowd(prefix_cache)
        launched = young.launched
        assert 0 < launched < 8
        steps = len(world.prefilled)
        world.run()
        redone = [(item.start, item.count) for items in world.prefilled[steps:] for item in items]
        frames = [(8, launched)]
        if prefix_cache:
            assert redone in (
                [(4, 4), *frames],
                [(0, 8), *frames],
            )  # as much as was not evicted meanwhile
        else:
            assert redone == [(0, 8), *frames]
        assert [(request.id, request.frames, request.decoded) for request in world.over] == [
            ("r0", 8, 8),
            ("r1", 8, 8),
        ]

    def test_preempted_request_queues_at_its_place(self) -> None:
        world = Simulation(config(pages=7), CHUNKS)
        _, young = (world.add(different(index, 8), max_frames=8) for index in range(2))
        later = world.add(different(7, 1), max_frames=1)
        while not young.preemptions:
            world.step()
        prefilled_at = young.prefilled_at
        while young.state is RequestState.WAITING:
            assert later.state is RequestState.WAITING
            world.step()
        world.run()
        assert young.prefilled_at == prefilled_at  # the first time counts

    def test_running_request_is_preempted_before_one_in_prefill_that_ranks_higher(self) -> None:
        # The prefill of `urgent` takes 11 steps, in which `old` and then `young` use up the free
        # pages.
        world = Simulation(config(pages=20, prefill_rows_per_step=4))
        old, young = (
            world.add(different(0, 4), max_frames=40),
            world.add(different(1, 3), max_frames=40),
        )
        for _ in range(3):
            world.step()
        urgent = world.add(different(2, 44), max_frames=4, priority=1)
        while not young.preemptions and urgent.state is not RequestState.RUNNING:
            world.step()
        assert (urgent.state, old.state) == (RequestState.PREFILL, RequestState.RUNNING)
        assert (old.preemptions, young.preemptions, urgent.preemptions) == (0, 1, 0)
        world.run()

    def test_preemption_that_frees_nothing_goes_on_to_the_next(self) -> None:
        world = Simulation(config(pages=7))
        first, second, third = (world.add(different(index, 4), max_frames=8) for index in range(3))
        for _ in range(4):
            # now each has 8 rows in 2 of the 6 pages, and wants a third for its next
            # frame
            world.step()
        for page in third.pages:
            world.scheduler._pages.pool.share(page)  # another owner holds them, too
        assert world.scheduler.next_frames().requests == [first]
        assert (first.preemptions, second.preemptions, third.preemptions) == (0, 1, 1)

    def test_priority_decides_before_age(self) -> None:
        world = Simulation(config(pages=7))
        old, young = (
            world.add(different(index, 8), max_frames=8, priority=index) for index in range(2)
        )
        world.run()
        assert (old.preemptions, young.preemptions) == (1, 0)

    def test_kept_prefix_pages_go_before_running_requests(self) -> None:
        world = Simulation(config(pages=7))
        world.add(different(5, 12), max_frames=1)
        world.run()
        assert world.scheduler.stats().pages_kept == 3
        world.add(different(0, 8), max_frames=16)
        world.run()
        stats = world.scheduler.stats()
        assert (stats.preemptions, stats.prefix_evictions) == (0, 3)

    def test_last_in_rank_waits_instead_of_preempting(self) -> None:
        world = Simulation(config(pages=7))
        old = world.add(different(0, 9), max_frames=7)  # 3 pages, and 1 more after 3 frames
        world.step()
        young = world.add(different(1, 7), max_frames=8, stop_at=4)
        for _ in range(40):
            world.step()
            assert old.preemptions == 0
        assert {request.id for request in world.over} == {old.id, young.id}

    def test_pages_that_are_coming_back_are_waited_for(self) -> None:
        world = Simulation(config(pages=7))
        first, second, third = (world.add(different(index, 4), max_frames=8) for index in range(3))
        for _ in range(4):
            # now each has 8 rows in 2 of the 6 pages, and wants a third for its next
            # frame
            world.step()
        world.cancel(second)
        world.step()
        assert (first.launched, third.launched, second.pages) == (4, 4, [])
        world.step()
        assert (first.launched, third.launched) == (5, 5)
        world.run()
        assert world.scheduler.stats().preemptions == 0


class TestFinish:
    def place(self, where: str) -> tuple[Simulation, Request]:
        """A simulation and a request of it in the state `where`."""
        if where == "preempted":
            world, _, young = TestPreemption().crowd()
            return world, young
        world = Simulation(config(rows=2, prefill_rows_per_step=8), CHUNKS)
        world.add(different(0, 4), max_frames=30)
        world.step()
        if where == "queued":
            world.add(different(1, 4), max_frames=30)
        request = world.add(different(2, 20), max_frames=30)
        for _ in range({"queued": 1, "prefill": 1, "running": 5, "decoding": 5}[where]):
            world.step()
        if where == "running":
            world.step(talker_is_done=False)
            assert request.launched == request.collected + 1
        while where == "decoding" and request.sent == request.decoded:
            world.step()
        return world, request

    @pytest.mark.parametrize("reason", ["cancelled", "error"])
    @pytest.mark.parametrize("where", WHEREVER)
    def test_everything_is_free_within_two_steps(self, where: str, reason: FinishReason) -> None:
        world, request = self.place(where)
        states = {
            "queued": RequestState.WAITING,
            "prefill": RequestState.PREFILL,
            "running": RequestState.RUNNING,
            "preempted": RequestState.WAITING,
            "decoding": RequestState.RUNNING,
        }
        assert request.state is states[where]
        assert where != "decoding" or request.sent > request.decoded
        launched, sent = request.launched, request.sent
        world.cancel(request, reason)
        world.step()
        world.step()
        assert request in world.over
        assert (request.launched, request.sent, request.finish_reason) == (launched, sent, reason)
        world.run()
        assert all(
            other.frames == other.decoded == other.max_frames
            for other in world.over
            if other is not request
        )

    @pytest.mark.parametrize("where", WHEREVER)
    def test_runaway_delivers_what_was_spoken_so_far(self, where: str) -> None:
        world, request = self.place(where)
        spoken = request.frames
        world.cancel(request, "runaway")
        world.run()
        assert (request.finish_reason, request.frames, request.decoded) == (
            "runaway",
            spoken,
            spoken,
        )

    def test_row_waits_for_the_codec(self) -> None:
        world, request = self.place("decoding")
        row = request.row
        world.cancel(request)
        for _ in range(3):
            world.step(codec_is_done=False)
        assert (request.state, request.row, request.pages) == (RequestState.ENDING, row, [])
        world.step()
        world.step()
        assert (request.state, request.row) == (RequestState.FINISHED, NO_ROW)

    def test_cancel_drops_the_tail_of_a_stopped_request(self) -> None:
        world = Simulation(config(), CHUNKS)
        request = world.add(different(0, 5), max_frames=20, stop_at=12)
        while request.finish_reason is None:
            world.step(codec_is_done=False)
        assert request.sent < request.frames
        world.cancel(request, "runaway")
        reasons = [request.finish_reason]
        world.cancel(request)
        world.run()
        reasons.append(request.finish_reason)
        assert reasons == ["stop", "cancelled"]  # it had ended; only a drop overrules
        assert request.decoded < request.frames

    def test_finish_after_the_end_has_no_effect(self) -> None:
        world = Simulation(config(), CHUNKS)
        request = world.add(different(0, 5))
        world.run()
        world.cancel(request)
        assert (request.finish_reason, world.scheduler.idle) == ("length", True)


def test_times_are_the_callers() -> None:
    world = Simulation(config(rows=1), CHUNKS)
    world.add(different(0, 5))
    second = world.add(different(1, 5))
    assert math.isnan(second.admitted_at)
    world.run()
    assert second.added_at == 0.0
    assert (
        second.added_at
        < second.admitted_at
        <= second.prefilled_at
        < second.first_audio_at
        < world.now
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("row", 3, "row 0 is held, claimed by 0"),
        ("pages", [1], "page"),
        ("capacity_rows", 1, "r0 has 2 pages for 1 rows"),
        ("computed_rows", 9, "r0 has 9 rows in 2 pages"),
        ("computed_rows", 3, "r0 runs with 3 rows"),
        ("state", RequestState.ENDING, "r0 is ending but queued as running"),
    ],
)
def test_check_integrity_says_what_is_off(field: str, value: object, message: str) -> None:
    world = Simulation(config())
    request = world.add(different(0, 5))
    world.step()
    setattr(request, field, value)
    with pytest.raises(HocketError, match=message):
        world.scheduler.check_integrity()


def test_check_integrity_reads_the_page_table() -> None:
    world = Simulation(config())
    world.scheduler.page_table[2, 0] = 5
    with pytest.raises(HocketError, match="page table"):
        world.scheduler.check_integrity()
