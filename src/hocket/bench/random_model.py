"""Models of real dimensions with random weights: the same arithmetic as the real ones, without a download."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hocket.bench.workload import WorkloadPrompt
from hocket.errors import ConfigError
from hocket.models.checkpoint import read_config
from hocket.models.family import Codec, LoadedTalker
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_codec.weights import codec_weight_table
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.family import MOSS_LOCAL_SAMPLING
from hocket.models.moss_local.talker import MossLocalTalker
from hocket.models.moss_local.weights import talker_weight_table
from hocket.models.registry import codec_folder, load_codec, load_talker
from hocket.models.weights import WeightEntry

#: Dimensions that ship with the package.
NAMED = ("moss-tts-local-v1.5",)
_SCALE = 0.02
#: What residual branches of the codec are scaled by when training begins.
_LAYER_SCALE = 0.01


def random_models(
    model: str, codec: str | None, *, device: torch.device, dtype: torch.dtype, seed: int
) -> tuple[LoadedTalker, Codec]:
    """`model` is one of `NAMED`, or a folder whose config.json (and its codec's) give the dimensions.

    Raises ConfigError, CheckpointError.
    """
    talker_raw, codec_raw = _dimensions(model, codec)
    config = MossLocalConfig.from_dict(talker_raw)
    shape = replace(MossCodecConfig.from_dict(codec_raw), compute_dtype=dtype)
    with torch.device("meta"):
        talker, codec_module = MossLocalTalker(config), MossCodec(shape)
    fill(talker, talker_weight_table(config, dtype), device=device, seed=seed)
    fill(codec_module, codec_weight_table(shape), device=device, seed=seed + 1)
    codec_module.finalize()
    return LoadedTalker(talker.eval(), WorkloadPrompt(config), MOSS_LOCAL_SAMPLING), codec_module.eval()


def loaded_models(
    model: str, codec: str | None, *, device: torch.device, dtype: torch.dtype
) -> tuple[LoadedTalker, Codec]:
    """A checkpoint folder of the MOSS family, fed with the workload's prompts. Raises ConfigError, CheckpointError."""
    folder = Path(model)
    loaded = load_talker(folder, device=device, dtype=dtype)
    config = loaded.talker.config
    if not isinstance(config, MossLocalConfig):
        raise ConfigError(f"{model} is of another family than the workload's prompts; give a MOSS-TTS-Local folder")
    return replace(loaded, prompt=WorkloadPrompt(config)), load_codec(
        codec_folder(folder, codec), device=device, dtype=dtype
    )


def fill(module: nn.Module, table: Sequence[WeightEntry], *, device: torch.device, seed: int) -> None:
    """Give `module`, built on the meta device, weights on `device` in the table's dtypes; the same for a seed."""
    generator = torch.Generator(device).manual_seed(seed)
    dtypes = {entry.parameter: entry.dtype for entry in table}
    state = {}
    for name, empty in module.state_dict().items():
        weight = torch.empty(empty.shape, dtype=dtypes[name], device=device)
        leaf = name.rsplit(".", 2)[-2:]
        if leaf[-1].startswith("scale"):
            weight.fill_(_LAYER_SCALE)
        elif leaf[-1] == "bias":
            weight.zero_()
        elif "norm" in leaf[0] or leaf[-1] == "gain":
            weight.fill_(1.0)
        else:
            weight.normal_(0.0, _SCALE, generator=generator)
        state[name] = weight
    module.load_state_dict(state, assign=True)
    module.requires_grad_(False)


def _dimensions(model: str, codec: str | None) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if model in NAMED:
        file = resources.files("hocket.bench") / "data" / f"{model}.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        return document["talker"], document["codec"]
    folder = Path(model)
    if not folder.is_dir():
        raise ConfigError(
            f"--model {model!r} is no folder, and no dimensions ship under that name; use {', '.join(NAMED)}"
        )
    return read_config(folder), read_config(codec_folder(folder, codec))
