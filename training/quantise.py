"""The training pass through the product's residual quantizer: straight-through codes, losses, and codebooks kept alive.

The arithmetic is that of `ResidualLFQ.encode` and `.decode` (spec/moss 2.4): search by cosine, read the raw row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.moss_codec.quantizer import ResidualLFQ


@dataclass(frozen=True, slots=True)
class Quantised:
    #: float32 [B, T, D]: what the decoder reads.
    latent: Tensor
    #: int64 [B, T, N].
    codes: Tensor
    #: Sum of the first levels' contributions [B, T, R]: what the phoneme head reads.
    first: Tensor
    #: Pulls projections towards their codebook rows.
    commitment: Tensor
    #: Pulls codebook rows towards the projections they serve.
    codebook: Tensor
    #: The projections that were searched, per level [B * T, codebook_dim], detached.
    queries: list[Tensor]


def quantise(quantizer: ResidualLFQ, latent_BTD: Tensor, levels_B: Tensor, *, first_levels: int) -> Quantised:
    """Quantise with the first `levels_B` levels of each sample; gradients pass the search unchanged."""
    with torch.autocast(latent_BTD.device.type, enabled=False):
        residual_BTR = quantizer.input_proj(latent_BTD.float())
        summed_BTR = first_BTR = torch.zeros_like(residual_BTR)
        codes, queries, commitment, codebook = [], [], [], []
        for i, level in enumerate(quantizer.levels):
            used_B11 = (i < levels_B)[:, None, None]
            query_BTQ = level.in_proj(residual_BTR)
            directions = F.normalize(level.codebook.detach(), dim=1)
            codes_BT = (query_BTQ.detach() @ directions.T).argmax(-1)
            row_BTQ = F.embedding(codes_BT, level.codebook)
            commitment.append(((query_BTQ - row_BTQ.detach()).square() * used_B11).mean())
            codebook.append(((query_BTQ.detach() - row_BTQ).square() * used_B11).mean())
            added_BTR = level.out_proj(query_BTQ + (row_BTQ - query_BTQ).detach())
            residual_BTR = residual_BTR - added_BTR
            summed_BTR = summed_BTR + added_BTR * used_B11
            if i + 1 == first_levels:
                first_BTR = summed_BTR
            codes.append(codes_BT)
            queries.append(query_BTQ.detach().flatten(0, 1))
        latent = quantizer.output_proj(summed_BTR)
    return Quantised(
        latent, torch.stack(codes, -1), first_BTR, torch.stack(commitment).sum(), torch.stack(codebook).sum(), queries
    )


@torch.no_grad()
def initialise_codebooks(quantizer: ResidualLFQ, latent_BTD: Tensor) -> None:
    """Fill every codebook with projections of real frames, level by level, so that no code starts dead."""
    residual_MR = quantizer.input_proj(latent_BTD.float()).flatten(0, 1)
    for level in quantizer.levels:
        query_MQ = level.in_proj(residual_MR)
        rows = torch.randint(len(query_MQ), (len(level.codebook),), device=query_MQ.device)
        level.codebook.copy_(query_MQ[rows] + 0.01 * query_MQ.std() * torch.randn_like(level.codebook))
        codes_M = (query_MQ @ F.normalize(level.codebook, dim=1).T).argmax(-1)
        residual_MR = residual_MR - level.out_proj(F.embedding(codes_M, level.codebook))


class Usage(nn.Module):
    """How often each code is used, as a moving average; rows that fall silent are replaced by queries of the batch."""

    counts: Tensor

    def __init__(self, levels: int, codebook_size: int, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("counts", torch.ones(levels, codebook_size))

    @torch.no_grad()
    def update(self, codes_BTN: Tensor) -> None:
        """Counts are relative: 1 is the mean usage."""
        codes_NM = codes_BTN.flatten(0, 1).T
        counts_NV = torch.zeros_like(self.counts)
        counts_NV.scatter_add_(1, codes_NM, torch.ones_like(codes_NM, dtype=counts_NV.dtype))
        self.counts.lerp_(counts_NV * (counts_NV.shape[1] / codes_NM.shape[1]), 1 - self.decay)

    @torch.no_grad()
    def revive(self, targets: list[ResidualLFQ], queries: list[Tensor], below: float) -> Tensor:
        """Replace the rows used less than `below` times the mean, in every quantizer of `targets`; returns how many."""
        dead_NV = self.counts < below
        for i, query_MQ in enumerate(queries):
            rows = torch.randint(len(query_MQ), (dead_NV.shape[1],), device=query_MQ.device)
            for quantizer in targets:
                codebook = quantizer.levels[i].codebook
                codebook.copy_(torch.where(dead_NV[i, :, None], query_MQ[rows], codebook))
        self.counts.masked_fill_(dead_NV, 1.0)
        return dead_NV.sum()

    def perplexity(self) -> list[float]:
        """Per level, the number of codes in effective use (1 .. V)."""
        share_NV = self.counts / self.counts.sum(1, keepdim=True)
        return torch.special.entr(share_NV).sum(1).exp().tolist()
