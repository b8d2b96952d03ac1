"""Comparison of two reports: ratios with intervals, and whether a difference exceeds noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from hocket.bench.report.report import format_figure
from hocket.bench.report.statistics import draws_of, more_is_better
from hocket.errors import ConfigError

_INTERVAL = (2.5, 97.5)
#: Figures that are compared when both reports have them.
_FIGURES = (
    "success_rate",
    "audio_s_per_s",
    "requests_per_s",
    "ttfa_mean_ms",
    "ttfa_p50_ms",
    "ttfa_p95_ms",
    "ttfa_p99_ms",
    "first_byte_p50_ms",
    "first_byte_p95_ms",
    "e2e_p50_ms",
    "e2e_p95_ms",
    "rtf_p50",
    "rtf_p95",
    "gap_longest_p95_ms",
    "still_p95_ms",
    "underrun_free",
    "underrun_free_buffered",
    "wer",
    "cer",
    "similarity_mean",
)
#: Labels of the conditions that must be equal for two reports to be comparable.
_CONDITIONS = {
    ("host", "cpu"): "client processor",
    ("host", "gpus"): "GPUs of the client's machine",
    ("wishes", "delivery"): "delivery",
    ("wishes", "format"): "format",
    ("wishes", "dialect"): "dialect",
    ("wishes", "model"): "model",
    ("wishes", "extra"): "fields of the requests",
    ("wishes", "limits"): "limits",
    ("wishes", "recogniser"): "recogniser",
    ("wishes", "max_cer"): "--max-cer",
    ("wishes", "speaker_model"): "speaker model",
    ("wishes", "min_similarity"): "--min-similarity",
    ("seeds", "order_and_arrivals"): "seed",
    ("seeds", "requests"): "seed of the requests",
}


class Ratio(NamedTuple):
    """B over A, its 95 % interval, and the verdict: "better", "worse" or "noise"."""

    a: float
    b: float
    ratio: float
    low: float
    high: float
    verdict: str


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Ratio]]:
    """Ratios by stage and figure. Stages are matched by their load.

    Raises ConfigError when none matches, and for incomplete reports.
    """
    try:
        return _compare(a, b)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConfigError(
            f"one of the reports is not as --json wrote it ({type(error).__name__}: {error})"
        ) from None


def _compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, dict[str, Ratio]]:
    stages_b = {stage["name"]: stage for stage in b["stages"]}
    matched = [
        (stage, stages_b[stage["name"]]) for stage in a["stages"] if stage["name"] in stages_b
    ]
    if not matched:
        loads = [", ".join(stage["name"] for stage in report["stages"]) for report in (a, b)]
        raise ConfigError(f"the reports have no load in common: {loads[0]} against {loads[1]}")
    return {stage_a["name"]: _ratios(stage_a, stage_b) for stage_a, stage_b in matched}


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Conditions, other than the server, that differ."""
    found = []
    for (section, key), label in _CONDITIONS.items():
        left, right = (report.get(section, {}).get(key) for report in (a, b))
        if left != right:
            found.append(f"{label}: {left} against {right}")
    texts = [
        {request["item"]["text"] for stage in report["stages"] for request in stage["requests"]}
        for report in (a, b)
    ]
    if texts[0] != texts[1]:
        found.append("the texts are not the same")
    return found


def print_comparison(
    stages: Mapping[str, Mapping[str, Ratio]], remarks: list[str], console: Console
) -> None:
    """Print one table for each load."""
    for name, ratios in stages.items():
        table = Table(title=name, title_justify="left", show_edge=False, pad_edge=False)
        for column in ("", "A", "B", "B / A", "95 %", ""):
            table.add_column(column, justify="left" if column == "" else "right")
        for figure, found in ratios.items():
            interval = f"{found.low:.3f} to {found.high:.3f}"
            table.add_row(
                figure,
                format_figure(found.a),
                format_figure(found.b),
                f"{found.ratio:.3f}",
                interval,
                found.verdict,
            )
        console.print(table)
    for remark in remarks:
        console.print(f"note: {remark}", highlight=False, markup=False)


def _ratios(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Ratio]:
    # The seeds differ, so that equal reports do not agree by construction.
    draws_a, draws_b = draws_of(a, 1), draws_of(b, 2)
    found = {}
    for name in _FIGURES:
        if name not in draws_a or name not in draws_b:
            continue
        (value_a, of_a), (value_b, of_b) = draws_a[name], draws_b[name]
        if value_a == 0.0 or (of_a <= 0.0).mean() > 0.01:  # a ratio to zero is undefined
            continue
        usable = of_a > 0.0
        low, high = np.percentile(of_b[usable] / of_a[usable], _INTERVAL)
        verdict = "noise"
        if not low <= 1.0 <= high:
            verdict = "better" if (low > 1.0) == more_is_better(name) else "worse"
        found[name] = Ratio(value_a, value_b, value_b / value_a, float(low), float(high), verdict)
    return found
