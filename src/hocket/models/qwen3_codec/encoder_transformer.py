"""The encoder's causal transformer, streaming on rings, in float32 (sources: Qwen3 10)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.kernels.types import RingWindow
from hocket.models.layers.basic import RopeTables, half_rope_tables, rotate_halves
from hocket.models.layers.codec_state import RingKV
from hocket.models.qwen3_codec.config import TransformerSpec


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Shared by all layers in one call."""

    #: [B, T, 1, head_dim]
    rope: RopeTables
    window: RingWindow
    layers: tuple[RingKV, ...]


class PlainMLP(nn.Module):
    def __init__(self, width: int, ffn_dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, ffn_dim, bias=False)
        self.down = nn.Linear(ffn_dim, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD)))


class TransformerLayer(nn.Module):
    """Pre-norm attention and feed-forward, each scaled per channel before it joins the residual
    stream.
    """

    def __init__(self, spec: TransformerSpec, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self.norm1 = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.qkv_proj = nn.Linear(
            spec.width, (spec.heads + 2 * spec.kv_heads) * spec.head_dim, bias=False
        )
        self.out_proj = nn.Linear(spec.heads * spec.head_dim, spec.width, bias=False)
        self.scale1 = nn.Parameter(torch.empty(spec.width))
        self.norm2 = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.mlp = PlainMLP(spec.width, spec.ffn_dim)
        self.scale2 = nn.Parameter(torch.empty(spec.width))

    def forward(self, x_BTD: Tensor, plan: AttentionPlan) -> Tensor:
        x_BTD = x_BTD + self.scale1 * self.out_proj(
            self._attend(self.qkv_proj(self.norm1(x_BTD)), plan)
        )
        return x_BTD + self.scale2 * self.mlp(self.norm2(x_BTD))

    def _attend(self, qkv_BTE: Tensor, plan: AttentionPlan) -> Tensor:
        heads_BTHD = qkv_BTE.view(*qkv_BTE.shape[:2], -1, self.head_dim)
        turning, value_BTGD = heads_BTHD.tensor_split([self.heads + self.kv_heads], dim=2)
        query_BTHD, key_BTGD = rotate_halves(turning, plan.rope).tensor_split([self.heads], dim=2)
        window, ring = plan.window, plan.layers[self.index]
        window.write(ring.keys, key_BTGD)
        window.write(ring.values, value_BTGD)
        attended_BHTD = F.scaled_dot_product_attention(
            query_BTHD.transpose(1, 2),
            window.read(ring.keys).transpose(1, 2),
            window.read(ring.values).transpose(1, 2),
            attn_mask=window.visible,
            enable_gqa=self.heads != self.kv_heads,
        )
        return attended_BHTD.transpose(1, 2).flatten(2)


class EncoderTransformer(nn.Module):
    """The layers without projections: float32 [B, T, width] to the same shape."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(TransformerLayer(spec, i) for i in range(spec.layers))

    def forward(self, x_BTD: Tensor, window: RingWindow, layers: tuple[RingKV, ...]) -> Tensor:
        spec = self.spec
        rope = half_rope_tables(
            window.positions[..., None], spec.head_dim, spec.rope_base, x_BTD.dtype
        )
        plan = AttentionPlan(rope, window, layers)
        for layer in self.layers:
            x_BTD = layer(x_BTD, plan)
        return x_BTD
