"""`hocket bench engine`: the engine alone, without server, network or (with random weights)
checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.table import Table

from hocket.bench.engine.random_model import loaded_models, random_models
from hocket.bench.engine.workload import WorkloadRequest, read_workload
from hocket.bench.environment import command_line, device_facts, now, package_versions
from hocket.bench.judge.playback import play
from hocket.bench.load.generator import Load, due_seconds, edge_requests, max_open
from hocket.config import EngineConfig
from hocket.core import AudioChunk
from hocket.engine.build import assemble, engine_devices, parse_dtype
from hocket.engine.engine import Engine
from hocket.engine.stats import EngineStats
from hocket.errors import ConfigError
from hocket.progress import progress_bar

#: A shorter stall is inaudible.
_UNDERRUN_SECONDS = 0.01
_WARMUP_FRAMES = 24
#: Default context of a row; the longest request of the workload takes 400 rows.
CONTEXT_ROWS = 1024


@dataclass(frozen=True, slots=True)
class EngineRunConfig:
    """Configuration of one run."""

    model: str
    codec: str | None
    random_weights: bool
    device: str
    dtype: str
    profile: str
    engine: EngineConfig
    #: A closed loop of so many clients, or an open loop of so many requests a second; the other is
    #: None.
    clients: int | None
    rate: float | None
    requests: int | None
    ignore_stop: bool
    seed: int
    #: False: the engine draws the requests' seeds.
    seeded: bool = True


@dataclass(slots=True)
class RequestTimes:
    """Times of one request in `perf_counter` seconds; `due` is its scheduled or actual
    submission.
    """

    due: float
    #: (time, seconds of audio on the host by then).
    marks: list[tuple[float, float]] = field(default_factory=list)
    ended: float = 0.0
    frames: int = 0


def bench_engine(run_config: EngineRunConfig) -> dict[str, Any]:
    """Run the workload and return its figures. Raises ConfigError, CheckpointError,
    EngineStoppedError.
    """
    dtype = parse_dtype(run_config.dtype)
    device, codec_device = engine_devices(run_config.device, run_config.engine)
    devices = {"device": device, "codec_device": codec_device}
    began = time.perf_counter()
    if run_config.random_weights:
        talker, codec = random_models(
            run_config.model, run_config.codec, **devices, dtype=dtype, seed=run_config.seed
        )
    else:
        talker, codec = loaded_models(run_config.model, run_config.codec, **devices, dtype=dtype)
    loaded = time.perf_counter()
    engine = Engine(assemble(talker, codec, run_config.engine))
    start_seconds = time.perf_counter() - loaded
    workload = read_workload(talker.talker.config, talker.prompt, run_config.seed)
    count = run_config.requests or len(workload)
    requests = [workload[i % len(workload)] for i in range(count)]
    _check_room(engine, requests)
    # The seeds differ from those of the run, whose prompts must not be in the prefix cache.
    _warm_up(
        engine, requests[: run_config.clients or run_config.engine.rows], run_config.seed + count
    )
    before = engine.stats()
    with progress_bar(count) as show:
        run = _drive(engine, requests, run_config, show)
    return {
        **_facts(run_config, device),
        **_figures(run, run_config),
        "parts_ms": _parts(before, engine.stats()),
        **_batches(before, engine.stats()),
        "gpu_memory_gb": _gpu_memory_gb(*devices.values()),
        "load_s": round(loaded - began, 2),
        "start_s": round(start_seconds, 2),
        "torch": device_facts(device)["torch"],
        **package_versions("triton"),
        "command": command_line(),
        "date": now(),
    }


def engine_config(
    base: EngineConfig, *, rows: int | None, context_rows: int | None, strict: bool
) -> EngineConfig:
    """`base` with `rows` and `context_rows` (None: its own), without checks that would end random
    speech early.
    """
    runaway = base.runaway.model_copy(
        update={"multiple": 0.0, "loop_seconds": 0.0, "silence_seconds": 0.0}
    )
    return base.model_copy(
        update={
            "rows": rows or base.rows,
            "max_context_rows": context_rows or base.max_context_rows,
            "runaway": runaway,
            "strict": base.strict or strict,
        }
    )


def engine_table(figures: Mapping[str, Any]) -> Table:
    """The most important figures."""
    table = Table(show_header=False, show_edge=False, pad_edge=False)
    load = (
        f"{figures['clients']} clients"
        if figures["rate"] is None
        else f"{figures['rate']:g} requests a second"
    )
    table.add_row(
        figures["model"], f"{figures['gpu'] or figures['device']}, {figures['dtype']}, {load}"
    )
    steady = "no steady state" if figures["audio_s_per_s"] is None else figures["audio_s_per_s"]
    table.add_row(
        "audio seconds a second", f"{steady} ({figures['audio_s_per_s_full']} with fill and drain)"
    )
    for name, label in (
        ("ttfa_ms", "first audio, ms"),
        ("e2e_ms", "whole, ms"),
        ("lateness_ms", "longest stall, ms"),
    ):
        shown = ", ".join(f"{key} {value:g}" for key, value in (figures[name] or {}).items())
        table.add_row(label, shown)
    table.add_row("never stalled", str(figures["underrun_free"]))
    table.add_row(
        "a frame, ms", ", ".join(f"{key} {value:g}" for key, value in figures["parts_ms"].items())
    )
    table.add_row("start, s", f"{figures['start_s']} (and {figures['load_s']} for the weights)")
    return table


def _drive(
    engine: Engine,
    requests: Sequence[WorkloadRequest],
    run_config: EngineRunConfig,
    show: Callable[[int], None],
) -> list[RequestTimes]:
    """Drive the engine step by step, as a worker does; returns the requests in order of
    submission.
    """
    begin = time.perf_counter()
    dues = None
    if run_config.rate is not None:
        dues = begin + due_seconds(Load(len(requests), rate=run_config.rate), run_config.seed)
    running: dict[str, RequestTimes] = {}
    run: list[RequestTimes] = []
    done = 0

    def may_begin(now_: float) -> bool:
        if dues is not None:
            return bool(dues[len(run)] <= now_)
        return run_config.clients is None or len(running) < run_config.clients

    while done < len(requests):
        now_ = time.perf_counter()
        while len(run) < len(requests) and may_begin(now_):
            i = len(run)
            times = RequestTimes(time.perf_counter() if dues is None else float(dues[i]))
            seed = run_config.seed + i if run_config.seeded else None
            request = requests[i].request(seed, ignore_stop=run_config.ignore_stop)
            running[engine.add(request)] = times
            run.append(times)
        if not running:
            assert dues is not None
            time.sleep(max(0.0, float(dues[len(run)]) - time.perf_counter()))
            continue
        for chunk in engine.step():
            done += _take(chunk, running, time.perf_counter())
        show(done)
    return run


def _take(chunk: AudioChunk, running: dict[str, RequestTimes], now_: float) -> int:
    """Note a chunk; returns the number of requests that it ended. Raises the request's own
    error.
    """
    times = running[chunk.request_id]
    times.frames += len(chunk.codes)
    if chunk.samples.shape[1]:
        before = times.marks[-1][1] if times.marks else 0.0
        times.marks.append((now_, before + chunk.samples.shape[1] / chunk.sample_rate))
    if chunk.end is None:
        return 0
    if chunk.end.error is not None:
        raise chunk.end.error
    times.ended = now_
    del running[chunk.request_id]
    return 1


def _warm_up(engine: Engine, requests: Sequence[WorkloadRequest], seed: int) -> None:
    """Run short requests, as many as may be open at once, so that every shape is used before the
    clock starts.
    """
    for i, one in enumerate(requests):
        engine.add(
            replace(one, frames=min(_WARMUP_FRAMES, one.frames)).request(seed + i, ignore_stop=True)
        )
    while not engine.idle:
        for chunk in engine.step():
            if chunk.end is not None and chunk.end.error is not None:
                raise chunk.end.error


def _check_room(engine: Engine, requests: Sequence[WorkloadRequest]) -> None:
    longest = max(one.prompt_rows + one.frames for one in requests)
    if longest > engine.context_rows:
        raise ConfigError(
            f"the longest request takes {longest} K/V rows, this engine has {engine.context_rows}; "
            f"give --set engine.max_context_rows={longest}"
        )


def _figures(run: Sequence[RequestTimes], run_config: EngineRunConfig) -> dict[str, Any]:
    begin, end = run[0].due, max(times.ended for times in run)
    open_at_a_time = run_config.clients or max_open((times.due, times.ended) for times in run)
    edge = edge_requests(open_at_a_time, len(run))
    steady = run[edge : len(run) - edge]
    low, high = (steady[0].due, steady[-1].due) if len(steady) > 1 else (begin, end)
    marks = [
        (at, seconds - before)
        for times in run
        for (at, seconds), (_, before) in _pairs(times.marks)
    ]
    inside = sum(seconds for at, seconds in marks if low <= at <= high)
    audio = sum(seconds for _, seconds in marks)
    audible = [times for times in steady if times.marks]
    playbacks = [play(times.marks, 0.0) for times in audible]
    stalls = [playback.longest_stall_seconds for playback in playbacks]
    free = [seconds < _UNDERRUN_SECONDS for seconds in stalls]
    return {
        "requests": len(run),
        "most_open": open_at_a_time,
        # Where all remaining requests began with the first ones, there is no steady state.
        "audio_s_per_s": round(inside / (high - low), 2)
        if len(run) - edge > open_at_a_time
        else None,
        "audio_s_per_s_full": round(audio / (end - begin), 2),
        "audio_s": round(audio, 2),
        "seconds": round(end - begin, 3),
        "steady_seconds": round(high - low, 3),
        "frames": sum(times.frames for times in run),
        "ttfa_ms": _percentiles([1e3 * (times.marks[0][0] - times.due) for times in audible]),
        "e2e_ms": _percentiles([1e3 * (times.ended - times.due) for times in steady]),
        "lateness_ms": _percentiles([1e3 * seconds for seconds in stalls]),
        "underrun_free": round(float(np.mean(free)), 5) if free else None,
    }


def _pairs(
    marks: list[tuple[float, float]],
) -> zip[tuple[tuple[float, float], tuple[float, float]]]:
    return zip(marks, [(0.0, 0.0), *marks], strict=False)


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    points = np.percentile(values, [50, 95, 99])
    named = zip(
        ("mean", "p50", "p95", "p99"), (float(np.mean(values)), *map(float, points)), strict=True
    )
    return {name: round(value, 3) for name, value in named}


def _parts(before: EngineStats, after: EngineStats) -> dict[str, float]:
    """Mean milliseconds from frame to frame, by the part of the host's work.

    `frames` launches backbone and depth and waits for them; `cpu` is the remainder.
    """
    frames = max(1, after.frame_batches - before.frame_batches)
    parts = {
        "prefill": after.prefill_seconds - before.prefill_seconds,
        "frames": after.frame_seconds - before.frame_seconds,
        "codec": after.decode_seconds - before.decode_seconds,
        "references": after.reference_seconds - before.reference_seconds,
        "cpu": after.host_seconds - before.host_seconds,
    }
    shown = {name: round(1e3 * seconds / frames, 4) for name, seconds in parts.items()}
    total = round(1e3 * sum(parts.values()) / frames, 4)
    return {"frame": total, **shown}


def _batches(before: EngineStats, after: EngineStats) -> dict[str, float]:
    """Mean rows of a frame, and mean streams of a codec batch."""
    frames = after.frame_batches - before.frame_batches
    decodes = after.decode_batches - before.decode_batches
    rows = (
        after.mean_frame_rows * after.frame_batches - before.mean_frame_rows * before.frame_batches
    )
    streams = (
        after.mean_decode_rows * after.decode_batches
        - before.mean_decode_rows * before.decode_batches
    )
    return {
        "mean_frame_rows": round(rows / max(1, frames), 1),
        "mean_decode_streams": round(streams / max(1, decodes), 1),
    }


def _facts(run_config: EngineRunConfig, device: torch.device) -> dict[str, Any]:
    return {
        "gpu": device_facts(device)["gpu"],
        "device": run_config.device,
        "codec_device": run_config.engine.codec_device or run_config.device,
        "model": run_config.model,
        "random_weights": run_config.random_weights,
        "dtype": run_config.dtype,
        "clients": run_config.clients,
        "rate": run_config.rate,
        "profile": run_config.profile,
        "quantize": run_config.engine.quantize,
        "kv_dtype": run_config.engine.kv_dtype,
        "samples": run_config.engine.samples,
        "strict": run_config.engine.strict,
        "rows": run_config.engine.rows,
        "ignore_stop": run_config.ignore_stop,
        "seeded": run_config.seeded,
    }


def _gpu_memory_gb(*devices: torch.device) -> float | None:
    """Largest memory that PyTorch reserved, summed over GPUs; None on a CPU."""
    gpus = {device.index or 0 for device in devices if device.type == "cuda"}
    return round(sum(map(torch.cuda.max_memory_reserved, gpus)) / 1e9, 2) if gpus else None
