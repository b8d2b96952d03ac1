"""Models of real dimensions with random weights: the arithmetic of real models, without a
download.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from hocket.errors import ConfigError
from hocket.models.codec import Codec
from hocket.models.family import CodecPlan, LoadedTalker, TalkerPlan
from hocket.models.registry import (
    codec_folder,
    codec_plan,
    known_dimensions,
    load_codec,
    load_talker,
    plan_codec,
    plan_talker,
    talker_plan,
)

_SCALE = 0.02
#: Scale of the codecs' residual branches at the start of training.
_LAYER_SCALE = 0.01


def random_models(
    model: str,
    codec: str | None,
    *,
    device: torch.device,
    codec_device: torch.device | None = None,
    dtype: torch.dtype,
    seed: int,
) -> tuple[LoadedTalker, Codec]:
    """Build the dimensions of `model`: one of `known_dimensions`, or a folder with config.json (and
    its codec's).

    The codec goes to `codec_device`, or to `device`, too. Raises ConfigError, CheckpointError.
    """
    of_talker, of_codec = plans(model, codec, dtype)
    prompt, talker, codec_module = of_talker.workload_prompt(), of_talker.empty(), of_codec.empty()
    fill(talker, device=device, seed=seed)
    fill(codec_module, device=codec_device or device, seed=seed + 1)
    for module in (talker, codec_module):
        module.finalize()
        module.eval()
    return LoadedTalker(talker, prompt, of_talker.sampling), codec_module


def loaded_models(
    model: str,
    codec: str | None,
    *,
    device: torch.device,
    codec_device: torch.device | None = None,
    dtype: torch.dtype,
) -> tuple[LoadedTalker, Codec]:
    """Load a checkpoint folder with the workload's prompts; devices as above.

    Raises ConfigError, CheckpointError.
    """
    folder = Path(model)
    prompt = talker_plan(folder, dtype).workload_prompt()
    loaded = replace(load_talker(folder, device=device, dtype=dtype), prompt=prompt)
    return loaded, load_codec(
        codec_folder(folder, codec), device=codec_device or device, dtype=dtype
    )


def fill(module: nn.Module, *, device: torch.device, seed: int) -> None:
    """Give `module`, built on the meta device, weights on `device` that depend on `seed` alone."""
    generator = torch.Generator(device).manual_seed(seed)
    state = {}
    for name, empty in module.state_dict().items():
        weight = torch.empty_like(empty, device=device)
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
    known = known_dimensions()
    if model in known:
        if codec is not None:
            raise ConfigError(
                f"--model {model} brings the dimensions of its codec; leave --codec out",
                param="codec",
            )
        document = json.loads(known[model].read_text(encoding="utf-8"))
        return plan_talker(document["talker"], dtype), plan_codec(document["codec"], dtype)
    folder = Path(model)
    if not folder.is_dir():
        raise ConfigError(
            f"--model {model!r} is neither a folder nor a known name; use {', '.join(known)}"
        )
    return talker_plan(folder, dtype), codec_plan(codec_folder(folder, codec), dtype)
