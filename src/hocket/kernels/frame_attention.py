"""Attention over the few positions of one frame, which are so few that tensor cores have nothing to do.

A program has all keys and values that one key head of one row sees in registers, [positions, channels], with both loads
in flight at once: at most 2,048 elements each in a warp, so that softmax and sums stay within it. Everything between
the loads and the output is float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.rows import rounded

_WARP_ELEMENTS = 2048


@triton.jit
def _turned(head_ptr, cos_ptr, sin_ptr, channels, mask):
    """`x * cos + swapped(x) * sin` of one head, each step rounded to the dtype of x."""
    dtype: tl.constexpr = head_ptr.dtype.element_ty
    x = tl.load(head_ptr + channels, mask=mask, other=0.0).to(tl.float32)
    # The partner comes by a second load (from L1) instead of a shuffle.
    swapped = tl.load(head_ptr + (channels ^ 1), mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + channels, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + channels, mask=mask, other=0.0).to(tl.float32)
    return (rounded(x * cos, dtype) + rounded(swapped * sin, dtype)).to(dtype)


@triton.jit(do_not_specialize=["position"])
def _depth_attention_kernel(
    out_ptr, qkv_ptr, cos_ptr, sin_ptr, keys_ptr, values_ptr,
    position, qkv_stride, row_stride, head_stride, position_stride, scale,
    H: tl.constexpr, K: tl.constexpr, PAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channels = tl.arange(0, BLOCK)
    exists = channels < K
    past = tl.arange(0, PAST)
    cached = row * row_stride + head * head_stride + channels
    past_offsets = cached[None, :] + past[:, None] * position_stride
    past_mask = (past < position)[:, None] & exists[None, :]
    past_keys = tl.load(keys_ptr + past_offsets, mask=past_mask, other=0.0)
    past_values = tl.load(values_ptr + past_offsets, mask=past_mask, other=0.0)

    head_ptr = qkv_ptr + row * qkv_stride + head * K
    q = _turned(head_ptr, cos_ptr, sin_ptr, channels, exists).to(tl.float32) * scale
    key = _turned(head_ptr + H * K, cos_ptr, sin_ptr, channels, exists)
    value = tl.load(head_ptr + 2 * H * K + channels, mask=exists, other=0.0)
    tl.store(keys_ptr + cached + position * position_stride, key, mask=exists)
    tl.store(values_ptr + cached + position * position_stride, value, mask=exists)

    # The new position is seen from registers: its store above need not have landed.
    score = tl.sum(q * key.to(tl.float32))
    past_scores = tl.sum(q[None, :] * past_keys.to(tl.float32), axis=1)
    past_scores = tl.where(past < position, past_scores, float("-inf"))
    best = tl.maximum(tl.max(past_scores), score)
    past_weights = tl.exp(past_scores - best)
    weight = tl.exp(score - best)
    total = tl.sum(past_weights) + weight
    out = tl.sum(past_weights[:, None] * past_values.to(tl.float32), axis=0) + weight * value.to(tl.float32)
    tl.store(out_ptr + (row * H + head) * K + channels, (out / total).to(out_ptr.dtype.element_ty), mask=exists)


def depth_attention(
    qkv_BE: Tensor, cos_K: Tensor, sin_K: Tensor, keys_BHPK: Tensor, values_BHPK: Tensor, position: int
) -> Tensor:
    """`reference.depth_attention`."""
    batch, heads, positions, size = keys_BHPK.shape
    _check_cache(keys_BHPK, values_BHPK)
    if not 0 <= position < positions:
        raise ValueError(f"position {position} is not in a cache of {positions} positions")
    if not (qkv_BE.stride(-1) == 1 and cos_K.is_contiguous() and sin_K.is_contiguous()):
        raise ValueError("queries, keys and values of a row, and rotary tables, must be contiguous")
    out_BE = torch.empty((batch, heads * size), dtype=qkv_BE.dtype, device=qkv_BE.device)
    past, block, warps = _tile(position, size)
    _depth_attention_kernel[(batch, heads)](
        out_BE,
        qkv_BE,
        cos_K,
        sin_K,
        keys_BHPK,
        values_BHPK,
        position,
        qkv_BE.stride(0),
        *keys_BHPK.stride()[:3],
        size**-0.5,
        heads,
        size,
        past,
        block,
        num_warps=warps,
        enable_fp_fusion=False,  # or a product and the sum become one bfloat16 operation with one rounding
    )
    return out_BE


@triton.jit(do_not_specialize=["start"])
def _frame_attention_kernel(
    out_ptr, q_ptr, keys_ptr, values_ptr,
    start, q_row_stride, q_token_stride, q_head_stride, row_stride, position_stride, head_stride, scale,
    G: tl.constexpr, HEADS: tl.constexpr, K: tl.constexpr, SEEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    token = tl.program_id(2)
    channels = tl.arange(0, BLOCK)
    exists = channels < K
    positions = tl.arange(0, SEEN)
    is_seen = positions <= start + token
    offsets = row * row_stride + group * head_stride + positions[:, None] * position_stride + channels[None, :]
    mask = is_seen[:, None] & exists[None, :]
    keys = tl.load(keys_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    values = tl.load(values_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    for member in tl.static_range(HEADS):
        head = group * HEADS + member
        q_offset = row * q_row_stride + token * q_token_stride + head * q_head_stride
        q = tl.load(q_ptr + q_offset + channels, mask=exists, other=0.0).to(tl.float32) * scale
        scores = tl.where(is_seen, tl.sum(q[None, :] * keys, axis=1), float("-inf"))
        weights = tl.exp(scores - tl.max(scores))
        out = tl.sum(weights[:, None] * values, axis=0) / tl.sum(weights)
        out_offset = ((row * tl.num_programs(2) + token) * (G * HEADS) + head) * K
        tl.store(out_ptr + out_offset + channels, out.to(out_ptr.dtype.element_ty), mask=exists)


def frame_attention(q_BTHK: Tensor, keys_BPGK: Tensor, values_BPGK: Tensor, start: int) -> Tensor:
    """`reference.frame_attention`, contiguous."""
    batch, tokens, heads, size = q_BTHK.shape
    positions, groups = keys_BPGK.shape[1:3]
    _check_cache(keys_BPGK, values_BPGK)
    if not 0 <= start <= positions - tokens:
        raise ValueError(f"positions {start} to {start + tokens - 1} are not in a cache of {positions} positions")
    if q_BTHK.stride(-1) != 1:
        raise ValueError("the channels of a query must be contiguous")
    out_BTHK = torch.empty(q_BTHK.shape, dtype=q_BTHK.dtype, device=q_BTHK.device)
    seen, block, warps = _tile(start + tokens, size)
    _frame_attention_kernel[(batch, groups, tokens)](
        out_BTHK,
        q_BTHK,
        keys_BPGK,
        values_BPGK,
        start,
        *q_BTHK.stride()[:3],
        *keys_BPGK.stride()[:3],
        size**-0.5,
        groups,
        heads // groups,
        size,
        seen,
        block,
        num_warps=warps,
    )
    return out_BTHK


def _check_cache(keys: Tensor, values: Tensor) -> None:
    if keys.stride() != values.stride() or keys.stride(-1) != 1:
        raise ValueError("caches of keys and values must be laid out alike, channels contiguous")


def _tile(positions: int, size: int) -> tuple[int, int, int]:
    """Powers of two that hold so many positions and channels, and how many warps hold them."""
    length, block = max(triton.next_power_of_2(positions), 2), triton.next_power_of_2(size)
    return length, block, max(length * block // _WARP_ELEMENTS, 1)
