"""The weight table of Qwen3-TTS checkpoints (sources: Qwen3 11)."""

from __future__ import annotations

import torch

from hocket.checkpoint.weights import WeightEntry
from hocket.models.layers.qwen3 import qwen3_weights
from hocket.models.qwen3_tts.config import Qwen3TtsConfig


def talker_weight_table(config: Qwen3TtsConfig, dtype: torch.dtype) -> list[WeightEntry]:
    """Every parameter of `Qwen3TtsTalker` in `dtype`; entries of one parameter stack its rows."""
    size, text_size, width = (
        config.hidden_size,
        config.text_hidden_size,
        config.predictor.hidden_size,
    )

    def entry(parameter: str, name: str, *shape: int) -> WeightEntry:
        return WeightEntry(parameter, (f"talker.{name}",), shape, dtype)

    table = [
        entry(
            "text_embedding.weight",
            "model.text_embedding.weight",
            config.text_vocab_size,
            text_size,
        ),
        entry("text_fc1.weight", "text_projection.linear_fc1.weight", text_size, text_size),
        entry("text_fc1.bias", "text_projection.linear_fc1.bias", text_size),
        entry("text_fc2.weight", "text_projection.linear_fc2.weight", size, text_size),
        entry("text_fc2.bias", "text_projection.linear_fc2.bias", size),
        entry(
            "codec_embedding.weight", "model.codec_embedding.weight", config.codec_vocab_size, size
        ),
        entry("code_head.weight", "codec_head.weight", config.codec_vocab_size, size),
        *qwen3_weights("backbone", "talker.model", config.backbone, dtype),
        *qwen3_weights("predictor.layers", "talker.code_predictor.model", config.predictor, dtype),
    ]
    for k, codes in enumerate(config.audio_codebook_sizes[1:]):
        table += [
            entry(
                "predictor.embedding.weight",
                f"code_predictor.model.codec_embedding.{k}.weight",
                codes,
                size,
            ),
            entry("predictor.heads.weight", f"code_predictor.lm_head.{k}.weight", codes, width),
        ]
    if config.projects_to_predictor:
        table += [
            entry(
                "predictor.projection.weight",
                "code_predictor.small_to_mtp_projection.weight",
                width,
                size,
            ),
            entry(
                "predictor.projection.bias", "code_predictor.small_to_mtp_projection.bias", width
            ),
        ]
    return table
