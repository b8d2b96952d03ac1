"""The code predictor: draws all codes of a frame after the first from the backbone's hidden state
(sources: Qwen3 6).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.layers.basic import RopeTables
from hocket.models.layers.kv_cache import FrameKV
from hocket.models.layers.qwen3 import Qwen3Backbone
from hocket.models.qwen3_tts.config import Qwen3TtsConfig


class CodePredictor(nn.Module):
    """Layers, the tables that embed the codes after the first, and the heads that score them.

    Position 0 is the backbone's hidden state, position 1 the embedding of code 0, position k + 1
    that of code k; the output of position k scores code k. Code k has table and head k - 1. Tables
    have the backbone's width and are concatenated, as the heads are.

    Call `finalize` once after the weights are in place, and before `step`.
    """

    #: [V_0, P] and [(N - 1) * V, P]: embeddings of codes projected to the layers' width; made by
    #: `finalize`.
    first_inputs: Tensor
    later_inputs: Tensor
    #: [positions, K]
    cos: Tensor
    sin: Tensor

    def __init__(self, config: Qwen3TtsConfig) -> None:
        super().__init__()
        sizes, width = config.audio_codebook_sizes[1:], config.predictor.hidden_size
        self.positions = len(sizes) + 1
        self.codebook_size = sizes[0]
        self.projection = (
            nn.Linear(config.hidden_size, width) if config.projects_to_predictor else nn.Identity()
        )
        self.embedding = nn.Embedding(sum(sizes), config.hidden_size)
        self.layers = Qwen3Backbone(config.predictor)
        self.heads = nn.Linear(width, sum(sizes), bias=False)

    def embed(self, codes_BK: Tensor) -> Tensor:
        """[..., K, D], at the backbone's width, of int64 codes [..., K] of all codebooks after the
        first.
        """
        offsets_K = torch.arange(codes_BK.shape[-1], device=codes_BK.device)
        return self.embedding(codes_BK + offsets_K * self.codebook_size)

    @torch.no_grad()
    def finalize(self, first_VD: Tensor) -> None:
        """Project every code's embedding (the first codebook's are `first_VD`) and make the rotary
        tables.
        """
        weight = self.embedding.weight.detach()
        rope = self.layers.frame_rope(self.positions, weight.dtype, weight.device)
        for name, table in (
            ("first_inputs", self.projection(first_VD.detach())),
            ("later_inputs", self.projection(weight)),
            ("cos", rope.cos),
            ("sin", rope.sin),
        ):
            self.register_buffer(name, table, persistent=False)

    def inputs(self, k: int) -> Tensor:
        """Table [V, P] of projected embeddings of codebook `k` (1 or more), a view."""
        return self.later_inputs.narrow(0, (k - 1) * self.codebook_size, self.codebook_size)

    def new_kv(self, rows: int) -> FrameKV:
        """An empty cache for one frame of so many rows."""
        return self.layers.frame_kv(rows, self.positions, self.cos.dtype, self.cos.device)

    def step(self, x_BTP: Tensor, start: int, kv: FrameKV) -> Tensor:
        """Outputs [B, T, P] of the positions from `start` on; T is 2 at position 0, else 1."""
        return self.layers.frame_step(x_BTP, start, RopeTables(self.cos, self.sin), kv)

    def logits(self, y_BD: Tensor, k: int) -> Tensor:
        """Logits [B, V] of codebook `k` (1 or more), from the output of position k."""
        return F.linear(
            y_BD, self.heads.weight.narrow(0, (k - 1) * self.codebook_size, self.codebook_size)
        )

    def forward(self, x_BPD: Tensor) -> Tensor:
        """Outputs [B, P, D] of whole frames given all their inputs at the backbone's width,
        differentiable.
        """
        return self.layers(self.projection(x_BPD))
