"""The weight table of MOSS-TTS-Local checkpoints (sources: MOSS 1.9)."""

from __future__ import annotations

import torch

from hocket.checkpoint.weights import WeightEntry
from hocket.models.layers.qwen3 import qwen3_weights
from hocket.models.moss_local.config import MossLocalConfig


def talker_weight_table(config: MossLocalConfig, dtype: torch.dtype) -> list[WeightEntry]:
    """Every parameter of `MossLocalTalker` in `dtype`; entries of one parameter stack its rows."""
    size = config.hidden_size

    def entry(parameter: str, name: str, *shape: int) -> WeightEntry:
        return WeightEntry(parameter, (name,), shape, dtype)

    table = [
        entry("text_embedding.weight", "transformer.embed_tokens.weight", config.vocab_size, size),
        *(
            entry("audio_embedding.weight", f"audio_embeddings.{k}.weight", codes, size)
            for k, codes in enumerate(config.audio_codebook_sizes)
        ),
        *qwen3_weights("backbone", "transformer", config.backbone, dtype),
        entry("depth.norm.weight", "local_transformer.ln_f.weight", size),
        entry("depth.norm.bias", "local_transformer.ln_f.bias", size),
        entry("stop_head.weight", "local_text_lm_head.weight", 2, size),
    ]
    ffn = config.depth.intermediate_size
    for i in range(config.depth.layers):
        here, there = f"depth.blocks.{i}", f"local_transformer.h.{i}"
        for mine, theirs in (("attention_norm", "ln_1"), ("mlp_norm", "ln_2")):
            table += [
                entry(f"{here}.{mine}.weight", f"{there}.{theirs}.weight", size),
                entry(f"{here}.{mine}.bias", f"{there}.{theirs}.bias", size),
            ]
        for mine, theirs, rows, columns in (
            ("qkv_proj", "attn.c_attn", 3 * size, size),
            ("o_proj", "attn.c_proj", size, size),
            ("up_proj", "mlp.fc_in", ffn, size),
            ("down_proj", "mlp.fc_out", size, ffn),
        ):
            table += [
                entry(f"{here}.{mine}.weight", f"{there}.{theirs}.weight", rows, columns),
                entry(f"{here}.{mine}.bias", f"{there}.{theirs}.bias", rows),
            ]
    return table


def tied_copies(config: MossLocalConfig) -> frozenset[str]:
    """Stored tensors that are not read; the official class overwrites them with the embeddings."""
    return frozenset(
        {"text_lm_head.weight", *(f"audio_lm_heads.{k}.weight" for k in range(config.n_vq))}
    )
