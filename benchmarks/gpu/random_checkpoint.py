"""A checkpoint with random weights at a model's real dimensions, in its official layout.

`hocket serve` loads it like any other, so that what is measured is what a user starts. Norms are
one and biases zero; everything else is drawn, so that logits and audio stay finite.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hocket.checkpoint.weights import WeightEntry
from hocket.models.registry import known_dimensions, plan_codec, plan_talker

MODEL = "moss-tts-local-v1.5"
#: A file of a checkpoint ends here.
_SHARD_BYTES = 2 * 2**30
_STD, _CODEBOOK_STD, _LAYER_SCALE = 0.02, 1.0, 0.01


def write_random_checkpoint(folder: Path, tokenizer: Path) -> tuple[Path, Path]:
    """Write talker and codec of MOSS-TTS-Local v1.5 into `folder`; returns their folders.

    `tokenizer` is a checkpoint's folder, whose tokenizer and ids of special tokens are taken.
    """
    dimensions = json.loads(known_dimensions()[MODEL].read_text(encoding="utf-8"))
    talker, codec = dict(dimensions["talker"]), dict(dimensions["codec"])
    ids = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))
    talker |= {
        name: value
        for name, value in ids.items()
        if name.endswith("token_id") and name in talker and name != "audio_pad_token_id"
    }
    talker["audio_tokenizer_name_or_path"] = str(folder / "codec")
    _write(folder / "codec", codec, plan_codec(codec, torch.bfloat16).weight_table)
    _write(folder / "talker", talker, plan_talker(talker, torch.bfloat16).weight_table)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / "talker" / name)
    return folder / "talker", folder / "codec"


def _write(folder: Path, config: dict[str, Any], table: Sequence[WeightEntry]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = torch.Generator("cuda" if torch.cuda.is_available() else "cpu").manual_seed(0)
    places: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    for entry in {entry.names[0]: entry for entry in table}.values():
        shard[entry.names[0]] = _weight(entry.names[0], entry.shape, generator)
        if sum(tensor.nbytes for tensor in shard.values()) > _SHARD_BYTES:
            _flush(folder, shard, places)
    _flush(folder, shard, places)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _flush(folder: Path, shard: dict[str, Tensor], places: dict[str, str]) -> None:
    if not shard:
        return
    name = f"model-{len(set(places.values())) + 1:05d}.safetensors"
    save_file(shard, folder / name)
    places.update(dict.fromkeys(shard, name))
    shard.clear()


def _weight(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    leaf = name.rsplit(".", 1)[-1]
    if leaf in ("original0", "weight_g"):  # norms of weight-normalised products
        weight = torch.rand(shape, generator=generator, device=generator.device) / 2 + 0.5
    elif "layer_scale" in name:
        weight = torch.full(shape, _LAYER_SCALE)
    elif leaf == "bias":
        weight = torch.zeros(shape)
    elif "norm" in name or ".ln_" in name:
        weight = torch.ones(shape)
    else:
        std = _CODEBOOK_STD if "codebook" in name else _STD
        weight = torch.randn(shape, generator=generator, device=generator.device) * std
    return weight.bfloat16().cpu().contiguous()
