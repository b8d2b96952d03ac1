"""Sampling parameters of a batch, one tensor each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hocket.kernels.reference.sampling import DrawRules


@dataclass(frozen=True, slots=True)
class PredictorSamplingBatch:
    """Sampling parameters of B rows for the codes that a predictor draws: those after the first (spec/qwen3 7)."""

    #: float32 [B], float32 [B] and int64 [B], as in `SamplingBatch`.
    temperature_B: Tensor
    top_p_B: Tensor
    top_k_B: Tensor


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling parameters of B rows, one tensor each, and the rules made of them (`FrameDraws` draws by either)."""

    #: float32 [B]; 0 is greedy.
    temperature_B: Tensor
    #: float32 [B]; <= 0 or >= 1 disables.
    top_p_B: Tensor
    #: int64 [B]; <= 0 or >= V disables.
    top_k_B: Tensor
    #: float32 [B]; 1 disables.
    repetition_penalty_B: Tensor
    #: float32 [B]; temperature of the two-way stop decision, which is greedy too where `temperature_B` is 0.
    stop_temperature_B: Tensor
    #: int64 [B], 0 .. 2**63 - 1: the Philox key.
    seed_B: Tensor
    #: int64 [B]: frames that a row must have before it may stop; None: 0.
    min_frames_B: Tensor | None = None
    #: None: the codes after the first are drawn as the first is, without its repetition penalty.
    predictor: PredictorSamplingBatch | None = None

    @cached_property
    def stop_parameters(self) -> tuple[Tensor, Tensor, Tensor]:
        """Temperature, top-p and top-k of the stop decision: nothing is cut off."""
        temperature_B = self.stop_temperature_B.masked_fill(self.temperature_B == 0, 0.0)
        return temperature_B, torch.ones_like(self.top_p_B), torch.zeros_like(self.top_k_B)

    @cached_property
    def codes(self) -> DrawRules:
        """Of the codes, or of the first one where a predictor draws the others."""
        return DrawRules.of(self.temperature_B, self.top_p_B, self.top_k_B, self.repetition_penalty_B)

    @cached_property
    def stop(self) -> DrawRules:
        """Of the stop decision."""
        return DrawRules.of(*self.stop_parameters, torch.ones_like(self.top_p_B))

    @cached_property
    def predicted(self) -> DrawRules:
        """Of the codes that a predictor draws."""
        others = self.predictor or self
        return DrawRules.of(others.temperature_B, others.top_p_B, others.top_k_B, torch.ones_like(self.top_p_B))
