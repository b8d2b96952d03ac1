"""The 12 Hz codec of Qwen3-TTS as a family: from its config.json to the plan that loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from hocket.models.family import CodecPlan
from hocket.models.qwen3_codec.codec import Qwen3Codec
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_codec.weights import codec_weight_table, resident_bytes, unread_tensors


def codec_plan(raw: Mapping[str, object], dtype: torch.dtype) -> CodecPlan:
    """Plan the codec of a config.json at `dtype`. Raises ConfigError."""
    config = replace(Qwen3CodecConfig.from_dict(raw), compute_dtype=dtype)
    return CodecPlan(
        config=config,
        weight_table=codec_weight_table(config),
        resident_bytes=resident_bytes(config),
        build=partial(Qwen3Codec, config),
        # Codebooks belong to both.
        parts={"encoder": "encoder", "decoder": "decoder"},
        unread=unread_tensors(config),
    )
