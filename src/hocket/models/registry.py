"""From a checkpoint to a loaded family: the one place that knows the families by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from hocket.checkpoint.extras import Extras, load_extras
from hocket.checkpoint.hub import read_config, resolve_checkpoint
from hocket.errors import CheckpointError, ConfigError
from hocket.models.family import Codec, CodecPlan, LoadedTalker, TalkerPlan
from hocket.models.moss_codec import config as moss_codec
from hocket.models.moss_codec import family as moss_codec_family
from hocket.models.moss_local import config as moss_local
from hocket.models.moss_local import family as moss_local_family
from hocket.models.qwen3_codec import config as qwen3_codec
from hocket.models.qwen3_codec import family as qwen3_codec_family
from hocket.models.qwen3_tts import config as qwen3_tts
from hocket.models.qwen3_tts import family as qwen3_tts_family

Kind = Literal["talker", "codec"]

#: By `model_type`: how each family reads a config.json.
TALKERS: Mapping[str, Callable[[Mapping[str, object], torch.dtype], TalkerPlan]] = {
    moss_local.MODEL_TYPE: moss_local_family.talker_plan,
    qwen3_tts.MODEL_TYPE: qwen3_tts_family.talker_plan,
}
CODECS: Mapping[str, Callable[[Mapping[str, object], torch.dtype], CodecPlan]] = {
    moss_codec.MODEL_TYPE: moss_codec_family.codec_plan,
    qwen3_codec.MODEL_TYPE: qwen3_codec_family.codec_plan,
}


def builtin_model() -> Path:
    """The checkpoint shipped with the package, which is used when none is named."""
    folder = Path(__file__).parent.parent / "assets" / "mini"
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"the built-in model is missing from {folder}; reinstall hocket, or name a model")
    return folder


def talker_plan(folder: Path, dtype: torch.dtype) -> TalkerPlan:
    """Plan the talker in `folder` at `dtype`.

    Raises ConfigError for a codec, another family or an inconsistent config.json, CheckpointError without one.
    """
    raw = _config_of(folder, "talker")
    return TALKERS[str(raw["model_type"])](raw, dtype)


def load_talker(folder: Path, *, device: torch.device, dtype: torch.dtype) -> LoadedTalker:
    """Load the talker checkpoint in `folder`, its tokenizer, prompt builder, voices, text front and sampling.

    Raises ConfigError as `talker_plan` does, CheckpointError for missing or wrong files.
    """
    plan = talker_plan(folder, dtype)
    extras = _extras(folder, plan)
    loaded = plan.load(folder, device)
    return replace(loaded, extras=extras, sampling=loaded.sampling.overridden_by(extras.sampling))


def talker_extras(folder: Path) -> Extras:
    """The voices and the text front of the talker checkpoint in `folder`. Errors as for `load_talker`."""
    return _extras(folder, talker_plan(folder, torch.float32))


def load_codec(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Codec:
    """Load the codec checkpoint in `folder`. Errors as for `load_talker`."""
    return codec_plan(folder, dtype).load(folder, device)


def codec_plan(folder: Path, dtype: torch.dtype) -> CodecPlan:
    """Plan the codec in `folder` at `dtype`. Errors as for `talker_plan`."""
    raw = _config_of(folder, "codec")
    return CODECS[_codec_type(raw)](raw, dtype)


def codec_folder(talker_folder: Path, codec: str | Path | None) -> Path:
    """The codec that belongs to a talker: the one given (or inside the one given), the one inside the talker's own
    folder, or the one that the talker's config names.
    """
    if codec is not None:
        given = resolve_checkpoint(codec)
        return _codec_inside(given) or given
    if (inside := _codec_inside(talker_folder)) is not None:
        return inside
    named = read_config(talker_folder).get("audio_tokenizer_name_or_path")
    if isinstance(named, str) and named:
        return resolve_checkpoint(named)
    raise CheckpointError(
        f"{talker_folder} names no codec; give one with --codec FOLDER_OR_ID, or --codec none to make codes only",
        param="codec",
    )


def _codec_type(raw: Mapping[str, object]) -> str:
    # By its class, too: some of its files have an older model_type.
    return moss_codec.MODEL_TYPE if moss_codec.is_codec_config(raw) else str(raw.get("model_type"))


def _codec_inside(folder: Path) -> Path | None:
    """Where a talker's checkpoint has its codec, by the families' layouts."""
    for name in ("codec", "speech_tokenizer"):
        if (folder / name / "config.json").is_file():
            return folder / name
    return None


def checkpoint_kind(folder: Path) -> tuple[Kind, dict[str, object]]:
    """Whether `folder` holds a talker or a codec, and its config.json. Raises ConfigError for anything else."""
    raw = read_config(folder)
    if raw.get("model_type") in TALKERS:
        return "talker", raw
    if _codec_type(raw) in CODECS:
        return "codec", raw
    raise ConfigError(
        f"{folder}/config.json has model_type {raw.get('model_type')!r}; "
        f"Hocket knows the talkers {', '.join(TALKERS)} and the codecs {', '.join(CODECS)}"
    )


def _extras(folder: Path, plan: TalkerPlan) -> Extras:
    config = plan.config
    return load_extras(folder, n_vq=config.n_vq, codebook_sizes=config.audio_codebook_sizes, speakers=plan.speakers)


def _config_of(folder: Path, wanted: Kind) -> dict[str, object]:
    kind, raw = checkpoint_kind(folder)
    if kind != wanted:
        flag = {"talker": "--model", "codec": "--codec"}
        raise ConfigError(f"{folder} is a {kind}, not a {wanted}; give it with {flag[kind]} and a {wanted} here")
    return raw
