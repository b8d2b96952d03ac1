"""The codec's causal transformer stage (sources: MOSS 2.2, 2.3).

One path serves training and streaming: without rings a stage attends within its sequence, with
rings to the rings, which keep its new keys and values. Rotations, slots and the mask are prepared
once per stage and call.

Precision follows the weights: with bf16 linear weights the linears, attention and K/V are bf16
while LayerNorm, layer scale and the residual stream are float32. Under `torch.autocast` float32
weights give the same arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.kernels import ops
from hocket.kernels.types import Packed, RingWindow, Scaled, plain
from hocket.models.layers.codec_state import RingKV, StageRings
from hocket.models.layers.fp8 import Linear, QuantizableBlock, compute_dtype, takes_fp8
from hocket.models.moss_codec.config import TransformerSpec

LAYER_NORM_EPS = 1e-5


@dataclass(frozen=True)
class Rotations:
    """Rotation angles of all channel pairs."""

    #: float32 [B or 1, T, head_dim / 2]
    angles: Tensor

    @classmethod
    def of(cls, positions_BT: Tensor, head_dim: int, base: float) -> Rotations:
        """Angles position * base^(-2j / head_dim) of the pairs (2j, 2j+1)."""
        pairs = torch.arange(head_dim // 2, dtype=torch.float32, device=positions_BT.device)
        return cls(
            positions_BT[..., None].float() * torch.exp(pairs * (-2.0 * math.log(base) / head_dim))
        )

    @cached_property
    def units(self) -> Tensor:
        """Unit complex numbers [B or 1, T, 1, 1, head_dim / 2].

        One product rotates a pair, which is the fastest way on a CPU.
        """
        angles = self.angles[:, :, None, None]
        return torch.polar(torch.ones_like(angles), angles)


@dataclass(frozen=True, slots=True)
class WholePlan:
    """Shared by all layers of a stage that attends within whole sequences."""

    rotations: Rotations
    #: Broadcasts to [B, H, T, T]; None: plain causal.
    visible: Tensor | None


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Shared by all layers of a stage in a packed (varlen) batch, whose streams attend to their
    rings.
    """

    #: Cosines and sines of `ops.pair_turns`.
    cos_sin_MK: Tensor
    window: RingWindow
    layers: tuple[RingKV, ...]


AttentionPlan: TypeAlias = WholePlan | StreamPlan


def rotate(x_BTKHD: Tensor, rotations: Rotations) -> Tensor:
    """RoPE on interleaved pairs, in float32, returned in the dtype of `x_BTKHD`."""
    pairs = torch.view_as_complex(x_BTKHD.float().reshape(*x_BTKHD.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations.units).flatten(-2).to(x_BTKHD.dtype)


class CodecLayer(QuantizableBlock):
    """Pre-norm attention and feed-forward, each scaled per channel before it joins the residual
    stream.
    """

    def __init__(self, spec: TransformerSpec, index: int) -> None:
        super().__init__()
        width = spec.width
        self.index = index
        self.head_dim = spec.head_dim
        self.norm1 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.in_proj: Linear = nn.Linear(width, 3 * width, bias=False)
        self.out_proj: Linear = nn.Linear(width, width, bias=False)
        self.scale1 = nn.Parameter(torch.full((width,), 0.01))
        self.norm2 = nn.LayerNorm(width, eps=LAYER_NORM_EPS)
        self.ffn_in: Linear = nn.Linear(width, spec.ffn_dim, bias=False)
        self.ffn_out: Linear = nn.Linear(spec.ffn_dim, width, bias=False)
        self.scale2 = nn.Parameter(torch.full((width,), 0.01))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of linears, attention and K/V."""
        return compute_dtype(self.in_proj)

    def attend(self, qkv_BTE: Tensor | Scaled, plan: AttentionPlan) -> Tensor:
        """Attention [B, T, D] of stacked queries, keys and values [B, T, 3 D]; writes the rings of
        streams.
        """
        if isinstance(plan, StreamPlan):
            ring = plan.layers[self.index]
            tokens = qkv_BTE, plan.cos_sin_MK, plan.window, ring.keys, ring.values
            ops.append_rotated(*tokens)
            return ops.ring_attention(*tokens)
        qkv_BT3HD = plain(qkv_BTE).view(*qkv_BTE.shape[:2], 3, -1, self.head_dim)
        query_BTHD, key_BTHD = rotate(qkv_BT3HD[:, :, :2], plan.rotations).unbind(2)
        attended_BHTD = F.scaled_dot_product_attention(
            query_BTHD.transpose(1, 2),
            key_BTHD.transpose(1, 2),
            qkv_BT3HD[:, :, 2].transpose(1, 2),
            attn_mask=plan.visible,
            is_causal=plan.visible is None,
        )
        return attended_BHTD.transpose(1, 2).flatten(2)


class CodecTransformer(nn.Module):
    """Input projection, layers, output projection. v1 has no projection between equal widths."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.spec = spec
        self._head_dim = spec.head_dim
        self.input_proj = (
            nn.Linear(spec.input_dim, spec.width, bias=False) if spec.has_input_proj else None
        )
        layers = nn.ModuleList(CodecLayer(spec, i) for i in range(spec.layers))
        self.layers = cast("Sequence[CodecLayer]", layers)
        self.output_proj = (
            nn.Linear(spec.width, spec.output_dim, bias=False) if spec.has_output_proj else None
        )

    def forward(
        self, x_BTD: Tensor, rings: StageRings | None = None, pack: Packed | None = None
    ) -> Tensor:
        """[B, T, input_dim] -> [B, T, output_dim]: whole sequences, or with rings the next chunks
        of streams.

        A pack is one sequence here, B = 1.
        """
        plan: AttentionPlan
        if rings is None or pack is None:
            plan = self._whole_plan(x_BTD)
        else:
            window = rings.window(pack)
            cos_sin_MK = ops.pair_turns(window, self._head_dim, self.spec.rope_base)
            plan = StreamPlan(cos_sin_MK, window, rings.layers)
        if self.input_proj is not None:
            x_BTD = self.input_proj(x_BTD.to(self.input_proj.weight.dtype))
        x_BTD = self._run(x_BTD.float(), plan)
        if self.output_proj is not None:
            x_BTD = self.output_proj(x_BTD.to(self.output_proj.weight.dtype))
        return x_BTD

    def _run(self, x_BTD: Tensor, plan: AttentionPlan) -> Tensor:
        """Run the layers on a float32 residual stream.

        Each residual sum and the norm after it are one operation.
        """
        layers = self.layers
        norm = layers[0].norm1
        # All linears of a stage have the same precision.
        fp8 = takes_fp8(layers[0].in_proj)
        h_BTD = ops.layer_norm_to(x_BTD, norm.weight, norm.bias, norm.eps, layers[0].dtype, fp8)
        for layer in layers:
            delta_BTD = layer.out_proj(layer.attend(layer.in_proj(h_BTD), plan))
            norms = layer.scale1, layer.norm2.weight, layer.norm2.bias, layer.norm2.eps
            x_BTD, h_BTD = ops.scaled_add_layer_norm(x_BTD, delta_BTD, *norms, fp8)
            delta_BTD = layer.ffn_out(ops.gelu(layer.ffn_in(h_BTD), fp8))
            if layer.index + 1 == len(layers):
                return ops.scaled_add(x_BTD, delta_BTD, layer.scale2)
            norm = layers[layer.index + 1].norm1
            norms = layer.scale2, norm.weight, norm.bias, norm.eps
            x_BTD, h_BTD = ops.scaled_add_layer_norm(x_BTD, delta_BTD, *norms, fp8)
        return x_BTD

    def _whole_plan(self, x_BTD: Tensor) -> WholePlan:
        tokens, context = x_BTD.shape[1], self.spec.context_tokens
        positions_BT = torch.arange(tokens, device=x_BTD.device)[None]
        rotations = Rotations.of(positions_BT, self._head_dim, self.spec.rope_base)
        if tokens <= context:
            return WholePlan(rotations, None)
        ones_TT = torch.ones(tokens, tokens, dtype=torch.bool, device=x_BTD.device)
        return WholePlan(rotations, ones_TT.tril().triu(1 - context))
