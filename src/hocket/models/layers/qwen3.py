"""Qwen3 layers (sources: MOSS 1.3, sources: Qwen3 3): embeddings in, final-normed hidden states
out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.checkpoint.weights import WeightEntry
from hocket.kernels import ops
from hocket.kernels.types import PagedBatch, PagedPlan, Scaled, plain
from hocket.models.layers.basic import RMSNorm, RopeTables, half_rope_tables, rotate_halves
from hocket.models.layers.fp8 import Linear, QuantizableBlock, takes_fp8
from hocket.models.layers.kv_cache import FrameKV, KVPages
from hocket.models.layers.qwen3_config import Qwen3BackboneConfig

#: Maps stacked projections [B, T, (H + 2 G) * K], their attention module and its layer's index to
#: [B, T, H * K]. The callable owns the keys and values.
Attend = Callable[[Tensor | Scaled, "Qwen3Attention", int], Tensor]


class Qwen3Attention(nn.Module):
    """Grouped-query attention with normed, rotated queries and keys. `qkv_proj` stacks the rows of
    q, k and v.
    """

    def __init__(self, config: Qwen3BackboneConfig) -> None:
        super().__init__()
        qkv_heads = config.heads + 2 * config.kv_heads
        self.qkv_proj: Linear = nn.Linear(
            config.hidden_size, qkv_heads * config.head_dim, bias=False
        )
        self.o_proj: Linear = nn.Linear(
            config.heads * config.head_dim, config.hidden_size, bias=False
        )
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)

    def append(
        self, qkv_BTE: Tensor | Scaled, rope: RopeTables, slots: Tensor, kv: KVPages, layer: int
    ) -> Tensor:
        """Queries [B, T, H, K]; keys and values go to `slots` of a layer's pages. `rope` is [B * T,
        K].
        """
        q_MHK = ops.norm_rotate_append(
            qkv_BTE.flatten(0, 1),
            self.q_norm.weight,
            self.k_norm.weight,
            self.q_norm.eps,
            rope.cos,
            rope.sin,
            slots,
            kv.keys[layer].flatten(0, 1),
            kv.values[layer].flatten(0, 1),
            kv.scales_of(layer),
        )
        return q_MHK.view(*qkv_BTE.shape[:2], *q_MHK.shape[1:])

    def within_frame(
        self, qkv_BTE: Tensor | Scaled, rope: RopeTables, keys: Tensor, values: Tensor, start: int
    ) -> Tensor:
        """[B, T, H * K] of a frame's positions `start ..`, which join its cache. `rope` is
        [P, K].
        """
        q_norm, k_norm = self.q_norm, self.k_norm
        return ops.frame_attention(
            qkv_BTE,
            q_norm.weight,
            k_norm.weight,
            q_norm.eps,
            rope.cos,
            rope.sin,
            keys,
            values,
            start,
        )

    def whole(self, qkv_BTE: Tensor, rope: RopeTables, config: Qwen3BackboneConfig) -> Tensor:
        """[B, T, H * K] of T whole rows without a cache, differentiable."""
        qkv_BTHK = torch.unflatten(qkv_BTE, -1, (-1, config.head_dim))
        q_BTHK, k_BTGK, v_BTGK = torch.split(
            qkv_BTHK, [config.heads, config.kv_heads, config.kv_heads], 2
        )
        q_BTHK, k_BTGK = (
            rotate_halves(norm(x_BTHK), rope)
            for norm, x_BTHK in ((self.q_norm, q_BTHK), (self.k_norm, k_BTGK))
        )
        return causal_attention(q_BTHK, k_BTGK, v_BTGK).flatten(2)


class Qwen3MLP(nn.Module):
    """`down(silu(gate) * up)`; `gate_up_proj` stacks the rows of gate and up."""

    def __init__(self, config: Qwen3BackboneConfig) -> None:
        super().__init__()
        self.gate_up_proj: Linear = nn.Linear(
            config.hidden_size, 2 * config.intermediate_size, bias=False
        )
        self.down_proj: Linear = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)


class Qwen3Layer(QuantizableBlock):
    """One pre-norm block; `Qwen3Backbone` runs it, since a residual sum and the norm after it are
    one operation.
    """

    def __init__(self, config: Qwen3BackboneConfig) -> None:
        super().__init__()
        self.input_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attention = Qwen3Attention(config)
        self.post_attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = Qwen3MLP(config)


class Qwen3Backbone(nn.Module):
    """Layers and the final norm; embeddings and heads belong to the talker around it."""

    def __init__(self, config: Qwen3BackboneConfig) -> None:
        super().__init__()
        self.config = config
        layers = nn.ModuleList(Qwen3Layer(config) for _ in range(config.layers))
        self.layers = cast("Sequence[Qwen3Layer]", layers)
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)

    def forward(
        self, x_BTD: Tensor, kv: KVPages | None = None, batch: PagedBatch | None = None
    ) -> Tensor:
        """Hidden states [B, T, D] after the final norm.

        With `kv` and `batch`: the T rows continue the cached ones and are written to their pages
        (run it without gradients). Without either: T whole rows from position 0, differentiable,
        right padding allowed; the outputs of padding mean nothing in both. Raises ValueError when
        only one of the two is given.
        """
        if (kv is None) != (batch is None):
            raise ValueError(
                "the backbone got only one of kv and batch; give both to use the cache, or neither"
            )
        config = self.config
        if kv is None or batch is None:
            rope = self._rope(
                torch.arange(x_BTD.shape[1], device=x_BTD.device)[None, :, None], x_BTD.dtype
            )
            return self._run(
                x_BTD, lambda qkv_BTE, attention, _: attention.whole(plain(qkv_BTE), rope, config)
            )
        plan = PagedPlan.of(batch, x_BTD.shape[1], kv.page_rows)
        rope = self._rope(plan.positions_BT.flatten(), x_BTD.dtype)

        def attend(qkv_BTE: Tensor | Scaled, attention: Qwen3Attention, layer: int) -> Tensor:
            q_BTHK = attention.append(qkv_BTE, rope, plan.slots, kv, layer)
            return _paged_attention(q_BTHK, kv, layer, plan).flatten(2)

        return self._run(x_BTD, attend)

    def joined(
        self, x_BD: Tensor, frames: PagedBatch, x_PTD: Tensor, pages: PagedBatch, kv: KVPages
    ) -> tuple[Tensor, Tensor]:
        """Hidden states [B, D] of one new row each of B sequences, and [P, T, D] of slices of
        others, in one pass.

        The same as two calls with `frames` and with `pages`, but for rounding: weights are read
        once for both.
        """
        plans = (
            PagedPlan.of(frames, 1, kv.page_rows),
            PagedPlan.of(pages, x_PTD.shape[1], kv.page_rows),
        )
        slots = torch.cat([plan.slots for plan in plans])
        rope = self._rope(torch.cat([plan.positions_BT.flatten() for plan in plans]), x_BD.dtype)
        count, shape = len(x_BD), x_PTD.shape[:2]

        def attend(qkv_1ME: Tensor | Scaled, attention: Qwen3Attention, layer: int) -> Tensor:
            q_MHK = attention.append(qkv_1ME, rope, slots, kv, layer)[0]
            out_B1HK = _paged_attention(q_MHK[:count, None], kv, layer, plans[0])
            out_PTHK = _paged_attention(
                q_MHK[count:].view(*shape, *q_MHK.shape[1:]), kv, layer, plans[1]
            )
            return torch.cat([out_B1HK.flatten(0, 1), out_PTHK.flatten(0, 1)]).flatten(1)[None]

        hidden_MD = self._run(torch.cat([x_BD, x_PTD.flatten(0, 1)])[None], attend)[0]
        return hidden_MD[:count], hidden_MD[count:].view(*shape, -1)

    def frame_kv(
        self, rows: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> FrameKV:
        """An empty cache for `frame_step` over so many positions of B = `rows`."""
        config = self.config
        return FrameKV.allocate(
            config.layers, rows, positions, config.kv_heads, config.head_dim, dtype, device
        )

    def frame_rope(self, positions: int, dtype: torch.dtype, device: torch.device) -> RopeTables:
        """Tables of positions 0 .. `positions` - 1, for `frame_step`."""
        return self._rope(torch.arange(positions, device=device), dtype)

    def frame_step(self, x_BTD: Tensor, start: int, rope: RopeTables, kv: FrameKV) -> Tensor:
        """Hidden states [B, T, D] of the positions from `start` on, the same in all rows; T is 1,
        or `start` is 0.

        Writes into `kv`, without gradients.
        """

        def attend(qkv_BTE: Tensor | Scaled, attention: Qwen3Attention, layer: int) -> Tensor:
            return attention.within_frame(qkv_BTE, rope, kv.keys[layer], kv.values[layer], start)

        return self._run(x_BTD, attend)

    def _rope(self, positions: Tensor, dtype: torch.dtype) -> RopeTables:
        return half_rope_tables(positions, self.config.head_dim, self.config.rope_theta, dtype)

    def _run(self, x_BTD: Tensor, attend: Attend) -> Tensor:
        delta_BTD: Tensor | Scaled | None = None
        for index, layer in enumerate(self.layers):
            attention, mlp, norm = layer.attention, layer.mlp, layer.input_norm
            x_BTD, h_BTD = ops.add_rms_norm(
                x_BTD, delta_BTD, norm.weight, norm.eps, takes_fp8(attention.qkv_proj)
            )
            delta_BTD = attention.o_proj(attend(attention.qkv_proj(h_BTD), attention, index))
            norm = layer.post_attention_norm
            x_BTD, h_BTD = ops.add_rms_norm(
                x_BTD, delta_BTD, norm.weight, norm.eps, takes_fp8(mlp.gate_up_proj)
            )
            delta_BTD = mlp.down_proj(
                ops.silu_mul(mlp.gate_up_proj(h_BTD), takes_fp8(mlp.down_proj))
            )
        out_BTD = ops.add_rms_norm(x_BTD, delta_BTD, self.norm.weight, self.norm.eps)[1]
        assert isinstance(out_BTD, Tensor)
        return out_BTD


def _paged_attention(q_BTHK: Tensor, kv: KVPages, layer: int, plan: PagedPlan) -> Tensor:
    """[B, T, H, K] over a layer's pages, which have the new rows already; padding rows are finite
    and mean nothing.
    """
    return ops.paged_attention(q_BTHK, kv.keys[layer], kv.values[layer], plan, kv.scales_of(layer))


def causal_attention(q_BTHK: Tensor, k_BTGK: Tensor, v_BTGK: Tensor) -> Tensor:
    """[B, T, H, K] of T whole rows, differentiable. Causality hides right padding."""
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BTGK.transpose(1, 2),
        v_BTGK.transpose(1, 2),
        is_causal=True,
        enable_gqa=True,
    )
    return out_BHTK.transpose(1, 2)


def qwen3_weights(
    prefix: str, source: str, config: Qwen3BackboneConfig, dtype: torch.dtype
) -> list[WeightEntry]:
    """Every parameter of the backbone at `prefix` in a module, from an official file's tensors
    under `source`.
    """
    size, ffn = config.hidden_size, config.intermediate_size
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    table = [WeightEntry(f"{prefix}.norm.weight", (f"{source}.norm.weight",), (size,), dtype)]
    for i in range(config.layers):
        for name, official, shape in (
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
            names = (f"{source}.layers.{i}.{official}.weight",)
            table.append(WeightEntry(f"{prefix}.layers.{i}.{name}.weight", names, shape, dtype))
    return table
