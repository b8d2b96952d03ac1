"""Faster forms of some references, which a CPU runs: they prepare once what all layers of a call
share.

Only `ops` calls them; the kernels are tested against them as well as against the references.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hocket.kernels.reference import rings as reference
from hocket.kernels.reference.philox import UNIFORM_BITS, FrameNoise
from hocket.kernels.reference.talker import gather_pages
from hocket.kernels.types import DrawArgs, HostArgs, PagedPlan, RingWindow, Scaled, plain

# ---- attention over pages
#
# Attention over pages with the masks of a `PagedPlan`, which all layers share.


def paged_attention(
    q_BTHK: Tensor,
    keys_NRGK: Tensor,
    values_NRGK: Tensor,
    plan: PagedPlan,
    scales_NGR2: Tensor | None = None,
) -> Tensor:
    """`reference.talker.paged_attention`; with `lengths`, one sequence after another over exactly
    its own rows.
    """
    batch = plan.batch
    key_scales, value_scales = (None, None) if scales_NGR2 is None else scales_NGR2.unbind(-1)
    # Zero where nothing is written, because a mask alone would let NaN through (0 * NaN).
    k_BLGK, v_BLGK = (
        gather_pages(pages, scales, batch.page_table_BP, q_BTHK.dtype).masked_fill_(
            plan.unwritten, 0.0
        )
        for pages, scales in ((keys_NRGK, key_scales), (values_NRGK, value_scales))
    )
    if batch.lengths is None:
        return _attend(q_BTHK, k_BLGK, v_BLGK, plan.visible)
    out_BTHK = torch.zeros_like(q_BTHK)
    for b, length in enumerate(batch.lengths):
        if length:
            own = slice(b, b + 1)
            visible_B1TL = plan.visible[own, :, :, :length]
            out_BTHK[own] = _attend(
                q_BTHK[own], k_BLGK[own, :length], v_BLGK[own, :length], visible_B1TL
            )
    return out_BTHK


def _attend(q_BTHK: Tensor, k_BLGK: Tensor, v_BLGK: Tensor, visible_B1TL: Tensor) -> Tensor:
    """Each of the G key heads serves H / G query heads."""
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BLGK.transpose(1, 2),
        v_BLGK.transpose(1, 2),
        attn_mask=visible_B1TL,
        enable_gqa=True,
    )
    return out_BHTK.transpose(1, 2)


# ---- rings
#
# Attention over rings for padded packs, all streams at once with the slots and masks of a
# `RingWindow`.
#
# Other packs go stream by stream, as the reference does.


def pair_turns(window: RingWindow, size: int, base: float) -> Tensor:
    """`reference.rings.pair_turns`: unit complex numbers, which turn a pair by one product."""
    if not window.pack.is_padded:
        return reference.pair_turns(window, size, base)
    pairs = torch.arange(size // 2, dtype=torch.float32, device=window.device)
    angles_MP = window.positions.view(-1, 1).float() * torch.exp(
        pairs * (-2.0 * math.log(base) / size)
    )
    return torch.view_as_real(torch.polar(torch.ones_like(angles_MP), angles_MP)).flatten(-2)


def append_rotated(
    qkv: Tensor | Scaled,
    cos_sin_MK: Tensor,
    window: RingWindow,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> None:
    """`reference.rings.append_rotated`; padding of a stream is stored as well, where it is never
    seen.
    """
    if not window.pack.is_padded:
        reference.append_rotated(qkv, cos_sin_MK, window, keys_RCHK, values_RCHK)
        return
    qkv_ST3HK = _by_stream(qkv, window, keys_RCHK)
    window.write(keys_RCHK, _rotated(qkv_ST3HK[:, :, 1], cos_sin_MK, keys_RCHK.dtype))
    window.write(values_RCHK, qkv_ST3HK[:, :, 2].to(values_RCHK.dtype))


def ring_attention(
    qkv: Tensor | Scaled,
    cos_sin_MK: Tensor,
    window: RingWindow,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> Tensor:
    """`reference.rings.ring_attention`; padding gives finite numbers instead of zeros."""
    if not window.pack.is_padded:
        return reference.ring_attention(qkv, cos_sin_MK, window, keys_RCHK, values_RCHK)
    queries_STHK = _rotated(
        _by_stream(qkv, window, keys_RCHK)[:, :, 0], cos_sin_MK, keys_RCHK.dtype
    )
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


def _rotated(x_STHK: Tensor, cos_sin_MK: Tensor, dtype: torch.dtype) -> Tensor:
    """In float32, rounded to `dtype`."""
    streams, tokens, _, size = x_STHK.shape
    pairs = torch.view_as_complex(x_STHK.float().reshape(*x_STHK.shape[:-1], -1, 2))
    units = torch.view_as_complex(cos_sin_MK.view(streams, tokens, 1, size // 2, 2))
    return torch.view_as_real(pairs * units).flatten(-2).to(dtype)


# ---- draws
#
# The draws of `reference/sampling.py` as a CPU makes them, in NumPy: one distribution, to float32's
# precision.
#
# A draw is some thirty small operations and one sort, and a frame has a dozen draws: NumPy starts
# an operation in a third of the time and sorts a row an order of magnitude faster than PyTorch,
# which spent a quarter of a small model's frame.
#
# No path is chosen by a row's values, and sums run from left to right, so that a row's bits do not
# depend on how many columns its neighbours need.

_FINITE = np.finfo(np.float32)
#: The low half of a sort key is the code.
_CODE_BITS = 32
_CODE_MASK = (1 << _CODE_BITS) - 1
#: Columns beyond the largest top-k, for codes that tie with the k-th.
_ROOM_FOR_TIES = 16

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


def draw(
    logits_BV: Tensor, args: DrawArgs, noise: FrameNoise, slot: int, seen_BV: Tensor | None = None
) -> Tensor:
    """`reference.sampling.draw`."""
    return _draw(logits_BV, args.host, noise.fixed[slot], seen_BV)


def draw_and_embed(
    logits_BV: Tensor,
    args: DrawArgs,
    noise: FrameNoise,
    slot: int,
    table_VD: Tensor,
    seen_BV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`reference.sampling.draw_and_embed`."""
    code_B = _draw(logits_BV, args.host, noise.fixed[slot], seen_BV)
    return code_B, F.embedding(code_B, table_VD)


def draw_at(
    logits_BV: Tensor, args: DrawArgs, u_B: Tensor, seen_BV: Tensor | None = None
) -> Tensor:
    """`reference.sampling.draw_at`."""
    return _draw(logits_BV, args.host, (u_B * 2.0**UNIFORM_BITS).long().numpy(), seen_BV)


def _draw(logits_BV: Tensor, args: HostArgs, u_fixed_B: Integers, seen_BV: Tensor | None) -> Tensor:
    """`draw_at` with uniforms in units of 2**-UNIFORM_BITS."""
    logits, seen = logits_BV.detach().float().numpy(), None if seen_BV is None else seen_BV.numpy()
    score_BC, code_BC, kth_B1 = _best(_scores(logits, args, seen), args)
    # In float64, score / temperature never overflows.
    mass_BC = np.exp((score_BC - score_BC[:, :1]) / args.temperature_B1)
    mass_BC[score_BC < kth_B1] = 0.0
    before_BC = mass_BC.cumsum(1)
    mass_BC[:, 1:][before_BC[:, :-1] > args.top_p_B1 * before_BC[:, -1:]] = 0.0
    # In vocabulary order and in integers of 2**-32, like the reference.
    order_BC = code_BC.argsort(1)
    scale_B1 = 2.0**32 / mass_BC.cumsum(1)[:, -1:]
    cumulative_BC = (mass_BC[args.rows_B1, order_BC] * scale_B1).astype(np.int64).cumsum(1)
    target_B = (u_fixed_B * cumulative_BC[:, -1]) >> UNIFORM_BITS
    place_B = (cumulative_BC <= target_B[:, None]).sum(1)
    rows_B = args.rows_B1[:, 0]
    return torch.from_numpy(code_BC[rows_B, order_BC[rows_B, place_B]])


def _scores(logits_BV: Floats, args: HostArgs, seen_BV: NDArray[np.bool_] | None) -> Floats:
    """Penalised logits, all finite, without a negative zero."""
    if seen_BV is not None:
        penalty_B1 = args.repetition_penalty_B1
        with np.errstate(over="ignore"):
            penalised_BV = np.where(logits_BV < 0, logits_BV * penalty_B1, logits_BV / penalty_B1)
        logits_BV = np.where(seen_BV, penalised_BV, logits_BV)
    # Given NaN and a number, fmax returns the number.
    return np.minimum(np.fmax(logits_BV, _FINITE.min), _FINITE.max) + np.float32(0)


def _best(
    scores_BV: Floats, args: HostArgs
) -> tuple[NDArray[np.float64], Integers, NDArray[np.float64]]:
    """Scores and codes [B, C] in falling order, of equal ones the lower code first, and the k-th
    best score [B, 1].

    C is enough for all codes that are not under the k-th.
    """
    codes = scores_BV.shape[1]
    # As integers, floats above zero rise with their bits and those below fall; inverted, the best
    # comes first. With the code in the low half no two keys are equal, so that any sort is stable.
    bits_BV = scores_BV.view(np.int32)
    falling_BV = ~(bits_BV ^ ((bits_BV >> 31) & 0x7FFFFFFF))
    key_BV = (falling_BV.astype(np.int64) << _CODE_BITS) | np.arange(codes)
    last_B = np.minimum(args.top_k_B, codes) - 1
    columns = min(codes, args.max_top_k + _ROOM_FOR_TIES)
    while True:
        if columns < codes:
            key_BV.partition(columns, 1)
        key_BC = key_BV[:, :columns]
        key_BC.sort(1)
        code_BC = key_BC & _CODE_MASK
        score_BC = scores_BV[args.rows_B1, code_BC].astype(np.float64)
        kth_B1 = score_BC[args.rows_B1, last_B[:, None]]
        if columns == codes or bool((score_BC[:, -1:] < kth_B1).all()):
            return score_BC, code_BC, kth_B1
        columns = codes
