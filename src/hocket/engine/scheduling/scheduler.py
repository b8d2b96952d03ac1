"""Decides what the runners do next: admission, prefill rows, frames and decode chunks.

Holds no tensor and reads no clock. A step is driven in this order:

    admit → next_prefill, finish_prefill → next_frames → collect_frames
          → collect_decode, next_decode → release_finished

Frames are collected before the next ones are launched.

Requests of one priority are served first come, first served, and none overtakes: when the head of
the queue does not fit, all others wait too, however small they are, so the head never starves.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from hocket.config import ChunkPolicy
from hocket.core import FinishReason
from hocket.engine.scheduling.config import SchedulerConfig
from hocket.engine.scheduling.decode_queue import DecodeQueue
from hocket.engine.scheduling.memory import RowPool
from hocket.engine.scheduling.page_table import RequestPages
from hocket.engine.scheduling.request import (
    NO_ROW,
    DecodeBatch,
    FrameBatch,
    PrefillItem,
    Request,
    RequestState,
    SchedulerStats,
)
from hocket.errors import CapacityError, HocketError, InvalidRequestError, Template

_sort_key = attrgetter("sort_key")


class Scheduler:
    """Without `chunks` the engine has no codec, and a request ends with its last frame."""

    def __init__(
        self,
        config: SchedulerConfig,
        chunks: ChunkPolicy | None,
        *,
        frame_seconds: float,
        fixed_chunks: bool = False,
        pack_frames: int = 0,
    ) -> None:
        self.config = config
        self._rows = RowPool(config.rows)
        self._pages = RequestPages(config)
        self._decodes = None
        if chunks is not None:
            self._decodes = DecodeQueue(
                chunks, frame_seconds, fixed_chunks=fixed_chunks, pack_frames=pack_frames
            )
        # Every unfinished request is in exactly one of these lists; all but _ending are in service
        # order.
        self._waiting: list[Request] = []
        self._prefilling: list[Request] = []
        self._running: list[Request] = []
        self._queues = {
            RequestState.WAITING: self._waiting,
            RequestState.PREFILL: self._prefilling,
            RequestState.RUNNING: self._running,
        }
        self._ending: list[Request] = []
        self._arrivals = 0
        self._preemptions = 0

    # ---- requests come and go

    def add(
        self,
        request_id: str,
        prompt: NDArray[np.int64],
        *,
        max_frames: int,
        now: float,
        priority: int = 0,
        streaming: bool = True,
        prefix_salt: bytes = b"",
        codec_ready: bool = True,
    ) -> Request:
        """Queue a request: `prompt` int64 [rows, 1 + n_vq], and at most `max_frames` new frames.

        Raises `CapacityError` when the queue is full, and `InvalidRequestError` when it could not
        run even alone.
        """
        rows = len(prompt) + max_frames
        limit = min(self.config.max_context_rows, self._pages.pool.capacity * self.config.page_rows)
        if len(prompt) < 1 or max_frames < 1:
            raise InvalidRequestError(
                f"a request needs a prompt row and a frame, got {len(prompt)} and {max_frames}"
            )
        if rows > limit:
            raise InvalidRequestError(
                Template(
                    "{prompt_rows} prompt rows and {frames} frames make {rows} rows, and {limit} "
                    "is the most; "
                    "shorten the text or the reference, or lower {max_frames}",
                    prompt_rows=len(prompt),
                    frames=max_frames,
                    rows=rows,
                    limit=limit,
                ),
                param="max_frames",
            )
        if self.queue_is_full:
            raise CapacityError(
                f"{self.config.max_waiting} requests are waiting already; try again later"
            )
        request = Request(
            id=request_id,
            priority=priority,
            arrival=self._arrivals,
            prompt=prompt,
            max_frames=max_frames,
            streaming=streaming,
            digests=self._pages.prefixes.digests(prompt, prefix_salt),
            added_at=now,
            codec_ready=codec_ready,
        )
        self._arrivals += 1
        if self._decodes is not None:
            self._decodes.start(request)
        insort(self._waiting, request, key=_sort_key)
        return request

    def finish(self, request: Request, reason: FinishReason, now: float) -> None:
        """End a request in any state. Frames read back so far still get their audio, except after
        `cancelled` and `error`, which override the other reasons. No effect on a request that has
        ended with an equal or stronger reason.
        """
        dropped = reason in ("cancelled", "error")
        if request.state is RequestState.FINISHED or not request.wants_audio:
            return
        if request.state is RequestState.ENDING and not dropped:
            return
        if request.state is not RequestState.ENDING:
            self._queues[request.state].remove(request)
            request.state = RequestState.ENDING
            self._ending.append(request)
        request.finish_reason = reason
        if self._decodes is not None:
            if dropped:
                self._decodes.discard(request)
            else:
                self._decodes.update(request, now)

    def cut(self, request: Request, frames: int, now: float) -> None:
        """End a request as a runaway after its first `frames` frames, all of which are decoded. A
        stop or the limit behind them does not count, so that the end does not depend on how far
        ahead the talker was.
        """
        if request.state is RequestState.FINISHED or not request.wants_audio:
            return
        self.finish(request, "runaway", now)
        request.finish_reason = "runaway"
        request.frames = frames
        if self._decodes is not None:
            self._decodes.discard(request)

    def release_finished(self) -> list[Request]:
        """Release what ending requests hold once nothing in flight uses it: pages when their last
        frame was collected, rows when their audio was collected, too. Returns the requests that
        have finished, each exactly once.
        """
        finished = []
        for request in self._ending:
            if request.launched > request.collected:
                continue
            over = self._decodes is None or (
                request.sent == request.decoded
                and (not request.wants_audio or request.sent >= request.frames)
            )
            if over or request.pages:
                self._give_back(request, with_row=over)
            if over:
                request.state = RequestState.FINISHED
                finished.append(request)
        if finished:
            self._ending = [
                request for request in self._ending if request.state is RequestState.ENDING
            ]
        return finished

    # ---- one step

    def admit(self, now: float) -> list[Request]:
        """Give rows and pages to the head of the queue while they last. Returns the admitted
        requests: new ones, and preempted ones, which have kept their row and are computed again.
        """
        admitted = []
        while self._waiting:
            request = self._waiting[0]
            if (request.row == NO_ROW and not self._rows.free) or not self._pages.reserve(
                request, [*self._prefilling, *self._running]
            ):
                break
            del self._waiting[0]
            if request.row == NO_ROW:
                request.row = self._rows.acquire()
                request.admitted_at = now
            self._pages.enter(request)
            request.state = RequestState.PREFILL
            insort(self._prefilling, request, key=_sort_key)
            admitted.append(request)
        return admitted

    def next_prefill(self) -> list[PrefillItem]:
        """The rows to prefill now, within the budget; at most one item per request, in service
        order.

        Items end on page boundaries, or at the end of the prompt or of the frames: a prompt is
        never split inside a page.
        """
        budget = self.config.prefill_rows_per_step
        items = []
        for request in self._prefilling:
            self._pages.take_computed(request)
            start = request.computed_rows
            end = request.prompt_rows
            if start >= end:
                end += request.launched
            stop = min(end, start + budget)
            if stop < end:
                stop -= stop % self.config.page_rows
            if stop <= start:
                break
            items.append(PrefillItem(request, start, stop - start))
            budget -= stop - start
        return items

    def finish_prefill(self, items: Sequence[PrefillItem], now: float) -> None:
        """Note that `items` were launched: their pages may be shared, and requests without rows
        left to compute run.
        """
        for item in items:
            request = item.request
            if request.state is not RequestState.PREFILL:
                continue
            request.computed_rows = item.start + item.count
            self._pages.publish(request, item.start)
            if request.computed_rows == request.prompt_rows + request.launched:
                if request.launched == 0:
                    request.prefilled_at = now
                request.state = RequestState.RUNNING
                self._prefilling.remove(request)
                insort(self._running, request, key=_sort_key)

    def next_frames(self) -> FrameBatch:
        """One frame of every running request with room for its row; empty when there is none."""
        batch: list[Request] = []
        indices: list[int] = []
        for request in self._running:  # a preemption takes from the end, behind this request
            frame, start = request.launched, request.computed_rows
            if start == request.capacity_rows and not self._grow(request):
                continue
            batch.append(request)
            indices += (request.row, frame, start)
            request.launched, request.computed_rows = frame + 1, start + 1
        return FrameBatch(
            batch, np.fromiter(indices, np.int64, len(indices)).reshape(-1, 3).T.copy()
        )

    def collect_frames(self, batch: FrameBatch, stopped: Sequence[bool], now: float) -> None:
        """Take the stop flags of `batch`, one per request. A frame with a set flag holds no speech
        and is dropped, as is a frame of a request that has ended meanwhile.
        """
        for request, stop in zip(batch.requests, stopped, strict=True):
            request.collected += 1
            if request.finish_reason is not None:
                continue
            if stop:
                self.finish(request, "stop", now)
                continue
            request.frames += 1
            if request.frames == request.max_frames:
                self.finish(request, "length", now)
            elif (
                self._decodes is not None and request.frames - request.sent >= request.chunk_frames
            ):
                self._decodes.update(request, now)

    def codec_is_ready(self, request: Request, now: float) -> None:
        """The codec is primed with the recording that `request` continues: its frames may be
        decoded.
        """
        request.codec_ready = True
        if self._decodes is not None and request.wants_audio:
            self._decodes.update(request, now)

    def next_decode(self, now: float) -> DecodeBatch | None:
        """The chunks to decode now; `None` if none is ready, waiting pays, or enough is in
        flight.
        """
        return None if self._decodes is None else self._decodes.next_batch(now, len(self._running))

    def collect_decode(self, batch: DecodeBatch, now: float) -> None:
        """The audio of `batch` has come back. Batches come back in launch order."""
        assert self._decodes is not None  # it made the batch
        self._decodes.collect(batch, now)

    # ---- state for the engine

    @property
    def page_table(self) -> NDArray[np.int32]:
        """int32 [rows, pages of max_context_rows], for the runners to read:
        `RequestPages.table`.
        """
        return self._pages.table

    @property
    def queue_is_full(self) -> bool:
        """`add` would raise `CapacityError`."""
        return self.waiting >= self.config.max_waiting

    @property
    def waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._prefilling or self._running or self._ending)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(
            waiting=len(self._waiting),
            prefilling=len(self._prefilling),
            running=len(self._running),
            ending=len(self._ending),
            rows_free=self._rows.free,
            pages_free=self._pages.pool.free,
            pages_kept=self._pages.pool.kept,
            prefix_hit_rows=self._pages.prefixes.hit_rows,
            prefix_miss_rows=self._pages.prefixes.miss_rows,
            prefix_evictions=self._pages.pool.evictions,
            preemptions=self._preemptions,
            underruns=0 if self._decodes is None else self._decodes.underruns,
        )

    def check_integrity(self) -> None:
        """Raise `HocketError` with the first disagreement between rows, pages and requests."""
        live = [*self._waiting, *self._prefilling, *self._running, *self._ending]
        self._rows.check(request.row for request in live if request.row != NO_ROW)
        self._pages.check(live)
        for state, queue in self._queues.items():
            for request in queue:
                if request.state is not state:
                    raise HocketError(
                        f"request {request.id} is {request.state.value} but queued as {state.value}"
                    )
        for request in self._running:
            if request.computed_rows != request.prompt_rows + request.launched:
                raise HocketError(
                    f"request {request.id} runs with {request.computed_rows} rows computed"
                )

    # ---- rows and pages

    def _grow(self, request: Request) -> bool:
        """Add a page to a running request, if necessary by preempting requests behind it. Returns
        False if it must wait a step.

        It waits if all other requests come before it, because they would preempt it in turn. It
        also waits if an ending request gives pages back with this step, because a preemption costs
        more.
        """
        while not self._pages.pool.available:
            if any(other.pages for other in self._ending) or not self._preempt_behind(request):
                return False
        self._pages.grow(request)
        return True

    def _preempt_behind(self, request: Request) -> bool:
        """Take the pages of the last active request in service order, if it comes after `request`.
        It keeps its row, so its codes and codec state, and queues for pages; its K/V is then
        computed again from the prompt and its codes.
        """
        queue = max(
            (queue for queue in (self._prefilling, self._running) if queue),
            key=lambda queue: queue[-1].sort_key,
        )
        victim = queue[-1]
        if victim.sort_key <= request.sort_key:
            return False
        del queue[-1]
        self._give_back(victim, with_row=False)
        victim.state = RequestState.WAITING
        victim.preemptions += 1
        self._preemptions += 1
        insort(self._waiting, victim, key=_sort_key)
        return True

    def _give_back(self, request: Request, *, with_row: bool) -> None:
        """Release rows and pages. No other code does."""
        self._pages.give_back(request)
        if with_row and request.row != NO_ROW:
            self._rows.release(request.row)
            request.row = NO_ROW
