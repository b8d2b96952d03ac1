"""The depth transformer: turns the backbone's hidden state into one output per codebook of a frame
(sources: MOSS 1.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.kernels import ops
from hocket.kernels.types import Scaled, plain
from hocket.models.layers.basic import RopeTables, pair_rope_tables, rotate_pairs
from hocket.models.layers.fp8 import Linear, QuantizableBlock, takes_fp8
from hocket.models.moss_local.config import DepthConfig


@dataclass(frozen=True, slots=True)
class DepthCache:
    """One frame's keys and values, each [layers, B, H, positions, K], and rotary tables [positions,
    K].
    """

    keys: Tensor
    values: Tensor
    rope: RopeTables


class DepthBlock(QuantizableBlock):
    """One pre-norm block; its linears and norms have biases, and `qkv` is stored fused in the order
    q, k, v.
    """

    def __init__(self, config: DepthConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(size, config.norm_eps)
        self.qkv_proj: Linear = nn.Linear(size, 3 * size)
        self.o_proj: Linear = nn.Linear(size, size)
        self.mlp_norm = nn.LayerNorm(size, config.norm_eps)
        self.up_proj: Linear = nn.Linear(size, config.intermediate_size)
        self.down_proj: Linear = nn.Linear(config.intermediate_size, size)

    def whole(self, qkv_BPE: Tensor, rope: RopeTables) -> Tensor:
        """Attention [B, P, D] of a whole frame's positions, differentiable."""
        qkv_BP3HK = torch.unflatten(qkv_BPE, -1, (3, self.heads, -1))
        q_BHPK, k_BHPK = rotate_pairs(qkv_BP3HK[:, :, :2], rope).transpose(1, 3).unbind(2)
        out_BHPK = F.scaled_dot_product_attention(
            q_BHPK, k_BHPK, qkv_BP3HK[:, :, 2].transpose(1, 2), is_causal=True
        )
        return out_BHPK.transpose(1, 2).flatten(2)


#: Maps stacked projections [B or B, P, 3 D], their block and its index to the attention of the same
#: rows.
Attend = Callable[[Tensor | Scaled, DepthBlock, int], Tensor]


class DepthTransformer(nn.Module):
    """Blocks and the final norm. Input 0 is the backbone's hidden state, input k + 1 the embedding
    of code k.
    """

    def __init__(self, config: DepthConfig) -> None:
        super().__init__()
        self.config = config
        self._head_dim = config.head_dim
        self.blocks = cast(
            "Sequence[DepthBlock]", nn.ModuleList(DepthBlock(config) for _ in range(config.layers))
        )
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)

    def new_cache(self, batch: int, dtype: torch.dtype, device: torch.device) -> DepthCache:
        """An uninitialised cache for one frame of `batch` rows; a position is read only after it
        was written.
        """
        config = self.config
        shape = (config.layers, batch, config.heads, config.positions, self._head_dim)
        keys, values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        return DepthCache(keys, values, self._rope(config.positions, dtype, device))

    def step(self, x_BD: Tensor, position: int, cache: DepthCache) -> Tensor:
        """Output [B, D] of `position`, which follows that of the previous call.

        Writes into `cache`, without gradients.
        """
        cos_K, sin_K = cache.rope.cos[position], cache.rope.sin[position]

        def attend(qkv_BE: Tensor | Scaled, _: DepthBlock, layer: int) -> Tensor:
            return ops.depth_attention(
                qkv_BE, cos_K, sin_K, cache.keys[layer], cache.values[layer], position
            )

        return self._run(x_BD, attend)

    def forward(self, x_BPD: Tensor) -> Tensor:
        """Outputs [B, P, D] of whole frames given all their inputs, differentiable: the same as P
        steps.
        """
        rope = self._rope(x_BPD.shape[1], x_BPD.dtype, x_BPD.device)
        rope = RopeTables(rope.cos[:, None, None], rope.sin[:, None, None])
        return self._run(x_BPD, lambda qkv_BPE, block, _: block.whole(plain(qkv_BPE), rope))

    def _run(self, x: Tensor, attend: Attend) -> Tensor:
        delta: Tensor | Scaled | None = None
        for layer, block in enumerate(self.blocks):
            norm = block.attention_norm
            x, h = ops.add_layer_norm(
                x, delta, norm.weight, norm.bias, norm.eps, takes_fp8(block.qkv_proj)
            )
            delta = block.o_proj(attend(block.qkv_proj(h), block, layer))
            norm = block.mlp_norm
            x, h = ops.add_layer_norm(
                x, delta, norm.weight, norm.bias, norm.eps, takes_fp8(block.up_proj)
            )
            delta = block.down_proj(ops.silu(block.up_proj(h), takes_fp8(block.down_proj)))
        out = ops.add_layer_norm(x, delta, self.norm.weight, self.norm.bias, self.norm.eps)[1]
        assert isinstance(out, Tensor)
        return out

    def _rope(self, positions: int, dtype: torch.dtype, device: torch.device) -> RopeTables:
        config = self.config
        return pair_rope_tables(
            torch.arange(positions, device=device), self._head_dim, config.rope_base, dtype
        )
