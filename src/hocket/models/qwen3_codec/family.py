"""The 12 Hz codec of Qwen3-TTS as a family: from its folder to what the engine drives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from hocket.checkpoint.weights import load_weights
from hocket.models.family import Codec, CodecPlan
from hocket.models.qwen3_codec.codec import Qwen3Codec
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_codec.weights import codec_weight_table, resident_bytes, unread_tensors

#: What the first part of a parameter's path is called in a report. Codebooks are parts of both.
_PARTS = {"encoder": "encoder", "decoder": "decoder"}


def codec_plan(raw: Mapping[str, object], dtype: torch.dtype) -> CodecPlan:
    """Plan the codec of a config.json at `dtype`. Raises ConfigError."""
    config = replace(Qwen3CodecConfig.from_dict(raw), compute_dtype=dtype)
    table = codec_weight_table(config)

    def load(folder: Path, device: torch.device) -> Codec:
        with torch.device("meta"):
            codec = Qwen3Codec(config)
        load_weights(codec, folder, table, tied=unread_tensors(config), device=device)
        codec.finalize()
        return codec.eval()

    return CodecPlan(config, table, resident_bytes(config), load, _PARTS)
