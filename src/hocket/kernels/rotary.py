"""Rotary positions, with the norm before them and the append to the cache after them in the same launch.

A program has a group of heads of one row, [heads, channels] of about 1,024 elements in 4 warps, whether they are
queries, keys or values: the kinds differ in where they are stored, and values are stored as they are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.rows import rounded

_ELEMENTS = 1024


@triton.jit
def _norm_rotate_append_kernel(
    qkv_ptr, q_weight_ptr, k_weight_ptr, cos_ptr, sin_ptr, slots_ptr, keys_ptr, values_ptr, q_ptr,
    qkv_stride, cos_stride, sin_stride, keys_stride, values_stride, eps,
    H: tl.constexpr, G: tl.constexpr, K: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = qkv_ptr.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    channels = tl.arange(0, BLOCK)[None, :]
    # The other half comes by a second load (from L1) instead of a shuffle between threads.
    partners = (channels + K // 2) % K
    exists = channels < K
    mask = (heads < H + 2 * G) & exists
    is_query = heads < H
    is_key = (heads >= H) & (heads < H + G)

    heads_ptr = qkv_ptr + row * qkv_stride + heads * K
    x = tl.load(heads_ptr + channels, mask=mask, other=0.0)
    wide = x.to(tl.float32)
    partner = tl.load(heads_ptr + partners, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(wide * wide, axis=1, keep_dims=True) / K + eps)
    weight = tl.where(
        is_query,
        tl.load(q_weight_ptr + channels, mask=exists, other=0.0),
        tl.load(k_weight_ptr + channels, mask=exists, other=0.0),
    ).to(tl.float32)
    partner_weight = tl.where(
        is_query,
        tl.load(q_weight_ptr + partners, mask=exists, other=0.0),
        tl.load(k_weight_ptr + partners, mask=exists, other=0.0),
    ).to(tl.float32)
    cos = tl.load(cos_ptr + row * cos_stride + channels, mask=exists, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + row * sin_stride + channels, mask=exists, other=0.0).to(tl.float32)
    normed = rounded(rounded(wide * rstd, dtype) * weight, dtype)
    normed_partner = rounded(rounded(partner * rstd, dtype) * partner_weight, dtype)
    turned = (rounded(normed * cos, dtype) + rounded(normed_partner * sin, dtype)).to(dtype)

    tl.store(q_ptr + (row * H + heads) * K + channels, turned, mask=is_query & exists)
    tl.store(keys_ptr + slot * keys_stride + (heads - H) * K + channels, turned, mask=is_key & exists)
    values = values_ptr + slot * values_stride + (heads - H - G) * K + channels
    tl.store(values, x, mask=mask & (heads >= H + G))


def norm_rotate_append(
    qkv_ME: Tensor,
    q_weight_K: Tensor,
    k_weight_K: Tensor,
    eps: float,
    cos_MK: Tensor,
    sin_MK: Tensor,
    slots_M: Tensor,
    keys_SGK: Tensor,
    values_SGK: Tensor,
) -> Tensor:
    """`reference.norm_rotate_append`. What a slot holds, [G, K], is contiguous; slots may lie apart."""
    groups, size = keys_SGK.shape[1:]
    heads = qkv_ME.shape[1] // size - 2 * groups
    q_MHK = torch.empty((len(qkv_ME), heads, size), dtype=qkv_ME.dtype, device=qkv_ME.device)
    block, group = heads_of_a_program(size, heads + 2 * groups)
    _norm_rotate_append_kernel[(len(qkv_ME), triton.cdiv(heads + 2 * groups, group))](
        qkv_ME, q_weight_K, k_weight_K, cos_MK, sin_MK, slots_M, keys_SGK, values_SGK, q_MHK,
        qkv_ME.stride(0), cos_MK.stride(0), sin_MK.stride(0), keys_SGK.stride(0), values_SGK.stride(0), eps,
        H=heads, G=groups, K=size, HEADS=group, BLOCK=block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return q_MHK


def heads_of_a_program(size: int, heads: int) -> tuple[int, int]:
    """Channels and heads of a program's tile, powers of two."""
    block = triton.next_power_of_2(size)
    return block, max(1, min(_ELEMENTS // block, triton.next_power_of_2(heads)))
