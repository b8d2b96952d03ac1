"""The server's own metrics: `/metrics` in Prometheus' text format, before and after a stage."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from hocket.bench.http import Target, page

#: Histograms of the time to first audio, as several servers name them.
FIRST_AUDIO = (
    "hocket_first_audio_seconds",
    "vllm:time_to_first_token_seconds",
    "sglang:time_to_first_token_seconds",
)


@dataclass(slots=True)
class Scrape:
    """Counters and histograms at one moment, summed over labels."""

    counters: dict[str, float] = field(default_factory=dict)
    #: Histograms by name: cumulative counts by upper edge, then sum and count.
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)


async def scrape(target: Target) -> Scrape | None:
    """Read `/metrics`; None where there is no such page."""
    text = await page(target, "/metrics")
    try:
        return None if text is None else _parse(text.decode("utf-8", "replace"))
    except (ValueError, KeyError, IndexError):  # the parser raises these for other formats
        return None


def difference(before: Scrape | None, after: Scrape | None) -> dict[str, Any] | None:
    """Changes between two scrapes: counters, and count, mean, p50 and p95 of each histogram."""
    if before is None or after is None:
        return None
    counters = {
        name: value - before.counters.get(name, 0.0) for name, value in after.counters.items()
    }
    histograms = {}
    for name, count in after.counts.items():
        new = count - before.counts.get(name, 0.0)
        if new <= 0.0:
            continue
        old = before.buckets.get(name, {})
        edges = {
            edge: total - old.get(edge, 0.0) for edge, total in after.buckets.get(name, {}).items()
        }
        histograms[name] = {
            "count": new,
            "mean": (after.sums.get(name, 0.0) - before.sums.get(name, 0.0)) / new,
            "p50": _quantile(edges, 0.50),
            "p95": _quantile(edges, 0.95),
        }
    return {
        "counters": {name: value for name, value in counters.items() if value},
        "histograms": histograms,
    }


def first_audio(metrics: dict[str, Any] | None) -> dict[str, float] | None:
    """Time to first audio in milliseconds, from the server's histogram; None without one."""
    for name in FIRST_AUDIO:
        found = (metrics or {}).get("histograms", {}).get(name)
        if found is not None:
            return {
                key: value if key == "count" else 1e3 * value
                for key, value in found.items()
                if value is not None
            }
    return None


def _parse(text: str) -> Scrape:
    result = Scrape()
    counters: defaultdict[str, float] = defaultdict(float)
    sums: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, float] = defaultdict(float)
    buckets: defaultdict[str, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not math.isfinite(sample.value) or sample.name.endswith("_created"):
                continue
            if family.type == "counter":
                counters[family.name] += sample.value
            elif family.type in {"histogram", "summary"}:
                if sample.name.endswith("_bucket"):
                    buckets[family.name][float(sample.labels["le"])] += sample.value
                elif sample.name.endswith("_sum"):
                    sums[family.name] += sample.value
                elif sample.name.endswith("_count"):
                    counts[family.name] += sample.value
    result.counters, result.sums, result.counts = dict(counters), dict(sums), dict(counts)
    result.buckets = {name: dict(edges) for name, edges in buckets.items()}
    return result


def _quantile(edges: dict[float, float], share: float) -> float | None:
    """Interpolate linearly inside the bucket; None without buckets, or above the last edge."""
    ordered = sorted(edges.items())
    if not ordered or ordered[-1][1] <= 0.0:
        return None
    wanted = share * ordered[-1][1]
    low_edge = low_count = 0.0
    for edge, count in ordered:
        if count >= wanted:
            if math.isinf(edge):
                return None
            return low_edge + (edge - low_edge) * (wanted - low_count) / max(
                count - low_count, 1e-9
            )
        low_edge, low_count = edge, count
    return None
