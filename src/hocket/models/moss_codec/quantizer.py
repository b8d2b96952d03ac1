"""Residual LFQ: latents to codes and back, always in float32 (sources: MOSS 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.moss_codec.config import QuantizerSpec


class NormedProjection(nn.Module):
    """A 1x1 convolution with weight normalisation.

    A checkpoint stores `gain` [O] and `direction` [O, I]; `fold` replaces them by `weight` [O, I].
    """

    weight: nn.Parameter

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(out_dim))
        self.direction = nn.Parameter(torch.randn(out_dim, in_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def fold(self) -> None:
        direction_OI = self.direction.detach()
        length_O1 = torch.linalg.vector_norm(direction_OI, dim=1, keepdim=True)
        weight_OI = self.gain.detach()[:, None] * direction_OI / length_O1
        self.weight = nn.Parameter(weight_OI, requires_grad=self.direction.requires_grad)
        del self.gain, self.direction

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class LFQLevel(nn.Module):
    """One codebook, searched by cosine similarity in a narrow space."""

    #: Codebook rows of unit length, for the search alone; made by `build_tables`.
    directions: Tensor

    def __init__(self, spec: QuantizerSpec) -> None:
        super().__init__()
        self.in_proj = NormedProjection(spec.rvq_dim, spec.codebook_dim)
        self.codebook = nn.Parameter(torch.randn(spec.codebook_size, spec.codebook_dim))
        self.out_proj = NormedProjection(spec.codebook_dim, spec.rvq_dim)

    def search(self, residual_BTR: Tensor) -> Tensor:
        """Codes int64 [B, T] of the codebook rows nearest in angle.

        The query is not normalised: its length does not change the order.
        """
        return (self.in_proj(residual_BTR) @ self.directions.T).argmax(-1)

    def forward(self, codes_BT: Tensor) -> Tensor:
        """Contribution [B, T, rvq_dim] of the raw codebook rows."""
        return self.out_proj(F.embedding(codes_BT, self.codebook))


class ResidualLFQ(nn.Module):
    """`n_codebooks` levels, each of which codes the residual of the levels before it.

    Call `finalize` after building or loading, and `build_tables` after a change of weights.
    """

    #: [N * V, output_dim]: contribution of each code to the latent, both output projections
    #: included.
    lookup: Tensor

    def __init__(self, spec: QuantizerSpec) -> None:
        super().__init__()
        self.codebook_size = spec.codebook_size
        self.input_proj = NormedProjection(spec.input_dim, spec.rvq_dim)
        levels = nn.ModuleList(LFQLevel(spec) for _ in range(spec.num_quantizers))
        self.levels = cast("Sequence[LFQLevel]", levels)
        self.output_proj = NormedProjection(spec.rvq_dim, spec.output_dim)

    def finalize(self) -> None:
        """Fold the weight normalisation and build the tables; once, after loading."""
        for module in self.modules():
            if isinstance(module, NormedProjection):
                module.fold()
        self.build_tables()

    @torch.no_grad()
    def build_tables(self) -> None:
        """Recompute the tables of search and decoding from the current weights."""
        for level in self.levels:
            level.register_buffer(
                "directions", F.normalize(level.codebook, dim=1), persistent=False
            )
        contributions_NVR = torch.stack([level.out_proj(level.codebook) for level in self.levels])
        lookup = F.linear(contributions_NVR, self.output_proj.weight).flatten(0, 1)
        self.register_buffer("lookup", lookup, persistent=False)

    def encode(self, latent_BTD: Tensor, n_codebooks: int) -> Tensor:
        """Latent [B, T, input_dim] -> codes int64 [B, T, n_codebooks]."""
        with torch.autocast(latent_BTD.device.type, enabled=False):
            residual_BTR = self.input_proj(latent_BTD.float())
            codes = []
            for level in self.levels[:n_codebooks]:
                codes.append(level.search(residual_BTR))
                residual_BTR = residual_BTR - level(codes[-1])
        return torch.stack(codes, dim=-1)

    def decode(self, codes_BTN: Tensor) -> Tensor:
        """Codes of the first N codebooks -> latent float32 [B, T, output_dim], a sum of N table
        rows.
        """
        batch, frames, n_codebooks = codes_BTN.shape
        first_N = torch.arange(n_codebooks, device=codes_BTN.device) * self.codebook_size
        summed = F.embedding_bag((codes_BTN + first_N).flatten(0, 1), self.lookup, mode="sum")
        return (summed + self.output_proj.bias).view(batch, frames, -1)
