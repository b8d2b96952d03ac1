"""Gated activations, embeddings and FP8 rounding of rows.

What needs no whole row runs in tiles of up to 1,024 columns (4 warps, 8 elements a thread); what needs the largest
magnitude of a row has the whole row in registers (`rows.Tile`), and is read once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.rows import FP8, Tile, as_rows, rounded, store_tile, tile_at

_COLUMNS = 1024


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
