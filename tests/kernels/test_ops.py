"""The dispatcher: which column runs, with which arguments."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import torch

from hocket.kernels import ops
from tests.support.close import assert_equal

OPERATIONS = [value for value in vars(ops).values() if isinstance(value, ops.Operation)]
each = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)


def parameters(function: Any) -> list[tuple[str, object]]:
    return [
        (name, parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    ]


@each
def test_columns_have_one_signature(operation: ops.Operation[Any, ..., Any]) -> None:
    pytest.importorskip("triton")
    assert parameters(operation.gpu) == parameters(operation.reference) == parameters(operation.cpu)


@each
def test_operations_have_the_names_of_their_functions(
    operation: ops.Operation[Any, ..., Any],
) -> None:
    assert getattr(ops, operation.name) is operation
    assert operation.reference.__name__ == operation.name


def test_keywords_and_defaults_work() -> None:
    x = torch.randn(2, 3)
    assert_equal(ops.silu(x, to_fp8=False), ops.silu(x))


def test_a_cpu_runs_its_column_whatever_the_mode() -> None:
    with torch.inference_mode():
        assert ops.column_of(torch.device("cpu")) == "cpu"
    assert ops.column_of(torch.device("cpu")) == "cpu"


def test_a_gpu_runs_kernels_in_inference_mode_alone() -> None:
    with torch.inference_mode():
        assert ops.column_of(torch.device("cuda", 1)) == "gpu"
    assert ops.column_of(torch.device("cuda", 1)) == "reference"


def test_a_forced_column_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def column(name: str) -> Any:
        def run(x: torch.Tensor, *, by: int = 1) -> torch.Tensor:
            ran.append(name)
            return x * by

        return run

    double: ops.Operation[torch.Tensor, ..., torch.Tensor] = ops.Operation(
        column("reference"), column("cpu"), "operator:neg"
    )
    for name in ("reference", "cpu"):
        monkeypatch.setattr(ops, "column_of", lambda _, name=name: name)
        assert double(torch.ones(1), by=2).item() == 2.0
    assert ran == ["reference", "cpu"]
    monkeypatch.setattr(ops, "column_of", lambda _: "gpu")
    assert double(torch.ones(1)).item() == -1.0


def test_triton_is_imported_by_kernels_alone() -> None:
    code = "import sys, hocket.kernels.ops; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
