"""Drives a scheduler as the engine does, with runners that record pages and deliveries.

The device is modelled where a scheduling mistake would show: a K/V row's content depends on all
rows before it, so each launch checks that the page table leads to the request's own rows, all of
them computed, in order.
"""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
from numpy.typing import NDArray

from hocket.config import ChunkPolicy
from hocket.core import FinishReason
from hocket.engine.scheduling.config import SchedulerConfig
from hocket.engine.scheduling.memory import SCRATCH_PAGE
from hocket.engine.scheduling.request import (
    NO_ROW,
    DecodeBatch,
    FrameBatch,
    PrefillItem,
    Request,
    RequestState,
)
from hocket.engine.scheduling.scheduler import Scheduler

FRAME_SECONDS = 0.08
STEP_SECONDS = 0.01


def prompt_of(*values: int) -> NDArray[np.int64]:
    """Prompt rows int64 [len(values), 3]."""
    return np.repeat(np.array(values, dtype=np.int64)[:, None], 3, axis=1)


class Simulation:
    """One scheduler and the fake world around it. `stops[id]` is the frame whose stop flag
    is set.
    """

    def __init__(self, config: SchedulerConfig, chunks: ChunkPolicy | None = None) -> None:
        self.config = config
        self.scheduler = Scheduler(config, chunks, frame_seconds=FRAME_SECONDS)
        self.now = 0.0
        self.stops: dict[str, int] = {}
        self.live: list[Request] = []
        self.over: list[Request] = []
        self.admitted: list[Request] = []
        self.decode_batches: list[DecodeBatch] = []
        self.prefilled: list[list[PrefillItem]] = []
        self._kv: dict[tuple[int, int], object] = {}
        self._decoded: Counter[str] = Counter()
        self._frames_in_flight: FrameBatch | None = None
        self._decodes_in_flight: deque[DecodeBatch] = deque()

    def add(
        self,
        prompt: NDArray[np.int64],
        *,
        max_frames: int = 4,
        stop_at: int | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> Request:
        name = f"r{len(self.live) + len(self.over)}"
        request = self.scheduler.add(
            name,
            prompt,
            max_frames=max_frames,
            now=self.now,
            priority=priority,
            streaming=streaming,
        )
        self.stops[name] = max_frames if stop_at is None else stop_at
        self.live.append(request)
        return request

    def cancel(self, request: Request, reason: FinishReason = "cancelled") -> None:
        self.scheduler.finish(request, reason, self.now)

    def step(self, *, talker_is_done: bool = True, codec_is_done: bool = True) -> None:
        """One engine step. A frame that is not done stays in flight, and nothing else is launched
        until it was read; chunks come back in the step after their launch, or later.
        """
        scheduler = self.scheduler
        self.now += STEP_SECONDS
        if self._frames_in_flight is None:
            self._admit()
            self._prefill()
            self._launch(scheduler.next_frames())
        if talker_is_done and self._frames_in_flight is not None:
            batch, self._frames_in_flight = self._frames_in_flight, None
            frames_B = batch.frame_index_3B[1].tolist()
            flags = [
                frame >= self.stops[request.id]
                for request, frame in zip(batch.requests, frames_B, strict=True)
            ]
            scheduler.collect_frames(batch, flags, self.now)
        if codec_is_done and self._decodes_in_flight:
            scheduler.collect_decode(self._decodes_in_flight.popleft(), self.now)
        decode = scheduler.next_decode(self.now)
        if decode is not None:
            self._decode(decode)
        self._release()
        scheduler.check_integrity()

    def run(self, limit: int = 2000) -> int:
        """Step until all is done; returns the steps taken, and fails when `limit` of them are not
        enough.
        """
        for steps in range(limit):
            if self.scheduler.idle:
                return steps
            self.step()
        raise AssertionError(f"not idle after {limit} steps: {self.scheduler.stats()}")

    # ---- the fake runners, and what they check

    def _admit(self) -> None:
        admitted = self.scheduler.admit(self.now)
        waiting = [r for r in self.live if r.state is RequestState.WAITING]
        for request in admitted:
            assert request.state is RequestState.PREFILL
            assert all(request.sort_key < other.sort_key for other in waiting), "overtaken"
            if request.launched == 0 and request not in self.admitted:
                self.admitted.append(request)

    def _prefill(self) -> None:
        items = self.scheduler.next_prefill()
        assert sum(item.count for item in items) <= self.config.prefill_rows_per_step
        assert len({item.request.id for item in items}) == len(items)
        for item in items:
            request = item.request
            assert item.start == request.computed_rows
            assert item.count > 0
            stop = item.start + item.count
            if item.start < request.prompt_rows:
                assert item.start % self.config.page_rows == 0
                assert stop <= request.prompt_rows
            end = (
                request.prompt_rows
                if stop <= request.prompt_rows
                else request.prompt_rows + request.launched
            )
            assert stop == end or stop % self.config.page_rows == 0
            # Rows before the item exist at launch, or a launch before this one has made them.
            for row in range(item.start):
                self._check_row(request, row)
        for item in items:
            for row in range(item.start, item.start + item.count):
                self._write(item.request, row)
        self.prefilled.append(items)
        self.scheduler.finish_prefill(items, self.now)

    def _launch(self, batch: FrameBatch) -> None:
        assert batch.frame_index_3B.shape == (3, len(batch.requests))
        assert len(np.unique(batch.frame_index_3B[0])) == len(batch.requests)
        assert batch.requests == sorted(batch.requests, key=lambda request: request.sort_key)
        for request, (row, frame, start) in zip(
            batch.requests, batch.frame_index_3B.T.tolist(), strict=True
        ):
            assert request.state is RequestState.RUNNING
            assert (row, start) == (request.row, request.prompt_rows + frame)
            assert frame < request.max_frames
            assert request.launched - request.collected == 1, (
                "launched before the last frame was read"
            )
            for before in range(start):
                self._check_row(request, before)
            self._write(request, start)
        self._frames_in_flight = batch if batch.requests else None

    def _decode(self, batch: DecodeBatch) -> None:
        assert len({item.request.id for item in batch.items}) == len(batch.items)
        for item in batch.items:
            request = item.request
            assert request.row != NO_ROW
            assert item.start == self._decoded[request.id], "frames decoded twice, or left out"
            assert 0 < item.count <= batch.chunk_frames
            self._decoded[request.id] += item.count
            assert self._decoded[request.id] <= request.frames <= self.stops[request.id]
        self._decodes_in_flight.append(batch)
        self.decode_batches.append(batch)

    def _release(self) -> None:
        in_flight = (
            {r.id for r in self._frames_in_flight.requests}
            if self._frames_in_flight is not None
            else set()
        )
        in_flight |= {item.request.id for b in self._decodes_in_flight for item in b.items}
        for request in self.scheduler.release_finished():
            assert request.id not in in_flight
            assert request.state is RequestState.FINISHED
            assert (request.row, request.pages) == (NO_ROW, [])
            self.live.remove(request)  # fails for a request that ends twice
            self.over.append(request)
            if request.finish_reason in ("stop", "length"):
                expected = min(self.stops[request.id], request.max_frames)
                assert request.frames == expected
                assert request.finish_reason == (
                    "stop" if self.stops[request.id] < request.max_frames else "length"
                )
            if request.wants_audio and self.scheduler._decodes is not None:
                assert self._decoded[request.id] == request.frames

    def _content(self, request: Request, row: int) -> object:
        if row < request.prompt_rows:
            return request.prompt[: row + 1].tobytes()
        return (request.id, row - request.prompt_rows)

    def _place(self, request: Request, row: int) -> tuple[int, int]:
        page = int(self.scheduler.page_table[request.row, row // self.config.page_rows])
        assert page != SCRATCH_PAGE
        return page, row % self.config.page_rows

    def _write(self, request: Request, row: int) -> None:
        self._kv[self._place(request, row)] = self._content(request, row)

    def _check_row(self, request: Request, row: int) -> None:
        assert self._kv.get(self._place(request, row)) == self._content(request, row), (
            f"{request.id} row {row}"
        )
