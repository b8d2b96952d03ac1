"""The Qwen3 backbone (spec/moss 1.3): embeddings in, final-normed hidden states out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.kv_cache import KVPages, PagedBatch, PagedPlan, causal_attention, paged_attention
from hocket.models.layers import RMSNorm, RopeTables, half_rope_tables, rotate_halves


@dataclass(frozen=True, slots=True)
class Qwen3BackboneConfig:
    """Dimensions of a backbone; `head_dim` is free of `hidden_size / heads`."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float


class Qwen3Attention(nn.Module):
    """Grouped-query attention with normed, rotated queries and keys. `qkv_proj` stacks the rows of q, k and v."""

    def __init__(self, config: Qwen3BackboneConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.head_dim
        qkv_heads = config.heads + 2 * config.kv_heads
        self.qkv_proj = nn.Linear(config.hidden_size, qkv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)

    def forward(
        self, x_BTD: Tensor, rope: RopeTables, kv: KVPages | None, layer: int, plan: PagedPlan | None
    ) -> Tensor:
        qkv_BTHD = self.qkv_proj(x_BTD).unflatten(-1, (-1, self.head_dim))
        q_BTHD, k_BTGD, v_BTGD = qkv_BTHD.split((self.heads, self.kv_heads, self.kv_heads), 2)
        q_BTHD = rotate_halves(self.q_norm(q_BTHD), rope)
        k_BTGD = rotate_halves(self.k_norm(k_BTGD), rope)
        if kv is None or plan is None:
            out_BTHD = causal_attention(q_BTHD, k_BTGD, v_BTGD)
        else:
            out_BTHD = paged_attention(q_BTHD, k_BTGD, v_BTGD, kv, layer, plan)
        return self.o_proj(out_BTHD.flatten(2))


class Qwen3MLP(nn.Module):
    """`down(silu(gate) * up)`; `gate_up_proj` stacks the rows of gate and up."""

    def __init__(self, config: Qwen3BackboneConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x_BTD).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Qwen3Layer(nn.Module):
    """One pre-norm block."""

    def __init__(self, config: Qwen3BackboneConfig) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attention = Qwen3Attention(config)
        self.post_attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = Qwen3MLP(config)

    def forward(
        self, x_BTD: Tensor, rope: RopeTables, kv: KVPages | None, layer: int, plan: PagedPlan | None
    ) -> Tensor:
        x_BTD = x_BTD + self.attention(self.input_norm(x_BTD), rope, kv, layer, plan)
        return x_BTD + self.mlp(self.post_attention_norm(x_BTD))


class Qwen3Backbone(nn.Module):
    """Layers and the final norm; embeddings and heads belong to the talker that owns the backbone."""

    def __init__(self, config: Qwen3BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Qwen3Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(self, x_BTD: Tensor, kv: KVPages | None = None, batch: PagedBatch | None = None) -> Tensor:
        """Hidden states [B, T, D] after the final norm.

        With `kv` and `batch`: the T rows continue the cached ones and are written to their pages (run it without
        gradients). Without either: T whole rows from position 0, differentiable, right padding allowed; the outputs of
        padding mean nothing in both. Raises ValueError when only one of the two is given.
        """
        if (kv is None) != (batch is None):
            raise ValueError("the backbone got only one of kv and batch; give both to use the cache, or neither")
        if kv is not None and batch is not None:
            plan = PagedPlan.of(batch, x_BTD.shape[1], kv.page_rows)
            positions = plan.positions_BT
        else:
            plan = None
            positions = torch.arange(x_BTD.shape[1], device=x_BTD.device)[None]
        rope = half_rope_tables(positions[..., None], self.config.head_dim, self.config.rope_theta, x_BTD.dtype)
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, rope, kv, index, plan)
        return self.norm(x_BTD)
