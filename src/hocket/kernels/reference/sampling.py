"""How a code is drawn (spec/moss 1.6): pure functions of logits, per-row parameters and noise (`philox.py`).

Every row has its own parameters and nothing branches on their values, so the result for a row is the same, bit for bit,
whatever else is in the batch. The sampling kernel is tested against this; a CPU draws in `sampling_numpy.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hocket.kernels.reference.philox import UNIFORM_BITS
from hocket.kernels.reference.sampling_numpy import HostRules, draw_on_host

#: Probabilities become integers in units of 2**-32 for the draw: summing integers is exact in any order.
_WEIGHT_SCALE = 2.0**32

#: A top-k that cuts nothing off, whatever the vocabulary.
_OFF = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class DrawRules:
    """What the draws of B rows share, whatever the logits: made once a batch, used for every code of every frame."""

    #: float32 [B, 1]; 1 where the row is greedy.
    temperature_B1: Tensor
    #: float32 [B, 1]: mass that ends the nucleus; infinite where it is off, 0 where the row is greedy.
    top_p_B1: Tensor
    #: int64 [B, 1], 1 or more; huge where it is off, 1 where the row is greedy.
    top_k_B1: Tensor
    #: float32 [B, 1]
    penalty_B1: Tensor
    #: The same on a CPU.
    host: HostRules | None

    @classmethod
    def of(cls, temperature_B: Tensor, top_p_B: Tensor, top_k_B: Tensor, repetition_penalty_B: Tensor) -> DrawRules:
        """Rules of parameters [B] as in `SamplingBatch`.

        Greedy is the nucleus of mass 0, of one code: the first code always stays and its mass drops all others.
        """
        is_sampled_B = temperature_B > 0
        top_p_B = torch.where((top_p_B > 0) & (top_p_B < 1), top_p_B, math.inf)
        top_k_B = torch.where(top_k_B > 0, top_k_B, _OFF)
        temperature_B1 = torch.where(is_sampled_B, temperature_B, 1.0).unsqueeze(1)
        top_p_B1 = torch.where(is_sampled_B, top_p_B, 0.0).unsqueeze(1)
        top_k_B1 = torch.where(is_sampled_B, top_k_B, 1).unsqueeze(1)
        penalty_B1 = repetition_penalty_B.unsqueeze(1)
        host = None
        if temperature_B.device.type == "cpu":
            host = HostRules(
                temperature_B1=temperature_B1.double().numpy(),
                top_p_B1=top_p_B1.double().numpy(),
                top_k_B=top_k_B1[:, 0].numpy(),
                penalty_B1=penalty_B1.numpy(),
                rows_B1=np.arange(len(temperature_B1))[:, None],
                largest_top_k=int(top_k_B1.max()),
            )
        return cls(temperature_B1, top_p_B1, top_k_B1, penalty_B1, host)


def probabilities(logits_BV: Tensor, rules: DrawRules, seen_BV: Tensor | None) -> Tensor:
    """float32 [B, V]: what a code is drawn from, in the order of spec/moss 1.6. A greedy row is one-hot.

    `seen_BV` (bool) marks the codes that the repetition penalty applies to; `None` means that it applies to none.
    Penalty, temperature, top-k (ties with the k-th survive), top-p (a code goes when the mass before it exceeds p;
    of equal codes the lower index comes first), softmax.

    A NaN logit counts as -inf: never drawn. +inf takes all the mass. A row without any finite or +inf logit is
    uniform: this function cannot raise without waiting for the device, and a code must stay in range whatever comes.
    """
    scores_BV = logits_BV.to(torch.float32)
    if seen_BV is not None:
        penalised_BV = torch.where(scores_BV < 0, scores_BV * rules.penalty_B1, scores_BV / rules.penalty_B1)
        scores_BV = torch.where(seen_BV, penalised_BV, scores_BV)
    scores_BV = torch.nan_to_num(scores_BV, nan=torch.finfo(torch.float32).min)

    sorted_BV, order_BV = torch.sort(scores_BV, dim=1, descending=True, stable=True)
    kth_B1 = sorted_BV.gather(1, rules.top_k_B1.clamp(max=scores_BV.shape[1]) - 1)
    # Relative to the best score, so that no temperature, however small, overflows. Division keeps the order.
    kept_BV = (sorted_BV - sorted_BV[:, :1]) / rules.temperature_B1
    kept_BV.masked_fill_(sorted_BV < kth_B1, -math.inf)
    mass_BV = kept_BV.softmax(1).cumsum(1)
    kept_BV[:, 1:].masked_fill_(mass_BV[:, :-1] > rules.top_p_B1, -math.inf)
    return torch.empty_like(scores_BV).scatter_(1, order_BV, kept_BV.softmax(1))


def draw(logits_BV: Tensor, u_B: Tensor, rules: DrawRules, seen_BV: Tensor | None) -> Tensor:
    """int64 [B]: the first code, in vocabulary order, at which the cumulative probability exceeds `u_B`.

    `u_B` is float32 [B] in [0, 1) on the grid of `uniforms`. Inverting the distribution takes one uniform a draw, so
    one Philox word, where the Gumbel trick takes V; and it depends on the probabilities alone, not on how the
    thresholds were found or the codes sorted. Codes of probability 0 (or under 2**-32) are never drawn, for any u.

    `probabilities` and this are one distribution, to float32's precision; on a CPU it is computed in NumPy.
    """
    if rules.host is not None:
        logits, seen = logits_BV.detach().float().numpy(), None if seen_BV is None else seen_BV.numpy()
        return torch.from_numpy(draw_on_host(logits, u_B.numpy(), UNIFORM_BITS, rules.host, seen))
    # In integers a sum is exact, on any device and in any order: a code of weight 0 adds no step to it and the last
    # target is under the total, neither of which a float sum ensures. total * 2**24 stays under 2**57.
    probs_BV = probabilities(logits_BV, rules, seen_BV)
    cumulative_BV = (probs_BV * _WEIGHT_SCALE).to(torch.int64).cumsum(1)
    u_fixed_B = (u_B * 2.0**UNIFORM_BITS).to(torch.int64)
    target_B = (u_fixed_B * cumulative_BV[:, -1]) >> UNIFORM_BITS
    return (cumulative_BV <= target_B.unsqueeze(1)).sum(1)
