"""A report on the terminal, as JSON, and as a self-contained page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hocket.audio.files import write_atomically
from hocket.bench.faults import FAULTS
from hocket.errors import ConfigError

Report = Mapping[str, Any]

_ROWS = (
    ("audio_s_per_s", "audio seconds a second"),
    ("audio_s_per_s_full", "… with fill and drain"),
    ("requests_per_s", "answers a second"),
    ("ttfa_p50_ms", "first audible sound, ms, p50"),
    ("ttfa_p95_ms", "… p95"),
    ("ttfa_p99_ms", "… p99"),
    ("first_byte_p50_ms", "first byte of audio, ms, p50"),
    ("first_byte_p95_ms", "… p95"),
    ("e2e_p50_ms", "whole answer, ms, p50"),
    ("e2e_p95_ms", "… p95"),
    ("rtf_p50", "real-time factor, p50"),
    ("rtf_p95", "… p95"),
    ("gap_longest_p95_ms", "longest gap between pieces, ms, p95"),
    ("underrun_free", "never stalled, played at once"),
    ("underrun_free_buffered", "… with a start buffer"),
    ("still_p95_ms", "stalled, ms, p95"),
    ("wer", "word error rate"),
    ("cer", "character error rate"),
    ("similarity_mean", "likeness to the reference"),
    ("failures", "failed answers"),
)
_LISTED = 12
#: A lone surrogate from a server is written as its escape, which JSON and scripts read back as the
#: same.
_LONE = "backslashreplace"


def write_json(path: Path, report: Report) -> None:
    """Write `report`. Raises AudioFileError when the file cannot be written."""
    write_atomically(path, json.dumps(report, ensure_ascii=False, indent=1).encode("utf-8", _LONE))


def read_report(path: Path, kind: str) -> dict[str, Any]:
    """Read a report of this `kind`. Raises ConfigError."""
    try:
        report = json.loads(path.read_bytes(), parse_constant=_no_number)
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise ConfigError(f"{str(path)!r} is not JSON; give a report that --json wrote") from None
    if (
        not isinstance(report, dict)
        or report.get("hocket_bench") != 1
        or report.get("kind") != kind
    ):
        raise ConfigError(f"{str(path)!r} is not a report of `hocket bench {kind}`")
    return report


def _no_number(name: str) -> float:
    raise ValueError(name)


def write_page(path: Path, report: Report) -> None:
    """Write the page: the report inside a template that draws it without other files and
    network.
    """
    template = (resources.files("hocket.bench") / "data" / "page.html").read_text(encoding="utf-8")
    # A text with "</script>" or "<!--" must not end the script that carries it.
    data = json.dumps(report, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    data = data.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    write_atomically(path, template.replace("/*REPORT*/null", data).encode("utf-8", _LONE))


def print_report(report: Report, console: Console) -> None:
    """Print figures with their intervals, faults, and the generator's own load."""
    stages = report["stages"]
    config = report["wishes"]
    audio = f"{config['delivery']} {config['format']}"
    console.print(
        f"{config['url']}  {config['dialect']}, {audio}, {config['items']} texts", highlight=False
    )
    console.print(_figures_table(stages))
    for stage in stages:
        _print_faults(stage, console)
        for note in stage["notes"]:
            console.print(f"note: {stage['name']}: {note}", highlight=False)
    _print_worst(stages, console)
    for note in report["notes"]:
        console.print(f"note: {note}", highlight=False)
    floor = report["floor"]
    if floor is not None:
        p50, p95 = (floor[f"first_byte_{level}_ms"] for level in ("p50", "p95"))
        console.print(
            f"the generator alone, {floor['streams']} streams of a stub, "
            f"{floor['megabytes_per_s']:.1f} MB/s: first byte p50 {p50:.1f} ms, p95 {p95:.1f} ms, "
            f"{floor['cores']:.2f} cores",
            highlight=False,
        )


def format_figure(value: float) -> str:
    """Format with three significant digits."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def _figures_table(stages: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("")
    for stage in stages:
        table.add_column(stage["name"], justify="right")
    for name, label in _ROWS:
        if any(name in stage["figures"] for stage in stages):
            table.add_row(label, *(_cell(stage["figures"].get(name)) for stage in stages))
    if any(stage["server_first_audio_ms"] for stage in stages):
        for key in ("p50", "p95"):
            cells = [(stage["server_first_audio_ms"] or {}).get(key) for stage in stages]
            table.add_row(
                f"the server's own first audio, ms, {key}",
                *("" if c is None else format_figure(c) for c in cells),
            )
    for key, label in (("cores", "the generator: cores"), ("lag_p99_ms", "… late by, ms, p99")):
        table.add_row(label, *(format_figure(stage["generator"][key]) for stage in stages))
    return table


def _cell(figure: Sequence[float] | None) -> str:
    if figure is None:
        return ""
    value, low, high = figure
    return (
        format_figure(value)
        if low == high
        else f"{format_figure(value)}  [{format_figure(low)}, {format_figure(high)}]"
    )


def _print_faults(stage: Mapping[str, Any], console: Console) -> None:
    failed = [request for request in stage["requests"] if request["faults"]]
    if not failed:
        return
    console.print(
        f"FAIL: {stage['name']}: {len(failed)} of {len(stage['requests'])} answers",
        style="red",
        highlight=False,
    )
    counts = {
        name[6:]: int(figure[0])
        for name, figure in stage["figures"].items()
        if name.startswith("fault_")
    }
    counts.pop("status", None)  # the sum of all status_NNN
    for kind, count in sorted(counts.items(), key=lambda item: -item[1]):
        console.print(
            f"  {count:5d}  {kind}: {FAULTS.get(kind, FAULTS['status'])}",
            highlight=False,
            markup=False,
        )
    for request in failed[:_LISTED]:
        told = "; ".join(f"{fault['kind']} ({fault['detail']})" for fault in request["faults"])
        console.print(
            f"  request {request['index']} ({request['item']['id']}): {told}",
            highlight=False,
            markup=False,
        )
    if len(failed) > _LISTED:
        console.print(f"  and {len(failed) - _LISTED} more in the report", highlight=False)


def _print_worst(stages: Sequence[Mapping[str, Any]], console: Console) -> None:
    heard = [
        request for stage in stages for request in stage["requests"] if request.get("word_errors")
    ]
    heard.sort(key=lambda request: request["word_errors"] / request["words"], reverse=True)
    for request in heard[:3]:
        console.print(
            f"worst words, request {request['index']}: said {request['item']['text'][:80]!r}, "
            f"heard {request['heard_text'][:80]!r}",
            highlight=False,
            markup=False,
        )
