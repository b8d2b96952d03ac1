"""Check in five minutes that Hocket computes on this GPU what it computes on a CPU, and how fast.

    python -m benchmarks.gpu.check [--json FILE] [--only card,kernels,golden,full,bench]
                                   [--model NAME] [--rows 128]

Steps are independent; a failure of one (exit code 1 in the end) leaves the others running:
`card`     versions and the card;
`kernels`  every Triton kernel, compiled, against its reference: `pytest tests/kernels`, beside the
           next step;
`golden`   the golden checkpoints in float32 (greedy frames equal the official ones, sampled frames
           the CPU's) and bf16 (number of equal first frames, error of samples), and each recorded
           graph against eager execution;
`full`     real dimensions, random weights, strict mode, all rows taken: codes and samples of a
           request equal, byte for byte, those of the request alone; a second run equals the first;
           graphs equal eager execution;
`bench`    a shorter benchmark of the engine: audio seconds a second, first audio, memory.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import golden as gpu_golden
from benchmarks.gpu.tools import ROOT, Report, device_of, parser_of
from hocket.bench.engine.bench import CONTEXT_ROWS, EngineRunConfig, bench_engine, engine_config
from hocket.bench.engine.random_model import random_models
from hocket.bench.engine.workload import read_workload
from hocket.bench.environment import host_facts
from hocket.config import EngineConfig
from hocket.core import AudioChunk, Speech, SpeechRequest
from hocket.engine.build import assemble
from hocket.engine.engine import Engine

STEPS = ("card", "kernels", "golden", "full", "bench")


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--only", default=",".join(STEPS), help="steps, separated by commas")
    parser.add_argument(
        "--model", default="moss-tts-local-v1.5", help="dimensions, as for hocket bench engine"
    )
    parser.add_argument("--codec", help="folder of the codec, where the model does not bring it")
    parser.add_argument(
        "--rows", type=int, default=128, help="rows of the full batch, and clients of the benchmark"
    )
    parser.add_argument("--requests", type=int, default=640, help="of the benchmark")
    parser.add_argument("--profile", default="throughput", help="of the benchmark")
    parser.add_argument("--quantize", choices=["fp8"], help="for `full` and `bench`")
    parser.add_argument("--kv-dtype", choices=["auto", "fp8"], help="for `full` and `bench`")
    parser.add_argument(
        "--test-seconds", type=float, default=150.0, help="time limit of the kernels' tests"
    )
    parser.add_argument("--tests", default="test_*.py", help="pattern of files in tests/kernels")
    arguments = parser.parse_args()
    steps = arguments.only.split(",")
    if unknown := set(steps) - set(STEPS):
        parser.error(
            f"--only: there is no step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}"
        )
    device = device_of(arguments.device)
    check = Check(Report(arguments, device), arguments, device)
    if "card" in steps:
        check.step("card", host_facts)
    tests = KernelTests(arguments) if "kernels" in steps else None
    if "golden" in steps:
        check.golden()
    if tests is not None:
        check.step("kernels", tests.outcome)
    if "full" in steps:
        check.full()
    if "bench" in steps:
        check.bench()
    return check.report.finish()


class KernelTests:
    """The tests of the kernels, each file in its own process, so that a broken device affects one
    file only.
    """

    def __init__(self, arguments: Namespace) -> None:
        self._until = time.perf_counter() + arguments.test_seconds
        self._pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) * 3 // 4))
        self._running: dict[str, Future[tuple[int, str]]] = {}
        if importlib.util.find_spec("pytest") is not None:
            files = sorted((ROOT / "tests" / "kernels").glob(arguments.tests))
            self._running = {file.name: self._pool.submit(self._run, file) for file in files}

    def outcome(self) -> dict[str, Any]:
        """Wait for all test files, and summarise them."""
        if not self._running:
            return {
                "wrong": [
                    "no kernel was tested: pytest (pip install pytest) or tests/kernels is missing"
                ]
            }
        summary, wrong = {}, []
        for name, future in self._running.items():
            code, output = future.result()
            summary[name] = (output.strip().splitlines() or ["nothing was printed"])[-1]
            if code:
                wrong.append(f"{name}: {summary[name]}")
                print(f"\n{name}, exit code {code}\n{output[-6000:]}", flush=True)
        self._pool.shutdown()
        return {**summary, "wrong": wrong}

    def _run(self, file: Path) -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "not slow",
            "-W",
            "default",
            "-p",
            "no:cacheprovider",
        ]
        # Hocket may not be installed.
        path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        left = self._until - time.perf_counter()
        if left <= 0:
            return 124, "no time was left for it"
        try:
            done = subprocess.run(
                [*command, "--tb=short", str(file)],
                check=False,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=left,
            )
        except subprocess.TimeoutExpired as late:
            output = late.stdout or b""
            shown = output.decode(errors="replace") if isinstance(output, bytes) else output
            return 124, f"{shown}\nit was ended after {left:.0f} s"
        return done.returncode, done.stdout


class Check:
    """The steps that run in this process."""

    def __init__(self, report: Report, arguments: Namespace, device: torch.device) -> None:
        self.report = report
        self._arguments = arguments
        self._device = device

    def step(self, name: str, work: Any) -> Any:
        """Run `work`, note its figure, and print it on one line."""
        began = time.perf_counter()
        figure = self.report.measure(name, work)
        if figure is not None:
            shown = (
                {key: value for key, value in figure.items() if key != "wrong"}
                if isinstance(figure, dict)
                else figure
            )
            print(f"{name} ({time.perf_counter() - began:.1f} s): {json.dumps(shown)}", flush=True)
        return figure

    # ---- golden checkpoints

    def golden(self) -> None:
        found = self.report.attempt("golden files", gpu_golden.checkpoints) or {}
        for name, checkpoint in found.items():
            if name in gpu_golden.CODECS:
                self.step(
                    f"golden/codec of {name}",
                    partial(gpu_golden.check_codec, checkpoint, self._device),
                )
            for dtype in gpu_golden.TOLERANCES if name in gpu_golden.BF16 else ("float32",):
                self._golden(checkpoint, dtype)

    def _golden(self, checkpoint: gpu_golden.Checkpoint, dtype: str) -> None:
        name = f"{checkpoint.name} {dtype}"
        if self.report.knows(f"golden/{name}", f"graphs/{name}"):
            return
        engine = self.report.attempt(
            f"engine/{name}", partial(checkpoint.engine, self._device, dtype)
        )
        on_cpu = self.report.attempt(f"on a CPU/{name}", checkpoint.speak_on_cpu)
        if engine is None or on_cpu is None:
            return
        self.step(
            f"golden/{name}", partial(gpu_golden.check_golden, checkpoint, engine, dtype, *on_cpu)
        )
        requests = [*checkpoint.greedy[:3], *checkpoint.sampled]
        self.step(f"graphs/{name}", partial(gpu_golden.check_graphs, engine, requests))

    # ---- real dimensions

    def full(self) -> None:
        """Run all checks with real dimensions on one strict engine."""
        made = self.report.attempt("full/engine", self._strict_engine)
        if made is not None:
            self._full(*made)
        # The benchmark builds its own engine, and measures memory.
        del made
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)

    def _full(self, engine: Engine, requests: Sequence[SpeechRequest]) -> None:
        some = sorted({0, len(requests) // 2, len(requests) - 1})
        crowd: list[Speech] = []
        self.step("full/among all", partial(_timed_run, engine, requests, crowd))
        if crowd:
            self.step("full/alone and among all", partial(_alone, engine, requests, crowd, some))
            self.step("full/run again", partial(_again, engine, requests, crowd))
        self.step(
            "full/graphs", partial(gpu_golden.check_graphs, engine, [requests[i] for i in some])
        )
        if self._device.type == "cuda":
            self.step("full/memory", partial(_memory, self._device))

    def _strict_engine(self) -> tuple[Engine, list[SpeechRequest]]:
        began = time.perf_counter()
        arguments = self._arguments
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        model, codec = random_models(
            arguments.model, arguments.codec, device=self._device, dtype=dtype, seed=0
        )
        loaded = time.perf_counter()
        config = engine_config(
            EngineConfig(), rows=arguments.rows, context_rows=CONTEXT_ROWS, strict=True
        )
        engine = Engine(assemble(model, codec, config))
        started = time.perf_counter()
        workload = read_workload(model.talker.config, model.prompt, 0)
        # Lengths differ, so that rows end and begin at different times; each exceeds a whole chunk.
        short = [
            replace(one, frames=18 + i % 13) for i, one in enumerate(workload[: arguments.rows])
        ]
        requests = [one.request(i, ignore_stop=True) for i, one in enumerate(short)]
        loaded_s, started_s = loaded - began, started - loaded
        print(
            f"weights {loaded_s:.1f} s, engine with {arguments.rows} rows {started_s:.1f} s",
            flush=True,
        )
        self.report.figures["full/start_s"] = round(started - loaded, 2)
        return engine, requests

    def bench(self) -> None:
        figures = self.step("bench", self._bench)
        if figures is not None:
            shown = (
                "audio_s_per_s",
                "audio_s_per_s_full",
                "ttfa_ms",
                "underrun_free",
                "gpu_memory_gb",
                "start_s",
            )
            print("\n".join(f"  {name}: {figures[name]}" for name in shown), flush=True)

    def _bench(self) -> dict[str, Any]:
        arguments = self._arguments
        rows, is_gpu = arguments.rows, self._device.type == "cuda"
        profile, base = _engine_of_profile(arguments.profile)
        chosen = {
            "quantize": arguments.quantize or base.quantize,
            "kv_dtype": arguments.kv_dtype or base.kv_dtype,
        }
        base = base.model_copy(update=chosen)
        run_config = EngineRunConfig(
            model=arguments.model,
            codec=arguments.codec,
            random_weights=True,
            device=str(self._device),
            dtype="bfloat16" if is_gpu else "float32",
            profile=profile,
            engine=engine_config(base, rows=rows, context_rows=CONTEXT_ROWS, strict=False),
            clients=rows,
            rate=None,
            requests=arguments.requests,
            ignore_stop=True,
            seed=0,
        )
        figures = bench_engine(run_config)
        # This one names `hocket`; the report has the command that ran.
        del figures["command"]
        return figures


def _engine_of_profile(name: str) -> tuple[str, EngineConfig]:
    """The profile's engine settings, or the built-in ones where a GPU machine lacks the server's
    packages.
    """
    try:
        from hocket.server.profiles import load_profile
    except ModuleNotFoundError as error:
        print(
            f"{error.name} is not installed: built-in settings instead of profile {name!r}",
            flush=True,
        )
        return f"built in, without {error.name}", EngineConfig()
    return name, load_profile(name).profile.engine


def _speak(engine: Engine, requests: Sequence[SpeechRequest]) -> list[Speech]:
    """Stream all requests at once, in chunks of every size; returns them in order."""
    chunks: dict[str, list[AudioChunk]] = {engine.add(request): [] for request in requests}
    while not engine.idle:
        for chunk in engine.step():
            if chunk.end is not None and chunk.end.error is not None:
                raise chunk.end.error
            chunks[chunk.request_id].append(chunk)
    spoken = []
    for parts in chunks.values():
        end = parts[-1].end
        assert end is not None
        samples = np.concatenate([part.samples for part in parts], axis=1)
        codes = np.concatenate([part.codes for part in parts])
        spoken.append(Speech(samples, parts[0].sample_rate, codes, end.finish_reason, end.seed))
    return spoken


def _timed_run(
    engine: Engine, requests: Sequence[SpeechRequest], spoken: list[Speech]
) -> dict[str, Any]:
    began = time.perf_counter()
    spoken += _speak(engine, requests)
    took = time.perf_counter() - began
    seconds = sum(one.seconds for one in spoken)
    wrong = (
        [] if all(np.isfinite(one.samples).all() for one in spoken) else ["samples are not finite"]
    )
    wrong += [] if all(np.any(one.samples) for one in spoken) else ["samples are all zero"]
    wrong += (
        []
        if len({one.codes.tobytes() for one in spoken}) > len(spoken) // 2
        else ["requests sound alike"]
    )
    return {
        "requests": len(spoken),
        "audio_s": round(seconds, 1),
        "seconds": round(took, 2),
        "wrong": wrong,
    }


def _alone(
    engine: Engine, requests: Sequence[SpeechRequest], crowd: Sequence[Speech], some: Sequence[int]
) -> dict[str, Any]:
    return _bytes_equal([_speak(engine, [requests[i]])[0] for i in some], [crowd[i] for i in some])


def _again(
    engine: Engine, requests: Sequence[SpeechRequest], crowd: Sequence[Speech]
) -> dict[str, Any]:
    """Run the requests in reverse order, so that each has another row."""
    return _bytes_equal(_speak(engine, requests[::-1])[::-1], crowd)


def _bytes_equal(some: Sequence[Speech], others: Sequence[Speech]) -> dict[str, Any]:
    codes = [
        one.codes.tobytes() == other.codes.tobytes()
        for one, other in zip(some, others, strict=True)
    ]
    samples = [
        one.samples.tobytes() == other.samples.tobytes()
        for one, other in zip(some, others, strict=True)
    ]
    wrong = []
    if not all(codes):
        firsts = [_first_difference(one, other) for one, other in zip(some, others, strict=True)]
        differing = f"codes of {len(codes) - sum(codes)} of {len(codes)} differ"
        wrong.append(f"{differing}; first frames that do: {firsts[:16]}")
    if not all(samples):
        worst = max(
            gpu_golden.relative_rms(one.samples, other.samples)
            for one, other in zip(some, others, strict=True)
        )
        wrong.append(
            f"samples of {len(samples) - sum(samples)} of {len(samples)} differ, by {worst:.1e}"
        )
    return {
        "requests": len(codes),
        "codes_equal": sum(codes),
        "samples_equal": sum(samples),
        "wrong": wrong,
    }


def _first_difference(one: Speech, other: Speech) -> int | None:
    if one.codes.shape != other.codes.shape:
        return -1
    differs_F = (one.codes != other.codes).any(1)
    return int(differs_F.argmax()) if differs_F.any() else None


def _memory(device: torch.device) -> dict[str, float]:
    return {
        "allocated_gb": round(torch.cuda.memory_allocated(device) / 1e9, 2),
        "most_allocated_gb": round(torch.cuda.max_memory_allocated(device) / 1e9, 2),
        "most_reserved_gb": round(torch.cuda.max_memory_reserved(device) / 1e9, 2),
    }


if __name__ == "__main__":
    sys.exit(main())
