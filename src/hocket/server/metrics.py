"""Metrics for Prometheus. Slots and the engines' numbers are read at each scrape.

Several HTTP processes of one server count in files of one folder, `Metrics.folder`, so that a page
of any of them has the sums, those of processes that have died included. That is prometheus_client's
multiprocess mode, which a process is in if PROMETHEUS_MULTIPROC_DIR is set when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from hocket.core import FinishReason
from hocket.server.admission import SlotCounts
from hocket.worker.messages import Stats
from hocket.worker.pool import WorkerStatus

_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 5)
#: Shortest stall that a listener notices.
_UNDERRUN_SECONDS = 0.1


class Metrics:
    """The metrics of one app, in a registry of its own, so that a process can hold several apps."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder`: where this and the other HTTP processes count; None: there are no others."""
        registry = CollectorRegistry()
        self._counted: Collector = (
            registry if folder is None else MultiProcessCollector(None, str(folder))  # type: ignore[no-untyped-call]
        )
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
        self._references = Gauge(
            "hocket_references",
            "Recordings of requests: known (hits), and new ones (misses)",
            ["name"],
            registry=registry,
            multiprocess_mode="sum",
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

    def note_references(self, hits: int, misses: int) -> None:
        """Record how many recordings this process has found known and new so far."""
        self._references.labels("hits").set(hits)
        self._references.labels("misses").set(misses)

    def page(
        self,
        *,
        ready: bool,
        slots: SlotCounts,
        references: tuple[int, int],
        workers: Sequence[WorkerStatus],
        stats: Sequence[Stats | None],
    ) -> bytes:
        """All metrics in Prometheus' text format.

        `references` are this process' hits and misses. `stats` has an entry per worker, None while
        it has no engine.
        """
        self.note_references(*references)
        now = _Now(ready, slots, workers, stats)
        return generate_latest(self._counted) + generate_latest(now)


@dataclass(frozen=True, slots=True)
class _Now(Collector):
    """The gauges: how things stand at a scrape."""

    ready: bool
    slots: SlotCounts
    workers: Sequence[WorkerStatus]
    stats: Sequence[Stats | None]

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "hocket_open_requests", "Requests that hold a slot", self.slots.open
        )
        yield GaugeMetricFamily(
            "hocket_refused_requests", "Requests refused for lack of a slot", self.slots.refused
        )
        yield GaugeMetricFamily("hocket_ready", "1 while requests are served", self.ready)
        engine = GaugeMetricFamily(
            "hocket_engine", "The engines' numbers", labels=["worker", "name"]
        )
        for i, (worker, numbers) in enumerate(zip(self.workers, self.stats, strict=True)):
            engine.add_metric([str(i), "ready"], worker.state == "ready")
            for name, value in ({} if numbers is None else _numbers(numbers)).items():
                engine.add_metric([str(i), name], value)
        yield engine


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
        "references_preparing": engine.preparing,
        "mean_frame_rows": engine.mean_frame_rows,
        "mean_decode_rows": engine.mean_decode_rows,
        "steps": engine.steps,
        "front_ends": stats.front_ends,
        "open_requests": stats.open_requests,
    }
