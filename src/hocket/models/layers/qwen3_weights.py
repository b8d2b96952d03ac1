"""Where each tensor of a Qwen3 backbone goes (spec/moss 1.9)."""

from __future__ import annotations

import torch

from hocket.checkpoint.weights import WeightEntry
from hocket.models.layers.qwen3_config import Qwen3BackboneConfig


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
