"""Draws codes, in one launch for a whole batch.

A program draws one row. The vocabulary is kept in registers, 8 codes a thread: 1,024 codes take 7.5
us at 128 rows. A single warp with 32 codes a thread, which needs no shared memory, takes 8.8, and 4
codes a thread 8.1 (H200). There is no sort: the thresholds of top-k and of the nucleus come from
bisecting the scores, in about 9 passes that count (or weigh) the codes at or above a score, and
usually one more pass over the scores between the last two. Counts and masses are integers, whose
sums are exact in any order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.reference.philox import UNIFORM_BITS, FrameNoise
from hocket.kernels.types import DrawArgs

_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
_HIGHEST = tl.constexpr(torch.finfo(torch.float32).max)
_LOG2_E = tl.constexpr(1.4426950408889634)
_UNIFORM_BITS = tl.constexpr(UNIFORM_BITS)
#: Codes that a warp holds; Triton blocks have at most 32 warps.
_WARP_CODES = 256
_MAX_CODES = 32 * 1024
#: Channels of an embedding in one copy.
_COPY_BLOCK = 4096


@triton.jit
def _key(score):
    """An int32 in the order of the float32 `score`; both zeros have the same key."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _score(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _divided(scores, divisor):
    """`scores / divisor`, correctly rounded: the best score must be the same on every device.

    One correctly rounded reciprocal and a correction (Markstein, 1990) serve all; a division each
    would branch.
    """
    reciprocal = tl.div_rn(1.0, divisor)
    rough = scores * reciprocal
    exact = tl.fma(tl.fma(-rough, divisor, scores), reciprocal, rough)
    return tl.where(tl.abs(rough) <= _HIGHEST, exact, rough)


@triton.jit
def _span(scores, low, high):
    """Minimum and maximum of the scores in [low, high)."""
    inside = (scores >= low) & (scores < high)
    lowest = tl.min(tl.where(inside, scores, float("inf")))
    return lowest, tl.max(tl.where(inside, scores, float("-inf")))


@triton.jit
def _edge(scores, weights, bottom, top, limit):
    """The score of the codes that cross `limit`, and the weight above them.

    In falling order of scores, the weight of all codes above the edge is at most `limit`; with
    those at it, it is more. `bottom` is at most the edge and `top` the best score; `weights` are
    int32.
    """
    above = tl.full((), 0, tl.int32)
    # First by the upper half of the keys, which is all of a bfloat16 logit without penalty. The
    # edge is mostly near the top: 256 keys span a factor of 4 and take 8 passes; beyond them 2**16
    # keys take 16.
    low = _key(bottom) >> 16
    high = (_key(top) >> 16) + 1
    reach = tl.full((), 256, tl.int32)
    while low + 1 < high:
        middle = tl.maximum((low + high) >> 1, high - reach)
        weight = tl.sum(tl.where(scores >= _score(middle << 16), weights, 0))
        is_over = weight > limit
        low = tl.where(is_over, middle, low)
        high = tl.where(is_over, high, middle)
        above = tl.where(is_over, above, weight)
        reach = tl.where(is_over, reach, tl.minimum(reach * 16, 65536))
    # Then among the remaining scores, usually one. Each pass drops at least their minimum or
    # maximum.
    low_score = _score(low << 16)
    high_score = _score(high << 16)
    lowest, highest = _span(scores, low_score, high_score)
    while lowest < highest:
        upper_key = _key(highest)
        middle_score = _score(upper_key - ((upper_key - _key(lowest)) >> 1))
        weight = tl.sum(tl.where(scores >= middle_score, weights, 0))
        is_over = weight > limit
        low_score = tl.where(is_over, middle_score, low_score)
        high_score = tl.where(is_over, high_score, middle_score)
        above = tl.where(is_over, above, weight)
        lowest, highest = _span(scores, low_score, high_score)
    return lowest, above


@triton.jit
def _nucleus(scores, masses, bottom, top, top_p):
    """`masses` without codes that, in falling order, have over `top_p` of the mass before them."""
    # In units of 2**-30 of the total the sum fits int32, and 1024 roundings are off by at most
    # 1e-6.
    units = (masses * (1073741824.0 / tl.sum(masses))).to(tl.int32)
    limit = (((top_p * 4294967296.0).to(tl.int64) * tl.sum(units).to(tl.int64)) >> 32).to(tl.int32)
    edge, above = _edge(scores, units, bottom, top, limit)
    # Ties at the edge are kept in index order: the n-th has n times its own mass before it.
    is_edge = scores == edge
    edge_unit = tl.max(tl.where(is_edge, units, 0))
    kept_at_edge = (limit - above) // edge_unit + 1
    is_kept = (scores > edge) | (is_edge & (tl.cumsum(is_edge.to(tl.int32), 0) <= kept_at_edge))
    return tl.where(is_kept, masses, 0.0)


@triton.jit
def _sampled(scores, top, temperature, top_p, top_k, u_fixed, V: tl.constexpr):
    """The code of a row that is not greedy; `u_fixed` is its uniform times 2**24."""
    bottom = tl.full((), _LOWEST, tl.float32)
    if (top_k > 0) & (top_k < V):
        bottom, _ = _edge(
            scores, tl.full(scores.shape, 1, tl.int32), bottom, top, top_k.to(tl.int32) - 1
        )
    # Within these bounds neither the rate nor 0 times it overflows; beyond them the result does not
    # change.
    rate = _LOG2_E / tl.minimum(tl.maximum(temperature, 1e-30), 1e30)
    masses = tl.where(scores >= bottom, tl.exp2((scores - top) * rate), 0.0)
    if (top_p > 0) & (top_p < 1):
        masses = _nucleus(scores, masses, bottom, top, top_p)
    weights = (masses * (4294967296.0 / tl.sum(masses))).to(tl.int64)
    target = (u_fixed * tl.sum(weights)) >> _UNIFORM_BITS
    return tl.sum((tl.cumsum(weights, 0) <= target).to(tl.int32))


@triton.jit(do_not_specialize=["slot"])
def _draw_kernel(
    code_ptr,
    embedding_ptr,
    logits_ptr,
    temperature_ptr,
    top_p_ptr,
    top_k_ptr,
    penalty_ptr,
    seed_ptr,
    frame_ptr,
    seen_ptr,
    slot,
    table_ptr,
    logits_stride,
    seen_stride,
    table_stride,
    V: tl.constexpr,
    D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    codes = tl.arange(0, BLOCK_V)
    exists = codes < V
    scores = tl.load(logits_ptr + row * logits_stride + codes, mask=exists, other=0.0).to(
        tl.float32
    )
    temperature = tl.load(temperature_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    word, _, _, _ = tl.philox(
        tl.load(seed_ptr + row), tl.load(frame_ptr + row).to(tl.uint32), slot, 0, 0
    )
    if seen_ptr is not None:
        penalty = tl.load(penalty_ptr + row)
        is_seen = tl.load(seen_ptr + row * seen_stride + codes, mask=exists, other=0) != 0
        penalised = tl.where(scores < 0, scores * penalty, _divided(scores, penalty))
        scores = tl.where(is_seen, penalised, scores)
    scores = tl.where(scores == scores, scores, _LOWEST)
    scores = tl.minimum(tl.maximum(scores, _LOWEST), _HIGHEST)
    # Codes beyond the vocabulary are below every threshold and have no mass.
    scores = tl.where(exists, scores, float("-inf"))

    top = tl.max(scores)
    if temperature > 0:
        code = _sampled(
            scores, top, temperature, top_p, top_k, (word >> (32 - _UNIFORM_BITS)).to(tl.int64), V
        )
    else:
        code = tl.min(tl.where(scores == top, codes, BLOCK_V))
    code = code.to(tl.int64)
    tl.store(code_ptr + row, code)
    if table_ptr is not None:
        for start in tl.static_range(0, D, BLOCK_D):
            channels = start + tl.arange(0, BLOCK_D)
            x = tl.load(table_ptr + code * table_stride + channels, mask=channels < D)
            tl.store(embedding_ptr + row * D + channels, x, mask=channels < D)


def draw(
    logits_BV: Tensor, args: DrawArgs, noise: FrameNoise, slot: int, seen_BV: Tensor | None = None
) -> Tensor:
    """`reference.draw`, but a uniform within 1e-5 of a code's edge may give its neighbour
    (float32).
    """
    return _launch(logits_BV, args, noise, slot, None, seen_BV)[0]


def draw_and_embed(
    logits_BV: Tensor,
    args: DrawArgs,
    noise: FrameNoise,
    slot: int,
    table_VD: Tensor,
    seen_BV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`draw`, int64 [B], and the codes' rows [B, D] of `table_VD`."""
    code_B, x_BD = _launch(logits_BV, args, noise, slot, table_VD, seen_BV)
    assert x_BD is not None
    return code_B, x_BD


def _launch(
    logits_BV: Tensor,
    args: DrawArgs,
    noise: FrameNoise,
    slot: int,
    table_VD: Tensor | None,
    seen_BV: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    rows, codes = logits_BV.shape
    if codes > _MAX_CODES:
        raise ValueError(
            f"drawing from {codes} codes: the kernel holds at most {_MAX_CODES}; draw with "
            "`reference.draw`"
        )
    penalty_B = None if seen_BV is None else args.repetition_penalty_B
    vectors = (
        args.temperature_B,
        args.top_p_B,
        args.top_k_B,
        penalty_B,
        noise.seed_B,
        noise.frame_B,
    )
    if not all(vector_B is None or vector_B.is_contiguous() for vector_B in vectors):
        raise ValueError(
            "the parameters of rows must be contiguous vectors: call .contiguous() on them once a "
            "batch"
        )
    if any(
        matrix is not None and matrix.stride(-1) != 1 for matrix in (logits_BV, seen_BV, table_VD)
    ):
        raise ValueError("logits, seen codes and embeddings must have contiguous rows")
    code_B = torch.empty(rows, dtype=torch.int64, device=logits_BV.device)
    x_BD = None if table_VD is None else table_VD.new_empty(rows, table_VD.shape[1])
    channels = 0 if table_VD is None else table_VD.shape[1]
    block = max(triton.next_power_of_2(codes), 32)
    _draw_kernel[(rows,)](
        code_B,
        x_BD,
        logits_BV,
        *vectors,
        None if seen_BV is None else seen_BV.view(torch.uint8),
        slot,
        table_VD,
        logits_BV.stride(0),
        0 if seen_BV is None else seen_BV.stride(0),
        0 if table_VD is None else table_VD.stride(0),
        codes,
        channels,
        block,
        min(triton.next_power_of_2(max(channels, 1)), _COPY_BLOCK),
        num_warps=min(max(block // _WARP_CODES, 1), 32),
    )
    return code_B, x_BD
