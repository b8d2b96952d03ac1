"""Keys and values of backbones: paged ones, which a sequence keeps, and those of one frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hocket.kernels.types import FP8, SCALE_DTYPE


class KVShape(Protocol):
    """The dimensions of a backbone that its keys and values have."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def kv_bytes_per_row(shape: KVShape, dtype: torch.dtype) -> int:
    """Bytes of the keys and values that one row takes in all layers, with the scales of float8."""
    scale_bytes = SCALE_DTYPE.itemsize if dtype == FP8 else 0
    return 2 * shape.layers * shape.kv_heads * (shape.head_dim * dtype.itemsize + scale_bytes)


@dataclass(frozen=True, slots=True)
class KVPages:
    """Keys and values of all layers: each [layers, pages, page_rows, kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor
    #: bfloat16 [layers, pages, kv_heads, page_rows, 2], a key's scale and a value's; None unless
    #: they are float8.
    scales: Tensor | None = None

    @classmethod
    def allocate(
        cls,
        layers: int,
        pages: int,
        page_rows: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVPages:
        """Uninitialised pages, the scratch page (number 0) included in `pages`; with scales if
        `dtype` is float8.
        """
        shape = (layers, pages, page_rows, kv_heads, head_dim)
        keys, values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        if dtype != FP8:
            return cls(keys, values)
        scales = torch.empty(
            (layers, pages, kv_heads, page_rows, 2), dtype=SCALE_DTYPE, device=device
        )
        return cls(keys, values, scales)

    def scales_of(self, layer: int) -> Tensor | None:
        """[pages, kv_heads, page_rows, 2]"""
        return None if self.scales is None else self.scales[layer]

    @property
    def nbytes(self) -> int:
        return (
            self.keys.nbytes
            + self.values.nbytes
            + (0 if self.scales is None else self.scales.nbytes)
        )

    @property
    def page_rows(self) -> int:
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class FrameKV:
    """Keys and values of a model that runs anew in every frame, over the same few positions in all
    rows.

    Each [layers, B, positions, kv_heads, head_dim], uninitialised: a position is read only after it
    was written.
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
        return cls(
            torch.empty(shape, dtype=dtype, device=device),
            torch.empty(shape, dtype=dtype, device=device),
        )
