"""The decoder's causal transformer, over packed chunks of many streams (sources: Qwen3 9).

Precision follows the weights: with bf16 linear weights the linears, attention and K/V are bf16,
while norms, layer scale and the residual stream are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from hocket.kernels import ops
from hocket.kernels.types import Packed, RingWindow
from hocket.models.layers.basic import RMSNorm
from hocket.models.layers.codec_state import RingKV, StageRings
from hocket.models.qwen3_codec.config import TransformerSpec


class GatedMLP(nn.Module):
    """SwiGLU; `gate_up` stacks both projections, gate first."""

    def __init__(self, width: int, ffn_dim: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(width, 2 * ffn_dim, bias=False)
        self.down = nn.Linear(ffn_dim, width, bias=False)

    def forward(self, x_MD: Tensor) -> Tensor:
        return self.down(ops.silu_mul(self.gate_up(x_MD)))


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward, each scaled per channel before it joins the residual
    stream.
    """

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.norm1 = RMSNorm(spec.width, spec.norm_eps)
        self.qkv_proj = nn.Linear(
            spec.width, (spec.heads + 2 * spec.kv_heads) * spec.head_dim, bias=False
        )
        self.out_proj = nn.Linear(spec.heads * spec.head_dim, spec.width, bias=False)
        self.scale1 = nn.Parameter(torch.empty(spec.width))
        self.norm2 = RMSNorm(spec.width, spec.norm_eps)
        self.mlp = GatedMLP(spec.width, spec.ffn_dim)
        self.scale2 = nn.Parameter(torch.empty(spec.width))

    def finalize(self) -> None:
        """Bring the projections to the layout of rings; once, after loading.

        Channels j and j + head_dim / 2, which rotate together, become neighbours, which keeps the
        products of queries and keys. Heads that share keys and values get their own.
        """
        spec = self.spec
        heads_HKD = self.qkv_proj.weight.detach().view(-1, spec.head_dim, spec.width)
        turning, value_GKD = heads_HKD.tensor_split([spec.heads + spec.kv_heads])
        paired = turning.view(len(turning), 2, -1, spec.width).transpose(1, 2).flatten(1, 2)
        query_HKD, key_GKD = paired.tensor_split([spec.heads])
        own = [
            x_GKD.repeat_interleave(spec.heads // spec.kv_heads, 0)
            for x_GKD in (key_GKD, value_GKD)
        ]
        weight = torch.cat([query_HKD, *own]).flatten(0, 1)
        self.qkv_proj.weight = nn.Parameter(weight, requires_grad=False)


class DecoderTransformer(nn.Module):
    """The layers. Call `finalize` once after the weights are in place."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.layers = cast(
            "Sequence[DecoderLayer]", nn.ModuleList(DecoderLayer(spec) for _ in range(spec.layers))
        )

    def finalize(self) -> None:
        for layer in self.layers:
            layer.finalize()

    def forward(self, x_MD: Tensor, pack: Packed, rings: StageRings, norm: RMSNorm) -> Tensor:
        """`norm` applied to the layers' output, in the dtype of `x_MD`.

        Each residual sum and the norm after it are one operation.
        """
        dtype, layers, window = x_MD.dtype, self.layers, rings.window(pack)
        cos_sin_MK = ops.pair_turns(window, self.spec.head_dim, self.spec.rope_base)
        following = [*(layer.norm1 for layer in layers[1:]), norm]
        x_MD, h_MD = _join(x_MD.float(), None, None, layers[0].norm1, dtype)
        for index, layer in enumerate(layers):
            delta_MD = layer.out_proj(
                _attend(layer.qkv_proj(h_MD), cos_sin_MK, window, rings.layers[index])
            )
            x_MD, h_MD = _join(x_MD, delta_MD, layer.scale1, layer.norm2, dtype)
            x_MD, h_MD = _join(x_MD, layer.mlp(h_MD), layer.scale2, following[index], dtype)
        return h_MD


def _join(
    x_MD: Tensor, delta_MD: Tensor | None, scale_D: Tensor | None, norm: RMSNorm, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return ops.scaled_add_rms_norm(x_MD, delta_MD, scale_D, norm.weight, norm.eps, dtype)


def _attend(qkv_ME: Tensor, cos_sin_MK: Tensor, window: RingWindow, ring: RingKV) -> Tensor:
    """Attention [M, H * K]; writes the ring."""
    ops.append_rotated(qkv_ME, cos_sin_MK, window, ring.keys, ring.values)
    return ops.ring_attention(qkv_ME, cos_sin_MK, window, ring.keys, ring.values)
