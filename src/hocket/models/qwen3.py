"""Qwen3 layers (spec/moss 1.3, spec/qwen3 3): embeddings in, final-normed hidden states out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.kv_cache import FrameKV, KVPages, PagedBatch, PagedPlan, causal_attention, paged_attention
from hocket.models.layers import RMSNorm, RopeTables, half_rope_tables, rotate_halves
from hocket.models.weights import WeightEntry


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

    @property
    def description(self) -> str:
        """One line for people."""
        return (
            f"{self.layers} layers, width {self.hidden_size}, FFN {self.intermediate_size}, "
            f"{self.heads}/{self.kv_heads} heads x {self.head_dim}, RoPE base {self.rope_theta:g}"
        )


#: From queries [B, T, H, D], new keys and values [B, T, G, D] and the layer's index to [B, T, H, D]: where keys and
#: values are kept is its own affair.
Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]


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

    def forward(self, x_BTD: Tensor, rope: RopeTables, attend: Attend, layer: int) -> Tensor:
        qkv_BTHD = self.qkv_proj(x_BTD).unflatten(-1, (-1, self.head_dim))
        # Queries and keys are normed and rotated as one: that halves the small operations.
        qk_BTHD, v_BTGD = qkv_BTHD.split((self.heads + self.kv_heads, self.kv_heads), 2)
        q_weight, k_weight = self.q_norm.weight.expand(self.heads, -1), self.k_norm.weight.expand(self.kv_heads, -1)
        qk_BTHD = F.rms_norm(qk_BTHD, (self.head_dim,), None, self.q_norm.eps) * torch.cat((q_weight, k_weight))
        qk_BTHD = rotate_halves(qk_BTHD, rope)
        q_BTHD, k_BTGD = qk_BTHD[:, :, : self.heads], qk_BTHD[:, :, self.heads :]
        return self.o_proj(attend(q_BTHD, k_BTGD, v_BTGD, layer).flatten(2))


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

    def forward(self, x_BTD: Tensor, rope: RopeTables, attend: Attend, layer: int) -> Tensor:
        x_BTD = x_BTD + self.attention(self.input_norm(x_BTD), rope, attend, layer)
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
        if kv is None or batch is None:
            positions_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
            return self._run(x_BTD, positions_T[None], lambda q, k, v, _: causal_attention(q, k, v))
        plan = PagedPlan.of(batch, x_BTD.shape[1], kv.page_rows)
        return self._run(x_BTD, plan.positions_BT, lambda q, k, v, layer: paged_attention(q, k, v, kv, layer, plan))

    def frame_kv(self, rows: int, positions: int, dtype: torch.dtype, device: torch.device) -> FrameKV:
        """An empty cache for `frame_step` over so many positions of B = `rows`."""
        config = self.config
        return FrameKV.allocate(config.layers, rows, positions, config.kv_heads, config.head_dim, dtype, device)

    def frame_step(self, x_BTD: Tensor, start: int, kv: FrameKV) -> Tensor:
        """Hidden states [B, T, D] of the positions from `start` on, the same in all rows; T is 1, or `start` is 0.

        Writes into `kv`, without gradients.
        """
        positions_T = torch.arange(start, start + x_BTD.shape[1], device=x_BTD.device)
        return self._run(x_BTD, positions_T[None], lambda q, k, v, layer: kv.attend(q, k, v, layer, start))

    def _run(self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend) -> Tensor:
        config = self.config
        rope = half_rope_tables(positions_BT[..., None], config.head_dim, config.rope_theta, x_BTD.dtype)
        for index, layer in enumerate(self.layers):
            x_BTD = layer(x_BTD, rope, attend, index)
        return self.norm(x_BTD)


def qwen3_weights(here: str, there: str, config: Qwen3BackboneConfig, dtype: torch.dtype) -> list[WeightEntry]:
    """Every parameter of the backbone at `here` in a module, from the tensors under `there` in an official file."""
    size, ffn = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    table = [WeightEntry(f"{here}.norm.weight", (f"{there}.norm.weight",), (size,), dtype)]
    for i in range(config.layers):
        for mine, theirs, shape in (
            ("input_norm", "input_layernorm", (size,)),
            ("attention.qkv_proj", "self_attn.q_proj", (q, size)),
            ("attention.qkv_proj", "self_attn.k_proj", (kv, size)),
            ("attention.qkv_proj", "self_attn.v_proj", (kv, size)),
            ("attention.o_proj", "self_attn.o_proj", (size, q)),
            ("attention.q_norm", "self_attn.q_norm", (config.head_dim,)),
            ("attention.k_norm", "self_attn.k_norm", (config.head_dim,)),
            ("post_attention_norm", "post_attention_layernorm", (size,)),
            ("mlp.gate_up_proj", "mlp.gate_proj", (ffn, size)),
            ("mlp.gate_up_proj", "mlp.up_proj", (ffn, size)),
            ("mlp.down_proj", "mlp.down_proj", (size, ffn)),
        ):
            names = (f"{there}.layers.{i}.{theirs}.weight",)
            table.append(WeightEntry(f"{here}.layers.{i}.{mine}.weight", names, shape, dtype))
    return table
