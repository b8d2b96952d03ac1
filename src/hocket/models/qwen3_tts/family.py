"""Qwen3-TTS as a family: from its config.json to the plan that loads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from pydantic import ConfigDict, Field, ValidationError
from torch import nn

from hocket.checkpoint.config_file import config_error
from hocket.checkpoint.files import read_small
from hocket.checkpoint.weights import WeightEntry, load_weights
from hocket.core import SamplingFields
from hocket.errors import CheckpointError, ConfigError
from hocket.kernels.types import DrawParams
from hocket.models.family import LoadedTalker, TalkerPlan
from hocket.models.qwen3_tts.config import Qwen3TtsConfig
from hocket.models.qwen3_tts.prompt import Qwen3TtsPrompt
from hocket.models.qwen3_tts.speaker import SpeakerConfig, SpeakerEncoder, speaker_weight_table
from hocket.models.qwen3_tts.talker import Qwen3TtsTalker
from hocket.models.qwen3_tts.weights import talker_weight_table
from hocket.models.qwen3_tts.workload import CustomVoicePrompt
from hocket.models.sampling import ResolvedSampling
from hocket.text.tokenizer import TextTokenizer

#: Names in a report, by the first part of a parameter's path.
_PARTS = {
    "text_embedding": "text_embedding",
    "text_fc1": "text_projection",
    "text_fc2": "text_projection",
    "codec_embedding": "codec_embedding",
    "backbone": "backbone",
    "code_head": "code_head",
    "predictor": "code_predictor",
    "speaker_encoder": "speaker_encoder",
}


class Qwen3TtsModel(nn.Module):
    """All modules of a checkpoint's file: the talker, and in a base checkpoint the speaker
    encoder.
    """

    def __init__(self, config: Qwen3TtsConfig, speaker: SpeakerConfig | None) -> None:
        super().__init__()
        self.talker = Qwen3TtsTalker(config)
        self.speaker_encoder = None if speaker is None else SpeakerEncoder(speaker)


def talker_plan(raw: Mapping[str, object], dtype: torch.dtype) -> TalkerPlan:
    """Plan the talker of a config.json at `dtype`; the speaker encoder is float32. Raises
    ConfigError.
    """
    config = Qwen3TtsConfig.from_dict(raw)
    speaker = _speaker_config(config)
    talker_table = talker_weight_table(config, dtype)
    speaker_table = (
        [] if speaker is None else list(speaker_weight_table(speaker, "speaker_encoder."))
    )

    def load(folder: Path, device: torch.device) -> LoadedTalker:
        control_ids = {
            *(config.im_start_token_id, config.im_end_token_id),
            *(config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id),
        }
        tokenizer = TextTokenizer.load(
            folder, vocab_size=config.text_vocab_size, reserved=control_ids
        )
        sampling = recommended_sampling(folder)
        with torch.device("meta"):
            model = Qwen3TtsModel(config, speaker)
        load_weights(
            model, folder, [*_inside("talker.", talker_table), *speaker_table], device=device
        )
        model.talker.finalize()
        model.eval()
        prompt = Qwen3TtsPrompt(config, tokenizer)
        return LoadedTalker(model.talker, prompt, sampling, voice_encoder=model.speaker_encoder)

    return TalkerPlan(
        config=config,
        weight_table=[*talker_table, *speaker_table],
        build=partial(Qwen3TtsTalker, config),
        load=load,
        sampling=_SAMPLING,
        workload_prompt=partial(CustomVoicePrompt, config),
        parts=_PARTS,
        facts={
            "task_type": config.task_type,
            "takes_instructions": "yes" if config.takes_instructions else "no",
            "text_vocabulary": config.text_vocab_size,
            "backbone_shape": config.backbone.description,
            "predictor_shape": config.predictor.description,
        },
    )


#: The official call's own values, which `generation_config.json` overrides (sources: Qwen3 7).
_SAMPLING = ResolvedSampling(
    codes=DrawParams(temperature=0.9, top_k=50, repetition_penalty=1.05),
    predictor=DrawParams(temperature=0.9, top_k=50),
)


def _official_name(field: str) -> str:
    return field.replace("predictor_", "subtalker_")


class _GenerationFile(SamplingFields):
    """`generation_config.json`, whose names for the predictor begin with `subtalker_`."""

    model_config = ConfigDict(extra="ignore", alias_generator=_official_name)

    do_sample: bool = True
    predictor_dosample: bool = True
    max_new_tokens: Annotated[int, Field(ge=2)] | None = None


def recommended_sampling(folder: Path) -> ResolvedSampling:
    """The values of `generation_config.json`, and the authors' where it says nothing.

    Raises ConfigError for a value out of range, CheckpointError for a file that cannot be read.
    """
    path = folder / "generation_config.json"
    try:
        raw = json.loads(read_small(path)) if path.exists() else {}
        file = _GenerationFile.model_validate(raw)
    except ValidationError as error:
        raise config_error(error, path.name) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{str(path)!r} cannot be read as JSON; download the checkpoint again"
        ) from error
    sampling = _SAMPLING.recommended(file)
    assert sampling.predictor is not None
    return replace(
        sampling,
        codes=sampling.codes if file.do_sample else replace(sampling.codes, temperature=0.0),
        predictor=sampling.predictor
        if file.predictor_dosample
        else replace(sampling.predictor, temperature=0.0),
        # The last token gets no frame (sources: Qwen3 5).
        max_frames=None if file.max_new_tokens is None else file.max_new_tokens - 1,
    )


def _speaker_config(config: Qwen3TtsConfig) -> SpeakerConfig | None:
    if config.speaker_encoder is None:
        return None
    speaker = SpeakerConfig.from_dict(config.speaker_encoder)
    if speaker.enc_dim != config.hidden_size or speaker.sample_rate != config.sampling_rate:
        raise ConfigError(
            f"config.json: the speaker encoder makes {speaker.enc_dim} numbers of audio at "
            f"{speaker.sample_rate} Hz, and the talker takes {config.hidden_size} of "
            f"{config.sampling_rate} Hz",
            param="speaker_encoder_config",
        )
    return speaker


def _inside(prefix: str, table: list[WeightEntry]) -> list[WeightEntry]:
    return [
        WeightEntry(prefix + entry.parameter, entry.names, entry.shape, entry.dtype)
        for entry in table
    ]
