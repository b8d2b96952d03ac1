"""Letting the codec hear the recordings that requests continue, before it decodes what comes behind them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.engine.job import Job
from hocket.engine.runners.codec import Place
from hocket.engine.runners.protocols import ChunkRunner
from hocket.engine.scheduling.scheduler import Scheduler
from hocket.engine.stats import Meter


class Hearing:
    """A few recordings at a time, those first that came first; what was heard is kept for others that continue it."""

    def __init__(self, runner: ChunkRunner, scheduler: Scheduler, meter: Meter, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._meter = meter
        self._clock = clock
        self._kept = PrimedStreams(range(runner.kept))
        self._waiting: list[tuple[bytes, Job]] = []
        #: By slot.
        self._heard_by: dict[int, tuple[bytes, Job]] = {}
        #: When the newest piece is done: more at a time would only stand in the way of chunks that are due.
        self._newest: torch.cuda.Event | None = None
        #: Whose stream is on its way to their row, and when it is there. None of their chunks is launched before: those
        #: that go with it would wait, too.
        self._handed: list[tuple[torch.cuda.Event | None, Job]] = []

    @property
    def busy(self) -> bool:
        """A recording is being heard, waits for it, or is on its way to a row."""
        return bool(self._waiting or self._heard_by or self._handed)

    @property
    def done(self) -> bool:
        """There is something for `step` to do."""
        return self._may_hear or any(_is_past(mark) for mark, _ in self._handed)

    @property
    def _may_hear(self) -> bool:
        return bool(self._waiting or self._heard_by) and _is_past(self._newest)

    def start(self, job: Job) -> None:
        """A request that continues a recording has got a row."""
        self._waiting.append((digest(job.prefix_codes), job))
        self._fill_slots()

    def step(self) -> None:
        """Hear a piece of some of them, unless one is still being heard, and let those speak whose row has all of it.

        Of the first, and of those whose piece has the same size.
        """
        self._announce()
        if not self._may_hear:
            return
        self._heard_by = {slot: (key, job) for slot, (key, job) in self._heard_by.items() if job.end is None}
        self._fill_slots()
        if not self._heard_by:
            return
        sizes = {slot: self._size(job) for slot, (_, job) in self._heard_by.items()}
        first = min(self._heard_by, key=lambda slot: self._heard_by[slot][1].in_scheduler.rank)
        heard = [(slot, *of) for slot, of in self._heard_by.items() if sizes[slot] == sizes[first]]
        pieces = [job.prefix_codes[job.primed : job.primed + sizes[first]] for _, _, job in heard]
        self._meter.host()
        self._newest = self._runner.hear([slot for slot, _, _ in heard], pieces, sizes[first])
        for (slot, key, job), piece in zip(heard, pieces, strict=True):
            job.primed += len(piece)
            if job.needs_priming:
                continue
            # Copies follow on the same stream, so the slot is free for the next recording at once.
            del self._heard_by[slot]
            kept = self._kept.place(key)
            if kept is not None:
                self._runner.copy(Place("hearing", slot), Place("kept", kept), job.primed)
            self._hand_over(job, Place("hearing", slot))
        self._fill_slots()
        self._meter.decode_seconds += self._meter.lap()

    def _fill_slots(self) -> None:
        """Give free slots to those that wait, and what is kept to those that want the same."""
        waiting, self._waiting = self._waiting, []
        free = [slot for slot in range(self._runner.hearing_slots) if slot not in self._heard_by]
        for key, job in waiting:
            if job.end is not None:
                continue
            kept = self._kept.find(key)
            is_heard = bool(self._runner.kept) and any(key == other for other, _ in self._heard_by.values())
            if kept is not None:
                job.primed = len(job.prefix_codes)
                self._hand_over(job, Place("kept", kept))
            elif free and not is_heard:
                slot = free.pop(0)
                self._runner.start(Place("hearing", slot))
                self._heard_by[slot] = key, job
            else:
                self._waiting.append((key, job))

    def _size(self, job: Job) -> int:
        """The smallest piece that finishes the recording, or else the largest."""
        left = len(job.prefix_codes) - job.primed
        sizes = self._runner.hearing_sizes
        return next((size for size in sizes if size >= left), sizes[-1])

    def _hand_over(self, job: Job, place: Place) -> None:
        mark = self._runner.copy(place, Place("row", job.in_scheduler.row), job.primed)
        self._handed.append((mark, job))
        self._announce()

    def _announce(self) -> None:
        handed, self._handed = self._handed, []
        for mark, job in handed:
            if not _is_past(mark):
                self._handed.append((mark, job))
            elif job.end is None:
                self._scheduler.codec_is_ready(job.in_scheduler, self._clock())


def _is_past(mark: torch.cuda.Event | None) -> bool:
    """None: what it would mark was done at once."""
    return mark is None or mark.query()  # type: ignore[no-untyped-call]


class PrimedStreams:
    """Which of the codec's `rows` keeps the stream of which recording, by the `digest` of its codes.

    Hearing five seconds costs the codec as much as speaking five; a copy of what it remembers costs a thousandth.
    """

    def __init__(self, rows: Sequence[int]) -> None:
        self._free = list(rows)
        #: Least recently used first.
        self._rows: OrderedDict[bytes, int] = OrderedDict()

    def find(self, key: bytes) -> int | None:
        """The row that has heard this recording."""
        if key not in self._rows:
            return None
        self._rows.move_to_end(key)
        return self._rows[key]

    def place(self, key: bytes) -> int | None:
        """The row to keep the stream in that has just heard this; None where there is no room, or no need."""
        if key in self._rows or not (self._free or self._rows):
            return None
        row = self._free.pop() if self._free else self._rows.popitem(last=False)[1]
        self._rows[key] = row
        return row


def digest(codes_FN: NDArray[np.int64]) -> bytes:
    """Names a recording by its codes."""
    return hashlib.blake2b(repr(codes_FN.shape).encode() + codes_FN.tobytes(), digest_size=16).digest()
