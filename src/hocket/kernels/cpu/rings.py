"""Attention over rings for padded packs, all streams at once with the slots and masks of a `RingWindow`.

Other packs go stream by stream, as the reference does.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hocket.kernels.reference import rings as reference
from hocket.kernels.types.packed import RingWindow
from hocket.kernels.types.scaled import Scaled, plain


def pair_turns(window: RingWindow, size: int, base: float) -> Tensor:
    """`reference.rings.pair_turns`: unit complex numbers, which turn a pair by one product."""
    if not window.pack.is_padded:
        return reference.pair_turns(window, size, base)
    pairs = torch.arange(size // 2, dtype=torch.float32, device=window.device)
    angles_MP = window.positions.view(-1, 1).float() * torch.exp(pairs * (-2.0 * math.log(base) / size))
    return torch.view_as_real(torch.polar(torch.ones_like(angles_MP), angles_MP)).flatten(-2)


def append_rotated(
    qkv: Tensor | Scaled, turns_MK: Tensor, window: RingWindow, keys_RCHK: Tensor, values_RCHK: Tensor
) -> None:
    """`reference.rings.append_rotated`; padding of a stream is stored as well, where it is never seen."""
    if not window.pack.is_padded:
        reference.append_rotated(qkv, turns_MK, window, keys_RCHK, values_RCHK)
        return
    qkv_ST3HK = _by_stream(qkv, window, keys_RCHK)
    window.write(keys_RCHK, _rotated(qkv_ST3HK[:, :, 1], turns_MK, keys_RCHK.dtype))
    window.write(values_RCHK, qkv_ST3HK[:, :, 2].to(values_RCHK.dtype))


def ring_attention(
    qkv: Tensor | Scaled, turns_MK: Tensor, window: RingWindow, keys_RCHK: Tensor, values_RCHK: Tensor
) -> Tensor:
    """`reference.rings.ring_attention`; padding gives finite numbers instead of zeros."""
    if not window.pack.is_padded:
        return reference.ring_attention(qkv, turns_MK, window, keys_RCHK, values_RCHK)
    queries_STHK = _rotated(_by_stream(qkv, window, keys_RCHK)[:, :, 0], turns_MK, keys_RCHK.dtype)
    out_SHTK = F.scaled_dot_product_attention(
        queries_STHK.transpose(1, 2),
        window.read(keys_RCHK).transpose(1, 2),
        window.read(values_RCHK).transpose(1, 2),
        attn_mask=window.visible,
    )
    return out_SHTK.transpose(1, 2).reshape(*qkv.shape[:-1], -1)


def _by_stream(qkv: Tensor | Scaled, window: RingWindow, keys_RCHK: Tensor) -> Tensor:
    """[S, T, 3, H, K]"""
    return plain(qkv).view(len(window.pack.rows_S), -1, 3, *keys_RCHK.shape[2:])


def _rotated(x_STHK: Tensor, turns_MK: Tensor, dtype: torch.dtype) -> Tensor:
    """In float32, rounded to `dtype`."""
    streams, tokens, _, size = x_STHK.shape
    pairs = torch.view_as_complex(x_STHK.float().reshape(*x_STHK.shape[:-1], -1, 2))
    units = torch.view_as_complex(turns_MK.view(streams, tokens, 1, size // 2, 2))
    return torch.view_as_real(pairs * units).flatten(-2).to(dtype)
