"""Reads and checks the `config.json` of a Qwen3-TTS (12 Hz) checkpoint (sources: Qwen3 1 -
3, 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import ValidationError, model_validator

from hocket.checkpoint.config_file import Id, Layers, Section, Size, config_error
from hocket.core import TaskType, VoiceTraits
from hocket.errors import ConfigError
from hocket.models.layers.qwen3_config import Qwen3BackboneConfig, Qwen3Section, Qwen3TalkerConfig

MODEL_TYPE = "qwen3_tts"
TOKENIZER_TYPE = "qwen3_tts_tokenizer_12hz"
#: Number of ids at the end of the codec vocabulary that are control ids, languages and speakers.
#: The ids below them are codes of codebook 0.
CONTROL_IDS = 1024
#: Sample rate of the 12 Hz codec's audio in Hz; the talker's file does not state it.
SAMPLING_RATE = 24_000
#: Frames before the first possible stop: `min_new_tokens` of the official call.
MIN_FRAMES = 2

#: Source of the voice that a checkpoint was trained for: a recording, a name, a description.
Kind = Literal["base", "custom_voice", "voice_design"]


_TASK_TYPES: dict[Kind, TaskType] = {
    "base": "Base",
    "custom_voice": "CustomVoice",
    "voice_design": "VoiceDesign",
}

ValueT = TypeVar("ValueT")


class _Predictor(Qwen3Section):
    vocab_size: Size
    num_code_groups: Layers


class _Talker(Qwen3Section):
    vocab_size: Size
    text_vocab_size: Size
    text_hidden_size: Size
    num_code_groups: Layers
    code_predictor_config: _Predictor
    codec_pad_id: Id
    codec_bos_id: Id
    codec_eos_token_id: Id
    codec_think_id: Id
    codec_nothink_id: Id
    codec_think_bos_id: Id
    codec_think_eos_id: Id
    codec_language_id: dict[str, Id]
    spk_id: dict[str, Id] | None = None
    #: The dialect's name among the languages, or false.
    spk_is_dialect: dict[str, str | Literal[False]] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> _Talker:
        groups = self.code_predictor_config.num_code_groups
        if groups != self.num_code_groups:
            raise ValueError(
                f"num_code_groups is {self.num_code_groups}, but the code predictor's is {groups}"
            )
        if groups < 2:
            raise ValueError(f"num_code_groups is {groups}; a code predictor needs at least 2")
        return self


class _File(Section):
    tokenizer_type: Literal["qwen3_tts_tokenizer_12hz"]
    tts_model_size: str
    tts_model_type: Kind
    im_start_token_id: Id
    im_end_token_id: Id
    tts_pad_token_id: Id
    tts_bos_token_id: Id
    tts_eos_token_id: Id
    talker_config: _Talker
    speaker_encoder_config: dict[str, Any] | None = None


class Qwen3TtsConfig(Qwen3TalkerConfig):
    """Dimensions and ids of one Qwen3-TTS talker."""

    kind: Kind
    #: Whether instructions are read; the 0.6B checkpoints were trained without them (sources: Qwen3
    #: 1).
    takes_instructions: bool
    predictor: Qwen3BackboneConfig

    #: Rows and width of the text embedding, before the projection to the backbone's width.
    text_vocab_size: Size
    text_hidden_size: Size
    #: Rows of the codec embedding and of the first codebook's head: codes, then control ids.
    codec_vocab_size: Size

    im_start_token_id: Id
    im_end_token_id: Id
    tts_pad_token_id: Id
    tts_bos_token_id: Id
    tts_eos_token_id: Id
    codec_pad_id: Id
    codec_bos_id: Id
    codec_eos_id: Id
    codec_think_id: Id
    codec_nothink_id: Id
    codec_think_bos_id: Id
    codec_think_eos_id: Id
    #: Language ids by lower-case name, dialects included.
    languages: dict[str, Id]
    #: Codec ids by lower-case name; empty unless the kind is custom_voice.
    speakers: dict[str, Id]
    #: Name of the dialect among the languages, by speaker.
    dialects: dict[str, str]

    #: Section of the speaker encoder (sources: Qwen3 8); None where the voice is not cloned.
    speaker_encoder: dict[str, Any] | None

    @model_validator(mode="after")
    def _ids_fit(self) -> Qwen3TtsConfig:
        text_ids = {
            *(self.im_start_token_id, self.im_end_token_id),
            *(self.tts_pad_token_id, self.tts_bos_token_id, self.tts_eos_token_id),
        }
        if max(text_ids) >= self.text_vocab_size:
            raise ValueError(
                f"the id {max(text_ids)} lies outside the text vocabulary of {self.text_vocab_size}"
            )
        codec_ids = {
            *(
                self.codec_pad_id,
                self.codec_bos_id,
                self.codec_eos_id,
                self.codec_think_id,
                self.codec_nothink_id,
            ),
            *(
                self.codec_think_bos_id,
                self.codec_think_eos_id,
                *self.languages.values(),
                *self.speakers.values(),
            ),
        }
        if max(codec_ids) >= self.codec_vocab_size:
            raise ValueError(
                f"the id {max(codec_ids)} lies outside the codec vocabulary of "
                f"{self.codec_vocab_size}"
            )
        if self.codec_eos_id < self.audio_codebook_sizes[0]:
            raise ValueError(
                f"codec_eos_token_id {self.codec_eos_id} is a code of the first codebook"
            )
        unknown = sorted(set(self.dialects.values()) - self.languages.keys())
        if unknown:
            raise ValueError(
                f"spk_is_dialect names {unknown[0]!r}, which codec_language_id does not have"
            )
        return self

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Qwen3TtsConfig:
        """Read the parsed `config.json`.

        Raises ConfigError naming the key when the file is another model's, lacks a key,
        contradicts itself or asks for something that is not implemented.
        """
        model_type, tokenizer_type = raw.get("model_type"), raw.get("tokenizer_type")
        if model_type != MODEL_TYPE:
            raise ConfigError(
                f"config.json has model_type {model_type!r}, not {MODEL_TYPE!r}; give a Qwen3-TTS "
                "checkpoint",
                param="model_type",
            )
        if tokenizer_type != TOKENIZER_TYPE:
            raise ConfigError(
                f"config.json has tokenizer_type {tokenizer_type!r}, not {TOKENIZER_TYPE!r}; "
                "give a 12 Hz checkpoint, such as Qwen/Qwen3-TTS-12Hz-0.6B-Base",
                param="tokenizer_type",
            )
        try:
            return cls._from_file(_File.model_validate(raw))
        except ValidationError as error:
            raise config_error(error) from None

    @classmethod
    def _from_file(cls, file: _File) -> Qwen3TtsConfig:
        talker, predictor = file.talker_config, file.talker_config.code_predictor_config
        if talker.vocab_size <= CONTROL_IDS:
            raise ConfigError(
                f"config.json: talker_config.vocab_size is {talker.vocab_size}; the last "
                f"{CONTROL_IDS} ids are no codes, so it must be larger",
                param="talker_config.vocab_size",
            )
        is_base = file.tts_model_type == "base"
        if is_base and file.speaker_encoder_config is None:
            raise ConfigError(
                "config.json: speaker_encoder_config is missing; a base checkpoint cannot be "
                "without",
                param="speaker_encoder_config",
            )
        return cls(
            kind=file.tts_model_type,
            takes_instructions=not is_base and file.tts_model_size != "0b6",
            backbone=talker.dimensions,
            predictor=predictor.dimensions,
            text_vocab_size=talker.text_vocab_size,
            text_hidden_size=talker.text_hidden_size,
            codec_vocab_size=talker.vocab_size,
            audio_codebook_sizes=(talker.vocab_size - CONTROL_IDS,)
            + (predictor.vocab_size,) * (talker.num_code_groups - 1),
            max_positions=talker.max_position_embeddings,
            im_start_token_id=file.im_start_token_id,
            im_end_token_id=file.im_end_token_id,
            tts_pad_token_id=file.tts_pad_token_id,
            tts_bos_token_id=file.tts_bos_token_id,
            tts_eos_token_id=file.tts_eos_token_id,
            codec_pad_id=talker.codec_pad_id,
            codec_bos_id=talker.codec_bos_id,
            codec_eos_id=talker.codec_eos_token_id,
            codec_think_id=talker.codec_think_id,
            codec_nothink_id=talker.codec_nothink_id,
            codec_think_bos_id=talker.codec_think_bos_id,
            codec_think_eos_id=talker.codec_think_eos_id,
            languages=_lower(talker.codec_language_id),
            speakers=_lower(talker.spk_id or {}),
            dialects={
                name: dialect
                for name, dialect in _lower(talker.spk_is_dialect or {}).items()
                if dialect
            },
            # Files of the other kinds have the section too, but no weights for it.
            speaker_encoder=file.speaker_encoder_config if is_base else None,
        )

    @property
    def sampling_rate(self) -> int:
        return SAMPLING_RATE

    @property
    def no_code(self) -> int:
        """Code that adds nothing to a prompt row; outside the codec vocabulary."""
        return self.codec_vocab_size

    @property
    def voice_code(self) -> int:
        """Code, in the first codebook's column, of the prompt row that the voice vector is added
        to.
        """
        return self.codec_vocab_size + 1

    @property
    def frame_text_id(self) -> int:
        """Text id of the frames for which the prompt gives none."""
        return self.tts_pad_token_id

    @property
    def voice_size(self) -> int:
        """Width of a voice vector; 0 where the voice is not cloned."""
        return self.hidden_size if self.kind == "base" else 0

    @property
    def task_type(self) -> TaskType:
        """The authors' name of `kind`."""
        return _TASK_TYPES[self.kind]

    @property
    def voice_traits(self) -> VoiceTraits:
        """Recordings keep their loudness (sources: Qwen3 4)."""
        return VoiceTraits(
            self.task_type, hears_recordings=self.kind == "base", levels_references=False
        )

    @property
    def projects_to_predictor(self) -> bool:
        """Whether the predictor's inputs are projected to its width (sources: Qwen3 6)."""
        return self.backbone.hidden_size != self.predictor.hidden_size


def _lower(by_name: Mapping[str, ValueT]) -> dict[str, ValueT]:
    return {name.lower(): value for name, value in by_name.items()}


read_config = Qwen3TtsConfig.from_dict
