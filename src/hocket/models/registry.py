"""From a checkpoint to a loaded family: the one place that knows the families by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from hocket.core import ResolvedSampling
from hocket.errors import CheckpointError, ConfigError
from hocket.models.checkpoint import read_config, resolve_checkpoint
from hocket.models.family import Codec, LoadedTalker
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MODEL_TYPE as CODEC_TYPE
from hocket.models.moss_codec.config import MossCodecConfig, is_codec_config
from hocket.models.moss_codec.weights import codec_weight_table
from hocket.models.moss_local.config import MODEL_TYPE as TALKER_TYPE
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.talker import MossLocalTalker
from hocket.models.moss_local.weights import talker_weight_table, tied_copies
from hocket.models.weights import load_weights
from hocket.prompt.moss_local import MossLocalPrompt
from hocket.prompt.tokenizer import TextTokenizer

Kind = Literal["talker", "codec"]

#: Recommended for audio codes by the model's authors (spec/moss 1.6).
MOSS_LOCAL_SAMPLING = ResolvedSampling(temperature=1.7, top_p=0.8, top_k=25, repetition_penalty=1.0)


def builtin_model() -> Path:
    """The checkpoint shipped with the package, which is used when none is named."""
    folder = Path(__file__).parent.parent / "assets" / "mini"
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"the built-in model is missing from {folder}; reinstall hocket, or name a model")
    return folder


def load_talker(folder: Path, *, device: torch.device, dtype: torch.dtype) -> LoadedTalker:
    """Load the talker checkpoint in `folder`, its tokenizer and prompt builder.

    Raises ConfigError for another family or an inconsistent config.json, CheckpointError for missing or wrong files.
    """
    config = MossLocalConfig.from_dict(_config_of(folder, "talker"))
    tokenizer = TextTokenizer.load(folder, vocab_size=config.vocab_size)
    with torch.device("meta"):
        talker = MossLocalTalker(config)
    load_weights(talker, folder, talker_weight_table(config, dtype), tied=tied_copies(config), device=device)
    return LoadedTalker(talker.eval(), MossLocalPrompt(config, tokenizer), MOSS_LOCAL_SAMPLING)


def load_codec(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Codec:
    """Load the codec checkpoint in `folder`. Errors as for `load_talker`."""
    # The caller's dtype, not the file's compute_dtype, decides: the file's is only its authors' default.
    config = replace(MossCodecConfig.from_dict(_config_of(folder, "codec")), compute_dtype=dtype)
    with torch.device("meta"):
        codec = MossCodec(config)
    load_weights(codec, folder, codec_weight_table(config), device=device)
    codec.finalize()
    return codec.eval()


def codec_folder(talker_folder: Path, codec: str | Path | None) -> Path:
    """The codec that belongs to a talker: the one given, its `codec/` folder, or the one its config names."""
    if codec is not None:
        return resolve_checkpoint(codec)
    if (talker_folder / "codec" / "config.json").is_file():
        return talker_folder / "codec"
    named = read_config(talker_folder).get("audio_tokenizer_name_or_path")
    if isinstance(named, str) and named:
        return resolve_checkpoint(named)
    raise CheckpointError(
        f"{talker_folder} names no codec; give one with --codec FOLDER_OR_ID, or --codec none to make codes only",
        param="codec",
    )


def checkpoint_kind(folder: Path) -> tuple[Kind, dict[str, object]]:
    """Whether `folder` holds a talker or a codec, and its config.json. Raises ConfigError for anything else."""
    raw = read_config(folder)
    if raw.get("model_type") == TALKER_TYPE:
        return "talker", raw
    if is_codec_config(raw):
        return "codec", raw
    raise ConfigError(
        f"{folder}/config.json has model_type {raw.get('model_type')!r}; "
        f"Hocket knows {TALKER_TYPE!r} (talker) and {CODEC_TYPE!r} (codec)"
    )


def _config_of(folder: Path, wanted: Kind) -> dict[str, object]:
    kind, raw = checkpoint_kind(folder)
    if kind != wanted:
        flag = {"talker": "--model", "codec": "--codec"}
        raise ConfigError(f"{folder} is a {kind}, not a {wanted}; give it with {flag[kind]} and a {wanted} here")
    return raw
