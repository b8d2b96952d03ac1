"""The families by name, one line each, and the way from a checkpoint's folder to what an engine is
made of.

Importing this imports neither torch nor a family: a family's package is imported when a checkpoint
asks for it. Such a package holds `config.read_config` (a talker's; without torch) and
`family.talker_plan` or `family.codec_plan`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from hocket.checkpoint.extras import Extras, load_extras
from hocket.checkpoint.hub import read_config, resolve_checkpoint
from hocket.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch

    from hocket.models.codec import Codec
    from hocket.models.family import (
        CodecFamily,
        CodecPlan,
        LoadedTalker,
        TalkerConfigFile,
        TalkerFamily,
        TalkerPlan,
    )
    from hocket.models.talker import TalkerConfig

_LOG = logging.getLogger("hocket")
Kind = Literal["talker", "codec"]

#: Packages of the families, by the `model_type` of their checkpoints.
TALKERS = {
    "moss_tts_local": "hocket.models.moss_local",
    "qwen3_tts": "hocket.models.qwen3_tts",
}
CODECS = {
    "moss-audio-tokenizer": "hocket.models.moss_codec",
    "qwen3_tts_tokenizer_12hz": "hocket.models.qwen3_codec",
}
#: Official classes whose checkpoints may carry an older `model_type`.
CODEC_CLASSES = {"MossAudioTokenizerModel": "moss-audio-tokenizer"}


def builtin_model() -> Path:
    """The checkpoint shipped with the package, which is used when none is named."""
    folder = Path(__file__).parent.parent / "assets" / "mini"
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"the built-in model is missing from {folder}; reinstall hocket, or name a model"
        )
    return folder


def talker_plan(folder: Path, dtype: torch.dtype) -> TalkerPlan:
    """Plan the talker in `folder` at `dtype`.

    Raises ConfigError for a codec, another family or an inconsistent config.json, CheckpointError
    without one.
    """
    return plan_talker(_config_of(folder, "talker"), dtype)


def plan_talker(raw: Mapping[str, object], dtype: torch.dtype) -> TalkerPlan:
    """Plan the talker of a parsed config.json, whose `model_type` must be one of `TALKERS`. Raises
    ConfigError.
    """
    family = cast("TalkerFamily", import_module(f"{TALKERS[str(raw['model_type'])]}.family"))
    return family.talker_plan(raw, dtype)


def load_talker(folder: Path, *, device: torch.device, dtype: torch.dtype) -> LoadedTalker:
    """Load the talker checkpoint in `folder`, its tokenizer, prompt builder, voices, text
    normalizer and sampling.

    Raises ConfigError as `talker_plan` does, CheckpointError for missing or wrong files.
    """
    plan = talker_plan(folder, dtype)
    extras = _extras(folder, plan.config)
    loaded = plan.load(folder, device)
    return replace(loaded, extras=extras, sampling=loaded.sampling.overridden_by(extras.sampling))


def talker_extras(folder: Path) -> Extras:
    """The voices and the text normalizer of the talker checkpoint in `folder`, without importing
    torch.

    Errors as for `load_talker`.
    """
    raw = _config_of(folder, "talker")
    file = cast("TalkerConfigFile", import_module(f"{TALKERS[str(raw['model_type'])]}.config"))
    return _extras(folder, file.read_config(raw))


def checkpoint_extras(model: str | None) -> Extras:
    """`talker_extras` of a folder or hub id; of the built-in model when None."""
    return talker_extras(builtin_model() if model is None else resolve_checkpoint(model))


def known_dimensions() -> dict[str, Traversable]:
    """The dimensions that ship with the package, by name: files that hold the config.json of a
    talker and its codec.
    """
    folders = [resources.files(package) / "dimensions" for package in TALKERS.values()]
    files = {file.name: file for folder in folders if folder.is_dir() for file in folder.iterdir()}
    return {name.removesuffix(".json"): files[name] for name in sorted(files)}


def load_codec(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Codec:
    """Load the codec checkpoint in `folder`. Errors as for `load_talker`."""
    return codec_plan(folder, dtype).load(folder, device)


def codec_plan(folder: Path, dtype: torch.dtype) -> CodecPlan:
    """Plan the codec in `folder` at `dtype`. Errors as for `talker_plan`."""
    return plan_codec(_config_of(folder, "codec"), dtype)


def plan_codec(raw: Mapping[str, object], dtype: torch.dtype) -> CodecPlan:
    """Plan the codec of a parsed config.json of one of `CODECS`. Raises ConfigError."""
    family = cast("CodecFamily", import_module(f"{CODECS[_codec_type(raw)]}.family"))
    return family.codec_plan(raw, dtype)


def codec_folder(talker_folder: Path, codec: str | Path | None) -> Path:
    """The codec that belongs to a talker: the one given (or inside the one given), the one inside
    the talker's own folder, or the one that the talker's config names.
    """
    if codec is not None:
        given = resolve_checkpoint(codec)
        return _codec_inside(given) or given
    if (inside := _codec_inside(talker_folder)) is not None:
        return inside
    named = read_config(talker_folder).get("audio_tokenizer_name_or_path")
    if isinstance(named, str) and named:
        _say_followed(talker_folder, named)
        return resolve_checkpoint(named)
    raise CheckpointError(
        f"{talker_folder} names no codec; give one with --codec FOLDER_OR_ID, or --codec none to "
        "make codes only",
        param="codec",
    )


@cache
def _say_followed(talker_folder: Path, codec: str) -> None:
    """Say, once a process, that files are read, or fetched, which the user has not named."""
    _LOG.warning("the codec is %r, as %s/config.json names it", codec, talker_folder)


def _codec_type(raw: Mapping[str, object]) -> str:
    architectures = raw.get("architectures")
    classes = architectures if isinstance(architectures, list) else []
    older = (CODEC_CLASSES[str(name)] for name in classes if str(name) in CODEC_CLASSES)
    return next(older, str(raw.get("model_type")))


def _codec_inside(folder: Path) -> Path | None:
    """Where a talker's checkpoint has its codec, by the families' layouts."""
    for name in ("codec", "speech_tokenizer"):
        if (folder / name / "config.json").is_file():
            return folder / name
    return None


def checkpoint_kind(folder: Path) -> tuple[Kind, dict[str, object]]:
    """Whether `folder` holds a talker or a codec, and its config.json. Raises ConfigError for
    anything else.
    """
    raw = read_config(folder)
    if str(raw.get("model_type")) in TALKERS:
        return "talker", raw
    if _codec_type(raw) in CODECS:
        return "codec", raw
    raise ConfigError(
        f"{folder}/config.json has model_type {str(raw.get('model_type'))[:100]!r}; "
        f"Hocket knows the talkers {', '.join(TALKERS)} and the codecs {', '.join(CODECS)}"
    )


def _extras(folder: Path, config: TalkerConfig) -> Extras:
    sizes = config.audio_codebook_sizes
    return load_extras(folder, n_vq=config.n_vq, codebook_sizes=sizes, speakers=config.speakers)


def _config_of(folder: Path, wanted: Kind) -> dict[str, object]:
    kind, raw = checkpoint_kind(folder)
    if kind != wanted:
        flag = {"talker": "--model", "codec": "--codec"}
        raise ConfigError(
            f"{folder} is a {kind}, not a {wanted}; give it with {flag[kind]} and a {wanted} here"
        )
    return raw
