"""The two pipelines of a step: frames through the talker, chunks through the codec. Each tracks its
work in flight.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hocket.engine.build import EngineParts
from hocket.engine.codec_priming import CodecPrimer
from hocket.engine.job import Job
from hocket.engine.runners.codec import DecodedChunk, SamplesInFlight, StateSlot
from hocket.engine.runners.protocols import ChunkRunner
from hocket.engine.runners.talker import FramesInFlight
from hocket.engine.scheduling.request import DecodeItem, FrameBatch, PrefillItem, Request
from hocket.engine.scheduling.runaway import LoopDetector
from hocket.engine.scheduling.scheduler import Scheduler
from hocket.engine.stats import Meter


class TalkerPipeline:
    """Launches prefill and frames; reads frames back."""

    def __init__(
        self, parts: EngineParts, scheduler: Scheduler, meter: Meter, clock: Callable[[], float]
    ) -> None:
        self._runner = parts.talker
        self._scheduler = scheduler
        self._meter = meter
        self._clock = clock
        #: The frame that was launched and not read yet. It is read before the next one is launched.
        self._in_flight: FramesInFlight | None = None
        #: The last launch was a prefill without a frame.
        self._has_prefilled = False
        rows, policy = parts.config.rows, parts.config.runaway
        self._loops = LoopDetector(
            rows, parts.n_vq, math.ceil(policy.loop_seconds / parts.info.frame_seconds)
        )
        #: Codes of all frames that were read back, by row.
        self._codes_RFN = np.empty((rows, parts.info.context_rows, parts.n_vq), np.int64)

    def start(self, job: Job, row: int) -> None:
        """Start a request on `row`."""
        self._loops.start(row)
        self._runner.start(row, job.sampling, job.seed, job.request.min_frames, job.prompt)

    @property
    def busy(self) -> bool:
        """A frame is in flight and must be read before the next launch."""
        return self._in_flight is not None

    @property
    def done(self) -> bool:
        """`collect` would read a frame."""
        return self._in_flight is not None and self._in_flight.done

    @property
    def goes_on(self) -> bool:
        """The last launch was a prefill alone, for which a step need not wait."""
        return self._has_prefilled and not self.busy

    def prefill_and_launch(self) -> None:
        """Prefill within the step's budget and launch one frame for every running row.

        A runner that joins both in one pass makes a prompt's first frame in the step after the
        prompt is complete; the step is shorter for it. When no row is running, the first frame
        follows in the same step.
        """
        scheduler, runner = self._scheduler, self._runner
        self._has_prefilled = False
        self._meter.host()
        batch = scheduler.next_frames() if runner.joins_prefill else None
        items = scheduler.next_prefill()
        if batch is not None and batch.requests:
            self._launch(batch, items)
            scheduler.finish_prefill(items, self._clock())
            return
        if items:
            self._has_prefilled = True
            self._meter.host()
            runner.prefill(items, scheduler.page_table)
            self._meter.prefill_seconds += self._meter.lap()
            scheduler.finish_prefill(items, self._clock())
        self._launch(scheduler.next_frames(), [])

    def _launch(self, batch: FrameBatch, items: list[PrefillItem]) -> None:
        if not batch.requests:
            return
        meter = self._meter
        meter.host()
        self._in_flight = self._runner.launch(batch, self._scheduler.page_table, items)
        meter.frame_batches += 1
        meter.frame_rows += len(batch.requests)
        meter.frame_seconds += meter.lap()

    def collect(self) -> bool:
        """Read the frame in flight if it is ready; returns whether it was.

        It is ready once its codes are drawn. The backbone is still running then, which gives the
        host time for the next launch.
        """
        flight = self._in_flight
        if flight is None or not flight.done:
            return False
        self._in_flight = None
        self._meter.frame_seconds += self._meter.lap()
        self._note(flight.batch, *self._runner.collect(flight))
        self._meter.host()
        return True

    def codes(self, row: int, first: int, count: int) -> NDArray[np.int64]:
        """A view of frames that were read back, int64 [count, N]; valid until another request
        starts on the row.
        """
        return self._codes_RFN[row, first : first + count]

    def _note(self, batch: FrameBatch, stopped: list[bool], codes_BN: NDArray[np.int64]) -> None:
        # A frame that was in flight at a cancel does not count: `collect_frames` and `finish` skip
        # ended requests.
        now = self._clock()
        rows_B, frames_B, _ = batch.frame_index_3B
        self._codes_RFN[rows_B, frames_B] = codes_BN
        self._scheduler.collect_frames(batch, stopped, now)
        for i in self._loops.observe(rows_B, codes_BN):
            self._scheduler.finish(batch.requests[i], "runaway", now)


class CodecPipeline:
    """Primes the codec with recordings and decodes chunks."""

    def __init__(
        self,
        runner: ChunkRunner,
        scheduler: Scheduler,
        meter: Meter,
        clock: Callable[[], float],
        codes: Callable[[int, int, int], NDArray[np.int64]],
    ) -> None:
        """`codes` is `TalkerPipeline.codes`."""
        self._runner = runner
        self._codes = codes
        self._scheduler = scheduler
        self._meter = meter
        self._clock = clock
        #: Decode batches in flight: of first chunks, and of all others.
        self._first_chunks: deque[SamplesInFlight] = deque()
        self._steady_chunks: deque[SamplesInFlight] = deque()
        self._primer = CodecPrimer(runner, scheduler, meter, clock)

    @property
    def busy(self) -> bool:
        """A decode batch is in flight."""
        return bool(self._first_chunks or self._steady_chunks)

    @property
    def done(self) -> bool:
        """`collect` would return chunks, or priming can go on."""
        return (
            any(
                flights and flights[0].done for flights in (self._first_chunks, self._steady_chunks)
            )
            or self._primer.done
        )

    def start(self, request: Request, prefix_codes_FN: NDArray[np.int64]) -> None:
        """Start a stream on the request's row, behind the codes of the recording that it continues,
        if any.
        """
        if len(prefix_codes_FN):
            # The primer writes the row once the codec has run the recording.
            self._primer.start(request, prefix_codes_FN)
        else:
            self._runner.start(StateSlot("row", request.row))

    def launch(self) -> None:
        """Launch the chunks that are due, and the next slice of priming."""
        meter = self._meter
        while (batch := self._scheduler.next_decode(self._clock())) is not None:
            meter.host()
            pieces = [self._codes(item.request.row, item.start, item.count) for item in batch.items]
            (self._first_chunks if batch.is_first else self._steady_chunks).append(
                self._runner.launch(batch, pieces)
            )
            meter.decode_batches += 1
            meter.decode_rows += len(batch.items)
            meter.decode_seconds += meter.lap()
        if self._primer.busy:
            self._primer.step()

    def collect(self) -> list[tuple[DecodeItem, DecodedChunk]]:
        """Completed chunks, in launch order."""
        back: list[tuple[DecodeItem, DecodedChunk]] = []
        for flights in (self._first_chunks, self._steady_chunks):
            while flights and flights[0].done:
                self._meter.host()
                flight = flights.popleft()
                chunks = self._runner.collect(flight)
                self._scheduler.collect_decode(flight.batch, self._clock())
                back += zip(flight.batch.items, chunks, strict=True)
                self._meter.decode_seconds += self._meter.lap()
        return back
