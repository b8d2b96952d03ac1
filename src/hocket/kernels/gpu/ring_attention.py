"""Sliding-window attention over rings of keys and values: flash attention that reads key j from
slot j mod capacity.

One program has a tile of queries of one head of one stream, rotates them, and walks over blocks of
keys from the oldest that the tile sees to its newest query, with a running softmax in float32.
Blocks begin at multiples of BLOCK_N of the stream's own positions, and a block of which a query
sees nothing changes no bit of its result: so a query's sums are the same wherever in a tile it
stands, and whatever runs beside it. Keys are read where they lie: for 32 streams of 480 new tokens,
12 heads and 400 of context, 86 MB a layer, which a gather would write and read once more.

The grid has room for the longest chunk of each stream; programs beyond a shorter chunk end at once.
Before that, a stream's programs write zeros between it and the next stream.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.gpu.ring_append import rotated
from hocket.kernels.gpu.rows import load_scaled
from hocket.kernels.types import RingWindow, Scaled, operands

#: exp(x) = 2 ** (x * LOG2_E); the hardware has only the latter.
LOG2_E = 1.4426950408889634


class Tile(NamedTuple):
    """Queries of a program and keys of a block (tensor cores need 16 each); warps, and stages of
    loads.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    #: Limit for a thread: with more than 128, a multiprocessor holds fewer than 16 warps.
    registers: int = 128


#: Keyed by the largest number of new tokens of a stream. With few queries a program mostly waits
#: for keys, so longer blocks mean fewer waits. Many queries share a block's keys, which would
#: otherwise come through L2 once for every 64 queries: 414 MB a layer for 32 streams of 480 tokens.
HALF_TILES = {16: Tile(16, 64, 4, 3), 2**31: Tile(64, 64, 4, 3)}
#: Float32 runs without tensor cores, its operands in registers.
FLOAT_TILES = {16: Tile(16, 64, 4, 3, 255), 2**31: Tile(32, 64, 4, 3, 255)}


def tile_of(tokens: int, dtype: torch.dtype) -> Tile:
    """The tile for streams of up to `tokens` new tokens."""
    tiles = HALF_TILES if dtype.itemsize == 2 else FLOAT_TILES
    return next(tile for max_tokens, tile in tiles.items() if tokens <= max_tokens)


def ring_attention(
    qkv: Tensor | Scaled,
    cos_sin_MK: Tensor,
    window: RingWindow,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> Tensor:
    """`reference.rings.ring_attention`. Rows of `qkv` and rings are contiguous."""
    capacity, heads, size = keys_RCHK.shape[1:]
    pack, context, tokens = window.pack, window.context, window.max_tokens
    if capacity < context + tokens - 1:
        raise ValueError(
            f"{tokens} tokens with {context} of context need rings of {context + tokens - 1}, not "
            f"{capacity}"
        )
    product, *scales = operands(qkv)
    if not (product.is_contiguous() and keys_RCHK.is_contiguous() and values_RCHK.is_contiguous()):
        raise ValueError("ring_attention needs contiguous queries and rings")
    tile = tile_of(tokens, keys_RCHK.dtype)
    streams = len(pack.rows_S)
    out = torch.empty((*qkv.shape[:-1], heads * size), dtype=keys_RCHK.dtype, device=qkv.device)
    _ring_attention_kernel[(triton.cdiv(tokens, tile.queries), heads, streams)](
        out, product, *scales, cos_sin_MK, keys_RCHK, values_RCHK,
        pack.rows_S, pack.starts_S, pack.counts_S, pack.firsts_S, streams,
        pack.frames, window.tokens_per_frame, context, capacity, size**-0.5 * LOG2_E,
        H=heads, K=size, BLOCK_M=tile.queries, BLOCK_N=tile.keys, BLOCK_K=max(16,
        triton.next_power_of_2(size)),
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["streams", "pack_frames", "unit", "context", "capacity"])
def _ring_attention_kernel(
    out_ptr, qkv_ptr, row_scales_ptr, column_scales_ptr, bias_ptr, turns_ptr, keys_ptr, values_ptr,
    rows_ptr, starts_ptr, counts_ptr, firsts_ptr, streams, pack_frames, unit, context, capacity,
    scale_log2,
    H: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Long, because it is one loop that shares a running maximum, sum and mixture."""
    # Tiles of one head of one stream run beside each other: they share keys.
    tile, head, stream = tl.program_id(0) * BLOCK_M, tl.program_id(1), tl.program_id(2)
    step = tl.num_programs(0) * BLOCK_M
    tokens = (tl.load(counts_ptr + stream) * unit).to(tl.int32)
    token = tl.load(firsts_ptr + stream).to(tl.int64) * unit
    start = tl.load(starts_ptr + stream).to(tl.int64) * unit
    ring = tl.load(rows_ptr + stream).to(tl.int64) * capacity * (H * K) + head * K
    next_frame = tl.load(firsts_ptr + stream + 1, mask=stream + 1 < streams, other=pack_frames)
    _fill(out_ptr, token + tokens + tile, next_frame * unit, step, head, H, K, BLOCK_M, BLOCK_K)
    # Checked here, so that all loads above are waited for at once.
    if tile >= tokens:
        return
    pointers = (qkv_ptr, row_scales_ptr, column_scales_ptr, bias_ptr, turns_ptr)
    dtype: tl.constexpr = keys_ptr.dtype.element_ty
    q = _queries(pointers, tile, tokens, token, head, H, K, BLOCK_M, BLOCK_K, dtype)
    # One turn, for the grid has a program for each tile. But a tile that goes round a loop is kept
    # in shared memory, and products take it from there; one in registers is fetched anew for every
    # product, which then waits for it.
    for before in range(tile, tokens, step):
        first = start + before
        oldest = tl.maximum(first - (context - 1), 0)
        # All positions from here on are relative to `origin`, where the first block of keys begins:
        # they fit 32 bits.
        origin = oldest // BLOCK_N * BLOCK_N
        oldest_key, first_query = (oldest - origin).to(tl.int32), (first - origin).to(tl.int32)
        keys_end = first_query + tl.minimum(tokens - before, BLOCK_M)
        # The positions that a tile sees are no more than the ring's slots, so they pass its end at
        # most once.
        slots_from_key = (oldest % capacity).to(tl.int32) - oldest_key
        rows, channels = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
        query = first_query + rows

        # Finite, so that a block without any visible key leaves it as it is, instead of making inf
        # - inf.
        largest = tl.full([BLOCK_M], -1e38, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        mixed = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
        for begin in range(0, keys_end, BLOCK_N):
            key = begin + tl.arange(0, BLOCK_N)
            slot = slots_from_key + key
            slot = tl.where(slot >= capacity, slot - capacity, slot)
            kv_offsets = slot[:, None] * (H * K) + channels[None, :]
            kv_mask = ((key >= oldest_key) & (key < keys_end))[:, None] & (channels < K)[None, :]
            k = tl.load(keys_ptr + ring + kv_offsets, mask=kv_mask, other=0.0)
            v = tl.load(values_ptr + ring + kv_offsets, mask=kv_mask, other=0.0)

            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            # Half of the blocks are visible to all queries.
            if (begin <= keys_end - 1 - context) | (begin + BLOCK_N - 1 > first_query):
                # As unsigned numbers, the ages of later keys are larger than any context.
                age = (query[:, None] - key[None, :]).to(tl.uint32)
                scores = tl.where(age < context.to(tl.uint32), scores, float("-inf"))
            new_largest = tl.maximum(largest, tl.max(scores, 1))
            weights = tl.exp2(tl.fma(scores, scale_log2, -(new_largest * scale_log2)[:, None]))
            rescale = tl.exp2((largest - new_largest) * scale_log2)
            total = total * rescale + tl.sum(weights, 1)
            mixed = tl.dot(weights.to(dtype), v, mixed * rescale[:, None], input_precision="ieee")
            largest = new_largest

        # Rows past the chunk may have seen nothing; they are not stored, but 0 / 0 need not be.
        row_exists = before + rows < tokens
        mixed = mixed / tl.where(row_exists, total, 1.0)[:, None]
        out_offsets = rows[:, None] * (H * K) + head * K + channels[None, :]
        mask = row_exists[:, None] & (channels < K)[None, :]
        tl.store(
            out_ptr + (token + before) * (H * K) + out_offsets,
            mixed.to(out_ptr.dtype.element_ty),
            mask=mask,
        )
        q = _queries(pointers, before + step, tokens, token, head, H, K, BLOCK_M, BLOCK_K, dtype)


@triton.jit
def _queries(
    pointers, before, tokens, token, head,
    H: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """A stream's queries from `before` on, rotated and rounded like keys."""
    qkv_ptr, row_scales_ptr, column_scales_ptr, bias_ptr, turns_ptr = pointers
    rows, channels = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_K)[None, :]
    row_exists = before + rows < tokens
    mask = row_exists & (channels < K)
    token += before
    columns = head * K + channels
    x = load_scaled(
        qkv_ptr + token * (3 * H * K), rows * (3 * H * K) + columns, mask,
        row_scales_ptr, column_scales_ptr, bias_ptr, token + rows, columns, row_exists, mask,
    )  # fmt: skip
    turns = tl.load(turns_ptr + token * K + rows * K + channels, mask=mask, other=0.0)
    return rotated(x, turns, BLOCK_M, BLOCK_K).to(DTYPE)


@triton.jit
def _fill(
    out_ptr,
    begin,
    end,
    step,
    head,
    H: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Writes zeros for tokens of no stream."""
    rows, channels = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_K)[None, :]
    zeros = tl.zeros([BLOCK_M, BLOCK_K], out_ptr.dtype.element_ty)
    for token in range(begin, end, step):
        mask = (token + rows < end) & (channels < K)
        tl.store(out_ptr + (token + rows) * (H * K) + head * K + channels, zeros, mask=mask)
