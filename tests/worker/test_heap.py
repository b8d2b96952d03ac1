"""The garbage collector must not hold up streams: a full collection of a loaded process takes as
long as several frames.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hocket.worker import process
from hocket.worker.messages import EngineSpec

PROGRAM = """
import gc, time
from hocket.worker.heap import settle_heap

def seconds() -> float:
    started = time.perf_counter()
    gc.collect()
    return time.perf_counter() - started

loaded = [{"a": [i]} for i in range(300_000)]
before = min(seconds() for _ in range(3))
settle_heap()
print(before / min(seconds() for _ in range(3)))
"""


def test_a_collection_after_loading_looks_at_what_is_new() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > 10


def test_a_worker_settles_its_heap_between_loading_and_serving(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order: list[str] = []

    def noted(name: str, result: object = None) -> Callable[..., Any]:
        def call(*_: object, **__: object) -> Any:
            order.append(name)
            return result

        return call

    loop = SimpleNamespace(run=noted("run", 0))
    monkeypatch.setattr(process, "plan", noted("plan"))
    monkeypatch.setattr(process, "settle_heap", noted("settle"))
    monkeypatch.setattr(process, "Worker", noted("worker", loop))
    monkeypatch.setattr("torch.set_num_threads", noted("threads"))
    engine = SimpleNamespace(parts=SimpleNamespace(conversions=None))
    monkeypatch.setattr("hocket.engine.engine.Engine.load", noted("load", engine))
    monkeypatch.setattr("signal.signal", noted("signal"))
    spec = EngineSpec(device="cpu")
    assert process.run_worker(f"ipc://{tmp_path}/engine", spec, noted("report")) == 0
    assert [name for name in order if name in ("load", "settle", "run")] == [
        "load",
        "settle",
        "run",
    ]
