"""Metrics for Prometheus. The engine's own are read at each scrape."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hocket.core import FinishReason
from hocket.worker.messages import Stats
from hocket.worker.pool import WorkerStatus

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5)
#: Shortest stall that a listener notices.
_UNDERRUN_SECONDS = 0.1


class Metrics:
    """The metrics of one app, in a registry of its own, so that a process can hold several apps."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "hocket_requests", "Answers", ["route", "status"], registry=registry
        )
        self.errors = Counter(
            "hocket_errors", "Requests that failed, by error code", ["code"], registry=registry
        )
        self._finishes = Counter(
            "hocket_finished", "Speeches, by how they ended", ["reason"], registry=registry
        )
        self._first_audio = Histogram(
            "hocket_first_audio_seconds",
            "From the arrival of a request to its first audio",
            buckets=_SECONDS,
            registry=registry,
        )
        self._lateness = Histogram(
            "hocket_chunk_lateness_seconds",
            "Longest stall of a player that starts with the first audio",
            buckets=_SECONDS,
            registry=registry,
        )
        self._underruns = Counter(
            "hocket_underruns", "Speeches with a stall over 100 ms", registry=registry
        )
        self._rtf = Histogram(
            "hocket_rtf", "Time taken over length of the audio", buckets=_RATIOS, registry=registry
        )
        self._audio_seconds = Counter("hocket_audio_seconds", "Audio made", registry=registry)
        self._frames = Counter("hocket_frames", "Frames made", registry=registry)
        self._open = Gauge("hocket_open_requests", "Requests that hold a slot", registry=registry)
        self._refused = Gauge(
            "hocket_refused_requests", "Requests refused for lack of a slot", registry=registry
        )
        self._ready = Gauge("hocket_ready", "1 while requests are served", registry=registry)
        self._engine = Gauge(
            "hocket_engine", "The engines' numbers", ["worker", "name"], registry=registry
        )

    def first_audio(self, seconds: float) -> None:
        """Record the first audio of a request, `seconds` after its arrival."""
        self._first_audio.observe(seconds)

    def segment_ended(self, reason: FinishReason, late_seconds: float, frames: int) -> None:
        """Record the end of one text."""
        self._finishes.labels(reason).inc()
        self._lateness.observe(late_seconds)
        self._frames.inc(frames)
        if late_seconds > _UNDERRUN_SECONDS:
            self._underruns.inc()

    def speech_ended(self, audio_seconds: float, taken_seconds: float) -> None:
        """Record the end of a request, whether it got all of its audio or not."""
        self._audio_seconds.inc(audio_seconds)
        if audio_seconds:
            self._rtf.observe(taken_seconds / audio_seconds)

    def page(
        self,
        *,
        ready: bool,
        open_requests: int,
        refused: int,
        workers: Sequence[WorkerStatus],
        stats: Sequence[Stats | None],
    ) -> bytes:
        """All metrics in Prometheus' text format.

        `stats` has an entry per worker, None while it has no engine.
        """
        self._ready.set(ready)
        self._open.set(open_requests)
        self._refused.set(refused)
        self._engine.clear()
        for i, (worker, numbers) in enumerate(zip(workers, stats, strict=True)):
            self._engine.labels(str(i), "ready").set(worker.state == "ready")
            for name, value in ({} if numbers is None else _numbers(numbers)).items():
                self._engine.labels(str(i), name).set(value)
        return generate_latest(self._registry)


def _numbers(stats: Stats) -> dict[str, float]:
    engine, scheduler = stats.engine, stats.engine.scheduler
    return {
        "rows_waiting": scheduler.waiting,
        "rows_prefilling": scheduler.prefilling,
        "rows_running": scheduler.running,
        "rows_free": scheduler.rows_free,
        "pages_free": scheduler.pages_free,
        "pages_kept": scheduler.pages_kept,
        "prefix_hit_rows": scheduler.prefix_hit_rows,
        "prefix_miss_rows": scheduler.prefix_miss_rows,
        "prefix_evictions": scheduler.prefix_evictions,
        "preemptions": scheduler.preemptions,
        "reference_hits": engine.reference_hits,
        "reference_misses": engine.reference_misses,
        "references_preparing": engine.preparing,
        "mean_frame_rows": engine.mean_frame_rows,
        "mean_decode_rows": engine.mean_decode_rows,
        "steps": engine.steps,
        "front_ends": stats.front_ends,
        "open_requests": stats.open_requests,
    }
