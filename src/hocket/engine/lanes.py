"""The two lanes of a step: frames through the talker, chunks through the codec. Each knows what it has in flight."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hocket.engine.codec_runner import DecodedChunk, SamplesInFlight
from hocket.engine.job import Job
from hocket.engine.loading import ChunkRunner, EngineParts
from hocket.engine.primed_streams import PrimedStreams
from hocket.engine.request import DecodeItem, FrameBatch
from hocket.engine.runaway import LoopDetector
from hocket.engine.scheduler import Scheduler
from hocket.engine.statistics import Meter
from hocket.engine.talker_runner import FramesInFlight


class TalkerLane:
    """Prefill and frames."""

    def __init__(self, parts: EngineParts, scheduler: Scheduler, meter: Meter, clock: Callable[[], float]) -> None:
        self._runner = parts.talker
        self._scheduler = scheduler
        self._meter = meter
        self._clock = clock
        self._lookahead = parts.lookahead
        self._in_flight: deque[FramesInFlight] = deque()
        rows, policy = parts.config.rows, parts.config.runaway
        self._loops = LoopDetector(rows, parts.n_vq, math.ceil(policy.loop_seconds / parts.audio.frame_seconds))
        #: Codes of every row's frames, as they were read back.
        self._codes_RFN = np.empty((rows, parts.context_rows, parts.n_vq), np.int32)

    def start(self, job: Job, row: int) -> None:
        """A new request on `row`."""
        self._loops.start(row)
        assert job.prompt is not None  # it was queued
        self._runner.start(row, job.sampling, job.seed, job.request.min_frames, job.prompt)

    def prefill(self) -> None:
        """Compute prompts, as much as a step may."""
        items = self._scheduler.next_prefill()
        if not items:
            return
        self._meter.host()
        self._runner.prefill(items, self._scheduler.page_table)
        self._meter.prefill_seconds += self._meter.lap()
        self._scheduler.finish_prefill(items, self._clock())

    def frames(self) -> bool:
        """Launch a frame of everybody, then read what was launched just now (with lookahead, the one before).

        False where there was nobody. What is read is ready once the codes are drawn: the backbone goes on meanwhile,
        and the host has that long to launch what comes next.
        """
        batch, meter = self._scheduler.next_frames(), self._meter
        meter.host()
        if batch.requests:
            self._in_flight.append(self._runner.launch(batch, self._scheduler.page_table))
            meter.frame_batches += 1
            meter.frame_rows += len(batch.requests)
        ahead = 1 if self._lookahead and batch.requests else 0
        while len(self._in_flight) > ahead:
            flight = self._in_flight.popleft()
            stopped, codes_BN = self._runner.collect(flight)
            meter.frame_seconds += meter.lap()
            self._note(flight.batch, stopped, codes_BN)
            meter.host()
        meter.frame_seconds += meter.lap()
        return bool(batch.requests)

    def codes(self, row: int, first: int, count: int) -> NDArray[np.int64]:
        """Frames that were read back, int64 [count, N]; a row's stay until another request starts on it."""
        return self._codes_RFN[row, first : first + count].astype(np.int64)

    def _note(self, batch: FrameBatch, stopped: list[bool], codes_BN: NDArray[np.int64]) -> None:
        # What was launched behind a stop, a cancel or the limit counts for nothing: `collect_frames` and `finish` leave
        # those alone that have ended.
        now = self._clock()
        self._codes_RFN[batch.rows, batch.frames] = codes_BN
        self._scheduler.collect_frames(batch, stopped, now)
        for i in self._loops.saw(batch.rows, codes_BN):
            self._scheduler.finish(batch.requests[i], "runaway", now)


class CodecLane:
    """Priming and decoding."""

    def __init__(
        self,
        runner: ChunkRunner,
        scheduler: Scheduler,
        meter: Meter,
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._meter = meter
        self._clock = clock
        self._in_flight: deque[SamplesInFlight] = deque()
        self._kept = PrimedStreams(runner.kept)
        #: Those whose row has yet to hear the recording that they continue.
        self._priming: list[Job] = []

    def start(self, job: Job, row: int) -> None:
        """A new stream on `row`."""
        self._runner.start(row)
        if not job.needs_priming:
            return
        kept = self._kept.find(job.prefix_codes)
        if kept is None:
            self._priming.append(job)
            return
        self._runner.copy(kept, row)
        job.primed = len(job.prefix_codes)
        self._scheduler.codec_is_ready(job.in_scheduler, self._clock())

    def prime(self) -> None:
        """Let the codec hear a chunk of the recordings that are being continued; as many streams as a batch takes."""
        self._priming = [job for job in self._priming if job.end is None]
        if not self._priming:
            return
        jobs = self._priming[: self._scheduler.max_decode_batch]
        size = self._runner.max_chunk_frames
        pieces = [job.prefix_codes[job.primed : job.primed + size] for job in jobs]
        self._meter.host()
        self._runner.prime([job.in_scheduler.row for job in jobs], pieces)
        self._meter.decode_seconds += self._meter.lap()
        for job, piece in zip(jobs, pieces, strict=True):
            job.primed += len(piece)
            if not job.needs_priming:
                self._priming.remove(job)
                place = self._kept.place(job.prefix_codes)
                if place is not None:
                    self._runner.copy(job.in_scheduler.row, place)
                self._scheduler.codec_is_ready(job.in_scheduler, self._clock())

    def decode(self, codes_RFN: Tensor, *, wait: bool) -> list[tuple[DecodeItem, DecodedChunk]]:
        """Launch the chunks that are due, whose codes are in the talker's `codes_RFN`, and hand out what is done.

        With `wait` the oldest launch is waited for: the caller has nothing else to do.
        """
        batch, meter = self._scheduler.next_decode(self._clock()), self._meter
        meter.host()
        if batch is not None:
            self._in_flight.append(self._runner.launch(batch, codes_RFN))
            meter.decode_batches += 1
            meter.decode_rows += len(batch.items)
        back: list[tuple[DecodeItem, DecodedChunk]] = []
        while self._in_flight and (self._in_flight[0].done or (wait and not back)):
            flight = self._in_flight.popleft()
            chunks = self._runner.collect(flight)
            self._scheduler.collect_decode(flight.batch, self._clock())
            back += zip(flight.batch.items, chunks, strict=True)
        meter.decode_seconds += meter.lap()
        return back
