"""Rotary positions of a codec chunk, and the append to its rings in the same launch.

Programs are laid out as in `rotary`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.rotary import heads_of_a_program


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
    block, group = heads_of_a_program(size, 3 * heads)
    _rotate_append_kernel[(batch * tokens, triton.cdiv(3 * heads, group))](
        qkv_BTE, cos_BTJ, sin_BTJ, rows_B, starts_B, keys_RCHK, values_RCHK, q_BTHK,
        tokens, unit, capacity, qkv_BTE.stride(0), qkv_BTE.stride(1),
        *_batch_and_token_stride(cos_BTJ), *_batch_and_token_stride(sin_BTJ),
        H=heads, K=size, HEADS=group, BLOCK=block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return q_BTHK


def _batch_and_token_stride(table_BTJ: Tensor) -> tuple[int, int]:
    """A table of one sequence serves them all."""
    return (table_BTJ.stride(0) if len(table_BTJ) > 1 else 0), table_BTJ.stride(1)
