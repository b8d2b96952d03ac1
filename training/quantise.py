"""The training pass through the product's residual quantizer: straight-through codes, and moving
codebooks.

The arithmetic is that of `ResidualLFQ.encode` and `.decode` (sources: MOSS 2.4): search by cosine,
read the raw row.
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
    #: The projections that were searched [N, B * T, codebook_dim], detached.
    queries: Tensor


def quantise(
    quantizer: ResidualLFQ, latent_BTD: Tensor, levels_B: Tensor, *, first_levels: int
) -> Quantised:
    """Quantise with the first `levels_B` levels of each sample; gradients pass the search
    unchanged.
    """
    with torch.autocast(latent_BTD.device.type, enabled=False):
        residual_BTR = quantizer.input_proj(latent_BTD.float())
        summed_BTR = first_BTR = torch.zeros_like(residual_BTR)
        codes, queries, commitment = [], [], []
        for i, level in enumerate(quantizer.levels):
            used_B11 = (i < levels_B)[:, None, None]
            query_BTQ = level.in_proj(residual_BTR)
            codes_BT = (query_BTQ.detach() @ F.normalize(level.codebook, dim=1).T).argmax(-1)
            row_BTQ = F.embedding(codes_BT, level.codebook)
            commitment.append(((query_BTQ - row_BTQ).square() * used_B11).mean())
            added_BTR = level.out_proj(query_BTQ + (row_BTQ - query_BTQ).detach())
            residual_BTR = residual_BTR - added_BTR
            summed_BTR = summed_BTR + added_BTR * used_B11
            if i + 1 == first_levels:
                first_BTR = summed_BTR
            codes.append(codes_BT)
            queries.append(query_BTQ.detach().flatten(0, 1))
        latent = quantizer.output_proj(summed_BTR)
    return Quantised(
        latent,
        torch.stack(codes, -1),
        first_BTR,
        torch.stack(commitment).sum(),
        torch.stack(queries),
    )


@torch.no_grad()
def initialise_projections(quantizer: ResidualLFQ) -> None:
    """Each level starts as the projection on its own subspace, so that every level reduces the
    energy.

    Independent random projections would double the residual's energy at every level, a thousandfold
    over ten.
    """
    width = quantizer.input_proj.weight.shape[0]
    nn.init.orthogonal_(quantizer.input_proj.weight)
    quantizer.output_proj.weight.copy_(quantizer.input_proj.weight.T)
    basis_RR = nn.init.orthogonal_(torch.empty(width, width))
    for i, level in enumerate(quantizer.levels):
        narrow = level.codebook.shape[1]
        rows_QR = basis_RR[[(i * narrow + j) % width for j in range(narrow)]]
        level.in_proj.weight.copy_(rows_QR)
        level.out_proj.weight.copy_(rows_QR.T)


@torch.no_grad()
def initialise_codebooks(quantizer: ResidualLFQ, latent_BTD: Tensor) -> None:
    """Fill every codebook with projections of real frames, level by level, so that no code starts
    dead.
    """
    residual_MR = quantizer.input_proj(latent_BTD.float()).flatten(0, 1)
    for level in quantizer.levels:
        query_MQ = level.in_proj(residual_MR)
        rows = torch.randint(len(query_MQ), (len(level.codebook),), device=query_MQ.device)
        level.codebook.copy_(
            query_MQ[rows] + 0.01 * query_MQ.std() * torch.randn_like(level.codebook)
        )
        codes_M = (query_MQ @ F.normalize(level.codebook, dim=1).T).argmax(-1)
        residual_MR = residual_MR - level.out_proj(F.embedding(codes_M, level.codebook))


class Codebooks(nn.Module):
    """Keeps every codebook row at the moving average of its queries, and replaces idle rows.

    Gradients would be too slow: Adam moves a row by its learning rate at most, and only when it is
    used.
    """

    #: [N, V]: how often each code is used, 1 is the mean.
    counts: Tensor
    #: [N, V, Q]: sums of the queries of each code, in the same measure.
    sums: Tensor

    def __init__(self, quantizer: ResidualLFQ, decay: float) -> None:
        super().__init__()
        rows_NVQ = torch.stack([level.codebook.detach() for level in quantizer.levels])
        self.decay = decay
        self.register_buffer("counts", torch.ones(rows_NVQ.shape[:2], device=rows_NVQ.device))
        self.register_buffer("sums", rows_NVQ.clone())

    @torch.no_grad()
    def restart(self, quantizer: ResidualLFQ) -> None:
        """Forget the past: the rows as they are, used equally."""
        self.counts.fill_(1.0)
        self.sums.copy_(torch.stack([level.codebook for level in quantizer.levels]))

    @torch.no_grad()
    def follow(self, quantizer: ResidualLFQ, found: Quantised) -> None:
        """Move the rows towards the queries of a batch."""
        codes_NM, queries_NMQ = found.codes.flatten(0, 1).T, found.queries
        weight = self.counts.shape[1] / codes_NM.shape[1]
        ones_NM = torch.full_like(codes_NM, weight, dtype=self.counts.dtype)
        index_NMQ = codes_NM[..., None].expand_as(queries_NMQ)
        self.counts.lerp_(
            torch.zeros_like(self.counts).scatter_add_(1, codes_NM, ones_NM), 1 - self.decay
        )
        self.sums.lerp_(
            torch.zeros_like(self.sums).scatter_add_(1, index_NMQ, queries_NMQ * weight),
            1 - self.decay,
        )
        rows_NVQ = self.sums / self.counts.clamp(min=1e-6)[..., None]
        for level, rows_VQ, counts_V in zip(quantizer.levels, rows_NVQ, self.counts, strict=True):
            level.codebook.copy_(torch.where(counts_V[:, None] > 1e-4, rows_VQ, level.codebook))

    @torch.no_grad()
    def revive(self, targets: list[ResidualLFQ], queries_NMQ: Tensor, below: float) -> Tensor:
        """Replace the rows used less than `below` times the mean, in every quantizer of `targets`;
        returns how many.
        """
        idle_NV = self.counts < below
        for i, query_MQ in enumerate(queries_NMQ):
            picked = torch.randint(len(query_MQ), (idle_NV.shape[1],), device=query_MQ.device)
            for quantizer in targets:
                codebook = quantizer.levels[i].codebook
                codebook.copy_(torch.where(idle_NV[i, :, None], query_MQ[picked], codebook))
            self.sums[i] = torch.where(idle_NV[i, :, None], query_MQ[picked], self.sums[i])
        self.counts.masked_fill_(idle_NV, 1.0)
        return idle_NV.sum()

    def perplexity(self) -> list[float]:
        """Per level, the number of codes in effective use (1 .. V)."""
        share_NV = self.counts / self.counts.sum(1, keepdim=True)
        return torch.special.entr(share_NV).sum(1).exp().tolist()
