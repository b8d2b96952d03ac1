"""What the row kernels share: a program has a tile of whole rows in registers, [R, D] with D a power of two.

Tiles depend on the row's width alone, never on how many rows there are, so that a row's sum is always added up in the
same order and its bits depend on nothing but the row. (Where rows start at multiples of 16 bytes: others are dealt out
to threads differently.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

FP8 = torch.float8_e4m3fn


class Tile(NamedTuple):
    """Shape of a program's tile and how many warps hold it."""

    rows: int
    block: int
    warps: int

    @classmethod
    def of(cls, width: int) -> Tile:
        """Whole rows: 1,024 elements or one row, with 8 (up to 1,024) to 32 (16,384) elements a thread."""
        block = triton.next_power_of_2(width)
        rows = max(1, 1024 // block)
        return cls(rows, block, min(16, max(4, rows * block // 512)))


def as_rows(x: Tensor) -> Tensor:
    """[..., D] as [M, D] without a copy; rows may lie apart, as in a slice."""
    return x.view(-1, x.shape[-1])


@triton.jit
def tile_at(count, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """int64 rows [R, 1], columns [1, D] and what of them exists [R, D], of this program: grid (rows, columns)."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    return rows, columns, (rows < count) & (columns < WIDTH)


@triton.jit
def rounded(values, DTYPE: tl.constexpr):
    """float32 values as `DTYPE` can hold them."""
    return values.to(DTYPE).to(tl.float32)


@triton.jit
def store_tile(out_ptr, scale_ptr, offsets, values, rows, count, mask):
    """Store float32 values, as they are or (if there are scales) as float8 with a scale per row.

    Divisions are correctly rounded: with a reciprocal, values near a tie would go to the other side.
    """
    if scale_ptr is None:
        tl.store(out_ptr + offsets, values.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        largest = tl.max(tl.abs(values), axis=1, keep_dims=True)
        scale = tl.where(largest > 0, tl.div_rn(largest, 448.0), 1.0)
        # The conversion saturates: a subnormal scale is too coarse to keep its row within 448.
        tl.store(out_ptr + offsets, tl.div_rn(values, scale).to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(scale_ptr + rows, scale, mask=rows < count)


@triton.jit
def load_scaled(ptr, offsets, mask, rows_ptr, columns_ptr, bias_ptr, rows, columns, rows_exist, columns_exist):
    """float32 of what lies at `ptr + offsets`; with scales (`Scaled`) multiplied by them, and rounded as stored."""
    x = tl.load(ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if rows_ptr is not None:
        x = x * tl.load(rows_ptr + rows, mask=rows_exist, other=0.0)
        x = x * tl.load(columns_ptr + columns, mask=columns_exist, other=0.0)
        if bias_ptr is not None:
            x = x + tl.load(bias_ptr + columns, mask=columns_exist, other=0.0).to(tl.float32)
        x = rounded(x, ptr.dtype.element_ty)
    return x
