"""The GPU benchmarks on a CPU with tiny models, so that slips cost no GPU time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.kernels import ops
from tests.support.paths import REPOSITORY

ROOT = REPOSITORY
GOLDEN = ROOT / "tests" / "golden"
MODEL = ("--model", str(GOLDEN / "local_tiny"), "--codec", str(GOLDEN / "codec2_tiny"))
QWEN3 = GOLDEN / "qwen3_tts"


def run(*command: str, code: int = 0) -> str:
    # Other tests set Triton's interpreter up for themselves; here the CPU's forms run.
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def figures(script: str, tmp_path: Path, *options: str) -> dict[str, Any]:
    report = tmp_path / "report.json"
    shown = run(
        "-m", f"benchmarks.gpu.{script}", "--device", "cpu", *options, "--json", str(report)
    )
    assert shown.startswith("Device cpu")
    document = json.loads(report.read_text())
    assert document["failed"] == {}
    assert document["gpu"] is None
    return document["figures"]


def test_parts(tmp_path: Path) -> None:
    sizes = (
        "--rows",
        "1,3",
        "--context",
        "20",
        "--pages",
        "1,6",
        "--streams",
        "1,2",
        "--frames",
        "1,2",
    )
    found = figures("parts", tmp_path, *MODEL, *sizes)
    assert {name.partition("/")[0] for name in found} == {"advance", "draw", "pages", "decode"}
    assert len(found) == 2 + 2 + 2 + 4
    for figure in found.values():
        assert figure["ms"] > figure["floor_ms"] > 0


def test_kernels(tmp_path: Path) -> None:
    second = (
        "--second",
        str(QWEN3 / "custom_1b7"),
        "--second-codec",
        str(QWEN3 / "base_1b7" / "speech_tokenizer"),
    )
    sizes = ("--rows", "3", "--contexts", "20", "--pages", "3", "--chunks", "2x2")
    found = figures("kernels", tmp_path, *MODEL, *second, *sizes)
    measured = {
        name.removeprefix("kernels/").split()[0] for name in found if name.startswith("kernels/")
    }
    assert measured == {
        value.name for value in vars(ops).values() if isinstance(value, ops.Operation)
    }
    assert found["sums_ms/backbone M=3 bf16"] > 0


@pytest.mark.slow
def test_check(tmp_path: Path) -> None:
    steps = ("--only", "card,golden,full,bench", "--rows", "5", "--requests", "6")
    found = figures("check", tmp_path, *MODEL, *steps)
    assert found["golden/local_tiny float32"]["greedy_equal"] == 10
    assert found["full/alone and among all"]["samples_equal"] == 3
    assert found["bench"]["requests"] == 6


def test_failures_are_noted_and_the_rest_is_measured(tmp_path: Path) -> None:
    script, report = tmp_path / "script.py", tmp_path / "report.json"
    script.write_text(
        """
import sys
from benchmarks.gpu import tools as gpu_tools
arguments = gpu_tools.parser_of("").parse_args()
report = gpu_tools.Report(arguments, gpu_tools.device_of("cpu"))
report.measure("first", lambda: 1 if not arguments.resume else 1 / 0)
report.measure("fails", lambda: 1 / 0)
report.measure("wrong", lambda: {"off_by": 2, "wrong": ["off by 2"]})
report.measure("last", lambda: {"off_by": 0, "wrong": []})
sys.exit(report.finish())
"""
    )
    command = ("-c", f"import runpy; runpy.run_path({str(script)!r})")
    for more in ((), ("--resume",)):  # a known figure is not measured again
        shown = run(*command, "--json", str(report), *more, code=1)
        document = json.loads(report.read_text())
        assert document["figures"] == {
            "first": 1,
            "wrong": {"off_by": 2, "wrong": ["off by 2"]},
            "last": {"off_by": 0, "wrong": []},
        }
        assert document["failed"] == {
            "fails": "ZeroDivisionError: division by zero",
            "wrong": "off by 2",
        }
        assert "FAILED fails: ZeroDivisionError" in shown
