"""Reads and checks the `config.json` of a MOSS-TTS-Local checkpoint (sources: MOSS 1.1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from hocket.checkpoint.config_file import (
    Id,
    Layers,
    PositiveFloat,
    Section,
    Size,
    config_error,
    same,
)
from hocket.core import VoiceTraits
from hocket.errors import ConfigError
from hocket.models.layers.qwen3_config import Qwen3Section, Qwen3TalkerConfig

MODEL_TYPE = "moss_tts_local"


class _Backbone(Qwen3Section):
    model_type: Literal["qwen3"] = "qwen3"
    vocab_size: Size


class _Depth(Section):
    n_embd: Size
    n_layer: Layers = 12
    n_head: Size
    #: The official class takes 4 * n_embd when it is missing.
    n_inner: Size | None = None
    activation_function: Literal["silu"]
    layer_norm_epsilon: PositiveFloat
    #: Required: the official class would take learned absolute positions when it is missing.
    position_embedding_type: Literal["rope"]
    rope_base: PositiveFloat = 1e4
    scale_attn_weights: Literal[True] = True
    scale_attn_by_inverse_layer_idx: Literal[False] = False

    @model_validator(mode="after")
    def _consistent(self) -> _Depth:
        if self.n_embd % (2 * self.n_head):
            raise ValueError(
                f"{self.n_embd} channels do not split into {self.n_head} heads of an even size"
            )
        return self


class _File(Section):
    qwen3_config: _Backbone | None = None
    language_config: _Backbone | None = None
    gpt2_config: _Depth
    hidden_size: Size | None = None
    local_hidden_size: Size | None = None
    vocab_size: Size | None = None
    local_transformer_layers: Layers | None = None
    local_text_head_mode: Literal["binary"]
    tie_word_embeddings: Literal[True] = True
    n_vq: Layers
    audio_vocab_size: Size
    audio_codebook_sizes: list[Size] | None = None
    audio_pad_token_id: Id | None = None
    audio_pad_code: Id | None = None
    pad_token_id: Id
    im_start_token_id: Id
    im_end_token_id: Id
    audio_start_token_id: Id
    audio_end_token_id: Id
    audio_user_slot_token_id: Id
    audio_assistant_slot_token_id: Id
    #: The generation slot is the assistant slot under a second name.
    audio_assistant_gen_slot_token_id: Id | None = None
    sampling_rate: Size
    audio_tokenizer_name_or_path: str | None = None

    @property
    def backbone(self) -> _Backbone:
        backbone = self.qwen3_config or self.language_config
        assert backbone is not None  # _consistent
        return backbone

    @model_validator(mode="after")
    def _consistent(self) -> _File:
        if self.qwen3_config is None and self.language_config is None:
            raise ValueError("qwen3_config is missing (and so is its other name, language_config)")
        same("qwen3_config and language_config", self.qwen3_config, self.language_config)
        size = self.backbone.hidden_size
        same("hidden_size and qwen3_config.hidden_size", self.hidden_size, size)
        same("local_hidden_size and qwen3_config.hidden_size", self.local_hidden_size, size)
        same("gpt2_config.n_embd and qwen3_config.hidden_size", self.gpt2_config.n_embd, size)
        same("vocab_size and qwen3_config.vocab_size", self.vocab_size, self.backbone.vocab_size)
        same("audio_pad_token_id and audio_pad_code", self.audio_pad_token_id, self.audio_pad_code)
        slots = self.audio_assistant_gen_slot_token_id, self.audio_assistant_slot_token_id
        same("audio_assistant_gen_slot_token_id and audio_assistant_slot_token_id", *slots)
        return self


@dataclass(frozen=True, slots=True)
class DepthConfig:
    """Dimensions of a depth transformer of `positions` steps."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    norm_eps: float
    rope_base: float
    positions: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


class MossLocalConfig(Qwen3TalkerConfig):
    """Dimensions and ids of one MOSS-TTS-Local model."""

    depth: DepthConfig

    #: Rows of the text embedding.
    vocab_size: Size
    #: A code outside all codebooks, without an embedding.
    audio_pad_code: Id

    pad_token_id: Id
    im_start_token_id: Id
    im_end_token_id: Id
    audio_start_token_id: Id
    audio_end_token_id: Id
    #: Text column of reference frames.
    audio_user_slot_token_id: Id
    #: Text column of generated frames and of the recording that they continue.
    audio_assistant_slot_token_id: Id

    #: Sample rate of the codec's audio in Hz.
    sampling_rate: Size
    #: The codec that the checkpoint names: a hub name or a path.
    audio_tokenizer_name_or_path: str | None

    @model_validator(mode="after")
    def _consistent(self) -> MossLocalConfig:
        if self.audio_pad_code < max(self.audio_codebook_sizes):
            raise ValueError(
                f"the pad code {self.audio_pad_code} is a code of a codebook of "
                f"{max(self.audio_codebook_sizes)}; "
                "it must lie outside"
            )
        ids = (
            *(self.pad_token_id, self.im_start_token_id, self.im_end_token_id),
            *(self.audio_start_token_id, self.audio_end_token_id),
            *(self.audio_user_slot_token_id, self.audio_assistant_slot_token_id),
        )
        if max(ids) >= self.vocab_size:
            raise ValueError(
                f"the special id {max(ids)} lies outside the text vocabulary of {self.vocab_size}"
            )
        return self

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> MossLocalConfig:
        """Read the parsed `config.json`.

        Raises ConfigError naming the key when the file is another model's, lacks a key,
        contradicts itself or asks for something that is not implemented.
        """
        model_type = raw.get("model_type")
        if model_type != MODEL_TYPE:
            raise ConfigError(
                f"config.json has model_type {model_type!r}, not {MODEL_TYPE!r}; give a "
                "MOSS-TTS-Local v1.5 checkpoint",
                param="model_type",
            )
        try:
            return cls._from_file(_File.model_validate(raw))
        except ValidationError as error:
            raise config_error(error) from None

    @classmethod
    def _from_file(cls, file: _File) -> MossLocalConfig:
        sizes = file.audio_codebook_sizes or [file.audio_vocab_size] * file.n_vq
        if len(sizes) != file.n_vq:
            raise ConfigError(
                f"config.json: audio_codebook_sizes lists {len(sizes)} codebooks, but n_vq is "
                f"{file.n_vq}",
                param="audio_codebook_sizes",
            )
        pad_code = (
            file.audio_pad_token_id if file.audio_pad_token_id is not None else file.audio_pad_code
        )
        if pad_code is None:
            raise ConfigError(
                "config.json: audio_pad_token_id is missing", param="audio_pad_token_id"
            )
        backbone, depth = file.backbone, file.gpt2_config
        return cls(
            backbone=backbone.dimensions,
            depth=DepthConfig(
                hidden_size=depth.n_embd,
                layers=file.local_transformer_layers or depth.n_layer,
                heads=depth.n_head,
                intermediate_size=depth.n_inner or 4 * depth.n_embd,
                norm_eps=depth.layer_norm_epsilon,
                rope_base=depth.rope_base,
                positions=file.n_vq,
            ),
            vocab_size=backbone.vocab_size,
            max_positions=backbone.max_position_embeddings,
            audio_codebook_sizes=tuple(sizes),
            audio_pad_code=pad_code,
            pad_token_id=file.pad_token_id,
            im_start_token_id=file.im_start_token_id,
            im_end_token_id=file.im_end_token_id,
            audio_start_token_id=file.audio_start_token_id,
            audio_end_token_id=file.audio_end_token_id,
            audio_user_slot_token_id=file.audio_user_slot_token_id,
            audio_assistant_slot_token_id=file.audio_assistant_slot_token_id,
            sampling_rate=file.sampling_rate,
            audio_tokenizer_name_or_path=file.audio_tokenizer_name_or_path,
        )

    @property
    def frame_text_id(self) -> int:
        """Text column of generated frames."""
        return self.audio_assistant_slot_token_id

    @property
    def voice_size(self) -> int:
        """0: the voice comes as codes alone."""
        return 0

    @property
    def speakers(self) -> Collection[str]:
        """Every voice comes from a recording."""
        return ()

    @property
    def voice_traits(self) -> VoiceTraits:
        """Recordings are brought to about one loudness (sources: MOSS 1.8)."""
        return VoiceTraits()


read_config = MossLocalConfig.from_dict
