"""The codec's causal transformers, streaming on rings (spec/qwen3 9, 10).

The decoder's layers have RMSNorm and a gated feed-forward, the encoder's LayerNorm and GELU; attention is the same.

Precision follows the weights: with bf16 linear weights the linears, attention and K/V are bf16 while norms, layer scale
and the residual stream are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.codec_state import RingWindow
from hocket.models.layers import RMSNorm, RopeTables, half_rope_tables, rotate_halves
from hocket.models.qwen3_codec.config import TransformerSpec


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What all layers share in one call."""

    #: [B, T, 1, head_dim]
    rope: RopeTables
    window: RingWindow


class GatedMLP(nn.Module):
    """SwiGLU; `gate_up` is both projections in one, gate first."""

    def __init__(self, width: int, ffn_dim: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * ffn_dim, bias=False)
        self.down = nn.Linear(ffn_dim, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate, up = self.gate_up(x_BTD).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class PlainMLP(nn.Module):
    def __init__(self, width: int, ffn_dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, ffn_dim, bias=False)
        self.down = nn.Linear(ffn_dim, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD)))


class TransformerLayer(nn.Module):
    """Pre-norm attention and feed-forward, each scaled per channel before it joins the residual stream."""

    def __init__(self, spec: TransformerSpec, index: int, norm: Callable[[], nn.Module], mlp: nn.Module) -> None:
        super().__init__()
        self.index = index
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self.norm1 = norm()
        self.qkv_proj = nn.Linear(spec.width, (spec.heads + 2 * spec.kv_heads) * spec.head_dim, bias=False)
        self.out_proj = nn.Linear(spec.heads * spec.head_dim, spec.width, bias=False)
        self.scale1 = nn.Parameter(torch.empty(spec.width))
        self.norm2 = norm()
        self.mlp = mlp
        self.scale2 = nn.Parameter(torch.empty(spec.width))

    def forward(self, x_BTD: Tensor, plan: AttentionPlan) -> Tensor:
        dtype = self.qkv_proj.weight.dtype
        attended = self._attend(self.qkv_proj(self.norm1(x_BTD).to(dtype)), plan)
        x_BTD = x_BTD + self.scale1 * self.out_proj(attended)
        return x_BTD + self.scale2 * self.mlp(self.norm2(x_BTD).to(dtype))

    def _attend(self, qkv_BTE: Tensor, plan: AttentionPlan) -> Tensor:
        heads_BTHD = qkv_BTE.view(*qkv_BTE.shape[:2], -1, self.head_dim)
        turning, value_BTGD = heads_BTHD.tensor_split([self.heads + self.kv_heads], dim=2)
        query_BTHD, key_BTGD = rotate_halves(turning, plan.rope).tensor_split([self.heads], dim=2)
        key_BLGD, value_BLGD = plan.window.exchange(self.index, key_BTGD, value_BTGD)
        attended_BHTD = F.scaled_dot_product_attention(
            query_BTHD.transpose(1, 2),
            key_BLGD.transpose(1, 2),
            value_BLGD.transpose(1, 2),
            attn_mask=plan.window.visible,
            enable_gqa=self.heads != self.kv_heads,
        )
        return attended_BHTD.transpose(1, 2).flatten(2)


class CodecTransformer(nn.Module):
    """The layers alone: [B, T, width] to the same shape, float32."""

    def __init__(self, spec: TransformerSpec, *, gated: bool) -> None:
        super().__init__()
        self.spec = spec

        def norm() -> nn.Module:
            return RMSNorm(spec.width, spec.norm_eps) if gated else nn.LayerNorm(spec.width, eps=spec.norm_eps)

        mlp = GatedMLP if gated else PlainMLP
        self.layers = nn.ModuleList(
            TransformerLayer(spec, i, norm, mlp(spec.width, spec.ffn_dim)) for i in range(spec.layers)
        )

    def forward(self, x_BTD: Tensor, window: RingWindow) -> Tensor:
        x_BTD = x_BTD.float()
        dtype = window.layers[0].keys.dtype
        rope = half_rope_tables(window.positions[..., None], self.spec.head_dim, self.spec.rope_base, dtype)
        plan = AttentionPlan(rope, window)
        for layer in self.layers:
            x_BTD = layer(x_BTD, plan)
        return x_BTD
