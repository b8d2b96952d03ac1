"""Tools of the GPU benchmarks: timing of device work, and reports that survive failures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from hocket.bench.environment import (
    device_facts,
    module_command,
    now,
    package_versions,
    python_version,
)

_T = TypeVar("_T")
ROOT = Path(__file__).resolve().parents[2]
#: Peak rates of one H200: bytes read and written by a large copy, operations of a bf16 product of
#: 8192 cubed.
BYTES_PER_SECOND = 4.3e12
#: Operations a second. FP8 has twice the rate of bf16, as in the datasheet; float32 has no real
#: limit here.
FLOPS = {torch.bfloat16: 790e12, torch.float8_e4m3fn: 2 * 790e12, torch.float32: 790e12}
#: Buffers that are used in turn must exceed the L2 cache together (60 MB on an H200).
COLD_BYTES = 150e6


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every GPU benchmark."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write all figures here, after every measurement")
    parser.add_argument(
        "--resume", action="store_true", help="measure only what the --json file does not have yet"
    )
    parser.add_argument(
        "--device", default="cuda", help="cuda (cuda:N), or cpu to try the script itself"
    )
    return parser


def device_of(name: str) -> torch.device:
    """The device to measure; exits with a message when it does not exist."""
    device = torch.device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            sys.exit("PyTorch sees no GPU here; --device cpu tries the script itself")
        # PyTorch sets the current GPU by number.
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    else:
        print(
            "Device cpu: this tries the script itself. Nothing below says anything about a GPU.",
            flush=True,
        )
    return device


def numbers(text: str) -> list[int]:
    """Parse "1,16,64", for argparse."""
    return [int(part) for part in text.split(",")]


class Report:
    """Figures by name, written after each one.

    A failure is noted with its traceback, and the benchmark continues. An error that leaves the
    device unusable for this process, such as an illegal access, restarts the script behind the
    failure, given a file to resume from.
    """

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self._path: Path | None = arguments.json
        self._device = device
        self._began = time.perf_counter()
        self.document: dict[str, Any] = {
            **device_facts(device),
            **package_versions("triton", "numpy"),
            "python": python_version(),
            "command": module_command("--resume"),
            "date": now(),
            "seconds": 0.0,
            "failed": {},
            "figures": {},
        }
        if self._path is not None and self._path.exists() and not self._path.is_file():
            sys.exit(f"--json {str(self._path)!r} is no file; give another")
        if self._path is not None and not self._path.parent.is_dir():
            sys.exit(f"--json: there is no folder {str(self._path.parent)!r}; make it")
        if arguments.resume and self._path is not None and self._path.is_file():
            earlier = json.loads(self._path.read_text())
            self.document |= {"figures": earlier["figures"], "failed": earlier["failed"]}
            self._began -= earlier["seconds"]
        self._save()

    @property
    def figures(self) -> dict[str, Any]:
        return self.document["figures"]

    @property
    def failed(self) -> dict[str, str]:
        return self.document["failed"]

    def knows(self, *names: str) -> bool:
        """Whether all of these were measured, or failed."""
        return all(name in self.figures or name in self.failed for name in names)

    def measure(self, name: str, work: Callable[[], Any]) -> Any:
        """The figure that `work` returns, noted under `name`; None where it fails, now or before.

        A dictionary may list errors under "wrong": then the figure counts as failed, too.
        """
        if self.knows(name):
            return self.figures.get(name)
        figure = self.attempt(name, work)
        if figure is not None:
            self.figures[name] = figure
            if isinstance(figure, dict) and figure.get("wrong"):
                self.failed[name] = "; ".join(figure["wrong"])
                print(f"WRONG {name}: {self.failed[name]}", flush=True)
            self._save()
        return figure

    def attempt(self, name: str, work: Callable[[], _T]) -> _T | None:
        """The result of `work`, which is not a figure; None where it fails, now or before."""
        if name in self.failed:
            return None
        # Noted first, so that a new process skips work that ended this one.
        self.failed[name] = "it ended the process"
        self._save()
        try:
            made = work()
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"
            self._save()
            print(f"\nFAILED {name}\n{traceback.format_exc()}", flush=True)
            # The traceback holds the failed work's tensors, which may fill the card.
            traceback.clear_frames(error.__traceback__)
            self._restart_if_dead()
            return None
        del self.failed[name]
        return made

    def finish(self) -> int:
        """Print the last line; returns the exit code, 1 after a failure."""
        self._save()
        for name, why in self.failed.items():
            print(f"FAILED {name}: {why.splitlines()[0][:200]}", flush=True)
        where = f", written to {self._path}" if self._path else ""
        counts = f"{len(self.figures)} figures, {len(self.failed)} failed"
        print(f"{counts}, {self.document['seconds']} s{where}", flush=True)
        return 1 if self.failed else 0

    def _save(self) -> None:
        self.document["seconds"] = round(time.perf_counter() - self._began, 1)
        if self._path is not None:
            beside = self._path.with_name(self._path.name + ".part")
            beside.write_text(json.dumps(self.document, indent=1) + "\n")
            beside.replace(self._path)

    def _restart_if_dead(self) -> None:
        if self._device.type != "cuda":
            return
        try:
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            x = torch.zeros(16, device=self._device)
            with torch.cuda.graph(graph):
                x += 1
            graph.replay()
            torch.cuda.synchronize(self._device)
        except Exception as error:
            print(f"the device is unusable for this process now ({error})", flush=True)
            if self._path is None:
                sys.exit("give --json FILE, and the rest is measured by a new process")
            # orig_argv keeps the flags of the interpreter (-u, -X ...).
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--resume"])


def time_us(
    call: Callable[[], object], device: torch.device, *, min_ms: float = 10.0, repeats: int = 7
) -> float:
    """Microseconds of one `call`: the median of `repeats` runs, each of as many calls as take
    `min_ms`.

    Device time on the current stream, so calls must keep the device busy: replay a graph.
    """
    measure = _device_us if device.type == "cuda" else _host_us
    call()
    measure(call, 1)
    roughly = max(measure(call, 2), 0.1)
    count = max(1, min(2000, round(1e3 * min_ms / roughly)))
    measure(call, count)
    found = sorted(measure(call, count) for _ in range(repeats))
    return found[repeats // 2]


def graph_us(calls: Sequence[Callable[[], object]], device: torch.device) -> float:
    """Microseconds of one of `calls`, recorded one after another in one CUDA graph; on a CPU they
    are just called.

    Results are kept, so that they lie apart as the inputs do.
    """
    for call in calls:
        call()
    if device.type != "cuda":
        return time_us(lambda: [call() for call in calls], device, min_ms=1.0, repeats=3) / len(
            calls
        )
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        kept = [call() for call in calls]
    took = time_us(graph.replay, device) / len(calls)
    del kept
    return took


def kernels_us(
    call: Callable[[], object], device: torch.device, *, calls: int = 3
) -> dict[str, tuple[float, int]]:
    """Microseconds and launches of each kernel in one `call`, the longest first, as the profiler
    saw them.
    """
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            call()
        torch.cuda.synchronize(device)
    found = [event for event in seen.key_averages() if event.self_device_time_total > 0]
    found.sort(key=lambda event: event.self_device_time_total, reverse=True)
    return {
        event.key: (round(event.self_device_time_total / calls, 2), event.count // calls)
        for event in found
    }


def buffer_sets(nbytes: float, max_sets: int = 256) -> int:
    """Number of buffer sets of `nbytes` to use in turn, so that none is in the cache at its next
    use.
    """
    return max(2, min(max_sets, -(-int(COLD_BYTES) // max(1, int(nbytes)))))


def _device_us(call: Callable[[], object], count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return 1e3 * float(begin.elapsed_time(end)) / count


def _host_us(call: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return 1e6 * (time.perf_counter() - begin) / count


def floor_us(nbytes: float, flops: float = 0.0, dtype: torch.dtype = torch.bfloat16) -> float:
    """Lower bound in microseconds: the bytes that must move, or the operations, whichever takes
    longer.
    """
    return 1e6 * max(nbytes / BYTES_PER_SECOND, flops / FLOPS[dtype])
