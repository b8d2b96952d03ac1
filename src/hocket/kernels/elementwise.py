"""Gated activations, embeddings and FP8 rounding of rows.

What needs no whole row runs in tiles of up to 1,024 columns (4 warps, 8 elements a thread); what needs the largest
magnitude of a row has the whole row in registers (`rows.Tile`), and is read once. `gelu`, which knows no rows, runs in
blocks of 4,096 elements (4 warps; 4 loads of 16 bytes a thread in bfloat16).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.rows import FP8, Tile, as_rows, rounded, store_tile, tile_at

_COLUMNS = 1024
_ELEMENTS = 4096


@triton.jit
def _silu_mul_kernel(
    x_ptr, out_ptr, scale_ptr, x_stride, count, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    rows, columns, mask = tile_at(count, WIDTH, ROWS, BLOCK)
    gate_ptr = x_ptr + rows * x_stride + columns
    gate = tl.load(gate_ptr, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + WIDTH, mask=mask, other=0.0).to(tl.float32)
    silu = rounded(gate / (1.0 + tl.exp(-gate)), x_ptr.dtype.element_ty)
    out = rounded(silu * up, x_ptr.dtype.element_ty)
    store_tile(out_ptr, scale_ptr, rows * WIDTH + columns, out, rows, count, mask)


@triton.jit
def _quantize_rows_kernel(
    x_ptr, out_ptr, scale_ptr, x_stride, count, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    rows, columns, mask = tile_at(count, WIDTH, ROWS, BLOCK)
    x = tl.load(x_ptr + rows * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    store_tile(out_ptr, scale_ptr, rows * WIDTH + columns, x, rows, count, mask)


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
    x = tl.load(text_table_ptr + text * text_table_stride + columns, mask=mask, other=0.0).to(tl.float32)
    # Unrolled, so that all loads are in flight while the sum waits for the first.
    for i in tl.static_range(IDS):
        code = tl.load(ids_ptr + row * ids_row_stride + i * ids_stride).to(tl.int64)
        code_ptr = code_table_ptr + code * code_table_stride
        embedding = tl.load(code_ptr + columns, mask=mask & (code >= 0), other=0.0).to(tl.float32)
        x = rounded(x + embedding, out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * WIDTH + columns, x.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gelu_kernel(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """x Phi(x) = max(x, 0) - |x| Phi(-|x|), with log2 Phi(-a) as a polynomial of degree 8.

    15 instructions an element; with erf, 36 would take longer than the memory does. The coefficients are a weighted
    minimax fit on [0, 6.5] that is exact at 0; beyond, the polynomial falls. Off by at most 1.5e-6 of the result from
    x = -3 on, and by 5e-9 below: 1 + erf(x / sqrt(2)) in float32, which cancels there, is off by 1e-6.
    """
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    x = tl.load(x_ptr + places, mask=mask, other=0.0).to(tl.float32)
    a = tl.abs(x)
    log2_tail = a * -5.930554607402883e-07 + 9.387048521602992e-06
    log2_tail = log2_tail * a - 2.460694122419227e-05
    log2_tail = log2_tail * a - 5.862011457793415e-04
    log2_tail = log2_tail * a + 7.747926749289036e-03
    log2_tail = log2_tail * a - 5.305260792374611e-02
    log2_tail = log2_tail * a - 4.589943885803223e-01
    log2_tail = log2_tail * a - 1.1511328220367432
    log2_tail = log2_tail * a - 1.0
    out = tl.maximum(x, 0.0) - a * tl.exp2(log2_tail)
    tl.store(out_ptr + places, out.to(out_ptr.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """`reference.silu_mul`."""
    width, x_ME = gate_up.shape[-1] // 2, as_rows(gate_up)
    count = len(x_ME)
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    tile = Tile.of(min(width, _COLUMNS))
    _silu_mul_kernel[(triton.cdiv(count, tile.rows), triton.cdiv(width, tile.block))](
        x_ME, out, None, x_ME.stride(0), count,
        WIDTH=width, ROWS=tile.rows, BLOCK=tile.block, num_warps=tile.warps,
    )  # fmt: skip
    return out


def silu_mul_fp8(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_rows` of `silu_mul`: float8 rows and their scales [..., 1]."""
    return _to_fp8(_silu_mul_kernel, gate_up, gate_up.shape[-1] // 2)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """`reference.quantize_rows`."""
    return _to_fp8(_quantize_rows_kernel, x, x.shape[-1])


def _to_fp8(kernel, x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Whole rows of `width` results, as float8 rows and scales."""
    x_ME = as_rows(x)
    count = len(x_ME)
    out = torch.empty((*x.shape[:-1], width), dtype=FP8, device=x.device)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    tile = Tile.of(width)
    kernel[(triton.cdiv(count, tile.rows),)](
        x_ME, out, scale, x_ME.stride(0), count,
        WIDTH=width, ROWS=tile.rows, BLOCK=tile.block, num_warps=tile.warps,
    )  # fmt: skip
    return out, scale


def gelu(x: Tensor) -> Tensor:
    """`reference.gelu`, of finite numbers. `x` is contiguous."""
    if not x.is_contiguous():
        raise ValueError("gelu needs a contiguous tensor")
    out, count = torch.empty_like(x), x.numel()
    _gelu_kernel[(triton.cdiv(count, _ELEMENTS),)](x, out, count, BLOCK=_ELEMENTS, num_warps=4)
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
