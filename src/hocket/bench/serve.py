"""`hocket bench serve`: warm up, probe, load stage by stage, judge every answer, and put it all into one report."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import uvloop

from hocket.bench.environment import command_line, host_facts, now
from hocket.bench.faults import AnswerError
from hocket.bench.http import Answer, Target, page, without_key
from hocket.bench.judge.outcome import Outcome, check_probe, check_together, judge, time_outcome
from hocket.bench.load.client import Asker
from hocket.bench.load.generator import Asked, Load, StageRun, run_stage
from hocket.bench.load.postprocess import keep_audio, listen_to_all
from hocket.bench.load.prometheus import difference, first_audio, scrape
from hocket.bench.load.run_config import Wishes
from hocket.bench.load.self_check import measure_floor, own_load
from hocket.bench.report.statistics import figures_of, timeline_of
from hocket.errors import HocketError
from hocket.progress import progress_bar

#: Requests of a stage whose chunk times stay in the report, for its plots.
_KEPT_MARKS = 200
_FLOOR_STREAMS = 64
#: From here on the generator disturbs what it measures.
_BUSY_CORES = 0.9
_LATE_MS = 20.0
_MOST_FACT_BYTES = 20_000
_FACT_PATHS = ("/version", "/v1/models")


def bench_serve(wishes: Wishes) -> dict[str, Any]:
    """The report. Raises HocketError when there is nothing at the address."""
    with (
        TemporaryDirectory(prefix="hocket-bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return without_key(runner.run(_session(wishes, Path(folder))), wishes.api_key)


async def _session(wishes: Wishes, folder: Path) -> dict[str, Any]:
    first = Asker(wishes, folder / "first")
    streams = min(_FLOOR_STREAMS, max(load.clients or _FLOOR_STREAMS for load in wishes.loads))
    floor = await measure_floor(streams) if wishes.has_floor else None
    server = await server_facts(wishes.target, wishes.api_key)
    await first.warm_up()
    # Files say their own rate; Opus has its own, whatever went in.
    shape, problem = await first.probe() if wishes.has_probe and wishes.response_format == "pcm" else (None, "")
    stages = []
    for i, load in enumerate(wishes.loads):
        stages.append(await _stage(wishes, load, Asker(wishes, folder / f"stage-{i}"), f"{i}-", shape))
    return {
        "hocket_bench": 1,
        "kind": "serve",
        "date": now(),
        "command": command_line(),
        "host": host_facts(),
        "server": server,
        "seeds": {"order_and_arrivals": wishes.seed, "requests": wishes.request_seed},
        "wishes": wishes.as_json(),
        "probe": None if shape is None else {"sample_rate": shape[0], "channels": shape[1]},
        "floor": floor,
        "notes": [problem] if problem else [],
        # The first reason why words or voices were wanted and not all of them judged.
        "unjudged": next((stage["unjudged"] for stage in stages if stage["unjudged"]), None),
        "stages": stages,
    }


async def _stage(
    wishes: Wishes, load: Load, asker: Asker, prefix: str, shape: tuple[int, int] | None
) -> dict[str, Any]:
    # Written beforehand: a reference takes milliseconds to become JSON, in which no arrival would be noticed.
    count = load.requests if wishes.request_seed is not None else min(load.requests, len(wishes.items))
    bodies = [asker.body(i) for i in range(count)]
    before = await scrape(wishes.target)
    with progress_bar(load.requests) as show:
        run = await run_stage(load, lambda i: asker.ask(i, bodies[i % count]), wishes.seed, show)
    await asker.written()
    metrics = difference(before, await scrape(wishes.target))
    outcomes, unjudged = await asyncio.to_thread(_examine, wishes, asker, run, prefix, shape)
    return {**_stage_report(load, run, outcomes, metrics, wishes.seed), "unjudged": unjudged}


def _examine(
    wishes: Wishes, asker: Asker, run: StageRun, prefix: str, shape: tuple[int, int] | None
) -> tuple[list[Outcome], str | None]:
    """Judge every answer, by itself and beside the others; and why words or voices could not be judged."""
    unjudged = None
    answers = {one.index: one.answer for one in run.asked}
    outcomes = [judge_one(wishes, asker, one, run.began) for one in run.asked]
    check_together(outcomes, wishes.limits)
    if shape is not None:
        check_probe(outcomes, shape)
    if wishes.recogniser is not None or wishes.speaker_model is not None:
        try:
            listen_to_all(wishes, asker, outcomes, answers)
        except HocketError as error:  # what was measured is worth a report all the same
            unjudged = str(error)
    if wishes.audio_folder is not None:
        keep_audio(wishes.audio_folder, prefix, wishes.keep_audio, asker, outcomes, answers)
    return outcomes, unjudged


def judge_one(wishes: Wishes, asker: Asker, one: Asked, began: float) -> Outcome:
    """One answer by itself."""
    answer: Answer = one.answer
    outcome = Outcome(
        index=one.index,
        item=asker.item(one.index),
        phase=one.phase,
        due_at=one.due - began,
        late_ms=1e3 * (answer.asked_at - one.due),
        ended_at=answer.ended_at - began,
    )
    time_outcome(outcome, answer, one.due)
    try:
        judge(outcome, asker.listen(one.index, answer), one.due, wishes.limits)
    except AnswerError as error:
        outcome.faults.append(error.fault)
    return outcome


async def server_facts(target: Target, api_key: str | None) -> dict[str, Any]:
    """What the server says of itself, where it does."""
    facts: dict[str, Any] = {}
    for path in _FACT_PATHS:
        text = await page(target, path, api_key)
        if text is not None and len(text) < _MOST_FACT_BYTES:
            with contextlib.suppress(ValueError, RecursionError):
                facts[path] = json.loads(text)
    return facts


def _stage_report(
    load: Load, run: StageRun, outcomes: Sequence[Outcome], metrics: dict[str, Any] | None, seed: int
) -> dict[str, Any]:
    requests = [outcome.as_json() for outcome in outcomes]
    window = run.window[0] - run.began, run.window[1] - run.began
    stage: dict[str, Any] = {
        "name": load.name,
        "load": asdict(load),
        "timeline": timeline_of(requests, window, run.seconds),
        "generator": {**own_load(run), "late_p99_ms": round(_late_ms(outcomes), 3), "most_open": run.most_open},
        "server_metrics": metrics,
        "server_first_audio_ms": first_audio(metrics),
        "requests": requests,
    }
    stage["figures"] = {name: list(map(_rounded, figure)) for name, figure in figures_of(stage, seed).items()}
    stage["notes"] = _notes(stage)
    for request in requests[_KEPT_MARKS:]:
        del request["marks"]
    return stage


def _late_ms(outcomes: Sequence[Outcome]) -> float:
    return float(np.percentile([outcome.late_ms for outcome in outcomes], 99))


def _notes(stage: dict[str, Any]) -> list[str]:
    notes, own = [], stage["generator"]
    if own["cores"] > _BUSY_CORES:
        notes.append(f"the generator used {own['cores']:.2f} cores: it was the bottleneck, or near it")
    if max(own["lag_p99_ms"], own["late_p99_ms"]) > _LATE_MS:
        late = max(own["lag_p99_ms"], own["late_p99_ms"])
        notes.append(f"the generator was {late:.0f} ms late at p99: this machine is too busy for fine figures")
    most_open = stage["generator"]["most_open"]
    if len(stage["requests"]) < 4 * most_open:
        notes.append(
            f"too short for a steady state: {len(stage['requests'])} requests, {most_open} at a time; ask for more"
        )
    if "ttfa_p50_ms" not in stage["figures"]:
        notes.append("no answer was good, so there are no latencies")
    return notes


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
