"""Norms over rows, with the addition before them and the rounding to 8 bits after them in the same
launch.

A program holds whole rows in registers (`rows`), so each element is read once and written once. All
loads come before the first store, which they could not overtake. Sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.gpu.rows import (
    Tile,
    as_rows,
    columns_at,
    empty_rows,
    load_scaled,
    rounded,
    rows_at,
    store_rows,
    targets,
    triton_dtype,
)
from hocket.kernels.types import Rows8, Scaled, operands

#: Columns of a program that works on parts of rows.
_COLUMNS = 1024


@triton.jit
def _load_sum(
    x_ptr, delta_ptr, rows_ptr, columns_ptr, bias_ptr, gain_ptr, x_stride, delta_stride,
    rows, columns, rows_exist, columns_exist,
):  # fmt: skip
    """x, or x + [gain *] delta rounded to the dtype of x, as float32."""
    mask = rows_exist & columns_exist
    x = tl.load(x_ptr + rows * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if delta_ptr is not None:
        at = rows * delta_stride + columns
        delta = load_scaled(
            delta_ptr,
            at,
            mask,
            rows_ptr,
            columns_ptr,
            bias_ptr,
            rows,
            columns,
            rows_exist,
            columns_exist,
        )
        if gain_ptr is not None:
            delta = delta * tl.load(gain_ptr + columns, mask=columns_exist, other=0.0).to(
                tl.float32
            )
        x = rounded(x + delta, x_ptr.dtype.element_ty)
    return x


@triton.jit
def _sum_rows(
    x_ptr, delta_ptr, rows_ptr, columns_ptr, bias_ptr, gain_ptr, total_ptr, x_stride, delta_stride,
    rows, rows_exist, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`_load_sum` of whole rows in pieces; stores the sums as well."""
    PIECES: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    pieces = ()
    for piece in tl.static_range(PIECES):
        columns, columns_exist = columns_at(piece, WIDTH, BLOCK, (piece + 1) * BLOCK <= WIDTH)
        x = _load_sum(
            x_ptr, delta_ptr, rows_ptr, columns_ptr, bias_ptr, gain_ptr, x_stride, delta_stride,
            rows, columns, rows_exist, columns_exist,
        )  # fmt: skip
        pieces += (x,)
    if delta_ptr is not None:
        store_rows(total_ptr, None, pieces, rows, rows_exist, WIDTH, BLOCK)
    return pieces


@triton.jit
def _rms_norm_kernel(
    x_ptr, delta_ptr, rows_ptr, columns_ptr, bias_ptr, weight_ptr, total_ptr, out_ptr, scale_ptr,
    x_stride, delta_stride, count, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    PIECES: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    rows, rows_exist = rows_at(count, ROWS)
    weights = _vector(weight_ptr, WIDTH, BLOCK)
    pieces = _sum_rows(
        x_ptr, delta_ptr, rows_ptr, columns_ptr, bias_ptr, None, total_ptr, x_stride, delta_stride,
        rows, rows_exist, WIDTH, BLOCK,
    )  # fmt: skip
    squares = pieces[0] * pieces[0]
    for piece in tl.static_range(1, PIECES):
        squares += pieces[piece] * pieces[piece]
    rstd = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / WIDTH + eps)
    normed = ()
    for piece in tl.static_range(PIECES):
        # The norm is rounded before the weight multiplies.
        normed += (rounded(rounded(pieces[piece] * rstd, dtype) * weights[piece], dtype),)
    store_rows(out_ptr, scale_ptr, normed, rows, rows_exist, WIDTH, BLOCK)


@triton.jit
def _layer_norm_kernel(
    x_ptr, delta_ptr, rows_ptr, columns_ptr, bias_ptr, gain_ptr, weight_ptr, offset_ptr, total_ptr,
    out_ptr, scale_ptr,
    x_stride, delta_stride, count, eps,
    DTYPE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    PIECES: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    rows, rows_exist = rows_at(count, ROWS)
    weights, offsets = _vector(weight_ptr, WIDTH, BLOCK), _vector(offset_ptr, WIDTH, BLOCK)
    pieces = _sum_rows(
        x_ptr, delta_ptr, rows_ptr, columns_ptr, bias_ptr, gain_ptr, total_ptr, x_stride,
        delta_stride,
        rows, rows_exist, WIDTH, BLOCK,
    )  # fmt: skip
    total = pieces[0]
    for piece in tl.static_range(1, PIECES):
        total += pieces[piece]
    mean = tl.sum(total, axis=1, keep_dims=True) / WIDTH
    # Two passes over registers: the mean of squares minus the squared mean would cancel.
    centred = ()
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for piece in tl.static_range(PIECES):
        _, columns_exist = columns_at(piece, WIDTH, BLOCK, (piece + 1) * BLOCK <= WIDTH)
        x = tl.where(columns_exist, pieces[piece] - mean, 0.0)
        squares += x * x
        centred += (x,)
    rstd = tl.rsqrt(tl.sum(squares, axis=1, keep_dims=True) / WIDTH + eps)
    normed = ()
    for piece in tl.static_range(PIECES):
        normed += (rounded(centred[piece] * rstd * weights[piece] + offsets[piece], DTYPE),)
    store_rows(out_ptr, scale_ptr, normed, rows, rows_exist, WIDTH, BLOCK)


@triton.jit
def _vector(ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A vector that all rows share, float32 [1, D] in pieces."""
    pieces = ()
    for piece in tl.static_range((WIDTH + BLOCK - 1) // BLOCK):
        columns, columns_exist = columns_at(piece, WIDTH, BLOCK, (piece + 1) * BLOCK <= WIDTH)
        pieces += (tl.load(ptr + columns, mask=columns_exist, other=0.0).to(tl.float32),)
    return pieces


@triton.jit
def _scaled_add_kernel(
    x_ptr, delta_ptr, rows_ptr, columns_ptr, bias_ptr, gain_ptr, total_ptr, x_stride, delta_stride,
    count,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, rows_exist = rows_at(count, ROWS)
    columns, columns_exist = columns_at(tl.program_id(1), WIDTH, BLOCK, WIDTH % BLOCK == 0)
    total = _load_sum(
        x_ptr, delta_ptr, rows_ptr, columns_ptr, bias_ptr, gain_ptr, x_stride, delta_stride,
        rows, columns, rows_exist, columns_exist,
    )  # fmt: skip
    at = total_ptr + rows * WIDTH + columns
    tl.store(at, total.to(total_ptr.dtype.element_ty), mask=rows_exist & columns_exist)


@triton.jit
def _scaled_add_rms_norm_kernel(
    x_ptr, delta_ptr, scale_ptr, weight_ptr, total_ptr, out_ptr, eps, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    exists = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    x = tl.load(x_ptr + at, mask=exists, other=0.0)
    weight = tl.load(weight_ptr + columns, mask=exists, other=0.0)
    if delta_ptr is not None:
        scale = tl.load(scale_ptr + columns, mask=exists, other=0.0)
        x += scale * tl.load(delta_ptr + at, mask=exists, other=0.0).to(tl.float32)
        tl.store(total_ptr + at, x, mask=exists)
    normed = x * tl.rsqrt(tl.sum(x * x) / WIDTH + eps) * weight
    tl.store(out_ptr + at, normed.to(out_ptr.dtype.element_ty), mask=exists)


def _sum_operands(
    x: Tensor, delta: Tensor | Scaled | None
) -> tuple[Tensor, tuple[Tensor | None, ...], Tensor | None, tuple[int, int]]:
    """The rows of x; those of delta with their scales and bias; a tensor for sums (None without a
    delta); strides.
    """
    x_MD = as_rows(x)
    if delta is None:
        return x_MD, (None,) * 4, None, (x_MD.stride(0), 0)
    product, *scales = operands(delta)
    delta_MD = as_rows(product)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return x_MD, (delta_MD, *scales), total, (x_MD.stride(0), delta_MD.stride(0))


def add_rms_norm(
    x: Tensor, delta: Tensor | Scaled | None, weight_D: Tensor, eps: float, to_fp8: bool = False
) -> tuple[Tensor, Tensor | Rows8]:
    """`reference.add_rms_norm`."""
    x_MD, deltas, total, strides = _sum_operands(x, delta)
    count, width = x_MD.shape
    out = empty_rows(x, width, x.dtype, to_fp8)
    tile = Tile.of(width)
    _rms_norm_kernel[(triton.cdiv(count, tile.rows),)](
        x_MD, *deltas, weight_D, total, *targets(out), *strides, count, eps,
        WIDTH=width, ROWS=tile.rows, BLOCK=tile.block, num_warps=tile.warps, enable_fp_fusion=False,
    )  # fmt: skip
    return x if total is None else total, out


def _layer(
    x: Tensor, delta: Tensor | Scaled | None, gain_D: Tensor | None, weight_D: Tensor,
    bias_D: Tensor, eps: float,
    dtype: torch.dtype, to_fp8: bool,
) -> tuple[Tensor, Tensor | Rows8]:  # fmt: skip
    """(total, normed); total is `x` itself without a delta."""
    x_MD, deltas, total, strides = _sum_operands(x, delta)
    count, width = x_MD.shape
    out = empty_rows(x, width, dtype, to_fp8)
    tile = Tile.of(width)
    _layer_norm_kernel[(triton.cdiv(count, tile.rows),)](
        x_MD, *deltas, gain_D, weight_D, bias_D, total, *targets(out), *strides, count, eps,
        DTYPE=triton_dtype(dtype), WIDTH=width, ROWS=tile.rows, BLOCK=tile.block,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )  # fmt: skip
    return x if total is None else total, out


def add_layer_norm(
    x: Tensor,
    delta: Tensor | Scaled | None,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    to_fp8: bool = False,
) -> tuple[Tensor, Tensor | Rows8]:
    """`reference.add_layer_norm`."""
    return _layer(x, delta, None, weight_D, bias_D, eps, x.dtype, to_fp8)


def layer_norm_to(
    x: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    dtype: torch.dtype,
    to_fp8: bool = False,
) -> Tensor | Rows8:
    """`reference.layer_norm_to`."""
    return _layer(x, None, None, weight_D, bias_D, eps, dtype, to_fp8)[1]


def scaled_add_layer_norm(
    x: Tensor, delta: Tensor | Scaled, scale_D: Tensor, weight_D: Tensor, bias_D: Tensor,
    eps: float,
    to_fp8: bool = False,
) -> tuple[Tensor, Tensor | Rows8]:  # fmt: skip
    """`reference.scaled_add_layer_norm`."""
    return _layer(x, delta, scale_D, weight_D, bias_D, eps, delta.dtype, to_fp8)


def scaled_add(x: Tensor, delta: Tensor | Scaled, scale_D: Tensor) -> Tensor:
    """`reference.scaled_add`."""
    x_MD, deltas, total, strides = _sum_operands(x, delta)
    count, width = x_MD.shape
    block = min(triton.next_power_of_2(width), _COLUMNS)
    rows = _COLUMNS // block
    _scaled_add_kernel[(triton.cdiv(count, rows), triton.cdiv(width, block))](
        x_MD, *deltas, scale_D, total, *strides, count,
        WIDTH=width, ROWS=rows, BLOCK=block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    assert total is not None  # there is a delta
    return total


def scaled_add_rms_norm(
    x: Tensor,
    delta: Tensor | None,
    scale_D: Tensor | None,
    weight_D: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """`reference.scaled_add_rms_norm`; rows are contiguous."""
    if not all(part is None or part.is_contiguous() for part in (x, delta)):
        raise ValueError("the rows of a residual stream and of what joins it must be contiguous")
    width = x.shape[-1]
    total = x if delta is None else torch.empty_like(x)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    block = triton.next_power_of_2(width)
    _scaled_add_rms_norm_kernel[(len(as_rows(x)),)](
        x, delta, scale_D, weight_D, total, out, eps, WIDTH=width, BLOCK=block,
        num_warps=min(16, max(1, block // 256)), enable_fp_fusion=False,
    )  # fmt: skip
    return total, out
