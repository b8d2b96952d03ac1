"""Models of real dimensions with random weights: the same arithmetic as the real ones, without a download."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hocket.bench.engine.workload import workload_prompt
from hocket.checkpoint.weights import WeightEntry
from hocket.errors import ConfigError
from hocket.models.codec import Codec
from hocket.models.family import CodecPlan, LoadedTalker, TalkerPlan
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.family import MOSS_LOCAL_SAMPLING
from hocket.models.moss_local.talker import MossLocalTalker
from hocket.models.qwen3_codec.codec import Qwen3Codec
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_tts.config import Qwen3TtsConfig
from hocket.models.qwen3_tts.family import QWEN3_TTS_SAMPLING
from hocket.models.qwen3_tts.talker import Qwen3TtsTalker
from hocket.models.registry import (
    codec_folder,
    codec_plan,
    load_codec,
    load_talker,
    plan_codec,
    plan_talker,
    talker_plan,
)

#: Dimensions that ship with the package.
NAMED = ("moss-tts-local-v1.5", "qwen3-tts-1.7b", "qwen3-tts-0.6b")
_SCALE = 0.02
#: What residual branches of the codecs are scaled by when training begins.
_LAYER_SCALE = 0.01


def _moss_local(config: MossLocalConfig) -> LoadedTalker:
    return LoadedTalker(MossLocalTalker(config), workload_prompt(config), MOSS_LOCAL_SAMPLING)


def _qwen3_tts(config: Qwen3TtsConfig) -> LoadedTalker:
    return LoadedTalker(Qwen3TtsTalker(config), workload_prompt(config), QWEN3_TTS_SAMPLING)


#: By configuration: each family's modules.
_TALKERS: Mapping[type, Callable[[Any], LoadedTalker]] = {MossLocalConfig: _moss_local, Qwen3TtsConfig: _qwen3_tts}
_CODECS: Mapping[type, Callable[[Any], MossCodec | Qwen3Codec]] = {
    MossCodecConfig: MossCodec,
    Qwen3CodecConfig: Qwen3Codec,
}


def random_models(
    model: str,
    codec: str | None,
    *,
    device: torch.device,
    codec_device: torch.device | None = None,
    dtype: torch.dtype,
    seed: int,
) -> tuple[LoadedTalker, Codec]:
    """`model` is one of `NAMED`, or a folder whose config.json (and its codec's) give the dimensions.

    The codec goes to `device`, too, unless it has one of its own. Raises ConfigError, CheckpointError.
    """
    of_talker, of_codec = plans(model, codec, dtype)
    loaded, codec_module = empty_models(of_talker, of_codec)
    assert isinstance(loaded.talker, nn.Module)
    fill(loaded.talker, of_talker.weight_table, device=device, seed=seed)
    fill(codec_module, of_codec.weight_table, device=codec_device or device, seed=seed + 1)
    codec_module.finalize()
    if isinstance(loaded.talker, Qwen3TtsTalker):
        loaded.talker.finalize()
    loaded.talker.eval()
    return loaded, codec_module.eval()


def empty_models(talker: TalkerPlan, codec: CodecPlan) -> tuple[LoadedTalker, MossCodec | Qwen3Codec]:
    """Modules without weights, on the meta device. Raises ConfigError for a talker that cannot speak the workload."""
    with torch.device("meta"):
        return _TALKERS[type(talker.config)](talker.config), _CODECS[type(codec.config)](codec.config)


def loaded_models(
    model: str,
    codec: str | None,
    *,
    device: torch.device,
    codec_device: torch.device | None = None,
    dtype: torch.dtype,
) -> tuple[LoadedTalker, Codec]:
    """A checkpoint folder, fed with the workload's prompts; devices as above. Raises ConfigError, CheckpointError."""
    folder = Path(model)
    prompt = workload_prompt(talker_plan(folder, dtype).config)
    loaded = replace(load_talker(folder, device=device, dtype=dtype), prompt=prompt)
    return loaded, load_codec(codec_folder(folder, codec), device=codec_device or device, dtype=dtype)


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
        elif leaf[-1] in ("bias", "alpha", "beta"):
            weight.zero_()
        elif "norm" in leaf[0] or leaf[-1] in ("gain", "usage"):
            weight.fill_(1.0)
        else:
            weight.normal_(0.0, _SCALE, generator=generator)
        state[name] = weight
    module.load_state_dict(state, assign=True)
    module.requires_grad_(False)


def plans(model: str, codec: str | None, dtype: torch.dtype) -> tuple[TalkerPlan, CodecPlan]:
    """The dimensions that `model` names. Raises ConfigError, CheckpointError."""
    if model in NAMED:
        if codec is not None:
            raise ConfigError(f"--model {model} brings the dimensions of its codec; leave --codec out", param="codec")
        file = resources.files("hocket.bench") / "data" / f"{model}.json"
        document = json.loads(file.read_text(encoding="utf-8"))
        return plan_talker(document["talker"], dtype), plan_codec(document["codec"], dtype)
    folder = Path(model)
    if not folder.is_dir():
        raise ConfigError(
            f"--model {model!r} is no folder, and no dimensions ship under that name; use {', '.join(NAMED)}"
        )
    return talker_plan(folder, dtype), codec_plan(codec_folder(folder, codec), dtype)
