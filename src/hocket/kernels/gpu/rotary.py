"""Rotary positions, with the norm before them and the append to the cache after them in the same
launch.

A program has a group of heads of one row, two halves [heads, channels / 2] of about 1,024 elements
together in 4 warps, whether they are queries, keys or values: the kinds differ in where they are
stored, and values are stored as they are. The halves have one layout, so that a thread has both
channels of each pair that rotates.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.gpu.rows import load_scaled, rounded
from hocket.kernels.types import Scaled, operands

_ELEMENTS = 1024


@triton.jit
def _norm_rotate_append_kernel(
    qkv_ptr, rows_ptr, columns_ptr, bias_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr,
    slots_ptr,
    keys_ptr, values_ptr, scales_ptr, q_ptr,
    qkv_stride, cos_stride, sin_stride, keys_stride, values_stride, eps,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, R: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    HALF: tl.constexpr = K // 2
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    # Channels of the lower half; channel `c` rotates with channel `c + HALF`, which the same thread
    # has.
    channels = tl.arange(0, BLOCK)[None, :]
    in_half = channels < HALF
    mask = (heads < H + 2 * G) & in_half
    is_query = heads < H
    is_key = (heads >= H) & (heads < H + G)
    is_value = heads >= H + G

    columns = heads * K + channels
    at = row * qkv_stride + columns
    low = load_scaled(
        qkv_ptr, at, mask, rows_ptr, columns_ptr, bias_ptr, row, columns, row >= 0, mask
    )
    high = load_scaled(
        qkv_ptr,
        at + HALF,
        mask,
        rows_ptr,
        columns_ptr,
        bias_ptr,
        row,
        columns + HALF,
        row >= 0,
        mask,
    )
    rstd = tl.rsqrt(tl.sum(low * low + high * high, axis=1, keep_dims=True) / K + eps)
    normed_low = rounded(low * rstd, dtype) * _weights(
        q_weight_ptr, k_weight_ptr, channels, is_query, in_half
    )
    normed_high = rounded(high * rstd, dtype) * _weights(
        q_weight_ptr, k_weight_ptr, channels + HALF, is_query, in_half
    )
    normed_low, normed_high = rounded(normed_low, dtype), rounded(normed_high, dtype)
    turned_low = _turned(
        normed_low,
        normed_high,
        cos_ptr + row * cos_stride,
        sin_ptr + row * sin_stride,
        channels,
        in_half,
        dtype,
    )
    turned_high = _turned(
        normed_high,
        normed_low,
        cos_ptr + row * cos_stride,
        sin_ptr + row * sin_stride,
        channels + HALF,
        in_half,
        dtype,
    )

    queries = q_ptr + (row * H + heads) * K + channels
    tl.store(queries, turned_low.to(dtype), mask=is_query & in_half)
    tl.store(queries + HALF, turned_high.to(dtype), mask=is_query & in_half)
    kept: tl.constexpr = keys_ptr.dtype.element_ty
    low, high = tl.where(is_value, low, turned_low), tl.where(is_value, high, turned_high)
    if scales_ptr is not None:
        exponent = scale_exponent(
            tl.max(tl.maximum(tl.abs(low), tl.abs(high)), axis=1, keep_dims=True)
        )
        inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        low, high = low * inverse, high * inverse
        group = heads - H - is_value.to(tl.int32) * G
        place = ((slot // R * G + group) * R + slot % R) * 2 + is_value.to(tl.int32)
        scale = (exponent << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
        tl.store(scales_ptr + place, scale, mask=(heads >= H) & (heads < H + 2 * G))
    keys = keys_ptr + slot * keys_stride + (heads - H) * K + channels
    tl.store(keys, low.to(kept), mask=is_key & in_half)
    tl.store(keys + HALF, high.to(kept), mask=is_key & in_half)
    values = values_ptr + slot * values_stride + (heads - H - G) * K + channels
    tl.store(values, low.to(kept), mask=is_value & mask)
    tl.store(values + HALF, high.to(kept), mask=is_value & mask)


@triton.jit
def _weights(q_weight_ptr, k_weight_ptr, channels, is_query, exists):
    q_weight = tl.load(q_weight_ptr + channels, mask=exists, other=0.0)
    return tl.where(
        is_query, q_weight, tl.load(k_weight_ptr + channels, mask=exists, other=0.0)
    ).to(tl.float32)


@triton.jit
def _turned(x, partner, cos_ptr, sin_ptr, channels, exists, DTYPE: tl.constexpr):
    cos = tl.load(cos_ptr + channels, mask=exists, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + channels, mask=exists, other=0.0).to(tl.float32)
    return rounded(rounded(x * cos, DTYPE) + rounded(partner * sin, DTYPE), DTYPE)


@triton.jit
def scale_exponent(largest):
    """Biased exponent of the scale of a head whose largest magnitude is given in float32: see
    `quantize_heads`.
    """
    return tl.maximum(((largest.to(tl.int32, bitcast=True) + 0x1FFFFF) >> 23) - 8, 95)


def norm_rotate_append(
    qkv_ME: Tensor | Scaled,
    q_weight_K: Tensor,
    k_weight_K: Tensor,
    eps: float,
    cos_MK: Tensor,
    sin_MK: Tensor,
    slots_M: Tensor,
    keys_SGK: Tensor,
    values_SGK: Tensor,
    scales_NGR2: Tensor | None = None,
) -> Tensor:
    """`reference.norm_rotate_append`. The [G, K] of a slot are contiguous; slots may be strided."""
    product_ME, rows, columns, bias = operands(qkv_ME)
    groups, size = keys_SGK.shape[1:]
    heads = product_ME.shape[1] // size - 2 * groups
    page_rows = 1 if scales_NGR2 is None else scales_NGR2.shape[2]
    q_MHK = torch.empty(
        (len(product_ME), heads, size), dtype=product_ME.dtype, device=product_ME.device
    )
    block, group = heads_of_a_program(size, heads + 2 * groups)
    _norm_rotate_append_kernel[(len(product_ME), triton.cdiv(heads + 2 * groups, group))](
        product_ME, rows, columns, bias, q_weight_K, k_weight_K, cos_MK, sin_MK, slots_M,
        keys_SGK, values_SGK, scales_NGR2, q_MHK,
        product_ME.stride(0), cos_MK.stride(0), sin_MK.stride(0), keys_SGK.stride(0),
        values_SGK.stride(0), eps,
        H=heads, G=groups, K=size, R=page_rows, HEADS=group, BLOCK=max(1, block // 2),
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return q_MHK


def heads_of_a_program(size: int, heads: int) -> tuple[int, int]:
    """Channels and heads of a program's tile, both powers of two."""
    block = triton.next_power_of_2(size)
    return block, max(1, min(_ELEMENTS // block, triton.next_power_of_2(heads)))
