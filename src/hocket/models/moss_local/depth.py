"""The depth transformer (spec/moss 1.4): in one frame, from the backbone's hidden state to an output per codebook."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.layers import RopeTables, pair_rope_tables, rotate_pairs


@dataclass(frozen=True, slots=True)
class DepthConfig:
    """Dimensions of a depth transformer of `positions` steps."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    norm_eps: float
    rope_base: float
    positions: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


@dataclass(frozen=True, slots=True)
class DepthCache:
    """One frame's keys and values, each [layers, B, H, positions, K], and rotary tables [positions, K]."""

    keys: Tensor
    values: Tensor
    rope: RopeTables


class DepthBlock(nn.Module):
    """One pre-norm block; its linears and norms have biases, and `qkv` is stored fused in the order q, k, v."""

    def __init__(self, config: DepthConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(size, config.norm_eps)
        self.qkv_proj = nn.Linear(size, 3 * size)
        self.o_proj = nn.Linear(size, size)
        self.mlp_norm = nn.LayerNorm(size, config.norm_eps)
        self.up_proj = nn.Linear(size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, size)

    def forward(self, x_BPD: Tensor, rope: RopeTables, cache: DepthCache | None, layer: int, position: int) -> Tensor:
        """P positions from `position` on. Without a cache they are a whole frame's; with one, P is 1."""
        qkv_BP3HK = self.qkv_proj(self.attention_norm(x_BPD)).unflatten(-1, (3, self.heads, -1))
        q_BHPK, k_BHPK = rotate_pairs(qkv_BP3HK[:, :, :2], rope).transpose(1, 3).unbind(2)
        v_BHPK = qkv_BP3HK[:, :, 2].transpose(1, 2)
        if cache is not None:
            seen = position + 1
            cache.keys[layer, :, :, position:seen] = k_BHPK
            cache.values[layer, :, :, position:seen] = v_BHPK
            k_BHPK, v_BHPK = cache.keys[layer, :, :, :seen], cache.values[layer, :, :, :seen]
        out_BHPK = F.scaled_dot_product_attention(q_BHPK, k_BHPK, v_BHPK, is_causal=cache is None)
        x_BPD = x_BPD + self.o_proj(out_BHPK.transpose(1, 2).flatten(2))
        return x_BPD + self.down_proj(F.silu(self.up_proj(self.mlp_norm(x_BPD))))


class DepthTransformer(nn.Module):
    """Blocks and the final norm. Input 0 is the backbone's hidden state, input k + 1 the embedding of code k."""

    def __init__(self, config: DepthConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(DepthBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)

    def new_cache(self, batch: int, dtype: torch.dtype, device: torch.device) -> DepthCache:
        """An uninitialised cache for one frame of `batch` rows; a position is read only after it was written."""
        config = self.config
        shape = (config.layers, batch, config.heads, config.positions, config.head_dim)
        keys, values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        return DepthCache(keys, values, self._rope(config.positions, dtype, device))

    def step(self, x_BD: Tensor, position: int, cache: DepthCache) -> Tensor:
        """Output [B, D] of `position`, the one after the previous call's. Writes into `cache`, without gradients."""
        rope = RopeTables(cache.rope.cos[position], cache.rope.sin[position])
        return self._blocks(x_BD.unsqueeze(1), rope, cache, position).squeeze(1)

    def forward(self, x_BPD: Tensor) -> Tensor:
        """Outputs [B, P, D] of whole frames given all their inputs, differentiable: the same as P steps."""
        rope = self._rope(x_BPD.shape[1], x_BPD.dtype, x_BPD.device)
        return self._blocks(x_BPD, RopeTables(rope.cos[:, None, None], rope.sin[:, None, None]), None, 0)

    def _blocks(self, x_BPD: Tensor, rope: RopeTables, cache: DepthCache | None, position: int) -> Tensor:
        for layer, block in enumerate(self.blocks):
            x_BPD = block(x_BPD, rope, cache, layer, position)
        return self.norm(x_BPD)

    def _rope(self, positions: int, dtype: torch.dtype, device: torch.device) -> RopeTables:
        config = self.config
        return pair_rope_tables(torch.arange(positions, device=device), config.head_dim, config.rope_base, dtype)
