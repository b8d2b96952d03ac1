"""The codec's causal transformer stage (spec/moss 2.2, 2.3).

One path serves training and streaming: without rings a stage attends within the sequence it is given, with rings it
attends to what the rings hand back. Positions, rotations and the mask are prepared once per stage and call.

Precision follows the weights: with bf16 linear weights the linears, attention and K/V are bf16 while LayerNorm, layer
scale and the residual stream are float32. Under `torch.autocast` float32 weights give the same arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.codec_state import RingWindow
from hocket.models.moss_codec.config import TransformerSpec

LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What all layers of a stage share in one call."""

    #: complex64 [B or 1, T, 1, 1, head_dim / 2]
    rotations: Tensor
    #: Broadcasts to [B, H, T, L]; None means plain causal.
    visible: Tensor | None
    #: None within a whole sequence.
    window: RingWindow | None


def rope_rotations(positions_BT: Tensor, head_dim: int, base: float) -> Tensor:
    """Unit complex [B, T, 1, 1, head_dim / 2]: the pair (2j, 2j+1) turns by position * base^(-2j / head_dim)."""
    pairs = torch.arange(head_dim // 2, dtype=torch.float32, device=positions_BT.device)
    frequencies = torch.exp(pairs * (-2.0 * math.log(base) / head_dim))
    angles = positions_BT[:, :, None, None, None].float() * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x_BTKHD: Tensor, rotations: Tensor) -> Tensor:
    """RoPE on interleaved pairs, in float32, returned in the dtype of `x_BTKHD`."""
    pairs = torch.view_as_complex(x_BTKHD.float().reshape(*x_BTKHD.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(x_BTKHD.dtype)


class CodecLayer(nn.Module):
    """Pre-norm attention and feed-forward, each scaled per channel before it joins the residual stream."""

    def __init__(self, spec: TransformerSpec, index: int) -> None:
        super().__init__()
        width = spec.width
        self.index = index
        self.head_dim = spec.head_dim
        self.norm1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.in_proj = nn.Linear(width, 3 * width, bias=False)
        self.out_proj = nn.Linear(width, width, bias=False)
        self.scale1 = nn.Parameter(torch.full((width,), 0.01))
        self.norm2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.ffn_in = nn.Linear(width, spec.ffn_dim, bias=False)
        self.ffn_out = nn.Linear(spec.ffn_dim, width, bias=False)
        self.scale2 = nn.Parameter(torch.full((width,), 0.01))

    def forward(self, x_BTD: Tensor, plan: AttentionPlan) -> Tensor:
        dtype = self.in_proj.weight.dtype
        attended = self._attend(self.in_proj(self.norm1(x_BTD).to(dtype)), plan)
        x_BTD = x_BTD + self.scale1 * self.out_proj(attended)
        hidden = F.gelu(self.ffn_in(self.norm2(x_BTD).to(dtype)))
        return x_BTD + self.scale2 * self.ffn_out(hidden)

    def _attend(self, qkv_BTE: Tensor, plan: AttentionPlan) -> Tensor:
        qkv_BT3HD = qkv_BTE.view(*qkv_BTE.shape[:2], 3, -1, self.head_dim)
        query_BTHD, key_BLHD = rotate(qkv_BT3HD[:, :, :2], plan.rotations).unbind(2)
        value_BLHD = qkv_BT3HD[:, :, 2]
        if plan.window is not None:
            key_BLHD, value_BLHD = plan.window.exchange(self.index, key_BLHD, value_BLHD)
        attended_BHTD = F.scaled_dot_product_attention(
            query_BTHD.transpose(1, 2),
            key_BLHD.transpose(1, 2),
            value_BLHD.transpose(1, 2),
            attn_mask=plan.visible,
            is_causal=plan.visible is None,
        )
        return attended_BHTD.transpose(1, 2).flatten(2)


class CodecTransformer(nn.Module):
    """Linear in, layers, linear out; a v1 checkpoint leaves out a projection between equal widths."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.input_proj = nn.Linear(spec.input_dim, spec.width, bias=False) if spec.has_input_proj else None
        self.layers = nn.ModuleList(CodecLayer(spec, i) for i in range(spec.layers))
        self.output_proj = nn.Linear(spec.width, spec.output_dim, bias=False) if spec.has_output_proj else None

    def forward(self, x_BTD: Tensor, window: RingWindow | None = None) -> Tensor:
        """[B, T, input_dim] -> [B, T, output_dim]: a whole sequence, or the next chunk of the streams of `window`."""
        plan = self._whole_plan(x_BTD) if window is None else self._streaming_plan(window)
        if self.input_proj is not None:
            x_BTD = self.input_proj(x_BTD.to(self.input_proj.weight.dtype))
        x_BTD = x_BTD.float()
        for layer in self.layers:
            x_BTD = layer(x_BTD, plan)
        if self.output_proj is not None:
            x_BTD = self.output_proj(x_BTD.to(self.output_proj.weight.dtype))
        return x_BTD

    def _streaming_plan(self, window: RingWindow) -> AttentionPlan:
        rotations = rope_rotations(window.positions, self.spec.head_dim, self.spec.rope_base)
        return AttentionPlan(rotations, window.visible, window)

    def _whole_plan(self, x_BTD: Tensor) -> AttentionPlan:
        tokens, context = x_BTD.shape[1], self.spec.context_tokens
        positions_BT = torch.arange(tokens, device=x_BTD.device)[None]
        rotations = rope_rotations(positions_BT, self.spec.head_dim, self.spec.rope_base)
        if tokens <= context:
            return AttentionPlan(rotations, None, None)
        ones_TT = torch.ones(tokens, tokens, dtype=torch.bool, device=x_BTD.device)
        return AttentionPlan(rotations, ones_TT.tril().triu(1 - context), None)
