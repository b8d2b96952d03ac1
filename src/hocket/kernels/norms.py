"""Norms over rows, with the addition before them and the FP8 rounding after them in the same launch.

A program holds whole rows in registers (`rows.Tile`), so each element is read once and written once: at width 2,560
one row a program, 8 warps, 16 elements a thread. Sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.rows import FP8, Tile, as_rows, rounded, store_tile, tile_at

#: Columns of a program that needs no whole row.
_COLUMNS = 1024


@triton.jit
def _load_sum(x_ptr, delta_ptr, scale_ptr, total_ptr, x_stride, delta_stride, rows, columns, mask, WIDTH: tl.constexpr):
    """float32 rows of x, or of x + [scale *] delta, stored as well and rounded as stored."""
    x = tl.load(x_ptr + rows * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    if delta_ptr is not None:
        delta = tl.load(delta_ptr + rows * delta_stride + columns, mask=mask, other=0.0).to(tl.float32)
        if scale_ptr is not None:
            delta = delta * tl.load(scale_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
        x = rounded(x + delta, total_ptr.dtype.element_ty)
        tl.store(total_ptr + rows * WIDTH + columns, x.to(total_ptr.dtype.element_ty), mask=mask)
    return x


@triton.jit
def _rms_norm_kernel(
    x_ptr, delta_ptr, weight_ptr, total_ptr, out_ptr, scale_ptr, x_stride, delta_stride, count, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_at(count, WIDTH, ROWS, BLOCK)
    x = _load_sum(x_ptr, delta_ptr, None, total_ptr, x_stride, delta_stride, rows, columns, mask, WIDTH)
    weight = tl.load(weight_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / WIDTH + eps)
    # The norm is rounded before the weight multiplies, and the product before FP8 sees it.
    out = rounded(rounded(normed, x_ptr.dtype.element_ty) * weight, x_ptr.dtype.element_ty)
    store_tile(out_ptr, scale_ptr, rows * WIDTH + columns, out, rows, count, mask)


@triton.jit
def _layer_norm_kernel(
    x_ptr, delta_ptr, scale_ptr, weight_ptr, bias_ptr, total_ptr, out_ptr, x_stride, delta_stride, count, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_at(count, WIDTH, ROWS, BLOCK)
    x = _load_sum(x_ptr, delta_ptr, scale_ptr, total_ptr, x_stride, delta_stride, rows, columns, mask, WIDTH)
    weight = tl.load(weight_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    # Two passes over registers: the mean of squares minus the squared mean would cancel.
    centred = tl.where(mask, x - tl.sum(x, axis=1, keep_dims=True) / WIDTH, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred, axis=1, keep_dims=True) / WIDTH + eps)
    store_tile(out_ptr, None, rows * WIDTH + columns, normed * weight + bias, rows, count, mask)


@triton.jit
def _scaled_add_kernel(
    x_ptr, delta_ptr, scale_ptr, total_ptr, x_stride, delta_stride, count,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows, columns, mask = tile_at(count, WIDTH, ROWS, BLOCK)
    _load_sum(x_ptr, delta_ptr, scale_ptr, total_ptr, x_stride, delta_stride, rows, columns, mask, WIDTH)


def _rms(x: Tensor, delta: Tensor | None, weight_D: Tensor, eps: float, fp8: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(total, normed, scale); total is `x` itself without a delta, scale is unset without FP8."""
    width, x_MD = x.shape[-1], as_rows(x)
    count = len(x_MD)
    delta_MD = None if delta is None else as_rows(delta)
    total = x if delta is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = torch.empty(x.shape, dtype=FP8 if fp8 else x.dtype, device=x.device)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device) if fp8 else None
    tile = Tile.of(width)
    _rms_norm_kernel[(triton.cdiv(count, tile.rows),)](
        x_MD, delta_MD, weight_D, None if delta is None else total, out, scale,
        x_MD.stride(0), 0 if delta_MD is None else delta_MD.stride(0), count, eps,
        WIDTH=width, ROWS=tile.rows, BLOCK=tile.block, num_warps=tile.warps,
    )  # fmt: skip
    return total, out, scale


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`reference.rms_norm`."""
    return _rms(x, None, weight_D, eps, fp8=False)[1]


def add_rms_norm(x: Tensor, delta: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`reference.add_rms_norm`."""
    return _rms(x, delta, weight_D, eps, fp8=False)[:2]


def rms_norm_fp8(x: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`quantize_rows` of `rms_norm`: float8 rows and their scales [..., 1]."""
    return _rms(x, None, weight_D, eps, fp8=True)[1:]


def add_rms_norm_fp8(x: Tensor, delta: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """`add_rms_norm` with the norm through `quantize_rows`: the sum, float8 rows and their scales [..., 1]."""
    return _rms(x, delta, weight_D, eps, fp8=True)


def _layer(
    x: Tensor, delta: Tensor | None, scale_D: Tensor | None, weight_D: Tensor, bias_D: Tensor, eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(total, normed); total is `x` itself without a delta."""
    width, x_MD = x.shape[-1], as_rows(x)
    count = len(x_MD)
    delta_MD = None if delta is None else as_rows(delta)
    total = x if delta is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    tile = Tile.of(width)
    _layer_norm_kernel[(triton.cdiv(count, tile.rows),)](
        x_MD, delta_MD, scale_D, weight_D, bias_D, None if delta is None else total, out,
        x_MD.stride(0), 0 if delta_MD is None else delta_MD.stride(0), count, eps,
        WIDTH=width, ROWS=tile.rows, BLOCK=tile.block, num_warps=tile.warps, enable_fp_fusion=False,
    )  # fmt: skip
    return total, out


def layer_norm(x: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    """`reference.layer_norm`."""
    return _layer(x, None, None, weight_D, bias_D, eps, x.dtype)[1]


def add_layer_norm(x: Tensor, delta: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`reference.add_layer_norm`."""
    return _layer(x, delta, None, weight_D, bias_D, eps, x.dtype)


def layer_norm_to(x: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`reference.layer_norm_to`."""
    return _layer(x, None, None, weight_D, bias_D, eps, dtype)[1]


def scaled_add_layer_norm(
    x: Tensor, delta: Tensor, scale_D: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`reference.scaled_add_layer_norm`."""
    return _layer(x, delta, scale_D, weight_D, bias_D, eps, delta.dtype)


def scaled_add(x: Tensor, delta: Tensor, scale_D: Tensor) -> Tensor:
    """`reference.scaled_add`."""
    width, x_MD, delta_MD = x.shape[-1], as_rows(x), as_rows(delta)
    count = len(x_MD)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    tile = Tile.of(min(width, _COLUMNS))
    _scaled_add_kernel[(triton.cdiv(count, tile.rows), triton.cdiv(width, tile.block))](
        x_MD, delta_MD, scale_D, total, x_MD.stride(0), delta_MD.stride(0), count,
        WIDTH=width, ROWS=tile.rows, BLOCK=tile.block, num_warps=tile.warps, enable_fp_fusion=False,
    )  # fmt: skip
    return total
