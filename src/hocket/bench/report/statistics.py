"""The figures of a stage, each with its 95 % interval by bootstrap over requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.bench.faults import SLOW

DRAWS = 1000
_INTERVAL = (2.5, 97.5)
#: Number of bins of the steady window, for throughput.
BINS = 20
#: A shorter stall is inaudible.
_UNDERRUN_MS = 10.0
_BATCH = 50

Draws = NDArray[np.float64]
#: A request as a report has it (`Outcome.as_json`).
Request = Mapping[str, Any]


class Figure(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


_TIMES = {
    "first_byte": "first_byte_ms",
    "ttfa": "ttfa_ms",
    "e2e": "e2e_ms",
    "rtf": "rtf",
    "gap_longest": "gap_longest_ms",
    "gap_median": "gap_median_ms",
    "still": "still_ms",
    "still_buffered": "still_buffered_ms",
    "connect": "connect_ms",
}
_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
#: Prefixes of figures that are better when larger.
_MORE_IS_BETTER = ("success_rate", "requests_per_s", "audio_s_per_s", "underrun_free", "similarity")


def more_is_better(name: str) -> bool:
    """Whether a larger value of this figure is better."""
    return name.startswith(_MORE_IS_BETTER)


def figure_names() -> set[str]:
    """Every figure that a stage can have, without those of faults."""
    statistics = {
        f"{name}_{level}{'' if key == 'rtf' else '_ms'}"
        for name, key in _TIMES.items()
        for level in ("mean", *_PERCENTILES)
    }
    return statistics | {
        *(
            "underrun_free",
            "underrun_free_buffered",
            "success_rate",
            "wer",
            "cer",
            "similarity_mean",
        ),
        *("requests_per_s", "audio_s_per_s", "requests_per_s_full", "audio_s_per_s_full"),
        *("requests", "failures", "failure_rate"),
    }


def draws_of(stage: Mapping[str, Any], seed: int) -> dict[str, tuple[float, Draws]]:
    """The value and `DRAWS` bootstrap replicates of every figure of a stage."""
    rng = np.random.default_rng(seed)
    requests = counted(stage["requests"])
    figures: dict[str, tuple[float, Draws]] = {}
    for name, key in _TIMES.items():
        values = np.array(
            [request[key] for request in requests if request.get(key) is not None], np.float64
        )
        if len(values):
            figures |= _statistics(name, "" if key == "rtf" else "_ms", values, rng)
    if requests and any("still_ms" in request for request in requests):
        for name, key in (
            ("underrun_free", "still_ms"),
            ("underrun_free_buffered", "still_buffered_ms"),
        ):
            free = np.array(
                [request.get(key, 0.0) < _UNDERRUN_MS for request in requests], np.float64
            )
            figures[name] = _resampled(free, lambda batch: batch.mean(axis=1), rng)
    if stage["requests"]:
        right = np.array([not request["faults"] for request in stage["requests"]], np.float64)
        figures["success_rate"] = _resampled(right, lambda batch: batch.mean(axis=1), rng)
    # All requests count: those that failed by their words or their voice are the errors.
    figures |= _error_rates(stage["requests"], rng)
    alike = [request["similarity"] for request in stage["requests"] if "similarity" in request]
    similarities = np.array(alike, np.float64)
    if len(similarities):
        figures["similarity_mean"] = _resampled(similarities, lambda batch: batch.mean(axis=1), rng)
    timeline = stage["timeline"]
    for name, series in (("requests_per_s", "answers"), ("audio_s_per_s", "audio_seconds")):
        per_bin = (
            np.array(timeline[f"steady_{series}"], np.float64) / timeline["steady_bin_seconds"]
        )
        figures[name] = _resampled(per_bin, lambda batch: batch.mean(axis=1), rng)
    return figures


def figures_of(stage: Mapping[str, Any], seed: int) -> dict[str, Figure]:
    """Every figure of a stage with its interval."""
    return {
        name: Figure(value, *(float(edge) for edge in np.percentile(draws, _INTERVAL)))
        for name, (value, draws) in draws_of(stage, seed).items()
    } | {name: Figure(value, value, value) for name, value in _counts(stage).items()}


def counted(requests: Sequence[Request]) -> list[Request]:
    """Requests that latencies come from: right and steady ones, or all right ones where none was
    steady.
    """
    good = [request for request in requests if is_right(request)]
    return [request for request in good if request["phase"] == "steady"] or good


def is_right(request: Request) -> bool:
    """Whether the answer is right, however late."""
    return all(fault["kind"] in SLOW for fault in request["faults"])


def timeline_of(
    requests: Sequence[Request], began_to_window: tuple[float, float], seconds: float
) -> dict[str, Any]:
    """Answers and seconds of audio over time: the whole stage for the plot, its steady window for
    the figures.

    Times count from the start of the stage. Only right answers count, and their audio counts when
    it arrives.
    """
    good = [request for request in requests if is_right(request)]
    ends = [request["ended_at"] for request in good]
    arrivals: list[tuple[float, float]] = []
    for request in good:
        before = 0.0
        for at_ms, there in request["marks"]:
            arrivals.append((request["due_at"] + at_ms / 1e3, there - before))
            before = there
    times = np.array([at for at, _ in arrivals])
    audio = np.array([length for _, length in arrivals])
    width = max(0.1, seconds / 60)
    edges = np.arange(0.0, seconds + width, width)
    first, last = began_to_window
    steady = np.linspace(first, max(last, first + 1e-3), BINS + 1)
    opens = np.array([request["due_at"] for request in requests])
    closes = np.array([request["ended_at"] for request in requests])
    middles = (edges[:-1] + edges[1:]) / 2
    return {
        "bin_seconds": round(width, 4),
        "audio_seconds": [round(float(x), 3) for x in np.histogram(times, edges, weights=audio)[0]],
        "answers": [int(x) for x in np.histogram(ends, edges)[0]],
        "open": [int(((opens <= at) & (closes > at)).sum()) for at in middles],
        "steady_window": [round(first, 3), round(last, 3)],
        "steady_bin_seconds": float(steady[1] - steady[0]),
        "steady_audio_seconds": [
            round(float(x), 4) for x in np.histogram(times, steady, weights=audio)[0]
        ],
        "steady_answers": [int(x) for x in np.histogram(ends, steady)[0]],
        "seconds": round(seconds, 4),
    }


def fault_counts(requests: Sequence[Request]) -> dict[str, int]:
    """Failed requests by kind of fault; one with two kinds counts twice. `status` sums all
    `status_NNN`.
    """
    kinds = [{fault["kind"] for fault in request["faults"]} for request in requests]
    statuses = sum(any(kind.startswith("status_") for kind in found) for found in kinds)
    return {
        **Counter(kind for found in kinds for kind in found),
        **({"status": statuses} if statuses else {}),
    }


def _counts(stage: Mapping[str, Any]) -> dict[str, float]:
    requests, timeline = stage["requests"], stage["timeline"]
    failed = sum(bool(request["faults"]) for request in requests)
    right = [request for request in requests if is_right(request)]
    return {
        "requests": float(len(requests)),
        "failures": float(failed),
        "failure_rate": failed / max(1, len(requests)),
        "requests_per_s_full": len(right) / timeline["seconds"],
        "audio_s_per_s_full": sum(request["seconds"] for request in right) / timeline["seconds"],
        **{f"fault_{kind}": float(count) for kind, count in fault_counts(requests).items()},
    }


def _statistics(
    name: str, unit: str, values: Draws, rng: np.random.Generator
) -> dict[str, tuple[float, Draws]]:
    levels = list(_PERCENTILES.values())
    found = {f"{name}_mean{unit}": _resampled(values, lambda batch: batch.mean(axis=1), rng)}
    draws_PN = _replicates(values, lambda batch: np.percentile(batch, levels, axis=1).T, rng).T
    points = np.percentile(values, levels)
    for level, point, draws in zip(_PERCENTILES, points, draws_PN, strict=True):
        found[f"{name}_{level}{unit}"] = (float(point), draws)
    return found


def _error_rates(
    requests: Sequence[Request], rng: np.random.Generator
) -> dict[str, tuple[float, Draws]]:
    """Error rates over all texts, with requests resampled."""
    found = {}
    for name, errors, total in (
        ("wer", "word_errors", "words"),
        ("cer", "character_errors", "characters"),
    ):
        pairs = np.array([(r[errors], r[total]) for r in requests if r.get(total)], np.float64)
        if len(pairs):
            index = rng.integers(len(pairs), size=(DRAWS, len(pairs)))
            sums = pairs[index].sum(axis=1)
            found[name] = (float(pairs[:, 0].sum() / pairs[:, 1].sum()), sums[:, 0] / sums[:, 1])
    return found


def _resampled(
    values: Draws, statistic: Callable[[Draws], Draws], rng: np.random.Generator
) -> tuple[float, Draws]:
    return float(statistic(values[None])[0]), _replicates(values, statistic, rng)


def _replicates(
    values: Draws, statistic: Callable[[Draws], Draws], rng: np.random.Generator
) -> Draws:
    """`statistic` of `DRAWS` resamples of `values`, in batches that bound memory."""
    parts = [
        statistic(values[rng.integers(len(values), size=(_BATCH, len(values)))])
        for _ in range(0, DRAWS, _BATCH)
    ]
    return np.concatenate(parts)
