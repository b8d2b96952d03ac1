"""Attention over pages: one step of many sequences (T = 1) and slices of prompts (T > 1), by one
kernel.

A program holds up to `BLOCK_M` queries of one entry that share a key head, as (row, head) pairs, so
that keys are read once for all of them, and walks blocks of `BLOCK_N` keys with a float32 online
softmax. Blocks start at multiples of `BLOCK_N` whatever the queries are, and a block that a query
does not see changes no bit of it: given the shapes, neither the slicing of a sequence nor the rest
of the batch changes a bit.

A step moves every key and value for a few operations each, so it needs enough programs to keep the
memory busy: where entries times key heads are few, a context is split among up to `MAX_SPLITS`
programs, and a second kernel joins their results. Key heads are the grid's fastest axis: the heads
of one position lie side by side in memory.

Float8 keys and values halve the bytes that move, so that instructions become the limit: see
`_attend_fp8`.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.gpu.rotary import scale_exponent
from hocket.kernels.types import PagedPlan

ENOUGH_PROGRAMS = 1024  # about eight for each of an H200's 132 processors
MAX_SPLITS = 16
LEAST_SPLIT = tl.constexpr(
    128
)  # positions: a shorter split is over before its first page number has arrived
LOWEST = tl.constexpr(-1e30)  # below every score, and finite: its difference from itself is 0
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


def paged_attention(
    q_BTHK: Tensor,
    keys_NRGK: Tensor,
    values_NRGK: Tensor,
    plan: PagedPlan,
    scales_NGR2: Tensor | None = None,
) -> Tensor:
    """`reference.talker.paged_attention`; padding gives zeros.

    All tensors are contiguous, but for the page table, which may be part of a wider one. Integers
    may be int32.
    """
    page_table_BP, starts_B, counts_B = (
        plan.batch.page_table_BP,
        plan.batch.starts_B,
        plan.batch.counts_B,
    )
    tensors = (q_BTHK, keys_NRGK, values_NRGK, starts_B, counts_B, scales_NGR2)
    if not all(x.is_contiguous() for x in tensors if x is not None):
        raise ValueError("paged_attention needs contiguous tensors: call .contiguous() on them")
    if page_table_BP.stride(1) != 1:
        raise ValueError("paged_attention needs a page table whose rows are contiguous")
    batch, rows, heads, size = q_BTHK.shape
    page_rows, groups = keys_NRGK.shape[1:3]
    block_m, block_n, stages, warps = _blocks(
        q_BTHK.dtype, rows * heads // groups, scales_NGR2 is not None
    )
    tiles = triton.cdiv(rows * heads // groups, block_m)
    splits = _splits(batch * groups, page_table_BP.shape[1] * page_rows) if rows == 1 else 1
    out_BTHK = torch.empty_like(q_BTHK)
    if splits == 1:
        found, weights = out_BTHK, None
    else:
        found = q_BTHK.new_empty((batch, heads, splits, size), dtype=torch.float32)
        weights = q_BTHK.new_empty((batch, heads, splits), dtype=torch.float32)
    size_padded = max(16, triton.next_power_of_2(size))
    attend, kept = _attend, [keys_NRGK, values_NRGK]
    if scales_NGR2 is not None:
        # Two channels are loaded as one integer, and so are the scales of a key and its value.
        attend = _attend_fp8
        kept = [
            keys_NRGK.view(torch.int16),
            values_NRGK.view(torch.int16),
            scales_NGR2.view(torch.int32),
        ]
    attend[(groups, tiles * splits, batch)](
        q_BTHK, *kept, page_table_BP, starts_B, counts_B, found, weights,
        rows, page_table_BP.stride(0), size**-0.5 * math.log2(math.e),
        H=heads, G=groups, K=size, R=page_rows,
        K_PADDED=size_padded, BLOCK_M=block_m, BLOCK_N=block_n, SPLITS=splits,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        _join[(heads, batch)](
            found, weights, starts_B, counts_B, out_BTHK,
            H=heads, K=size, K_PADDED=size_padded, BLOCK_N=block_n, SPLITS=splits, num_warps=1,
        )  # fmt: skip
    return out_BTHK


#: Largest number of queries of a tile, on bfloat16 and on float8. On float8, tiles of 64 took 168
#: us for 64 pages of 32 rows, on bfloat16 30 (H200), presumably since keys are unpacked in
#: registers, from which products of 64 queries do not take them.
MAX_QUERIES, MAX_QUERIES_FP8 = 64, 16
#: Keys of a block, stages of the pipeline that fetches them, and warps: of few queries, and of
#: tiles of 64; of float32. Measured: 128 rows at 320 in 45 us, with five stages 48, with 128 keys
#: 64; float8 28, with 64 keys and two warps 33; 64 pages of 32 rows in 25 us, with 64 keys 30, with
#: tiles of 128 queries 31 (H200).
STEP, STEP_FP8 = (64, 4, 4), (32, 5, 1)
LARGE = (32, 4, 4)
EXACT = (32, 2, 4)


def _blocks(dtype: torch.dtype, queries: int, is_fp8: bool = False) -> tuple[int, int, int, int]:
    """Queries and keys of a block, stages and warps.

    At 128 channels of 2 bytes a block of keys and values is 32 KB. Some of the stages go to page
    numbers, which must have arrived before keys can be loaded. Some 130 KB must be in flight (4.8
    TB/s times 1 us is 36 KB for each of 132 processors). On float8 instructions are the limit: with
    one warp, an instruction serves all keys. Tiles of 64 queries reuse keys: short blocks leave
    room for three programs a processor. Exact float32 products are done without tensor cores, in
    registers, which small blocks fit.
    """
    if dtype == torch.float32:
        return 16, *EXACT
    if is_fp8:
        return MAX_QUERIES_FP8, *STEP_FP8
    block_m = min(MAX_QUERIES, max(16, triton.next_power_of_2(queries)))
    return block_m, *(LARGE if block_m == MAX_QUERIES else STEP)


def _splits(programs: int, longest: int) -> int:
    """Number of programs that share a context of up to `longest` positions, for `programs`
    contexts.
    """
    splits = 1
    while (
        splits < MAX_SPLITS
        and programs * splits < ENOUGH_PROGRAMS
        and longest > splits * LEAST_SPLIT.value
    ):
        splits *= 2
    return splits


@triton.jit
def _attend(
    q_ptr, keys_ptr, values_ptr, table_ptr, starts_ptr, counts_ptr, found_ptr, weights_ptr, T,
    table_stride, scale_log2,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
    K_PADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Queries [B, T, H, K] on keys and values [pages, R, G, K].

    `found` is [B, T, H, SPLITS, K], with one split the output itself; `weights` [B, H, SPLITS] is
    log2 of the sum of a split's exponentials, None with one split.
    """
    group = tl.program_id(0)
    tile = tl.program_id(1) // SPLITS
    split = tl.program_id(1) % SPLITS
    entry = tl.program_id(2).to(tl.int64)
    SHARE: tl.constexpr = H // G
    pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = pair // SHARE
    start, count, first, stop = _bounds(
        starts_ptr, counts_ptr, entry, tile, split, SHARE, BLOCK_M, BLOCK_N, SPLITS
    )
    if SPLITS > 1 and first >= stop:
        return
    real = row < count
    seen_M = tl.where(real, start + row, -1)  # the last position that a query sees
    channel = tl.arange(0, K_PADDED)
    in_head = channel < K
    query = (entry * T + row) * H + group * SHARE + pair % SHARE
    q = tl.load(
        q_ptr + query[:, None] * K + channel[None, :],
        mask=real[:, None] & in_head[None, :],
        other=0.0,
    )

    top = tl.full((BLOCK_M,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, K_PADDED), tl.float32)
    for block in range(first, stop, BLOCK_N):
        position = block + tl.arange(0, BLOCK_N)
        written = position < stop
        page = tl.load(table_ptr + entry * table_stride + position // R, mask=written, other=0).to(
            tl.int64
        )
        slot = page * R + position % R
        where = (slot * (G * K) + group * K)[:, None] + channel[None, :]
        readable = written[:, None] & in_head[None, :]
        k = tl.load(keys_ptr + where, mask=readable, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        visible = position[None, :] <= seen_M[:, None]
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shrink = tl.exp2(top - higher)
        share = tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(share, 1)
        v = tl.load(values_ptr + where, mask=readable, other=0.0)
        mixed = tl.dot(share.to(v.dtype), v, mixed * shrink[:, None], input_precision="ieee")
        top = higher

    some = tl.where(total > 0.0, total, 1.0)
    mixed = mixed / some[:, None]
    exists = row < T
    target = query * SPLITS + split
    tl.store(
        found_ptr + target[:, None] * K + channel[None, :],
        mixed.to(found_ptr.dtype.element_ty),
        mask=exists[:, None] & in_head[None, :],
    )
    if SPLITS > 1:
        tl.store(weights_ptr + target, top + tl.log2(some), mask=exists)


@triton.jit
def _attend_fp8(
    q_ptr, keys_ptr, values_ptr, scales_ptr, table_ptr, starts_ptr, counts_ptr, found_ptr,
    weights_ptr,
    T, table_stride, scale_log2,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
    K_PADDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """`_attend` for float8 keys and values with scales that are powers of two.

    Products are of float16, which holds every float8, and which float8 becomes in one instruction
    for two values; from pairs of channels, because values must be transposed on their way to the
    tensor cores, which only 16-bit memory words can be. First and second channels have products of
    their own. Queries are brought into float16's range by a power of two. Weights times value
    scales are at most 1, since the running maximum is that of their product.

    Keys and values are int16 [pages, R, G, K / 2], pairs of float8; scales are int32 [pages, G, R],
    the bits of the value's scale, then of the key's, both bfloat16.

    It is long, and follows `_attend` line by line, because it is one loop whose every line shares
    the running maximum, sum and mixture: make each change to one of the two in the other as well.
    """
    group = tl.program_id(0)
    tile = tl.program_id(1) // SPLITS
    split = tl.program_id(1) % SPLITS
    entry = tl.program_id(2).to(tl.int64)
    SHARE: tl.constexpr = H // G
    pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = pair // SHARE
    start, count, first, stop = _bounds(
        starts_ptr, counts_ptr, entry, tile, split, SHARE, BLOCK_M, BLOCK_N, SPLITS
    )
    if SPLITS > 1 and first >= stop:
        return

    PAIRS: tl.constexpr = K // 2
    wide: tl.constexpr = tl.float32 if q_ptr.dtype.element_ty == tl.float32 else tl.float16
    real = row < count
    seen_M = tl.where(real, start + row, -1)
    channels = tl.arange(0, max(16, K_PADDED // 2))
    in_head = channels < PAIRS
    query = (entry * T + row) * H + group * SHARE + pair % SHARE
    heads = query[:, None] * K + 2 * channels[None, :]
    in_query = real[:, None] & in_head[None, :]
    q_even = tl.load(q_ptr + heads, mask=in_query, other=0.0).to(tl.float32)
    q_odd = tl.load(q_ptr + heads + 1, mask=in_query, other=0.0).to(tl.float32)
    exponent = scale_exponent(tl.max(tl.maximum(tl.abs(q_even), tl.abs(q_odd)), 1, keep_dims=True))
    q_scale = (exponent << 23).to(tl.float32, bitcast=True)
    q_even, q_odd = (q_even / q_scale).to(wide), (q_odd / q_scale).to(wide)

    top = tl.full((BLOCK_M,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    even = tl.zeros((BLOCK_M, max(16, K_PADDED // 2)), tl.float32)
    odd = tl.zeros((BLOCK_M, max(16, K_PADDED // 2)), tl.float32)
    for block in range(first, stop, BLOCK_N):
        position = block + tl.arange(0, BLOCK_N)
        written = position < stop
        page = tl.load(table_ptr + entry * table_stride + position // R, mask=written, other=0).to(
            tl.int64
        )
        slot = page * R + position % R
        where = (slot * (G * PAIRS) + group * PAIRS)[:, None] + channels[None, :]
        readable = written[:, None] & in_head[None, :]
        k_even, k_odd = _unpacked(tl.load(keys_ptr + where, mask=readable, other=0), wide)
        scores = tl.dot(q_even, tl.trans(k_even), input_precision="ieee")
        scores = tl.dot(q_odd, tl.trans(k_odd), scores, input_precision="ieee")
        scales = tl.load(scales_ptr + (page * G + group) * R + position % R, mask=written, other=0)
        scores *= (scale_log2 * q_scale) * (scales << 16).to(tl.float32, bitcast=True)[None, :]
        visible = position[None, :] <= seen_M[:, None]
        scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores + ((scales >> 23) - 127).to(tl.float32)[None, :], 1))
        shrink = tl.exp2(top - higher)
        share = tl.exp2(scores - higher[:, None])
        total = total * shrink + tl.sum(share, 1)
        share = (share * (scales & -65536).to(tl.float32, bitcast=True)[None, :]).to(wide)
        v_even, v_odd = _unpacked(tl.load(values_ptr + where, mask=readable, other=0), wide)
        even = tl.dot(share, v_even, even * shrink[:, None], input_precision="ieee")
        odd = tl.dot(share, v_odd, odd * shrink[:, None], input_precision="ieee")
        top = higher

    some = tl.where(total > 0.0, total, 1.0)
    exists = row < T
    target = query * SPLITS + split
    found = found_ptr + target[:, None] * K + 2 * channels[None, :]
    stored = exists[:, None] & in_head[None, :]
    tl.store(found, (even / some[:, None]).to(found_ptr.dtype.element_ty), mask=stored)
    tl.store(found + 1, (odd / some[:, None]).to(found_ptr.dtype.element_ty), mask=stored)
    if SPLITS > 1:
        tl.store(weights_ptr + target, top + tl.log2(some), mask=exists)


@triton.jit
def _unpacked(pairs, DTYPE: tl.constexpr):
    """The lower and the upper float8 of each int16, exactly."""
    if INTERPRETED:  # it knows no assembly
        low = pairs.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
        high = (pairs >> 8).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        # Bytes of two integers in the order 0, 2, 1, 3: the compiler itself takes twice as many
        # instructions.
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .b32 sorted;
            .reg .b16 lows, highs;
            prmt.b32 sorted, $2, 0, 0x3120;
            mov.b32 {lows, highs}, sorted;
            cvt.rn.f16x2.e4m3x2 $0, lows;
            cvt.rn.f16x2.e4m3x2 $1, highs;
            }""",
            "=r,=r,r",
            [pairs],
            dtype=(tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    return low.to(DTYPE), high.to(DTYPE)


@triton.jit
def _join(
    found_ptr,
    weights_ptr,
    starts_ptr,
    counts_ptr,
    out_ptr,  # [B, H, K]
    H: tl.constexpr,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    entry = tl.program_id(1).to(tl.int64)
    query = entry * H + tl.program_id(0)
    start = tl.load(starts_ptr + entry).to(tl.int32)
    count = tl.load(counts_ptr + entry).to(tl.int32)
    end = tl.where(count > 0, start + 1, 0)
    split = tl.arange(0, SPLITS)
    exists = split * _split_length(end, BLOCK_N, SPLITS) < end
    channel = tl.arange(0, K_PADDED)
    in_head = channel < K

    source = query * SPLITS + split
    weight = tl.load(weights_ptr + source, mask=exists, other=float("-inf"))
    share = tl.exp2(weight - tl.maximum(tl.max(weight, 0), LOWEST))
    found = tl.load(
        found_ptr + source[:, None] * K + channel[None, :],
        mask=exists[:, None] & in_head[None, :],
        other=0.0,
    )
    total = tl.sum(share, 0)
    mixed = tl.sum(found * share[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(out_ptr + query * K + channel, mixed.to(out_ptr.dtype.element_ty), mask=in_head)


@triton.jit
def _bounds(
    starts_ptr,
    counts_ptr,
    entry,
    tile,
    split,
    SHARE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Cached and new rows of an entry, the first position of a split, and its end (exclusive)."""
    start = tl.load(starts_ptr + entry).to(tl.int32)
    count = tl.load(counts_ptr + entry).to(tl.int32)
    last_row = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // SHARE, count - 1)
    # The end of the positions that any query of this tile sees; 0 if all are padding.
    end = tl.where(tile * BLOCK_M // SHARE < count, start + last_row + 1, 0)
    first = 0
    stop = end
    if SPLITS > 1:
        length = _split_length(end, BLOCK_N, SPLITS)
        first = split * length
        stop = tl.minimum(end, first + length)
    return start, count, first, stop


@triton.jit
def _split_length(end, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """Positions of each split of a context: whole blocks, which depend on the context's own length
    alone.
    """
    blocks = (end + SPLITS * BLOCK_N - 1) // (SPLITS * BLOCK_N)
    return tl.maximum(blocks * BLOCK_N, LEAST_SPLIT)
