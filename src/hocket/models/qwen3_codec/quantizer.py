"""Codebooks: codes to latents by one table, latents to codes by nearest entries; float32
(sources: Qwen3 9, 10).

A checkpoint stores an entry as the sum of the vectors assigned to it and their number. `finalize`
divides once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.qwen3_codec.config import DecoderSpec, EncoderSpec

#: Lower bound of the divisor, for entries to which no vector was assigned.
MIN_USAGE = 1e-5


class StoredCodebooks(nn.Module):
    """Entries of N codebooks in the form of a checkpoint, concatenated."""

    def __init__(self, n_codebooks: int, size: int, dim: int) -> None:
        super().__init__()
        self.sums = nn.Parameter(torch.empty(n_codebooks * size, dim))
        self.usage = nn.Parameter(torch.empty(n_codebooks * size))

    def entries(self) -> Tensor:
        """[N * V, D]"""
        return self.sums.detach() / self.usage.detach().clamp(min=MIN_USAGE)[:, None]


class Dequantizer(nn.Module):
    """Codes to the decoder's latent. The first codebook has an output projection of its own."""

    #: [N * V, quantizer_dim]: contribution of each code to the latent; made by `finalize`.
    lookup: Tensor

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.codebook_size = spec.codebook_size
        entry_dim = spec.quantizer_dim // 2
        self.codebooks = StoredCodebooks(spec.n_codebooks, spec.codebook_size, entry_dim)
        self.first_proj = nn.Parameter(torch.empty(spec.quantizer_dim, entry_dim))
        self.rest_proj = nn.Parameter(torch.empty(spec.quantizer_dim, entry_dim))

    @torch.no_grad()
    def finalize(self) -> None:
        """Replace codebooks and projections by their product; once, after loading."""
        first_VE, rest_ME = self.codebooks.entries().tensor_split([self.codebook_size])
        lookup = torch.cat((first_VE @ self.first_proj.T, rest_ME @ self.rest_proj.T))
        self.register_buffer("lookup", lookup, persistent=False)
        del self.codebooks, self.first_proj, self.rest_proj

    def forward(self, codes_FN: Tensor) -> Tensor:
        """Codes of the first N codebooks -> latent float32 [F, quantizer_dim], a sum of N table
        rows.
        """
        first_N = torch.arange(codes_FN.shape[1], device=codes_FN.device) * self.codebook_size
        return F.embedding_bag(codes_FN + first_N, self.lookup, mode="sum")


class Quantizer(nn.Module):
    """The encoder's latent to codes: semantic and acoustic residual chains on the same latent."""

    #: [N, V, D] and [N, V]: entries, and half of their squared lengths; made by `finalize`.
    entries: Tensor
    half_squares: Tensor

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.transformer.width
        self.codebooks = StoredCodebooks(spec.n_codebooks, spec.codebook_size, spec.entry_dim)
        # A latent as wide as the entries is not projected (sources: Qwen3 10; Mimi's official
        # class).
        self.semantic_proj = (
            nn.Parameter(torch.empty(spec.entry_dim, width)) if width != spec.entry_dim else None
        )
        self.acoustic_proj = (
            nn.Parameter(torch.empty(spec.entry_dim, width)) if width != spec.entry_dim else None
        )

    @torch.no_grad()
    def finalize(self) -> None:
        """Divide the stored sums; once, after loading."""
        entries = self.codebooks.entries().view(self.spec.n_codebooks, self.spec.codebook_size, -1)
        self.register_buffer("entries", entries, persistent=False)
        self.register_buffer("half_squares", entries.square().sum(2) / 2, persistent=False)
        del self.codebooks

    def forward(self, latent_BTD: Tensor, n_codebooks: int) -> Tensor:
        """Latent float32 [B, T, width] -> codes int64 [B, T, n_codebooks]."""
        semantic = min(self.spec.n_semantic, n_codebooks)
        codes = self._chain(latent_BTD, self.semantic_proj, range(semantic))
        codes += self._chain(latent_BTD, self.acoustic_proj, range(semantic, n_codebooks))
        return torch.stack(codes, dim=-1)

    def _chain(self, latent_BTD: Tensor, projection: Tensor | None, levels: range) -> list[Tensor]:
        """Codes [B, T] of each level, which codes the residual of the levels before it."""
        residual_BTE = latent_BTD if projection is None else F.linear(latent_BTD, projection)
        codes: list[Tensor] = []
        for level in levels:
            # |x - e|^2 = |x|^2 - 2 (x e - |e|^2 / 2), and |x| is the same for all entries.
            scores_BTV = residual_BTE @ self.entries[level].T - self.half_squares[level]
            codes.append(scores_BTV.argmax(-1))
            residual_BTE = residual_BTE - F.embedding(codes[-1], self.entries[level])
        return codes
