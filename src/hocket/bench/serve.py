"""`hocket bench serve`: warm up, probe, load stage by stage, judge every answer, and make one
report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import uvloop

from hocket.bench.environment import command_line, host_facts, now
from hocket.bench.faults import ResponseError
from hocket.bench.http import Response, without_key
from hocket.bench.judge.outcome import Outcome, check_probe, check_together, judge, time_outcome
from hocket.bench.load.client import BenchClient
from hocket.bench.load.generator import Load, SentRequest, StageRun, run_stage
from hocket.bench.load.postprocess import judge_content, keep_audio
from hocket.bench.load.prometheus import difference, first_audio, scrape
from hocket.bench.load.run_config import RunConfig
from hocket.bench.load.self_check import generator_load, self_check
from hocket.bench.report.statistics import figures_of, timeline_of
from hocket.errors import HocketError
from hocket.progress import progress_bar

#: Number of requests of a stage whose chunk times stay in the report, for its plots.
_KEPT_MARKS = 200
_SELF_CHECK_STREAMS = 64
#: A generator above these limits disturbs the measurement.
_BUSY_CORES = 0.9
_LATE_MS = 20.0


def bench_serve(config: RunConfig) -> dict[str, Any]:
    """Run all stages and return the report. Raises HocketError when nothing answers at the
    address.
    """
    with (
        TemporaryDirectory(prefix="hocket-bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return without_key(runner.run(_session(config, Path(folder))), config.api_key)


async def _session(config: RunConfig, folder: Path) -> dict[str, Any]:
    first = BenchClient(config, folder / "first")
    streams = min(
        _SELF_CHECK_STREAMS, max(load.clients or _SELF_CHECK_STREAMS for load in config.loads)
    )
    floor = await self_check(streams) if config.has_self_check else None
    server = await first.server_facts()
    await first.warm_up()
    # Files state their rate, and Opus always has the same one.
    shape, problem = (
        await first.probe() if config.has_probe and config.response_format == "pcm" else (None, "")
    )
    stages = []
    for i, load in enumerate(config.loads):
        stages.append(
            await _stage(config, load, BenchClient(config, folder / f"stage-{i}"), f"{i}-", shape)
        )
    return {
        "hocket_bench": 1,
        "kind": "serve",
        "date": now(),
        "command": command_line(),
        "host": host_facts(),
        "server": server,
        "seeds": {"order_and_arrivals": config.seed, "requests": config.request_seed},
        "wishes": config.as_json(),
        "probe": None if shape is None else {"sample_rate": shape[0], "channels": shape[1]},
        "floor": floor,
        "notes": [problem] if problem else [],
        # The first reason why requested judgements of words or voices are missing.
        "unjudged": next((stage["unjudged"] for stage in stages if stage["unjudged"]), None),
        "stages": stages,
    }


async def _stage(
    config: RunConfig, load: Load, client: BenchClient, prefix: str, shape: tuple[int, int] | None
) -> dict[str, Any]:
    # Encoded beforehand: a reference takes milliseconds to become JSON, in which the clock would be
    # late.
    count = (
        load.requests if config.request_seed is not None else min(load.requests, len(config.items))
    )
    bodies = [client.body(i) for i in range(count)]
    before = await scrape(config.target)
    with progress_bar(load.requests) as show:
        run = await run_stage(load, lambda i: client.send(i, bodies[i % count]), config.seed, show)
    await client.written()
    metrics = difference(before, await scrape(config.target))
    outcomes, unjudged = await asyncio.to_thread(_examine, config, client, run, prefix, shape)
    return {**_stage_report(load, run, outcomes, metrics, config.seed), "unjudged": unjudged}


def _examine(
    config: RunConfig,
    client: BenchClient,
    run: StageRun,
    prefix: str,
    shape: tuple[int, int] | None,
) -> tuple[list[Outcome], str | None]:
    """Judge every answer, alone and beside the others; the text is the reason why words or voices
    are not judged.
    """
    unjudged = None
    responses = {one.index: one.response for one in run.sent}
    outcomes = [judge_one(config, client, one, run.began) for one in run.sent]
    check_together(outcomes, config.limits)
    if shape is not None:
        check_probe(outcomes, shape)
    if config.recogniser is not None or config.speaker_model is not None:
        try:
            judge_content(config, client, outcomes, responses)
        except HocketError as error:  # the other figures are worth a report
            unjudged = str(error)
    if config.audio_folder is not None:
        keep_audio(config.audio_folder, prefix, config.keep_audio, client, outcomes, responses)
    return outcomes, unjudged


def judge_one(config: RunConfig, client: BenchClient, one: SentRequest, began: float) -> Outcome:
    """Judge one answer alone."""
    response: Response = one.response
    outcome = Outcome(
        index=one.index,
        item=client.item(one.index),
        phase=one.phase,
        due_at=one.due - began,
        late_ms=1e3 * (response.sent_at - one.due),
        ended_at=response.ended_at - began,
    )
    time_outcome(outcome, response, one.due)
    try:
        judge(outcome, client.decode(one.index, response), one.due, config.limits)
    except ResponseError as error:
        outcome.faults.append(error.fault)
    return outcome


def _stage_report(
    load: Load,
    run: StageRun,
    outcomes: Sequence[Outcome],
    metrics: dict[str, Any] | None,
    seed: int,
) -> dict[str, Any]:
    requests = [outcome.as_json() for outcome in outcomes]
    window = run.window[0] - run.began, run.window[1] - run.began
    stage: dict[str, Any] = {
        "name": load.name,
        "load": asdict(load),
        "timeline": timeline_of(requests, window, run.seconds),
        "generator": {
            **generator_load(run),
            "late_p99_ms": round(_late_ms(outcomes), 3),
            "most_open": run.max_open,
        },
        "server_metrics": metrics,
        "server_first_audio_ms": first_audio(metrics),
        "requests": requests,
    }
    stage["figures"] = {
        name: list(map(_rounded, figure)) for name, figure in figures_of(stage, seed).items()
    }
    stage["notes"] = _notes(stage)
    for request in requests[_KEPT_MARKS:]:
        del request["marks"]
    return stage


def _late_ms(outcomes: Sequence[Outcome]) -> float:
    return float(np.percentile([outcome.late_ms for outcome in outcomes], 99))


def _notes(stage: dict[str, Any]) -> list[str]:
    notes, own = [], stage["generator"]
    if own["cores"] > _BUSY_CORES:
        notes.append(
            f"the generator used {own['cores']:.2f} cores: it was the bottleneck, or near it"
        )
    if max(own["lag_p99_ms"], own["late_p99_ms"]) > _LATE_MS:
        late = max(own["lag_p99_ms"], own["late_p99_ms"])
        notes.append(
            f"the generator was {late:.0f} ms late at p99: this machine is too busy for this load"
        )
    max_open = stage["generator"]["most_open"]
    if len(stage["requests"]) < 4 * max_open:
        counts = f"{len(stage['requests'])} requests, {max_open} at a time"
        notes.append(f"too short for a steady state: {counts}; send more")
    if "ttfa_p50_ms" not in stage["figures"]:
        notes.append("no answer was good, so there are no latencies")
    return notes


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
