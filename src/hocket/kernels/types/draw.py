"""How codes are drawn: the parameters of one row, and those of a batch as the operations take them.

A new parameter is a field of `DrawParams`, with the default that switches it off, and a field of `DrawArgs` in the same
place; `HostArgs` is the batch as NumPy takes it. The engine packs, stores and gathers whatever fields there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: A top-k that cuts nothing off, whatever the vocabulary.
_NO_TOP_K = 2**62


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How one row draws a code. The defaults draw from the model's own distribution."""

    #: 0 is greedy.
    temperature: float = 1.0
    #: Nucleus mass; <= 0 or >= 1 disables.
    top_p: float = 1.0
    #: Codes kept; <= 0 or >= V disables.
    top_k: int = 0
    #: Applies to the codes that the row has drawn before; 1 disables.
    repetition_penalty: float = 1.0


@dataclass(frozen=True, eq=False)
class DrawArgs:
    """How each of B rows draws a code: `DrawParams` of all rows, one contiguous tensor [B] a field."""

    #: float32
    temperature_B: Tensor
    #: float32
    top_p_B: Tensor
    #: int64
    top_k_B: Tensor
    #: float32
    repetition_penalty_B: Tensor

    @cached_property
    def effective(self) -> DrawArgs:
        """The same draws without special values, so that code needs no branches.

        Greedy is the nucleus of mass 0, of one code: the first code always stays and its mass drops all others.
        """
        is_sampled_B = self.temperature_B > 0
        top_p_B = torch.where((self.top_p_B > 0) & (self.top_p_B < 1), self.top_p_B, math.inf)
        top_k_B = torch.where(self.top_k_B > 0, self.top_k_B, _NO_TOP_K)
        return DrawArgs(
            temperature_B=torch.where(is_sampled_B, self.temperature_B, 1.0),
            top_p_B=torch.where(is_sampled_B, top_p_B, 0.0),
            top_k_B=torch.where(is_sampled_B, top_k_B, 1),
            repetition_penalty_B=self.repetition_penalty_B,
        )

    @cached_property
    def host(self) -> HostArgs:
        """`effective` as NumPy takes it. Made once a batch and used for every code of every frame."""
        args = self.effective
        return HostArgs(
            temperature_B1=args.temperature_B.double()[:, None].numpy(),
            top_p_B1=args.top_p_B.double()[:, None].numpy(),
            top_k_B=args.top_k_B.numpy(),
            repetition_penalty_B1=args.repetition_penalty_B[:, None].numpy(),
            rows_B1=np.arange(len(args.top_k_B))[:, None],
            max_top_k=int(args.top_k_B.max()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class HostArgs:
    """`DrawArgs.effective` in the shapes and dtypes of the NumPy sampler."""

    temperature_B1: NDArray[np.float64]
    top_p_B1: NDArray[np.float64]
    top_k_B: NDArray[np.int64]
    repetition_penalty_B1: NDArray[np.float32]
    #: 0 .. B - 1
    rows_B1: NDArray[np.int64]
    max_top_k: int
