"""Convolutions of packed chunks in plain PyTorch.

Channels last, M tokens. A convolution is over a window of its own inputs: those before a stream's
first token are zeros, those before its chunk are in its tail. Tails [R, P, C] are the last P inputs
of one convolution, by row of `Packed`; the channels of an input are contiguous, and so are inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hocket.kernels.types import Packed

#: Elements of an unfolded slice that a CPU's cache holds.
_UNFOLDED_ELEMENTS = 2**20


def causal_conv(
    x_MC: Tensor,
    pack: Packed,
    tails_RPC: Tensor | None,
    weight_PCO: Tensor,
    bias_D: Tensor,
    dilation: int,
    residual_MO: Tensor | None,
    snake_by: tuple[Tensor, Tensor] | None,
    keep: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The convolution plus `residual_MO` (with `keep`), and the `snake` of that (with `snake_by`:
    rate and gain).

    Tap p of P reads the input (P - 1 - p) * dilation tokens back. One tap needs no tail. Outputs
    are [M, O], output o of channel o mod D: a transposed convolution makes O / D tokens of each.
    The convolution is rounded to the dtype of `x_MC` before the residual is added.
    """
    taps, _, outputs = weight_PCO.shape
    weight_EO, bias_O = weight_PCO.flatten(0, 1), bias_D.repeat(outputs // len(bias_D))
    if tails_RPC is None:
        y_MO = _product(x_MC, weight_EO, bias_O)
    else:
        sources_MP, pool = _windows(x_MC, pack, tails_RPC, taps, dilation)
        # Slices of one size: a slice of a single row would be computed in another way.
        pieces = sources_MP.tensor_split(-(-len(x_MC) * len(weight_EO) // _UNFOLDED_ELEMENTS))
        unfolded = (
            pool.index_select(0, piece_MP.flatten()).view(len(piece_MP), -1) for piece_MP in pieces
        )
        y_MO = torch.cat([_product(piece_ME, weight_EO, bias_O) for piece_ME in unfolded])
    if residual_MO is not None:
        y_MO = residual_MO + y_MO
    bent_MO = None
    if snake_by is not None:
        bent_MO = snake(y_MO, *(factor_D.repeat(outputs // len(factor_D)) for factor_D in snake_by))
    return y_MO if keep else None, bent_MO


def depthwise_conv(
    x_MC: Tensor, pack: Packed, tails_RPC: Tensor, weight_PC: Tensor, bias_C: Tensor
) -> Tensor:
    """[M, C]: `causal_conv` with one filter per channel, float32 inside."""
    sources_MP, pool = _windows(x_MC, pack, tails_RPC, len(weight_PC), 1)
    window_MPC = pool[sources_MP].float()
    return ((window_MPC * weight_PC.float()).sum(1) + bias_C.float()).to(x_MC.dtype)


def keep_tail(x_MC: Tensor, pack: Packed, tails_RPC: Tensor) -> None:
    """Writes the last inputs of every stream that has a chunk to its tail, after the convolution
    has read it.
    """
    columns, tokens = tails_RPC.shape[1], len(x_MC) // pack.frames
    for row, count, first in zip(
        pack.rows_S.tolist(), pack.counts_S.tolist(), pack.firsts_S.tolist(), strict=True
    ):
        if count:
            chunk = x_MC[first * tokens : (first + count) * tokens]
            tails_RPC[row] = torch.cat([tails_RPC[row], chunk])[-columns:]


def _product(x_ME: Tensor, weight_EO: Tensor, bias_O: Tensor) -> Tensor:
    """The product plus the bias, rounded once.

    The library splits a product of one column depending on where a row is, so that one is summed
    here.
    """
    if weight_EO.shape[1] > 1:
        return torch.addmm(bias_O, x_ME, weight_EO)
    return ((x_ME.float() * weight_EO[:, 0].float()).sum(1, keepdim=True) + bias_O.float()).to(
        x_ME.dtype
    )


def _windows(
    x_MC: Tensor, pack: Packed, tails_RPC: Tensor, taps: int, dilation: int
) -> tuple[Tensor, Tensor]:
    """Index int64 [M, P] of each tap of each token in the pool [., C] of inputs, tails and a zero;
    the pool.
    """
    columns, unit, count = tails_RPC.shape[1], len(x_MC) // pack.frames, len(x_MC)
    rows_F, places_F, positions_F = pack.by_frame
    within = torch.arange(unit, device=x_MC.device)
    place_M1, position_M1 = (
        (frames_F[:, None] * unit + within).view(-1, 1) for frames_F in (places_F, positions_F)
    )
    back_P = dilation * torch.arange(taps - 1, -1, -1, device=x_MC.device)
    m_M1 = torch.arange(count, device=x_MC.device)[:, None]
    in_tails_MP = count + m_M1 // unit * columns + place_M1 - back_P + columns
    sources_MP = torch.where(place_M1 >= back_P, m_M1 - back_P, in_tails_MP)
    exists_MP = (position_M1 >= back_P) & (rows_F >= 0).repeat_interleave(unit)[:, None]
    tails_FPC = tails_RPC[rows_F.clamp(min=0)]
    pool = torch.cat([x_MC, tails_FPC.flatten(0, 1), x_MC.new_zeros(1, x_MC.shape[1])])
    return sources_MP.where(exists_MP, len(pool) - 1), pool


def snake(x: Tensor, rate_C: Tensor, gain_C: Tensor) -> Tensor:
    """`x + sin(rate * x) ** 2 * gain` of [..., C] (sources: Qwen3 9), float32 inside, in the dtype
    of `x`.
    """
    wide = x.float()
    return torch.addcmul(wide, (wide * rate_C).sin_().square_(), gain_C).to(x.dtype)
