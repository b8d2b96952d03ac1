"""The cache of a model that runs anew in every frame."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class FrameKV:
    """Keys and values of a model that runs anew in every frame, over the same few positions in all rows.

    Each [layers, B, positions, kv_heads, head_dim], uninitialised: a position is read only after it was written.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def allocate(
        cls,
        layers: int,
        rows: int,
        positions: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> FrameKV:
        shape = (layers, rows, positions, kv_heads, head_dim)
        return cls(torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
