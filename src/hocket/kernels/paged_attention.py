"""Attention over pages: one step of many sequences (T = 1) and pieces of prompts (T > 1), by one kernel.

A program holds up to `BLOCK_M` queries of one entry that share a key head, as (row, head) pairs, so that keys are read
once for all of them, and walks blocks of `BLOCK_N` keys with a float32 online softmax. Blocks start at multiples of
`BLOCK_N` whatever the queries are, and a block that a query does not see changes no bit of it: given the shapes,
neither where a sequence was cut into pieces nor who else is in the batch shows.

A step moves every key and value for a few operations each, so it needs enough programs to keep the memory busy: where
entries times key heads are few, a context is split among up to `MOST_SPLITS` programs, and a second kernel joins what
they found. Key heads are the grid's fastest axis: the heads of one position lie side by side in memory.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

ENOUGH_PROGRAMS = 1024  # about eight for each of an H200's 132 processors
MOST_SPLITS = 16
LEAST_SPLIT = tl.constexpr(128)  # positions: a shorter split is over before its first page number has arrived
LOWEST = tl.constexpr(-1e30)  # below every score, and finite: its difference from itself is 0


def paged_attention(
    q_BTHK: Tensor,
    keys_NRGK: Tensor,
    values_NRGK: Tensor,
    page_table_BP: Tensor,
    starts_B: Tensor,
    counts_B: Tensor,
) -> Tensor:
    """As the twin; padding gives zeros. All contiguous, but that the table may be part of a wider one."""
    if not all(x.is_contiguous() for x in (q_BTHK, keys_NRGK, values_NRGK, starts_B, counts_B)):
        raise ValueError("paged_attention needs contiguous tensors: call .contiguous() on them")
    if page_table_BP.stride(1) != 1:
        raise ValueError("paged_attention needs a page table whose rows are contiguous")
    batch, rows, heads, size = q_BTHK.shape
    page_rows, groups = keys_NRGK.shape[1:3]
    block_m, block_n, stages = _blocks(q_BTHK.dtype, rows * heads // groups)
    tiles = triton.cdiv(rows * heads // groups, block_m)
    splits = _splits(batch * groups, page_table_BP.shape[1] * page_rows) if rows == 1 else 1
    out_BTHK = torch.empty_like(q_BTHK)
    if splits == 1:
        found, weights = out_BTHK, None
    else:
        found = q_BTHK.new_empty((batch, heads, splits, size), dtype=torch.float32)
        weights = q_BTHK.new_empty((batch, heads, splits), dtype=torch.float32)
    size_padded = max(16, triton.next_power_of_2(size))
    _attend[(groups, tiles * splits, batch)](
        q_BTHK, keys_NRGK, values_NRGK, page_table_BP, starts_B, counts_B, found, weights,
        rows, page_table_BP.stride(0), size**-0.5 * math.log2(math.e),
        H=heads, G=groups, K=size, R=page_rows,
        K_PADDED=size_padded, BLOCK_M=block_m, BLOCK_N=block_n, SPLITS=splits,
        num_warps=4, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        _join[(heads, batch)](
            found, weights, starts_B, counts_B, out_BTHK,
            H=heads, K=size, K_PADDED=size_padded, BLOCK_N=block_n, SPLITS=splits, num_warps=1,
        )  # fmt: skip
    return out_BTHK


def _blocks(dtype: torch.dtype, queries: int) -> tuple[int, int, int]:
    """Queries and keys of a block, and stages of the pipeline that fetches keys.

    At 128 channels of 2 bytes a block of keys and values is 32 KB. Half of the stages go to page numbers, which must be
    there before keys can be asked for: five have two blocks of keys ahead, in 71 KB, so that three programs fit a
    processor of 228 KB and keep some 130 KB on the way (4.8 TB/s times 1 us is 36 KB for each of 132). Tiles of 64
    queries take more registers and reuse keys: three will do. Exact float32 products are done without tensor cores, in
    registers, which small blocks fit.
    """
    if dtype == torch.float32:
        return 16, 32, 2
    block_m = min(64, max(16, triton.next_power_of_2(queries)))
    return block_m, 64, 3 if block_m == 64 else 5


def _splits(programs: int, longest: int) -> int:
    """How many programs may share a context of up to `longest` positions, by what `programs` there are without."""
    splits = 1
    while splits < MOST_SPLITS and programs * splits < ENOUGH_PROGRAMS and longest > splits * LEAST_SPLIT.value:
        splits *= 2
    return splits


@triton.jit
def _attend(
    q_ptr,  # [B, T, H, K]
    keys_ptr,  # [pages, R, G, K]
    values_ptr,
    table_ptr,
    starts_ptr,
    counts_ptr,
    found_ptr,  # [B, T, H, SPLITS, K]: with one split the output itself
    weights_ptr,  # [B, H, SPLITS]: log2 of the sum of a split's exponentials; None with one split
    T,
    table_stride,
    scale_log2,
    H: tl.constexpr,
    G: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    K_PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
):
    group = tl.program_id(0)
    tile = tl.program_id(1) // SPLITS
    split = tl.program_id(1) % SPLITS
    entry = tl.program_id(2).to(tl.int64)
    start = tl.load(starts_ptr + entry).to(tl.int32)
    count = tl.load(counts_ptr + entry).to(tl.int32)

    SHARE: tl.constexpr = H // G
    pair = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = pair // SHARE
    last_row = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // SHARE, count - 1)
    # What any query of this tile sees: nothing if all are padding.
    end = tl.where(tile * BLOCK_M // SHARE < count, start + last_row + 1, 0)
    first = 0
    stop = end
    if SPLITS > 1:
        length = _split_length(end, BLOCK_N, SPLITS)
        first = split * length
        stop = tl.minimum(end, first + length)
        if first >= end:
            return

    real = row < count
    seen_M = tl.where(real, start + row, -1)  # the last position that a query sees
    channel = tl.arange(0, K_PADDED)
    in_head = channel < K
    query = (entry * T + row) * H + group * SHARE + pair % SHARE
    q = tl.load(q_ptr + query[:, None] * K + channel[None, :], mask=real[:, None] & in_head[None, :], other=0.0)

    top = tl.full((BLOCK_M,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    mixed = tl.zeros((BLOCK_M, K_PADDED), tl.float32)
    for block in range(first, stop, BLOCK_N):
        position = block + tl.arange(0, BLOCK_N)
        written = position < stop
        page = tl.load(table_ptr + entry * table_stride + position // R, mask=written, other=0).to(tl.int64)
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
        found_ptr + source[:, None] * K + channel[None, :], mask=exists[:, None] & in_head[None, :], other=0.0
    )
    total = tl.sum(share, 0)
    mixed = tl.sum(found * share[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(out_ptr + query * K + channel, mixed.to(out_ptr.dtype.element_ty), mask=in_head)


@triton.jit
def _split_length(end, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr):
    """Positions of each split of a context: whole blocks, by the context's own length alone."""
    blocks = (end + SPLITS * BLOCK_N - 1) // (SPLITS * BLOCK_N)
    return tl.maximum(blocks * BLOCK_N, LEAST_SPLIT)
