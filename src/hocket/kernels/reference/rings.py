"""Attention over rings of keys and values, stream by stream: the new tokens of a pack, as a
`RingWindow` places them.

Tokens of no stream may hold anything. Letters as in `talker`: M are the pack's tokens, R rings of C
slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from hocket.kernels.types import RingWindow, Scaled, plain


def pair_turns(window: RingWindow, size: int, base: float) -> Tensor:
    """float32 [M, K] of a pack of M tokens: cosine and sine (channels 2j and 2j + 1) of position *
    base^(-2j / K).
    """
    pairs = torch.arange(size // 2, dtype=torch.float32, device=window.device)
    frequencies = torch.exp(pairs * (-2.0 * math.log(base) / size))
    cos_sin_MK = torch.zeros(window.tokens, size, device=window.device)
    for _, start, place in _streams_of(window):
        positions = torch.arange(start, start + place.stop - place.start, device=window.device)
        angles = positions[:, None].float() * frequencies
        cos_sin_MK[place] = torch.stack((angles.cos(), angles.sin()), -1).flatten(-2)
    return cos_sin_MK


def append_rotated(
    qkv: Tensor | Scaled,
    cos_sin_MK: Tensor,
    window: RingWindow,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> None:
    """Stores the new tokens' keys, rotated, and values in their rings; position p goes to slot p
    mod C.

    `qkv` [.., 3 H K], M rows in all, has queries, keys and values of H heads one after another. The
    channel pair (2j, 2j + 1), as a complex number, is turned by `pair_turns` in float32, and
    rounded to the dtype of the rings.
    """
    capacity, heads, size = keys_RCHK.shape[1:]
    _, k_MHK, v_MHK = plain(qkv).view(-1, 3, heads, size).unbind(1)
    for row, start, place in _streams_of(window):
        slots = (
            torch.arange(start, start + place.stop - place.start, device=window.device) % capacity
        )
        keys_RCHK[row, slots] = _rotated(k_MHK[place], cos_sin_MK[place], keys_RCHK.dtype)
        values_RCHK[row, slots] = v_MHK[place].to(values_RCHK.dtype)


def ring_attention(
    qkv: Tensor | Scaled,
    cos_sin_MK: Tensor,
    window: RingWindow,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> Tensor:
    """[.., H K]: each new token's queries, rotated, attend to the `window.context` positions up to
    its own.

    The new tokens are in the rings already (`append_rotated`). A slot whose position does not
    exist, before 0, is never loaded, whatever it holds. Tokens of no stream get zeros. C is at
    least context - 1 + the tokens of any stream.
    """
    capacity, heads, size = keys_RCHK.shape[1:]
    context = window.context
    q_MHK = plain(qkv).view(-1, 3, heads, size)[:, 0]
    out_MHK = torch.zeros_like(q_MHK, dtype=keys_RCHK.dtype)
    for row, start, place in _streams_of(window):
        end = start + place.stop - place.start
        seen = torch.arange(max(0, start - context + 1), end, device=q_MHK.device)
        age = torch.arange(start, end, device=q_MHK.device)[:, None] - seen
        out_HTK = F.scaled_dot_product_attention(
            _rotated(q_MHK[place], cos_sin_MK[place], keys_RCHK.dtype).transpose(0, 1),
            keys_RCHK[row, seen % capacity].transpose(0, 1),
            values_RCHK[row, seen % capacity].transpose(0, 1),
            attn_mask=(age >= 0) & (age < context),
        )
        out_MHK[place] = out_HTK.transpose(0, 1)
    return out_MHK.view(*qkv.shape[:-1], heads * size)


def copy_rings(
    rings_2LRCHK: Tensor, move_3: Tensor, target_2LRCHK: Tensor, context: int, tokens_per_frame: int
) -> None:
    """Copies the last `context` positions of one row's stream, or as many as it has, to a row of
    `target_2LRCHK`.

    Both have keys and values of L layers; position p is in slot p mod C, and the two may differ in
    C. `move_3` is int64: the row, the target's row, and the number of frames that the stream has
    seen.
    """
    row, target_row, frames = move_3.tolist()
    end = frames * tokens_per_frame
    positions = torch.arange(max(0, end - context), end, device=rings_2LRCHK.device)
    seen = rings_2LRCHK[:, :, row, positions % rings_2LRCHK.shape[3]]
    target_2LRCHK[:, :, target_row, positions % target_2LRCHK.shape[3]] = seen


def _streams_of(window: RingWindow) -> Iterator[tuple[int, int, slice]]:
    """Row, first new position and slice of the pack, for each stream with new tokens."""
    pack, unit = window.pack, window.tokens_per_frame
    numbers_4S = (pack.rows_S, pack.starts_S, pack.counts_S, pack.firsts_S)
    end = 0
    for row, start, count, first in zip(*(x.tolist() for x in numbers_4S), strict=True):
        if first < end:
            raise ValueError(
                f"a stream begins at frame {first}, before the stream before it ends: at {end}"
            )
        end = first + count
        if count:
            yield row, start * unit, slice(first * unit, end * unit)


def _rotated(x_THK: Tensor, cos_sin_TK: Tensor, dtype: torch.dtype) -> Tensor:
    even, odd = torch.unflatten(x_THK.float(), -1, (-1, 2)).unbind(-1)
    cos, sin = torch.unflatten(cos_sin_TK[:, None], -1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(dtype)
