"""Parts that row kernels share. A program has whole rows [R, D] in registers, in up to 8 pieces of
a power of two.

In one piece, the power of two that holds a row of 9,728 or 3,072 would be half or a third padding,
which costs arithmetic as well. A thread has 4 elements of each piece: one load of 16 bytes for
float32, so that inputs of different precision lie alike in registers. A row of 768 is one warp's,
so sums need no barrier; one of 2,560 has 4, of 9,728 16.

Tiles depend on the row's width alone, never on how many rows there are, so that a row's sum is
always added up in the same order and its bits depend on nothing but the row. (Where rows start at
multiples of 16 bytes: others are laid out across threads differently.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.types import Rows8

#: Lower bound of a row's largest magnitude, which keeps its scale and the scale's inverse normal
#: numbers.
_LEAST_LARGEST = tl.constexpr(448.0 * 2.0**-126)


class Tile(NamedTuple):
    """Rows of a program, columns of a piece, and warps of a program."""

    rows: int
    block: int
    warps: int

    @classmethod
    def of(cls, width: int) -> Tile:
        block = max(16, triton.next_power_of_2(triton.cdiv(width, 8)))
        return cls(max(1, 128 // block), block, min(16, max(1, block // 128)))


def as_rows(x: Tensor) -> Tensor:
    """[..., D] as [M, D] without a copy; rows may be strided, as in a slice."""
    return x.view(-1, x.shape[-1])


def empty_rows(like: Tensor, width: int, dtype: torch.dtype, to_fp8: bool) -> Tensor | Rows8:
    """Uninitialised rows [..., width], as many as `like` has, in `dtype` or 8 bits."""
    shape, device = like.shape[:-1], like.device
    if not to_fp8:
        return torch.empty((*shape, width), dtype=dtype, device=device)
    values = torch.empty((*shape, width), dtype=torch.float8_e4m3fn, device=device)
    return Rows8(values, torch.empty((*shape, 1), dtype=torch.float32, device=device))


def targets(rows: Tensor | Rows8) -> tuple[Tensor, Tensor | None]:
    """The values and the scales of rows, as kernels take them; None for the scales of a tensor."""
    return (rows.values, rows.scales) if isinstance(rows, Rows8) else (rows, None)


def triton_dtype(dtype: torch.dtype) -> tl.dtype:
    return getattr(tl, str(dtype).removeprefix("torch."))


@triton.jit
def rows_at(count, ROWS: tl.constexpr):
    """int64 rows [R, 1] of this program, and which of them exist."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    # A mask that is always true must be so at compile time, or every load and store is conditional.
    return rows, (tl.full([1, 1], True, tl.int1) if ROWS == 1 else rows < count)


@triton.jit
def columns_at(piece, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ALL: tl.constexpr):
    """Columns [1, D] of a piece, and which of them exist: all, or those under `WIDTH`."""
    columns = piece * BLOCK + tl.arange(0, BLOCK)[None, :]
    return columns, (tl.full([1, BLOCK], True, tl.int1) if ALL else columns < WIDTH)


@triton.jit
def rounded(values, DTYPE: tl.constexpr):
    """float32 values as `DTYPE` can hold them."""
    return values.to(DTYPE).to(tl.float32)


@triton.jit
def fp8_scales(largest):
    """The scale and its inverse, float32, of a row with this largest magnitude: factors from 8 bits
    and to them.

    Multiplying by the inverse instead of dividing by the scale may put the largest at 448.0001:
    that rounds to 448.
    """
    largest = tl.maximum(largest, _LEAST_LARGEST)
    return tl.div_rn(largest, 448.0), tl.div_rn(448.0, largest)


@triton.jit
def store_rows(
    out_ptr, scale_ptr, pieces, rows, rows_exist, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Stores whole rows of float32, rounded to the dtype of `out_ptr`, or (if there are scales) to
    8 bits.
    """
    PIECES: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    if scale_ptr is not None:
        most = tl.abs(pieces[0])
        for piece in tl.static_range(1, PIECES):
            most = tl.maximum(most, tl.abs(pieces[piece]))
        scale, inverse = fp8_scales(tl.max(most, axis=1, keep_dims=True))
        tl.store(scale_ptr + rows, scale, mask=rows_exist)
    for piece in tl.static_range(PIECES):
        columns, columns_exist = columns_at(piece, WIDTH, BLOCK, (piece + 1) * BLOCK <= WIDTH)
        out = pieces[piece] if scale_ptr is None else pieces[piece] * inverse
        mask = rows_exist & columns_exist
        tl.store(out_ptr + rows * WIDTH + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def load_scaled(
    ptr, offsets, mask, rows_ptr, columns_ptr, bias_ptr, rows, columns, rows_exist, columns_exist
):
    """Loads `ptr + offsets` as float32; with scales (`Scaled`) multiplies by them and rounds to the
    dtype in memory.

    Needs `enable_fp_fusion=False`, or the last scale and the bias become one operation with one
    rounding.
    """
    x = tl.load(ptr + offsets, mask=mask, other=0.0)
    return scaled(
        x,
        rows_ptr,
        columns_ptr,
        bias_ptr,
        rows,
        columns,
        rows_exist,
        columns_exist,
        ptr.dtype.element_ty,
    )


@triton.jit
def scaled(
    x, rows_ptr, columns_ptr, bias_ptr, rows, columns, rows_exist, columns_exist,
    DTYPE: tl.constexpr
):  # fmt: skip
    """`load_scaled` after the load, rounded to `DTYPE`."""
    x = x.to(tl.float32)
    if rows_ptr is not None:
        x = x * tl.load(rows_ptr + rows, mask=rows_exist, other=0.0)
        # All rows need the scales again; a product is needed once.
        x = x * tl.load(
            columns_ptr + columns, mask=columns_exist, other=0.0, eviction_policy="evict_last"
        )
        if bias_ptr is not None:
            bias = tl.load(
                bias_ptr + columns, mask=columns_exist, other=0.0, eviction_policy="evict_last"
            )
            x = x + bias.to(tl.float32)
        x = rounded(x, DTYPE)
    return x
