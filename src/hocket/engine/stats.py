"""Counters and times of a running engine. They take a few additions per step, so they are always
on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from hocket.engine.scheduling.request import SchedulerStats


@dataclass(slots=True)
class Meter:
    """Counters, from the start of the engine."""

    steps: int = 0
    #: Launched batches, and the requests in all of them; the quotient is the mean batch.
    frame_batches: int = 0
    frame_rows: int = 0
    decode_batches: int = 0
    decode_rows: int = 0
    #: Time of all steps, by part: the calls of each runner, and the engine's own work (host).
    reference_seconds: float = 0.0
    prefill_seconds: float = 0.0
    frame_seconds: float = 0.0
    decode_seconds: float = 0.0
    host_seconds: float = 0.0
    #: When the last lap ended.
    lap_at: float = 0.0

    def begin(self) -> None:
        """A step begins."""
        self.steps += 1
        self.lap_at = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap; the caller adds them to a counter."""
        now = time.perf_counter()
        seconds, self.lap_at = now - self.lap_at, now
        return seconds

    def waited(self, *, for_frames: bool) -> None:
        """The time since the last lap was spent waiting for the device."""
        if for_frames:
            self.frame_seconds += self.lap()
        else:
            self.decode_seconds += self.lap()

    def host(self) -> None:
        """The time since the last lap was the engine's own work."""
        self.host_seconds += self.lap()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Counters and seconds run from the start of the engine."""

    scheduler: SchedulerStats
    #: Requests that wait for their references, and recordings that front ends wait for.
    preparing: int
    #: Recordings of requests that were known, and new ones; a front end counts its own.
    reference_hits: int
    reference_misses: int
    steps: int
    #: Mean requests in a frame batch and mean streams in a decode batch; 0 before the first batch.
    frame_batches: int
    mean_frame_rows: float
    decode_batches: int
    mean_decode_rows: float
    #: Time of all steps, by part: the calls of each runner, and the engine's own work (host).
    reference_seconds: float
    prefill_seconds: float
    frame_seconds: float
    decode_seconds: float
    host_seconds: float

    @classmethod
    def of(
        cls,
        meter: Meter,
        scheduler: SchedulerStats,
        *,
        preparing: int,
        reference_hits: int,
        reference_misses: int,
    ) -> EngineStats:
        """A snapshot from the meter and the counters of the engine's parts."""
        return cls(
            scheduler=scheduler,
            preparing=preparing,
            reference_hits=reference_hits,
            reference_misses=reference_misses,
            steps=meter.steps,
            frame_batches=meter.frame_batches,
            mean_frame_rows=meter.frame_rows / max(1, meter.frame_batches),
            decode_batches=meter.decode_batches,
            mean_decode_rows=meter.decode_rows / max(1, meter.decode_batches),
            reference_seconds=meter.reference_seconds,
            prefill_seconds=meter.prefill_seconds,
            frame_seconds=meter.frame_seconds,
            decode_seconds=meter.decode_seconds,
            host_seconds=meter.host_seconds,
        )
