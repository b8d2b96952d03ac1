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
    block, group = _heads_of_a_program(size, heads + 2 * groups)
    _norm_rotate_append_kernel[(len(qkv_ME), triton.cdiv(heads + 2 * groups, group))](
        qkv_ME, q_weight_K, k_weight_K, cos_MK, sin_MK, slots_M, keys_SGK, values_SGK, q_MHK,
        qkv_ME.stride(0), cos_MK.stride(0), sin_MK.stride(0), keys_SGK.stride(0), values_SGK.stride(0), eps,
        H=heads, G=groups, K=size, HEADS=group, BLOCK=block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return q_MHK


@triton.jit
def _rotate_append_kernel(
    qkv_ptr, cos_ptr, sin_ptr, rows_ptr, starts_ptr, keys_ptr, values_ptr, q_ptr,
    tokens, unit, capacity, qkv_batch_stride, qkv_stride, cos_batch_stride, cos_stride, sin_batch_stride, sin_stride,
    H: tl.constexpr, K: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    batch = token // tokens
    t = token % tokens
    position = tl.load(starts_ptr + batch).to(tl.int64) * unit + t
    ring = tl.load(rows_ptr + batch).to(tl.int64)
    slot = ring * capacity + position % capacity
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    channels = tl.arange(0, BLOCK)[None, :]
    pairs = tl.arange(0, BLOCK // 2)[None, :]
    exists = channels < K
    pair_exists = pairs < K // 2

    x = tl.load(
        qkv_ptr + batch * qkv_batch_stride + t * qkv_stride + heads * K + channels,
        mask=(heads < 3 * H) & exists,
        other=0.0,
    )
    cos = tl.load(cos_ptr + batch * cos_batch_stride + t * cos_stride + pairs, mask=pair_exists, other=0.0)
    sin = tl.load(sin_ptr + batch * sin_batch_stride + t * sin_stride + pairs, mask=pair_exists, other=0.0)
    # Neighbouring channels are in one thread, which reads 16 bytes at once: taking pairs apart costs no shuffle.
    even, odd = tl.split(tl.reshape(x.to(tl.float32), (HEADS, BLOCK // 2, 2)))
    turned = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (HEADS, BLOCK))

    is_key = (heads >= H) & (heads < 2 * H) & (ring >= 0)
    is_value = (heads >= 2 * H) & (heads < 3 * H) & (ring >= 0)
    dtype: tl.constexpr = keys_ptr.dtype.element_ty
    tl.store(q_ptr + (token * H + heads) * K + channels, turned.to(dtype), mask=(heads < H) & exists)
    tl.store(keys_ptr + (slot * H + heads - H) * K + channels, turned.to(dtype), mask=is_key & exists)
    tl.store(values_ptr + (slot * H + heads - 2 * H) * K + channels, x.to(dtype), mask=is_value & exists)


def rotate_append(
    qkv_BTE: Tensor,
    cos_BTJ: Tensor,
    sin_BTJ: Tensor,
    rows_B: Tensor,
    starts_B: Tensor,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> Tensor:
    """`reference.rotate_append`. Rings are contiguous."""
    return _rotate_append(qkv_BTE, cos_BTJ, sin_BTJ, rows_B, starts_B, 1, keys_RCHK, values_RCHK)


def rotate_append_packed(
    qkv_ME: Tensor,
    cos_MJ: Tensor,
    sin_MJ: Tensor,
    frame_rows_F: Tensor,
    frame_positions_F: Tensor,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> Tensor:
    """`reference.rotate_append_packed`: every frame is a chunk. Rings are contiguous."""
    tokens = len(qkv_ME) // len(frame_rows_F)
    qkv_FTE, cos_FTJ, sin_FTJ = (x.unflatten(0, (-1, tokens)) for x in (qkv_ME, cos_MJ, sin_MJ))
    frames = (frame_rows_F, frame_positions_F, tokens)
    return _rotate_append(qkv_FTE, cos_FTJ, sin_FTJ, *frames, keys_RCHK, values_RCHK).flatten(0, 1)


def _rotate_append(
    qkv_BTE: Tensor,
    cos_BTJ: Tensor,
    sin_BTJ: Tensor,
    rows_B: Tensor,
    starts_B: Tensor,
    unit: int,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> Tensor:
    """Chunks that begin at `starts_B`, in units of so many tokens; those of row -1 are not stored."""
    capacity, heads, size = keys_RCHK.shape[1:]
    batch, tokens = qkv_BTE.shape[:2]
    q_BTHK = torch.empty((batch, tokens, heads, size), dtype=keys_RCHK.dtype, device=qkv_BTE.device)
    block, group = _heads_of_a_program(size, 3 * heads)
    _rotate_append_kernel[(batch * tokens, triton.cdiv(3 * heads, group))](
        qkv_BTE, cos_BTJ, sin_BTJ, rows_B, starts_B, keys_RCHK, values_RCHK, q_BTHK,
        tokens, unit, capacity, qkv_BTE.stride(0), qkv_BTE.stride(1),
        *_batch_and_token_stride(cos_BTJ), *_batch_and_token_stride(sin_BTJ),
        H=heads, K=size, HEADS=group, BLOCK=block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return q_BTHK


def _heads_of_a_program(size: int, heads: int) -> tuple[int, int]:
    """Channels and heads of a program's tile, powers of two."""
    block = triton.next_power_of_2(size)
    return block, max(1, min(_ELEMENTS // block, triton.next_power_of_2(heads)))


def _batch_and_token_stride(table_BTJ: Tensor) -> tuple[int, int]:
    """A table of one sequence serves them all."""
    return (table_BTJ.stride(0) if len(table_BTJ) > 1 else 0), table_BTJ.stride(1)
