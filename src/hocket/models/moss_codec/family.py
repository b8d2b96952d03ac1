"""MOSS-Audio-Tokenizer as a family: from its config.json to the plan that loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch

from hocket.models.family import CodecPlan
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_codec.weights import codec_weight_table, resident_bytes


def codec_plan(raw: Mapping[str, object], dtype: torch.dtype) -> CodecPlan:
    """Plan the codec of a config.json at `dtype`. Raises ConfigError."""
    # The caller's dtype decides; the file's compute_dtype is only its authors' default.
    config = replace(MossCodecConfig.from_dict(raw), compute_dtype=dtype)
    return CodecPlan(
        config=config,
        weight_table=codec_weight_table(config),
        resident_bytes=resident_bytes(config),
        build=partial(MossCodec, config),
        parts={"encoder": "encoder", "decoder": "decoder", "quantizer": "quantizer"},
    )
