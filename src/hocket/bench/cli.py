"""`hocket bench`: options in, reports out. Everything heavy is imported inside the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.bench import options as take
from hocket.errors import ConfigError, HocketError

if TYPE_CHECKING:
    from hocket.bench.conditions import Condition

bench_app = typer.Typer(rich_markup_mode=None, help="Measure speech servers, and the engine by itself.")


@bench_app.command("serve")
@take.takes(take.ServeOptions)
def serve(options: take.ServeOptions) -> None:
    """Load any OpenAI-compatible speech server, and judge every answer by what a listener would hear."""
    from rich.console import Console

    from hocket.bench.conditions import Condition
    from hocket.bench.report import print_report, write_json, write_page
    from hocket.bench.session import bench_serve
    from hocket.bench.summary import figure_names

    conditions = [Condition.parse(text) for text in options.fail_if or []]
    for condition in conditions:
        condition.check_known(figure_names())
    report = bench_serve(options.wishes())
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
    a: Annotated[Path, typer.Argument(metavar="A.json", help="Report of `hocket bench serve --json`: before.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="The other one: after.")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help="Leave with 1 when it holds of a ratio B / A that is no noise: 'ttfa_p95_ms > 1.1'."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Compare two reports: ratios with intervals, and what is noise."""
    from rich.console import Console

    from hocket.bench.compare import compare as compare_reports
    from hocket.bench.compare import differences, print_comparison
    from hocket.bench.conditions import Condition
    from hocket.bench.report import read_report

    conditions = [Condition.parse(text) for text in fail_if or []]
    before, after = read_report(a, "serve"), read_report(b, "serve")
    stages, remarks = compare_reports(before, after), differences(before, after)
    if as_json:
        ratios = {name: {key: ratio._asdict() for key, ratio in found.items()} for name, found in stages.items()}
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
                f"--fail-if: no ratio of {condition.figure!r} here; there is {', '.join(sorted(known))}",
                param="fail_if",
            )
    _leave(
        f"{name}: {condition}, it is {figures[condition.figure][0]:.3f}"
        for name, figures in changed.items()
        for condition in conditions
        if condition.figure in figures and condition.holds(figures[condition.figure][0])
    )


@bench_app.command("isolation")
@take.takes(take.IsolationOptions)
def isolation(options: take.IsolationOptions) -> None:
    """Ask for many texts at once, and check that every answer belongs to its own request.

    Leaves with 0 when nine of ten are known as their own and none as another's, 1 when one is another's, 3 when too few
    were understood to tell.
    """
    from hocket.bench.isolation import bench_isolation, print_isolation
    from hocket.bench.report import write_json

    report = bench_isolation(*options.wishes())
    if options.json_path is not None:
        write_json(options.json_path, report)
    typer.echo(print_isolation(report))
    sys.exit({"isolated": 0, "leak": 1, "unproven": 3}[report["verdict"]])


@bench_app.command("engine")
def engine(
    model: Annotated[
        str,
        typer.Option(
            help="Checkpoint folder; with --random-weights also moss-tts-local-v1.5, qwen3-tts-1.7b, qwen3-tts-0.6b."
        ),
    ],
    codec: Annotated[str | None, typer.Option(help="Codec folder; default: the model's.")] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Only the dimensions are the model's.")
    ] = False,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Closed loop: so many requests are open; default: 1.")
    ] = None,
    open_loop: Annotated[float | None, typer.Option(min=0.001, help="Poisson arrivals a second, instead.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Default: the whole workload, 1,088.")] = None,
    ignore_stop: Annotated[bool, typer.Option(help="Speak exactly as long as the workload says.")] = True,
    profile: Annotated[str, typer.Option(help="default, throughput, latency, cpu, or a YAML file.")] = "default",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, e.g. engine.rows=32.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Same bytes under any load.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; default: the profile's.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16; default: the profile's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of weights, codes, arrivals and requests.")] = 0,
    seeded: Annotated[bool, typer.Option(help="Every request says its seed.")] = True,
    json_path: take.JsonPath = None,
) -> None:
    """Measure the engine by itself: no server, no network, with --random-weights no checkpoint; one line of JSON."""
    from rich.console import Console

    from hocket.bench.engine import CONTEXT_ROWS, EngineWishes, bench_engine, engine_config, engine_table
    from hocket.bench.report import write_json
    from hocket.files import check_replaceable
    from hocket.server.profiles import load_profile, parse_settings

    if clients is not None and open_loop is not None:
        raise ConfigError("give one of --clients and --open-loop")
    clients = 1 if clients is None and open_loop is None else clients
    if json_path is not None:
        check_replaceable(json_path)
    layer = parse_settings(settings or [])
    take.check_engine_settings(layer.values)
    loaded = load_profile(profile, layer)
    # A profile's rows are a server's; here there are as many as clients. The workload needs no long context.
    rows = None if loaded.origins["engine.rows"] == "--set" else clients
    context_rows = CONTEXT_ROWS if loaded.origins["engine.max_context_rows"] == "built in" else None
    figures = bench_engine(
        EngineWishes(
            model=model,
            codec=codec,
            random_weights=random_weights,
            device=device or loaded.profile.device,
            dtype=dtype or loaded.profile.dtype,
            profile=profile,
            config=engine_config(loaded.profile.engine, rows=rows, context_rows=context_rows, strict=strict),
            clients=clients,
            rate=open_loop,
            requests=requests,
            ignore_stop=ignore_stop,
            seed=seed,
            seeded=seeded,
        )
    )
    if json_path is not None:
        write_json(json_path, figures)
    Console(stderr=True).print(engine_table(figures))
    typer.echo(json.dumps(figures))


def _leave_by(conditions: Sequence[Condition], stages: Sequence[Mapping[str, Any]]) -> None:
    """Exit with 1 when a condition holds in a stage, or when no answer at all was good."""
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
