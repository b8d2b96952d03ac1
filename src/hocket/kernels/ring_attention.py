"""Sliding-window attention over rings of keys and values: flash attention that reads key j from slot j mod capacity.

One program has a tile of queries of one head of one stream, and walks over blocks of keys from the oldest that the tile
sees to its newest query, with a running softmax in float32. Blocks begin at multiples of BLOCK_N of the stream's own
positions, and a block of which a query sees nothing changes no bit of its result: so a query's sums are the same
wherever in a tile it stands, and whatever runs beside it. Keys are read where they lie: for 32 streams of 480 new
tokens, 12 heads and 400 of context, 86 MB a layer, which a gather would write and read once more.

Streams either have equally many tokens, or are packed: then the grid has room for the longest chunk of each, and what
a shorter one leaves of it ends at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_N = 64
#: Tensor cores take tiles of 16 and more.
MIN_DOT = 16
#: exp(x) = 2 ** (x * LOG2_E); the hardware has only the latter.
LOG2_E = 1.4426950408889634


def ring_attention(
    q_BTHK: Tensor, keys_RCHK: Tensor, values_RCHK: Tensor, rows_B: Tensor, starts_B: Tensor, context: int
) -> Tensor:
    """See `reference.ring_attention`. The queries' channels and the rings are contiguous."""
    out_BTHK = torch.empty(q_BTHK.shape, dtype=q_BTHK.dtype, device=q_BTHK.device)
    tokens = q_BTHK.shape[1]
    _launch(out_BTHK, q_BTHK, keys_RCHK, values_RCHK, rows_B, starts_B, None, None, tokens, 1, context)
    return out_BTHK


def ring_attention_packed(
    q_MHK: Tensor,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
    rows_S: Tensor,
    starts_S: Tensor,
    counts_S: Tensor,
    firsts_S: Tensor,
    tokens_per_frame: int,
    max_frames: int,
    context: int,
) -> Tensor:
    """See `reference.ring_attention_packed`. The queries' channels and the rings are contiguous."""
    out_MHK = torch.zeros(q_MHK.shape, dtype=q_MHK.dtype, device=q_MHK.device)
    tokens = max_frames * tokens_per_frame
    streams = (rows_S, starts_S, counts_S, firsts_S)
    _launch(out_MHK, q_MHK[None], keys_RCHK, values_RCHK, *streams, tokens, tokens_per_frame, context)
    return out_MHK


def _launch(
    out: Tensor,
    q_BTHK: Tensor,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
    rows_S: Tensor,
    starts_S: Tensor,
    counts_S: Tensor | None,
    firsts_S: Tensor | None,
    tokens: int,
    unit: int,
    context: int,
) -> None:
    """Up to `tokens` new tokens a stream. Starts, counts and firsts are in units of so many tokens."""
    heads, size = q_BTHK.shape[2:]
    capacity = keys_RCHK.shape[1]
    if capacity < context + tokens - 1:
        raise ValueError(
            f"{tokens} tokens with {context} of context need rings of {context + tokens - 1}, not {capacity}"
        )
    if not (q_BTHK.stride(3) == 1 and keys_RCHK.is_contiguous() and values_RCHK.is_contiguous()):
        raise ValueError("ring_attention needs contiguous rings, and queries whose channels are contiguous")
    block_m = _queries_per_program(tokens, q_BTHK.dtype)
    _ring_attention_kernel[(triton.cdiv(tokens, block_m), heads, len(rows_S))](
        out,
        q_BTHK,
        keys_RCHK,
        values_RCHK,
        rows_S,
        starts_S,
        counts_S,
        firsts_S,
        tokens,
        *q_BTHK.stride()[:3],
        size**-0.5 * LOG2_E,
        UNIT=unit,
        CONTEXT=context,
        C=capacity,
        H=heads,
        K=size,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_N,
        BLOCK_K=max(MIN_DOT, triton.next_power_of_2(size)),
        num_warps=4,
        num_stages=3,
    )


def _queries_per_program(tokens: int, dtype: torch.dtype) -> int:
    """A tile of 64 is one warp group's. With 128, keys would be shared among more queries, but more products would be
    computed for the window to hide: 9 % more for 480 queries with 400 of context.
    """
    # Float32 runs without tensor cores, its operands in registers.
    widest = 64 if dtype.itemsize == 2 else 32
    return min(max(triton.next_power_of_2(tokens), MIN_DOT), widest)


@triton.jit(do_not_specialize=["tokens"])
def _ring_attention_kernel(
    out_ptr,
    q_ptr,
    keys_ptr,
    values_ptr,
    rows_ptr,
    starts_ptr,
    counts_ptr,
    firsts_ptr,
    tokens,
    q_stride_b,
    q_stride_t,
    q_stride_h,
    scale_log2,
    UNIT: tl.constexpr,
    CONTEXT: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile, head, stream = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if counts_ptr is None:
        q_ptr += stream.to(tl.int64) * q_stride_b
        token = stream.to(tl.int64) * tokens
    else:
        tokens = (tl.load(counts_ptr + stream) * UNIT).to(tl.int32)
        token = tl.load(firsts_ptr + stream).to(tl.int64) * UNIT
        q_ptr += token * q_stride_t
    if tile * BLOCK_M >= tokens:
        return
    # All positions from here on are relative to `origin`, where the first block of keys begins: they fit 32 bits.
    first = tl.load(starts_ptr + stream).to(tl.int64) * UNIT + tile * BLOCK_M
    oldest = tl.maximum(first - (CONTEXT - 1), 0)
    origin = oldest // BLOCK_N * BLOCK_N
    oldest_key = (oldest - origin).to(tl.int32)
    first_query = (first - origin).to(tl.int32)
    keys_end = first_query + tl.minimum(tokens - tile * BLOCK_M, BLOCK_M)
    origin_slot = (origin % C).to(tl.int32)
    ring = tl.load(rows_ptr + stream).to(tl.int64) * (C * H * K) + head * K

    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    channels = tl.arange(0, BLOCK_K)
    row_exists = tile * BLOCK_M + rows < tokens
    q_mask = row_exists[:, None] & (channels < K)[None, :]
    q_offsets = (tile * BLOCK_M + rows)[:, None] * q_stride_t + channels[None, :]
    q = tl.load(q_ptr + head * q_stride_h + q_offsets, mask=q_mask, other=0.0)
    query = first_query + rows

    # Finite, so that a block without any visible key leaves it as it is, instead of making inf - inf.
    largest = tl.full([BLOCK_M], -1e38, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    for begin in range(0, keys_end, BLOCK_N):
        key = begin + columns
        slot = (origin_slot + key) % C
        kv_offsets = slot[:, None] * (H * K) + channels[None, :]
        kv_mask = ((key >= oldest_key) & (key < keys_end))[:, None] & (channels < K)[None, :]
        k = tl.load(keys_ptr + ring + kv_offsets, mask=kv_mask, other=0.0)
        v = tl.load(values_ptr + ring + kv_offsets, mask=kv_mask, other=0.0)

        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        age = query[:, None] - key[None, :]
        scores = tl.where((age >= 0) & (age < CONTEXT), scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_largest[:, None])
        rescale = tl.exp2(largest - new_largest)
        total = total * rescale + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * rescale[:, None], input_precision="ieee")
        largest = new_largest

    # Rows past the chunk may have seen nothing; they are not stored, but 0 / 0 need not be.
    mixed = mixed / tl.where(row_exists, total, 1.0)[:, None]
    place = (token + tile * BLOCK_M) * (H * K) + head * K
    out_offsets = rows[:, None] * (H * K) + channels[None, :]
    tl.store(out_ptr + place + out_offsets, mixed.to(out_ptr.dtype.element_ty), mask=q_mask)
