"""Activations, rounding to 8 bits, and embeddings.

Operations on single elements run in tiles of up to 1,024 columns (4 warps, 8 elements a thread, or
32 where there are many); those that need the largest magnitude of a row have the whole row in
registers (`rows`).
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
    rounded,
    rows_at,
    scaled,
    store_rows,
    targets,
)
from hocket.kernels.types import Rows8, Scaled, operands

_COLUMNS = 1024
#: Number of results from which a tile has four rows of 1,024, so that fewer programs are launched.
_MANY = 1 << 22


@triton.jit
def _silu(x):
    """x / (1 + exp(-x)) in 6 instructions an element; `/` and `exp` take 15, for operands that do
    not occur here.
    """
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return x * root * root


@triton.jit
def _gelu(x):
    """x Phi(x) = max(x, 0) - |x| Phi(-|x|), with log2 Phi(-a) as a polynomial of degree 8.

    15 instructions an element; with erf, 36 would take longer than the memory does. The
    coefficients are a weighted minimax fit on [0, 6.5] that is exact at 0; beyond, the polynomial
    falls. The result is off by at most 1.5e-6 of the result from x = -3 on, and by 5e-9 below: 1 +
    erf(x / sqrt(2)) in float32, which cancels there, is off by 1e-6.
    """
    a = tl.abs(x)
    log2_tail = tl.fma(a, -5.930554607402883e-07, 9.387048521602992e-06)
    log2_tail = tl.fma(log2_tail, a, -2.460694122419227e-05)
    log2_tail = tl.fma(log2_tail, a, -5.862011457793415e-04)
    log2_tail = tl.fma(log2_tail, a, 7.747926749289036e-03)
    log2_tail = tl.fma(log2_tail, a, -5.305260792374611e-02)
    log2_tail = tl.fma(log2_tail, a, -4.589943885803223e-01)
    log2_tail = tl.fma(log2_tail, a, -1.1511328220367432)
    log2_tail = tl.fma(log2_tail, a, -1.0)
    return tl.fma(-a, tl.exp2(log2_tail), tl.maximum(x, 0.0))


@triton.jit
def _inputs(x_ptr, x_stride, rows, columns, mask, ACTIVATION: tl.constexpr, WIDTH: tl.constexpr):
    """The inputs of a tile of results, in their dtype in memory: x (the gate of `silu_mul`), and up
    (else x again).
    """
    at = x_ptr + rows * x_stride + columns
    x = tl.load(at, mask=mask, other=0.0)
    return x, (tl.load(at + WIDTH, mask=mask, other=0.0) if ACTIVATION == "silu_mul" else x)


@triton.jit
def _activated(
    x, up, rows_ptr, columns_ptr, bias_ptr, rows, columns, rows_exist, columns_exist,
    ACTIVATION: tl.constexpr, DTYPE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A tile of results in float32, with each step rounded to `DTYPE`."""
    x = scaled(x, rows_ptr, columns_ptr, bias_ptr, rows, columns, rows_exist, columns_exist, DTYPE)
    if ACTIVATION == "gelu":
        x = rounded(_gelu(x), DTYPE)
    elif ACTIVATION == "silu":
        x = rounded(_silu(x), DTYPE)
    elif ACTIVATION == "silu_mul":
        up = scaled(
            up,
            rows_ptr,
            columns_ptr,
            bias_ptr,
            rows,
            columns + WIDTH,
            rows_exist,
            columns_exist,
            DTYPE,
        )
        x = rounded(rounded(_silu(x), DTYPE) * up, DTYPE)
    return x


@triton.jit
def _activation_kernel(
    x_ptr, rows_ptr, columns_ptr, bias_ptr, out_ptr, x_stride, count,
    ACTIVATION: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    rows, rows_exist = rows_at(count, ROWS)
    columns, columns_exist = columns_at(tl.program_id(1), WIDTH, BLOCK, WIDTH % BLOCK == 0)
    mask = rows_exist & columns_exist
    x, up = _inputs(x_ptr, x_stride, rows, columns, mask, ACTIVATION, WIDTH)
    out = _activated(
        x,
        up,
        rows_ptr,
        columns_ptr,
        bias_ptr,
        rows,
        columns,
        rows_exist,
        columns_exist,
        ACTIVATION,
        dtype,
        WIDTH,
    )
    tl.store(out_ptr + rows * WIDTH + columns, out.to(dtype), mask=mask)


@triton.jit
def _fp8_kernel(
    x_ptr, rows_ptr, columns_ptr, bias_ptr, out_ptr, scale_ptr, x_stride, count,
    ACTIVATION: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    PIECES: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    rows, rows_exist = rows_at(count, ROWS)
    # All loads of a row are issued before the first is used.
    inputs = ()
    for piece in tl.static_range(PIECES):
        columns, columns_exist = columns_at(piece, WIDTH, BLOCK, (piece + 1) * BLOCK <= WIDTH)
        inputs += (
            _inputs(x_ptr, x_stride, rows, columns, rows_exist & columns_exist, ACTIVATION, WIDTH),
        )
    pieces = ()
    for piece in tl.static_range(PIECES):
        columns, columns_exist = columns_at(piece, WIDTH, BLOCK, (piece + 1) * BLOCK <= WIDTH)
        x, up = inputs[piece]  # type: ignore[var-annotated]
        out = _activated(
            x, up, rows_ptr, columns_ptr, bias_ptr, rows, columns, rows_exist, columns_exist,
            ACTIVATION, tl.float32, WIDTH,
        )  # fmt: skip
        pieces += (out,)
    store_rows(out_ptr, scale_ptr, pieces, rows, rows_exist, WIDTH, BLOCK)


@triton.jit
def _embed_sum_kernel(
    text_table_ptr, code_table_ptr, text_ptr, ids_ptr, out_ptr,
    text_table_stride, code_table_stride, text_stride, ids_row_stride, ids_stride,
    IDS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    text = tl.load(text_ptr + row * text_stride).to(tl.int64)
    x = tl.load(text_table_ptr + text * text_table_stride + columns, mask=mask, other=0.0).to(
        tl.float32
    )
    # Unrolled, so that all loads are in flight while the sum waits for the first.
    for i in tl.static_range(IDS):
        code = tl.load(ids_ptr + row * ids_row_stride + i * ids_stride).to(tl.int64)
        code_ptr = code_table_ptr + code * code_table_stride
        embedding = tl.load(code_ptr + columns, mask=mask & (code >= 0), other=0.0).to(tl.float32)
        x = rounded(x + embedding, out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * WIDTH + columns, x.to(out_ptr.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor | Scaled, to_fp8: bool = False) -> Tensor | Rows8:
    """`reference.silu_mul`."""
    return _activate(gate_up, "silu_mul", gate_up.shape[-1] // 2, to_fp8)


def silu(x: Tensor | Scaled, to_fp8: bool = False) -> Tensor | Rows8:
    """`reference.silu`."""
    return _activate(x, "silu", x.shape[-1], to_fp8)


def gelu(x: Tensor | Scaled, to_fp8: bool = False) -> Tensor | Rows8:
    """`reference.gelu` for finite numbers."""
    return _activate(x, "gelu", x.shape[-1], to_fp8)


def quantize_rows(x: Tensor) -> Rows8:
    """`reference.quantize_rows`."""
    rows8 = _activate(x, "", x.shape[-1], True)
    assert isinstance(rows8, Rows8)
    return rows8


def _activate(x: Tensor | Scaled, activation: str, width: int, to_fp8: bool) -> Tensor | Rows8:
    """Computes `width` results of each row."""
    product, *scales = operands(x)
    x_ME = as_rows(product)
    count = len(x_ME)
    out = empty_rows(product, width, product.dtype, to_fp8)
    values, out_scales = targets(out)
    if to_fp8:
        tile = Tile.of(width)
        _fp8_kernel[(triton.cdiv(count, tile.rows),)](
            x_ME, *scales, values, out_scales, x_ME.stride(0), count,
            ACTIVATION=activation, WIDTH=width, ROWS=tile.rows, BLOCK=tile.block,
            num_warps=tile.warps, enable_fp_fusion=False,
        )  # fmt: skip
        return out
    block = min(triton.next_power_of_2(width), _COLUMNS)
    rows = _COLUMNS // block * (4 if count * width >= _MANY else 1)
    _activation_kernel[(triton.cdiv(count, rows), triton.cdiv(width, block))](
        x_ME, *scales, values, x_ME.stride(0), count,
        ACTIVATION=activation, WIDTH=width, ROWS=rows, BLOCK=block, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out


def embed_sum(text_VD: Tensor, codes_WD: Tensor, text_M: Tensor, ids_MN: Tensor) -> Tensor:
    """`reference.embed_sum`."""
    count, ids = ids_MN.shape
    width = text_VD.shape[-1]
    out_MD = torch.empty((count, width), dtype=text_VD.dtype, device=text_VD.device)
    block = min(triton.next_power_of_2(width), _COLUMNS)
    _embed_sum_kernel[(count, triton.cdiv(width, block))](
        text_VD, codes_WD, text_M, ids_MN, out_MD,
        text_VD.stride(0), codes_WD.stride(0), text_M.stride(0), ids_MN.stride(0), ids_MN.stride(1),
        IDS=ids, WIDTH=width, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out_MD
