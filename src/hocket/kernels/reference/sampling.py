"""Drawing codes (sources: MOSS 1.6): pure functions of logits, row parameters and noise (`philox`).

Every row has its own parameters and no branch depends on their values, so a row's result is the
same bits whatever else is in the batch. The sampling kernel is tested against this; a CPU draws in
`kernels.cpu`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hocket.kernels.reference.philox import UNIFORM_BITS, FrameNoise
from hocket.kernels.types import DrawArgs

#: Probabilities become integers in units of 2**-32 for the draw: summing integers is exact in any
#: order.
_WEIGHT_SCALE = 2.0**32


def draw(
    logits_BV: Tensor, args: DrawArgs, noise: FrameNoise, slot: int, seen_BV: Tensor | None = None
) -> Tensor:
    """int64 [B]: a code for each row, drawn with the noise of `slot`.

    `seen_BV` (bool) marks the codes that the repetition penalty applies to; `None` means that it
    applies to none.
    """
    return draw_at(logits_BV, args, noise.uniform(slot), seen_BV)


def draw_and_embed(
    logits_BV: Tensor,
    args: DrawArgs,
    noise: FrameNoise,
    slot: int,
    table_VD: Tensor,
    seen_BV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`draw`, and the rows [B, D] of a table that the codes name."""
    code_B = draw(logits_BV, args, noise, slot, seen_BV)
    return code_B, F.embedding(code_B, table_VD)


def probabilities(logits_BV: Tensor, args: DrawArgs, seen_BV: Tensor | None = None) -> Tensor:
    """float32 [B, V]: the distribution that a code is drawn from, in the order of sources: MOSS
    1.6. Greedy is one-hot.

    Penalty, temperature, top-k (ties with the k-th survive), top-p (a code goes when the mass
    before it exceeds p; of equal codes the lower index comes first), softmax.

    A NaN logit counts as -inf and is never drawn. +inf takes all the mass. A row without any finite
    or +inf logit is uniform: raising would wait for the device, and a code must stay in range for
    any input.
    """
    args = args.effective
    scores_BV = logits_BV.to(torch.float32)
    if seen_BV is not None:
        penalty_B1 = args.repetition_penalty_B[:, None]
        penalised_BV = torch.where(scores_BV < 0, scores_BV * penalty_B1, scores_BV / penalty_B1)
        scores_BV = torch.where(seen_BV, penalised_BV, scores_BV)
    scores_BV = torch.nan_to_num(scores_BV, nan=torch.finfo(torch.float32).min)

    sorted_BV, order_BV = torch.sort(scores_BV, dim=1, descending=True, stable=True)
    kth_B1 = sorted_BV.gather(1, args.top_k_B[:, None].clamp(max=scores_BV.shape[1]) - 1)
    # Relative to the best score, so that no temperature, however small, overflows. Division keeps
    # the order.
    kept_BV = (sorted_BV - sorted_BV[:, :1]) / args.temperature_B[:, None]
    kept_BV.masked_fill_(sorted_BV < kth_B1, -math.inf)
    mass_BV = kept_BV.softmax(1).cumsum(1)
    kept_BV[:, 1:].masked_fill_(mass_BV[:, :-1] > args.top_p_B[:, None], -math.inf)
    return torch.empty_like(scores_BV).scatter_(1, order_BV, kept_BV.softmax(1))


def draw_at(
    logits_BV: Tensor, args: DrawArgs, u_B: Tensor, seen_BV: Tensor | None = None
) -> Tensor:
    """int64 [B]: the first code, in vocabulary order, at which the cumulative probability exceeds
    `u_B`.

    `u_B` is float32 [B] in [0, 1) on the grid of `uniforms`. Inverting the distribution takes one
    uniform, so one Philox word a draw, where the Gumbel trick takes V. It depends on the
    probabilities alone, not on how thresholds were found or codes sorted. Codes of probability 0
    (or under 2**-32) are never drawn.
    """
    # Integer sums are exact on any device and in any order: a code of weight 0 adds no step and the
    # last target is under the total. A float sum ensures neither. total * 2**24 stays under 2**57.
    cumulative_BV = (
        (probabilities(logits_BV, args, seen_BV) * _WEIGHT_SCALE).to(torch.int64).cumsum(1)
    )
    u_fixed_B = (u_B * 2.0**UNIFORM_BITS).to(torch.int64)
    target_B = (u_fixed_B * cumulative_BV[:, -1]) >> UNIFORM_BITS
    return (cumulative_BV <= target_B.unsqueeze(1)).sum(1)
