"""A case of `benchmarks.gpu.kernels`, and the inputs that cases share.

Bytes count every input and every output once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.tools import floor_us
from hocket.kernels import ops
from hocket.kernels.types import Scaled

AnyOperation = ops.Operation[Any, ..., Any]
BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: `prepare` makes new inputs and returns a call on them."""

    name: str
    nbytes: float
    prepare: Callable[[], Callable[[], object]]
    flops: float = 0.0
    dtype: torch.dtype = BF16

    @property
    def floor_us(self) -> float:
        return floor_us(self.nbytes, self.flops, self.dtype)


def randn(*shape: int, on: torch.device, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, device=on, dtype=dtype)


def product(*shape: int, on: torch.device) -> Scaled:
    """A random product in 8 bits, without a bias."""
    rows, columns = torch.rand(*shape[:-1], 1, device=on), torch.rand(shape[-1], device=on)
    return Scaled(randn(*shape, on=on), rows, columns, None)


def kernel(operation: AnyOperation) -> Callable[..., Any]:
    """The operation's kernel on a GPU and in Triton's interpreter; elsewhere the form that a CPU
    runs.
    """
    has_kernels = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
    return operation.gpu if has_kernels else operation.cpu
