"""Letting the codec hear the recordings that requests continue, before it decodes what comes behind them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hocket.engine.codec_runner import Place
from hocket.engine.job import Job
from hocket.engine.loading import ChunkRunner
from hocket.engine.primed_streams import PrimedStreams
from hocket.engine.scheduler import Scheduler
from hocket.engine.statistics import Meter


class Hearing:
    """A few recordings at a time, those first that came first; what was heard is kept for others that continue it."""

    def __init__(self, runner: ChunkRunner, scheduler: Scheduler, meter: Meter, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._meter = meter
        self._clock = clock
        self._kept = PrimedStreams(range(runner.kept))
        self._waiting: deque[Job] = deque()
        #: By slot.
        self._heard_by: dict[int, Job] = {}

    @property
    def busy(self) -> bool:
        """A recording is being heard, or waits for it."""
        return bool(self._waiting or self._heard_by)

    def start(self, job: Job) -> None:
        """A request that continues a recording has got a row."""
        kept = self._kept.find(job.prefix_codes)
        if kept is None:
            self._waiting.append(job)
        else:
            job.primed = len(job.prefix_codes)
            self._hand_over(job, Place("kept", kept))

    def step(self) -> None:
        """Hear a piece of some of them: of the first, and of those whose piece has the same size."""
        self._heard_by = {slot: job for slot, job in self._heard_by.items() if job.end is None}
        for slot in range(self._runner.hearing_slots):
            while slot not in self._heard_by and self._waiting:
                job = self._waiting.popleft()
                if job.end is None:
                    self._runner.start(Place("hearing", slot))
                    self._heard_by[slot] = job
        if not self._heard_by:
            return
        sizes = {slot: self._size(job) for slot, job in self._heard_by.items()}
        first = min(self._heard_by, key=lambda slot: self._heard_by[slot].in_scheduler.rank)
        slots = [slot for slot in self._heard_by if sizes[slot] == sizes[first]]
        jobs, size = [self._heard_by[slot] for slot in slots], sizes[first]
        pieces = [job.prefix_codes[job.primed : job.primed + size] for job in jobs]
        self._meter.host()
        self._runner.hear(slots, pieces, size)
        for slot, job, piece in zip(slots, jobs, pieces, strict=True):
            job.primed += len(piece)
            if job.needs_priming:
                continue
            # Copies follow on the same stream, so the slot is free for the next recording at once.
            del self._heard_by[slot]
            kept = self._kept.place(job.prefix_codes)
            if kept is not None:
                self._runner.copy(Place("hearing", slot), Place("kept", kept), job.primed)
            self._hand_over(job, Place("hearing", slot))
        self._meter.decode_seconds += self._meter.lap()

    def _size(self, job: Job) -> int:
        """The smallest piece that finishes the recording, or else the largest."""
        left = len(job.prefix_codes) - job.primed
        sizes = self._runner.hearing_sizes
        return next((size for size in sizes if size >= left), sizes[-1])

    def _hand_over(self, job: Job, place: Place) -> None:
        self._runner.copy(place, Place("row", job.in_scheduler.row), job.primed)
        self._scheduler.codec_is_ready(job.in_scheduler, self._clock())
