"""Attention over the few positions of one frame, too few to occupy tensor cores.

A program has all keys and values that one key head of one row sees in registers, [positions,
channels], with both loads in flight at once: at most 2,048 elements each in a warp, so that softmax
and sums stay within it. Everything between the loads and the output is float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.gpu.rows import load_scaled, rounded
from hocket.kernels.types import Scaled, operands

_WARP_ELEMENTS = 2048
#: The same where keys and values are two tiles each, the lower and the upper channels.
_HALF_TILE = 512


@triton.jit
def _turned(
    qkv_ptr,
    rows_ptr,
    columns_ptr,
    bias_ptr,
    at,
    row,
    first,
    cos_ptr,
    sin_ptr,
    channels,
    mask,
    BLOCK: tl.constexpr,
):
    """`x * cos + swapped(x) * sin` of the head at column `first`, each step rounded to the dtype of
    x.
    """
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    columns = first + channels
    x = load_scaled(
        qkv_ptr, at + columns, mask, rows_ptr, columns_ptr, bias_ptr, row, columns, row >= 0, mask
    )
    # A thread has both channels of a pair.
    even, odd = tl.split(tl.reshape(x, [BLOCK // 2, 2]))
    swapped = tl.reshape(tl.join(odd, even), [BLOCK])
    cos = tl.load(cos_ptr + channels, mask=mask, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + channels, mask=mask, other=0.0).to(tl.float32)
    return rounded(rounded(x * cos, dtype) + rounded(swapped * sin, dtype), dtype)


@triton.jit(do_not_specialize=["position"])
def _depth_attention_kernel(
    out_ptr, qkv_ptr, rows_ptr, columns_ptr, bias_ptr, cos_ptr, sin_ptr, keys_ptr, values_ptr,
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

    at = row * qkv_stride
    q = _turned(
        qkv_ptr,
        rows_ptr,
        columns_ptr,
        bias_ptr,
        at,
        row,
        head * K,
        cos_ptr,
        sin_ptr,
        channels,
        exists,
        BLOCK,
    )
    key = _turned(
        qkv_ptr,
        rows_ptr,
        columns_ptr,
        bias_ptr,
        at,
        row,
        (H + head) * K,
        cos_ptr,
        sin_ptr,
        channels,
        exists,
        BLOCK,
    )
    columns = (2 * H + head) * K + channels
    value = load_scaled(
        qkv_ptr,
        at + columns,
        exists,
        rows_ptr,
        columns_ptr,
        bias_ptr,
        row,
        columns,
        row >= 0,
        exists,
    )
    tl.store(
        keys_ptr + cached + position * position_stride,
        key.to(keys_ptr.dtype.element_ty),
        mask=exists,
    )
    tl.store(
        values_ptr + cached + position * position_stride,
        value.to(values_ptr.dtype.element_ty),
        mask=exists,
    )

    # The new position is seen from registers: its store above need not have landed.
    q = q * scale
    score = tl.sum(q * key)
    past_scores = tl.sum(q[None, :] * past_keys.to(tl.float32), axis=1)
    past_scores = tl.where(past < position, past_scores, float("-inf"))
    best = tl.maximum(tl.max(past_scores), score)
    past_weights = tl.exp(past_scores - best)
    weight = tl.exp(score - best)
    total = tl.sum(past_weights) + weight
    out = tl.sum(past_weights[:, None] * past_values.to(tl.float32), axis=0) + weight * value
    tl.store(
        out_ptr + (row * H + head) * K + channels,
        (out / total).to(out_ptr.dtype.element_ty),
        mask=exists,
    )


def depth_attention(
    qkv_BE: Tensor | Scaled,
    cos_K: Tensor,
    sin_K: Tensor,
    keys_BHPK: Tensor,
    values_BHPK: Tensor,
    position: int,
) -> Tensor:
    """`reference.depth_attention`."""
    product_BE, *scales = operands(qkv_BE)
    batch, heads, positions, size = keys_BHPK.shape
    _check_cache(keys_BHPK, values_BHPK)
    if not 0 <= position < positions:
        raise ValueError(f"position {position} is not in a cache of {positions} positions")
    if not (product_BE.stride(-1) == 1 and cos_K.is_contiguous() and sin_K.is_contiguous()):
        raise ValueError("queries, keys and values of a row, and rotary tables, must be contiguous")
    out_BE = torch.empty((batch, heads * size), dtype=product_BE.dtype, device=product_BE.device)
    past, block, warps = _tile(position, size)
    _depth_attention_kernel[(batch, heads)](
        out_BE,
        product_BE,
        *scales,
        cos_K,
        sin_K,
        keys_BHPK,
        values_BHPK,
        position,
        product_BE.stride(0),
        *keys_BHPK.stride()[:3],
        size**-0.5,
        heads,
        size,
        past,
        block,
        num_warps=warps,
        # or a product and the sum become one bfloat16 operation with one rounding
        enable_fp_fusion=False,
    )
    return out_BE


@triton.jit
def _normed(
    qkv_ptr, rows_ptr, columns_ptr, bias_ptr, weight_ptr, cos_ptr, sin_ptr,
    rows, positions, head, channels, mask, qkv_stride, eps,
    K: tl.constexpr,
):  # fmt: skip
    """Both halves [tokens, channels] of one head, normed and turned, as
    `reference.norm_rotate_append` rounds them.
    """
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    low, high = _halves(
        qkv_ptr, rows_ptr, columns_ptr, bias_ptr, rows, head, channels, mask, qkv_stride, K
    )
    rstd = tl.rsqrt(tl.sum(low * low + high * high, axis=1, keep_dims=True) / K + eps)
    exists = channels < K // 2
    low = rounded(low * rstd, dtype) * tl.load(weight_ptr + channels, mask=exists, other=0.0).to(
        tl.float32
    )
    high = rounded(high * rstd, dtype) * tl.load(
        weight_ptr + K // 2 + channels, mask=exists, other=0.0
    ).to(tl.float32)
    low, high = rounded(low, dtype), rounded(high, dtype)
    turns = positions * K + channels
    cos_low = tl.load(cos_ptr + turns, mask=mask, other=0.0).to(tl.float32)
    cos_high = tl.load(cos_ptr + turns + K // 2, mask=mask, other=0.0).to(tl.float32)
    sin_low = tl.load(sin_ptr + turns, mask=mask, other=0.0).to(tl.float32)
    sin_high = tl.load(sin_ptr + turns + K // 2, mask=mask, other=0.0).to(tl.float32)
    turned_low = rounded(low * cos_low, dtype) + rounded(high * sin_low, dtype)
    turned_high = rounded(high * cos_high, dtype) + rounded(low * sin_high, dtype)
    return rounded(turned_low, dtype), rounded(turned_high, dtype)


@triton.jit
def _halves(
    qkv_ptr,
    rows_ptr,
    columns_ptr,
    bias_ptr,
    rows,
    head,
    channels,
    mask,
    qkv_stride,
    K: tl.constexpr,
):
    columns = head * K + channels
    at, exist, are_channels = rows * qkv_stride + columns, rows >= 0, channels < K // 2
    low = load_scaled(
        qkv_ptr, at, mask, rows_ptr, columns_ptr, bias_ptr, rows, columns, exist, are_channels
    )
    columns, at = columns + K // 2, at + K // 2
    return low, load_scaled(
        qkv_ptr, at, mask, rows_ptr, columns_ptr, bias_ptr, rows, columns, exist, are_channels
    )


@triton.jit
def _scores(q_low, q_high, key_low, key_high):
    """[queries, keys]"""
    return tl.sum(q_low[:, None] * key_low[None] + q_high[:, None] * key_high[None], axis=2)


@triton.jit(do_not_specialize=["start"])
def _frame_attention_kernel(
    out_ptr, qkv_ptr, rows_ptr, columns_ptr, bias_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr,
    keys_ptr, values_ptr, start, qkv_stride, row_stride, position_stride, head_stride, eps, scale,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, T: tl.constexpr, NEW: tl.constexpr,
    PAST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    kept: tl.constexpr = keys_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    channels = tl.arange(0, BLOCK)[None, :]
    exists = channels < K // 2
    past = tl.arange(0, PAST)
    past_mask = (past < start)[:, None] & exists
    cached = row * row_stride + group * head_stride + channels
    past_keys = keys_ptr + cached + past[:, None] * position_stride
    past_values = values_ptr + cached + past[:, None] * position_stride
    past_key_low = tl.load(past_keys, mask=past_mask, other=0.0).to(tl.float32)
    past_key_high = tl.load(past_keys + K // 2, mask=past_mask, other=0.0).to(tl.float32)
    past_value_low = tl.load(past_values, mask=past_mask, other=0.0).to(tl.float32)
    past_value_high = tl.load(past_values + K // 2, mask=past_mask, other=0.0).to(tl.float32)

    tokens = tl.arange(0, NEW)
    # A tile has a power of two of tokens; those beyond T are read as the last.
    rows = row * T + tl.minimum(tokens, T - 1)[:, None]
    positions = start + tl.minimum(tokens, T - 1)[:, None]
    mask = (tokens < T)[:, None] & exists
    key_low, key_high = _normed(
        qkv_ptr, rows_ptr, columns_ptr, bias_ptr, k_weight_ptr, cos_ptr, sin_ptr,
        rows, positions, H + group, channels, mask, qkv_stride, eps, K,
    )  # fmt: skip
    value_low, value_high = _halves(
        qkv_ptr, rows_ptr, columns_ptr, bias_ptr, rows, H + G + group, channels, mask, qkv_stride, K
    )
    appended = cached + positions * position_stride
    tl.store(keys_ptr + appended, key_low.to(kept), mask=mask)
    tl.store(keys_ptr + appended + K // 2, key_high.to(kept), mask=mask)
    tl.store(values_ptr + appended, value_low.to(kept), mask=mask)
    tl.store(values_ptr + appended + K // 2, value_high.to(kept), mask=mask)

    # New positions are seen from registers: their stores above need not have landed.
    is_past = (past < start)[None, :]
    is_seen = (tokens[None, :] <= tokens[:, None]) & (tokens < T)[None, :]
    for member in tl.static_range(H // G):
        head = group * (H // G) + member
        q_low, q_high = _normed(
            qkv_ptr, rows_ptr, columns_ptr, bias_ptr, q_weight_ptr, cos_ptr, sin_ptr,
            rows, positions, head, channels, mask, qkv_stride, eps, K,
        )  # fmt: skip
        q_low, q_high = q_low * scale, q_high * scale
        past_scores = tl.where(
            is_past, _scores(q_low, q_high, past_key_low, past_key_high), float("-inf")
        )
        scores = tl.where(is_seen, _scores(q_low, q_high, key_low, key_high), float("-inf"))
        best = tl.maximum(tl.max(past_scores, axis=1), tl.max(scores, axis=1))[:, None]
        past_weights, weights = tl.exp(past_scores - best), tl.exp(scores - best)
        total = (tl.sum(past_weights, axis=1) + tl.sum(weights, axis=1))[:, None]
        out_low = _sums(past_weights, past_value_low) + _sums(weights, value_low)
        out_high = _sums(past_weights, past_value_high) + _sums(weights, value_high)
        out = out_ptr + (rows * H + head) * K + channels
        tl.store(out, (out_low / total).to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(out + K // 2, (out_high / total).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sums(weights, values):
    """[queries, channels] of weights [queries, keys] and values [keys, channels]."""
    return tl.sum(weights[:, :, None] * values[None], axis=1)


def frame_attention(
    qkv_BTE: Tensor | Scaled,
    q_weight_K: Tensor,
    k_weight_K: Tensor,
    eps: float,
    cos_PK: Tensor,
    sin_PK: Tensor,
    keys_BPGK: Tensor,
    values_BPGK: Tensor,
    start: int,
) -> Tensor:
    """`reference.frame_attention`."""
    product_BTE, rows, columns, bias = operands(qkv_BTE)
    batch, tokens, stacked = product_BTE.shape
    positions, groups, size = keys_BPGK.shape[1:]
    _check_cache(keys_BPGK, values_BPGK)
    if not 0 <= start <= positions - tokens:
        raise ValueError(
            f"positions {start} to {start + tokens - 1} are not in a cache of {positions} positions"
        )
    if not (product_BTE.is_contiguous() and cos_PK.is_contiguous() and sin_PK.is_contiguous()):
        raise ValueError("queries, keys and values, and rotary tables, must be contiguous")
    heads = stacked // size - 2 * groups
    out_BTE = torch.empty(
        (batch, tokens, heads * size), dtype=product_BTE.dtype, device=product_BTE.device
    )
    new, past, block = (
        triton.next_power_of_2(max(count, 1)) for count in (tokens, start, size // 2)
    )
    _frame_attention_kernel[(batch, groups)](
        out_BTE, product_BTE, rows, columns, bias, q_weight_K, k_weight_K, cos_PK, sin_PK,
        keys_BPGK, values_BPGK, start, stacked, *keys_BPGK.stride()[:3], eps, size**-0.5,
        H=heads, G=groups, K=size, T=tokens, NEW=new, PAST=past, BLOCK=block,
        num_warps=max(1, past * block // _HALF_TILE), enable_fp_fusion=False,
    )  # fmt: skip
    return out_BTE


def _check_cache(keys: Tensor, values: Tensor) -> None:
    if keys.stride() != values.stride() or keys.stride(-1) != 1:
        raise ValueError("caches of keys and values must be laid out alike, channels contiguous")


def _tile(positions: int, size: int) -> tuple[int, int, int]:
    """Powers of two that hold the positions and channels, and the number of warps for them."""
    length, block = max(triton.next_power_of_2(positions), 2), triton.next_power_of_2(size)
    return length, block, max(length * block // _WARP_ELEMENTS, 1)
