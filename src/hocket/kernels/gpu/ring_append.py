"""Rotary positions of a codec's chunks, the append of keys and values to their rings, and copies
between rings.

Queries rotate where they are used, in `ring_attention`: writing and reading them would take longer.
A program has some 2,048 channels, [tokens and heads, channels], of the keys of one stream, and its
values as well. The grid has room for the longest chunk of each stream; programs beyond a shorter
chunk end at once.

A copy moves the positions that a stream's next chunk can look back over to a row of other rings,
perhaps of another size. With PyTorch's copies the host launched one for every run of slots in which
neither ring wraps, a dozen for a codec and every request. A program copies some 4,096 elements of
one layer's keys or values.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.gpu.rows import load_scaled
from hocket.kernels.types import RingWindow, Scaled, operands

#: Two vectors of 16 bytes a thread for bfloat16 keys, and as many for values.
ELEMENTS = 2048
#: Four vectors of 16 bytes a thread for bfloat16.
_COPY_ELEMENTS = 4096


@triton.jit
def rotated(x, turns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """float32 [R, D]: each pair of `x` rotated by the cosine and sine at its index in `turns`."""
    # Neighbouring channels are in one thread, which reads 16 bytes at once: taking pairs apart
    # costs no shuffle.
    even, odd = tl.split(tl.reshape(x, (ROWS, BLOCK // 2, 2)))
    cos, sin = tl.split(tl.reshape(turns, (ROWS, BLOCK // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (ROWS, BLOCK))


@triton.jit(do_not_specialize=["unit"])
def _pair_turns_kernel(
    turns_ptr, starts_ptr, counts_ptr, firsts_ptr, unit, step,
    K: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(1)
    tokens = tl.load(counts_ptr + stream).to(tl.int64) * unit
    place = tl.load(firsts_ptr + stream).to(tl.int64) * unit
    start = tl.load(starts_ptr + stream).to(tl.int64) * unit
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    pairs = tl.arange(0, BLOCK // 2).to(tl.float32)
    # In float64, since its error grows with the position; it is computed once a program.
    frequency = tl.exp((pairs * step).to(tl.float64)).to(tl.float32)
    angle = (start + token).to(tl.float32)[:, None] * frequency[None, :]
    turns = tl.reshape(tl.join(tl.cos(angle), tl.sin(angle)), (TOKENS, BLOCK))
    channels = tl.arange(0, BLOCK)[None, :]
    mask = (token < tokens)[:, None] & (channels < K)
    tl.store(turns_ptr + (place + token)[:, None] * K + channels, turns, mask=mask)


def pair_turns(window: RingWindow, size: int, base: float) -> Tensor:
    """`reference.rings.pair_turns`, but entries for tokens of no stream are not written."""
    pack = window.pack
    cos_sin_MK = torch.empty((window.tokens, size), dtype=torch.float32, device=pack.device)
    block = triton.next_power_of_2(size)
    group = max(1, ELEMENTS // 2 // block)
    grid = (triton.cdiv(window.max_tokens, group), len(pack.rows_S))
    _pair_turns_kernel[grid](
        cos_sin_MK, pack.starts_S, pack.counts_S, pack.firsts_S, window.tokens_per_frame,
        -2.0 * math.log(base) / size, K=size, TOKENS=group, BLOCK=block, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return cos_sin_MK


@triton.jit(do_not_specialize=["unit", "capacity"])
def _append_rotated_kernel(
    qkv_ptr, row_scales_ptr, column_scales_ptr, bias_ptr, turns_ptr, rows_ptr, starts_ptr,
    counts_ptr, firsts_ptr,
    keys_ptr, values_ptr, unit, capacity,
    H: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = keys_ptr.dtype.element_ty
    stream = tl.program_id(1)
    heads_before = tl.program_id(0) * ROWS
    tokens = (tl.load(counts_ptr + stream) * unit).to(tl.int32)
    place = tl.load(firsts_ptr + stream).to(tl.int64) * unit
    start = tl.load(starts_ptr + stream).to(tl.int64) * unit
    ring = tl.load(rows_ptr + stream).to(tl.int64) * capacity * (H * K)
    # Tests that are never true, too, so that all loads are issued before the first is waited for.
    if (heads_before >= tokens * H) | (place < 0) | (start < 0) | (ring < 0):
        return
    first_slot = (start % capacity).to(tl.int32)
    number = heads_before + tl.arange(0, ROWS)[:, None]
    token, head = number // H, number % H
    channels = tl.arange(0, BLOCK)[None, :]
    token_exists, exists = token < tokens, channels < K
    mask = token_exists & exists
    # A chunk is shorter than its ring, so it passes the ring's end at most once.
    slot = first_slot + token
    slot = tl.where(slot >= capacity, slot - capacity, slot)

    scales = (row_scales_ptr, column_scales_ptr, bias_ptr)
    qkv = (place + token) * (3 * H * K)
    key_columns, value_columns = (H + head) * K + channels, (2 * H + head) * K + channels
    turns = tl.load(turns_ptr + (place + token) * K + channels, mask=mask, other=0.0)
    key = load_scaled(
        qkv_ptr, qkv + key_columns, mask, *scales, place + token, key_columns, token_exists, mask
    )
    value = load_scaled(
        qkv_ptr,
        qkv + value_columns,
        mask,
        *scales,
        place + token,
        value_columns,
        token_exists,
        mask,
    )
    stored = ring + slot * (H * K) + head * K + channels
    tl.store(keys_ptr + stored, rotated(key, turns, ROWS, BLOCK).to(dtype), mask=mask)
    tl.store(values_ptr + stored, value.to(dtype), mask=mask)


def append_rotated(
    qkv: Tensor | Scaled,
    cos_sin_MK: Tensor,
    window: RingWindow,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> None:
    """`reference.rings.append_rotated`. Rows of `qkv` and rings are contiguous."""
    pack = window.pack
    capacity, heads, size = keys_RCHK.shape[1:]
    block = triton.next_power_of_2(size)
    group = max(1, ELEMENTS // block)
    grid = (triton.cdiv(window.max_tokens * heads, group), len(pack.rows_S))
    _append_rotated_kernel[grid](
        *operands(qkv), cos_sin_MK, pack.rows_S, pack.starts_S, pack.counts_S, pack.firsts_S,
        keys_RCHK, values_RCHK, window.tokens_per_frame, capacity,
        H=heads, K=size, ROWS=group, BLOCK=block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit(
    do_not_specialize=[
        "context",
        "unit",
        "capacity",
        "target_capacity",
        "ring_stride",
        "target_ring_stride",
    ]
)
def _copy_rings_kernel(
    rings_ptr, target_ptr, move_ptr, context, unit, capacity, target_capacity, ring_stride,
    target_ring_stride,
    WIDTH: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    row, target_row = tl.load(move_ptr), tl.load(move_ptr + 1)
    end = tl.load(move_ptr + 2) * unit
    begin = tl.maximum(end - context, 0)
    element = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    position = begin + element // WIDTH
    exists = position < end
    layer, channel = tl.program_id(1).to(tl.int64), element % WIDTH
    here = (layer * ring_stride + row) * capacity + position % capacity
    there = (layer * target_ring_stride + target_row) * target_capacity + position % target_capacity
    values = tl.load(rings_ptr + here * WIDTH + channel, mask=exists)
    tl.store(target_ptr + there * WIDTH + channel, values, mask=exists)


def copy_rings(
    rings_2LRCHK: Tensor, move_3: Tensor, target_2LRCHK: Tensor, context: int, tokens_per_frame: int
) -> None:
    """`reference.rings.copy_rings`. Rings are contiguous."""
    _, layers, rows, capacity, heads, size = rings_2LRCHK.shape
    target_rows, target_capacity = target_2LRCHK.shape[2:4]
    if not (rings_2LRCHK.is_contiguous() and target_2LRCHK.is_contiguous()):
        raise ValueError("rings must be contiguous")
    width = heads * size
    _copy_rings_kernel[(triton.cdiv(context * width, _COPY_ELEMENTS), 2 * layers)](
        rings_2LRCHK, target_2LRCHK, move_3, context, tokens_per_frame, capacity, target_capacity,
        rows, target_rows,
        WIDTH=width, ELEMENTS=_COPY_ELEMENTS, num_warps=4,
    )  # fmt: skip
