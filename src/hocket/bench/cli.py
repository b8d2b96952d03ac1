"""`hocket bench`: options in, reports out. Heavy modules are imported inside the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.bench.options import EngineOptions, IsolationOptions, ServeOptions, with_options
from hocket.errors import ConfigError, HocketError

if TYPE_CHECKING:
    from hocket.bench.report.conditions import Condition

bench_app = typer.Typer(
    rich_markup_mode=None, help="Measure speech servers, and the engine by itself."
)


@bench_app.command("serve")
@with_options(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Load any OpenAI-compatible speech server, and judge every answer as a listener would."""
    from rich.console import Console

    from hocket.bench.report.conditions import Condition
    from hocket.bench.report.report import print_report, write_json, write_page
    from hocket.bench.report.statistics import figure_names
    from hocket.bench.serve import bench_serve

    conditions = [Condition.parse(text) for text in options.fail_if or []]
    for condition in conditions:
        condition.check_known(figure_names())
    report = bench_serve(options.run_config())
    if options.json_path is not None:
        write_json(options.json_path, report)
    if options.html is not None:
        write_page(options.html, report)
    print_report(report, Console())
    if report["unjudged"]:
        raise HocketError(report["unjudged"])
    _leave_by(conditions, report["stages"])


@bench_app.command("compare")
def compare(
    a: Annotated[
        Path,
        typer.Argument(metavar="A.json", help="Report of `hocket bench serve --json`: before."),
    ],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="The report to compare: after.")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            help="Exit with 1 when a ratio B / A beyond noise does this: 'ttfa_p95_ms > 1.1'."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Compare two reports: ratios with intervals, and which of them are noise."""
    from rich.console import Console

    from hocket.bench.report.compare import compare as compare_reports
    from hocket.bench.report.compare import differences, print_comparison
    from hocket.bench.report.conditions import Condition
    from hocket.bench.report.report import read_report

    conditions = [Condition.parse(text) for text in fail_if or []]
    before, after = read_report(a, "serve"), read_report(b, "serve")
    stages, remarks = compare_reports(before, after), differences(before, after)
    if as_json:
        ratios = {
            name: {key: ratio._asdict() for key, ratio in found.items()}
            for name, found in stages.items()
        }
        typer.echo(json.dumps({"stages": ratios, "remarks": remarks}))
    else:
        print_comparison(stages, remarks, Console())
    changed = {
        name: {key: [ratio.ratio] for key, ratio in found.items() if ratio.verdict != "noise"}
        for name, found in stages.items()
    }
    known = {key for found in stages.values() for key in found}
    for condition in conditions:
        if condition.figure not in known:
            raise ConfigError(
                f"--fail-if: no ratio of {condition.figure!r}; there is {', '.join(sorted(known))}",
                param="fail_if",
            )
    _leave(
        f"{name}: {condition}, it is {figures[condition.figure][0]:.3f}"
        for name, figures in changed.items()
        for condition in conditions
        if condition.figure in figures and condition.holds(figures[condition.figure][0])
    )


@bench_app.command("isolation")
@with_options(IsolationOptions)
def isolation(options: IsolationOptions) -> None:
    """Send many texts at once, and check that every answer belongs to its own request.

    Exits with 0 when nine of ten answers match their own request and none matches another, with 1
    when an answer matches another request, with 3 when too few were understood.
    """
    from hocket.bench.isolation import bench_isolation, print_isolation
    from hocket.bench.report.report import write_json

    report = bench_isolation(*options.run_config())
    if options.json_path is not None:
        write_json(options.json_path, report)
    typer.echo(print_isolation(report))
    sys.exit({"isolated": 0, "leak": 1, "unproven": 3}[report["verdict"]])


@bench_app.command("engine")
@with_options(EngineOptions)
def engine(options: EngineOptions) -> None:
    """Measure the engine alone, without server, network and (with --random-weights) checkpoint;
    prints JSON.
    """
    from rich.console import Console

    from hocket.bench.engine.bench import bench_engine, engine_table
    from hocket.bench.report.report import write_json

    figures = bench_engine(options.run_config())
    if options.json_path is not None:
        write_json(options.json_path, figures)
    Console(stderr=True).print(engine_table(figures))
    typer.echo(json.dumps(figures))


def _leave_by(conditions: Sequence[Condition], stages: Sequence[Mapping[str, Any]]) -> None:
    """Exit with 1 when a condition holds in a stage, or when a stage has no good answer."""
    failed = []
    for stage in stages:
        figures = stage["figures"]
        if figures["failures"][0] == figures["requests"][0]:
            failed.append(f"{stage['name']}: no answer was good")
            continue
        for condition in conditions:
            if condition.figure not in figures and not condition.figure.startswith("fault_"):
                failed.append(f"{stage['name']}: {condition}, but nothing measured it")
                continue
            value = figures.get(condition.figure, [0.0])[0]  # faults that never occurred count 0
            if condition.holds(value):
                failed.append(f"{stage['name']}: {condition}, it is {value:g}")
    _leave(failed)


def _leave(failed: Any) -> None:
    lines = list(failed)
    for line in lines:
        typer.echo(f"FAILED: {line}", err=True)
    if lines:
        sys.exit(1)
