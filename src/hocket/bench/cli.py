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
    from hocket.bench.load import Load

bench_app = typer.Typer(rich_markup_mode=None, help="Measure speech servers, and the engine by itself.")


@bench_app.command("serve")
def serve(
    base_url: take.BaseUrl,
    path: take.DatasetPath = None,
    dialect: take.DialectName = "hocket",
    dataset: take.Dataset = "plain",
    limit: take.Limit = None,
    shuffle: Annotated[bool, typer.Option(help="Shuffle the texts, by --seed.")] = True,
    references: take.References = True,
    voice: take.Voices = None,
    model: take.ModelName = None,
    clients: Annotated[int | None, typer.Option(min=1, help="Closed loop: so many ask again and again.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Open loop: requests a second, answers or not.")] = None,
    ramp: Annotated[str | None, typer.Option(help="Stages: clients 1,2,4 or rates 1/s,2/s.")] = None,
    arrivals: Annotated[str, typer.Option(help="Of an open loop: poisson or constant.")] = "poisson",
    requests: Annotated[
        int | None, typer.Option(min=1, help="In each stage; default: enough for a steady state.")
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Requests before the clock starts.")] = 2,
    delivery: take.DeliveryName = "raw",
    response_format: take.ResponseFormat = "pcm",
    request_seed: Annotated[int | None, typer.Option(min=0, help="Request i is sent with this seed + i.")] = None,
    body: take.Body = None,
    api_key: take.ApiKey = None,
    timeout: take.Timeout = 120.0,
    seed: take.Seed = 0,
    pcm_rate: take.PcmRate = None,
    pcm_channels: take.PcmChannels = 1,
    expect: Annotated[str | None, typer.Option(help="Rate and channels that are right: 48000x2.")] = None,
    buffer_ms: Annotated[float, typer.Option(min=0, help="Start buffer of the second player.")] = 200.0,
    stall_seconds: Annotated[float, typer.Option(min=0, help="A player that stands still for longer fails.")] = 2.0,
    max_silence_seconds: Annotated[float, typer.Option(min=0, help="A longer silence fails.")] = 3.0,
    max_clipped: Annotated[float, typer.Option(min=0, help="A larger share of samples at full scale fails.")] = 0.001,
    ignore_length: Annotated[bool, typer.Option("--ignore-length", help="Do not judge lengths by the texts.")] = False,
    transcribe: Annotated[bool, typer.Option("--transcribe", help="Recognise the words and count errors.")] = False,
    recogniser: take.RecogniserName = "base",
    recogniser_model: take.RecogniserModel = "whisper-1",
    recogniser_api_key: take.RecogniserKey = None,
    max_cer: Annotated[float, typer.Option(min=0, help="A larger share of wrong characters fails.")] = 0.5,
    similarity: Annotated[bool, typer.Option("--similarity", help="Compare the speaker to the reference.")] = False,
    speaker_model: take.SpeakerModelName = "resemblyzer",
    min_similarity: Annotated[float | None, typer.Option(help="Less alike fails.")] = None,
    probe: Annotated[bool, typer.Option(help="Ask for one WAV file first, to check the rate of raw samples.")] = True,
    floor: Annotated[bool, typer.Option(help="Measure the generator against a stub first.")] = True,
    json_path: take.JsonPath = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page with plots here, and audio worth hearing beside it.")
    ] = None,
    keep_audio: Annotated[int, typer.Option(min=0, help="Failures, and worst cases, kept to be heard.")] = 10,
    fail_if: take.FailIf = None,
) -> None:
    """Load any OpenAI-compatible speech server, and judge every answer by what a listener would hear."""
    from rich.console import Console

    from hocket.bench.conditions import Condition
    from hocket.bench.judge import Limits
    from hocket.bench.report import print_report, write_json, write_page
    from hocket.bench.session import bench_serve
    from hocket.bench.similarity import load_speaker_model
    from hocket.bench.summary import figure_names
    from hocket.bench.transcribe import load_recogniser
    from hocket.bench.wishes import Wishes
    from hocket.files import check_replaceable

    conditions = [Condition.parse(text) for text in fail_if or []]
    for condition in conditions:
        condition.check_known(figure_names())
    asked = take.request_fields(
        base_url=base_url,
        dialect=dialect,
        dataset=dataset,
        path=path,
        limit=limit,
        order_seed=seed if shuffle else None,
        references=references,
        voice=voice,
        delivery=delivery,
        response_format=response_format,
        body=body,
        api_key=api_key,
        pcm=(pcm_rate, pcm_channels),
    )
    for output in (json_path, html):
        if output is not None:
            check_replaceable(output)
    kept_beside = html or json_path
    audio_folder = None if kept_beside is None else kept_beside.with_name(f"{kept_beside.stem}_audio")
    if json_path is not None and html is not None and json_path.resolve() == html.resolve():
        raise ConfigError("--json and --html name the same file; give two", param="html")
    if audio_folder is not None and audio_folder.exists() and not audio_folder.is_dir():
        raise ConfigError(f"{str(audio_folder)!r} is no folder; audio is kept there, so name the report otherwise")
    wishes = Wishes(
        **asked,
        loads=_loads(clients, rate, ramp, requests, arrivals),
        model=model,
        request_seed=request_seed,
        seed=seed,
        warmup=warmup,
        timeout_seconds=timeout,
        limits=Limits(
            max_silence_seconds=max_silence_seconds,
            max_clipped=max_clipped,
            stall_seconds=stall_seconds,
            buffer_seconds=buffer_ms / 1e3,
            check_length=not ignore_length,
            shape=take.parse_shape(expect),
        ),
        has_probe=probe,
        has_floor=floor,
        recogniser=load_recogniser(recogniser, model=recogniser_model, api_key=recogniser_api_key)
        if transcribe
        else None,
        max_cer=max_cer,
        speaker_model=load_speaker_model(speaker_model) if similarity else None,
        min_similarity=min_similarity,
        keep_audio=keep_audio,
        audio_folder=audio_folder,
    )
    report = bench_serve(wishes)
    if json_path is not None:
        write_json(json_path, report)
    if html is not None:
        write_page(html, report)
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
def isolation(
    base_url: take.BaseUrl,
    path: take.DatasetPath = None,
    dialect: take.DialectName = "hocket",
    dataset: take.Dataset = "plain,names",
    limit: take.Limit = None,
    references: take.References = True,
    voice: take.Voices = None,
    model: take.ModelName = None,
    clients: Annotated[int, typer.Option(min=2, help="Requests that are open at a time.")] = 32,
    by: Annotated[
        str, typer.Option(help="words (a recogniser listens), or seed (each answer against itself alone).")
    ] = "words",
    warmup: Annotated[int, typer.Option(min=0, help="Requests that are not counted.")] = 1,
    delivery: take.DeliveryName = "raw",
    response_format: take.ResponseFormat = "pcm",
    request_seed: Annotated[int | None, typer.Option(min=0, help="Request i is sent with this seed + i.")] = None,
    body: take.Body = None,
    api_key: take.ApiKey = None,
    timeout: take.Timeout = 300.0,
    seed: take.Seed = 0,
    pcm_rate: take.PcmRate = None,
    pcm_channels: take.PcmChannels = 1,
    recogniser: take.RecogniserName = "base",
    recogniser_model: take.RecogniserModel = "whisper-1",
    recogniser_api_key: take.RecogniserKey = None,
    similarity: Annotated[bool, typer.Option("--similarity", help="Match voices to references, too.")] = False,
    speaker_model: take.SpeakerModelName = "resemblyzer",
    json_path: take.JsonPath = None,
) -> None:
    """Ask for many texts at once, and check that every answer belongs to its own request.

    Leaves with 0 when nine of ten are known as their own and none as another's, 1 when one is another's, 3 when too few
    were understood to tell.
    """
    from hocket.bench.isolation import bench_isolation, parse_by, print_isolation
    from hocket.bench.load import Load
    from hocket.bench.report import write_json
    from hocket.bench.similarity import load_speaker_model
    from hocket.bench.transcribe import load_recogniser
    from hocket.bench.wishes import Wishes
    from hocket.files import check_replaceable

    way = parse_by(by)
    asked = take.request_fields(
        base_url=base_url,
        dialect=dialect,
        dataset=dataset,
        path=path,
        limit=limit,
        order_seed=seed,
        references=references,
        voice=voice,
        delivery=delivery,
        response_format=response_format,
        body=body,
        api_key=api_key,
        pcm=(pcm_rate, pcm_channels),
    )
    if json_path is not None:
        check_replaceable(json_path)
    heard = load_recogniser(recogniser, model=recogniser_model, api_key=recogniser_api_key) if way == "words" else None
    wishes = Wishes(
        **asked,
        loads=[Load(len(asked["items"]), clients=clients)],
        model=model,
        request_seed=request_seed,
        seed=seed,
        warmup=warmup,
        timeout_seconds=timeout,
        recogniser=heard,
        speaker_model=load_speaker_model(speaker_model) if similarity else None,
    )
    report = bench_isolation(wishes, way)
    if json_path is not None:
        write_json(json_path, report)
    typer.echo(print_isolation(report))
    sys.exit({"isolated": 0, "leak": 1, "unproven": 3}[report["verdict"]])


@bench_app.command("engine")
def engine(
    model: Annotated[str, typer.Option(help="Checkpoint folder, or moss-tts-local-v1.5 with --random-weights.")],
    codec: Annotated[str | None, typer.Option(help="Codec folder; default: the model's.")] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Only the dimensions are the model's.")
    ] = False,
    clients: Annotated[int, typer.Option(min=1, help="Closed loop: so many requests are open.")] = 1,
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
    json_path: take.JsonPath = None,
) -> None:
    """Measure the engine by itself: no server, no network, with --random-weights no checkpoint; one line of JSON."""
    from rich.console import Console

    from hocket.bench.engine import CONTEXT_ROWS, EngineWishes, bench_engine, engine_config, engine_table
    from hocket.bench.report import write_json
    from hocket.files import check_replaceable
    from hocket.server.profiles import load_profile, parse_settings

    if json_path is not None:
        check_replaceable(json_path)
    loaded = load_profile(profile, parse_settings(settings or []))
    # A profile's rows are a server's; here there are as many as clients. The workload needs no long context.
    rows = None if loaded.origins["engine.rows"] == "--set" or open_loop is not None else clients
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
        )
    )
    if json_path is not None:
        write_json(json_path, figures)
    Console(stderr=True).print(engine_table(figures))
    typer.echo(json.dumps(figures))


def _loads(
    clients: int | None, rate: float | None, ramp: str | None, requests: int | None, arrivals: str
) -> list[Load]:
    """The stages. Raises ConfigError when they contradict each other."""
    from hocket.bench.load import parse_arrivals, parse_ramp

    of_clients, of_rate = None if clients is None else str(clients), None if rate is None else f"{rate}/s"
    given = [text for text in (of_clients, of_rate, ramp) if text is not None]
    if len(given) > 1:
        raise ConfigError("give one of --clients, --rate and --ramp")
    return parse_ramp(given[0] if given else "1", requests, parse_arrivals(arrivals))


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
