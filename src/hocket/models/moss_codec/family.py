"""MOSS-Audio-Tokenizer as a family: from its folder to what the engine drives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from hocket.checkpoint.weights import load_weights
from hocket.models.family import Codec, CodecPlan
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_codec.weights import codec_weight_table, resident_bytes

#: What the first part of a parameter's path is called in a report.
_PARTS = {"encoder": "encoder", "decoder": "decoder", "quantizer": "quantizer"}


def codec_plan(raw: Mapping[str, object], dtype: torch.dtype) -> CodecPlan:
    """Plan the codec of a config.json at `dtype`. Raises ConfigError."""
    # The caller's dtype, not the file's compute_dtype, decides: the file's is only its authors' default.
    config = replace(MossCodecConfig.from_dict(raw), compute_dtype=dtype)
    table = codec_weight_table(config)

    def load(folder: Path, device: torch.device) -> Codec:
        with torch.device("meta"):
            codec = MossCodec(config)
        load_weights(codec, folder, table, device=device)
        codec.finalize()
        return codec.eval()

    return CodecPlan(config, table, resident_bytes(config), load, _PARTS)
