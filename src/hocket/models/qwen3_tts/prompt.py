"""Builds the prompt of a request: rows of a text id and codec ids (sources: Qwen3 4)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hocket.core import PromptRows, ReferenceNeeds, SpeechRequest
from hocket.errors import InvalidRequestError
from hocket.models.family import checked_codes, checked_voice
from hocket.models.qwen3_tts.config import Qwen3TtsConfig
from hocket.text.tokenizer import TextTokenizer

_LOG = logging.getLogger("hocket")

#: Number of ids at the start of a turn (its start, "assistant", a line break), and after the text
#: of an assistant string and of a reference string. The official code cuts by position (sources:
#: Qwen3 4).
_ROLE_IDS = 3
_TAIL_IDS = 5
_REFERENCE_TAIL_IDS = 2

Ids = list[int]


@dataclass(frozen=True, slots=True)
class _Content:
    """The last rows of a prompt, and the text ids beside the first new frames."""

    rows: NDArray[np.int64]
    frame_texts: Ids


class Qwen3TtsPrompt:
    """Builds prompts; holds what never changes between requests."""

    takes = frozenset({"language", "instruction", "task_type", "streaming_text"})

    def __init__(self, config: Qwen3TtsConfig, tokenizer: TextTokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer

    def needs(self, request: SpeechRequest) -> ReferenceNeeds:
        """The parts of the reference that `build` needs. Raises InvalidRequestError for what this
        checkpoint cannot do.
        """
        config = self._config
        task = config.task_type
        if request.task_type not in (None, task):
            raise InvalidRequestError(
                f"task_type is {request.task_type}, and this checkpoint is for {task}; leave it "
                "out, or load another",
                param="task_type",
            )
        if config.kind == "base" and request.instruction:
            raise InvalidRequestError(
                "a Base checkpoint takes no instruction; leave it out", param="instruction"
            )
        if config.kind == "base" and len(request.references) != 1:
            raise InvalidRequestError(
                "a Base checkpoint speaks with the voice of one recording, got "
                f"{len(request.references)}; give one as the reference",
                param="reference",
            )
        if config.kind != "base" and request.references:
            raise InvalidRequestError(
                f"a {task} checkpoint takes no reference; leave it out, or load a Base checkpoint",
                param="reference",
            )
        self._language_id(request)
        self._speaker_id(request)
        return ReferenceNeeds(codes=request.is_continuation, voice=True)

    def build(
        self,
        request: SpeechRequest,
        references: Sequence[NDArray[np.int64]],
        voices: Sequence[NDArray[np.float32]] = (),
    ) -> PromptRows:
        """Build the rows of `request`.

        `references` [F, N] and `voices` [D] are the codes and the vector that `needs` asked for.

        Raises InvalidRequestError as `needs` does.
        """
        self.needs(request)
        config = self._config
        turn = self._assistant_ids(request.text)
        body = turn[_ROLE_IDS:-_TAIL_IDS]
        if not body:
            raise InvalidRequestError(
                "the text has no token of its own; give some words", param="text"
            )
        no_codes = np.empty((0, config.n_vq), np.int64)
        codes_FN = no_codes
        if request.is_continuation:
            sizes = config.audio_codebook_sizes
            codes_FN = checked_codes(references[0], 1, config.n_vq, sizes)
        is_streaming = request.streaming_text
        if is_streaming is None:
            is_streaming = config.kind == "base"
        if request.is_continuation:
            assert request.reference_text is not None
            text = (
                self._reference_ids(request.reference_text)[_ROLE_IDS:-_REFERENCE_TAIL_IDS] + body
            )
            content = self._in_context(text, codes_FN, is_streaming)
        elif is_streaming:
            content = _Content(
                self._rows(body[:1], config.codec_bos_id), [*body[1:], config.tts_eos_token_id]
            )
        else:
            content = _Content(self._whole(body), [])
        rows = [self._text_rows(self._instruction_ids(request)), self._text_rows(turn[:_ROLE_IDS])]
        rows += [self._control(request), content.rows]
        voice = np.empty(0, np.float32)
        if config.voice_size:
            voice = checked_voice(voices[0], config.voice_size)
        return PromptRows(
            np.concatenate(rows), codes_FN, np.array(content.frame_texts, np.int64), voice
        )

    # ---- text

    def _assistant_ids(self, text: str) -> Ids:
        # The text between two control tokens is one piece, since officially the string is joined
        # first.
        config, encode = self._config, self._tokenizer.encode
        opening = [
            config.im_start_token_id,
            *encode("assistant\n" + text),
            config.im_end_token_id,
            *encode("\n"),
        ]
        return [*opening, config.im_start_token_id, *encode("assistant\n")]

    def _reference_ids(self, text: str) -> Ids:
        config, encode = self._config, self._tokenizer.encode
        return [
            config.im_start_token_id,
            *encode("assistant\n" + text),
            config.im_end_token_id,
            *encode("\n"),
        ]

    def _instruction_ids(self, request: SpeechRequest) -> Ids:
        config, encode = self._config, self._tokenizer.encode
        if not request.instruction:
            return []
        if not config.takes_instructions:
            _LOG.warning("event=instruction_left_out reason=the 0.6B checkpoints read none")
            return []
        instruction = encode("user\n" + request.instruction)
        return [config.im_start_token_id, *instruction, config.im_end_token_id, *encode("\n")]

    # ---- control rows

    def _control(self, request: SpeechRequest) -> NDArray[np.int64]:
        """Language tags, the speaker and the pad.

        The text column has the begin of text beside the pad, and text pads beside the others.
        """
        config = self._config
        language, speaker = self._language_id(request), self._speaker_id(request)
        if language is None:
            codec = [config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id]
        else:
            codec = [
                config.codec_think_id,
                config.codec_think_bos_id,
                language,
                config.codec_think_eos_id,
            ]
        if config.kind == "base":
            speaker = config.voice_code
        codec += [config.codec_pad_id] if speaker is None else [speaker, config.codec_pad_id]
        rows = self._rows([config.tts_pad_token_id] * len(codec), codec)
        rows[-1, 0] = config.tts_bos_token_id
        return rows

    def _language_id(self, request: SpeechRequest) -> int | None:
        """Codec id of the language; None lets the model guess. Only its speaker selects a
        dialect.
        """
        config = self._config
        name = (request.language or "auto").lower()
        dialect = config.dialects.get((request.voice or "").lower())
        if dialect is not None and name in ("auto", "chinese"):
            return config.languages[dialect]
        if name == "auto":
            return None
        if name not in config.languages or "dialect" in name:
            known = ", ".join(
                sorted(language for language in config.languages if "dialect" not in language)
            )
            raise InvalidRequestError(
                f"language is {request.language!r}; this model knows auto, {known}",
                param="language",
            )
        return config.languages[name]

    def _speaker_id(self, request: SpeechRequest) -> int | None:
        config = self._config
        known = ", ".join(sorted(config.speakers))
        if config.kind != "custom_voice":
            if request.voice is not None:
                raise InvalidRequestError(
                    f"a {config.task_type} checkpoint has no voices by name; leave voice out",
                    param="voice",
                )
            return None
        if request.voice is None:
            raise InvalidRequestError(
                f"a CustomVoice checkpoint needs a voice; it has {known}", param="voice"
            )
        if request.voice.lower() not in config.speakers:
            raise InvalidRequestError(
                f"there is no voice {request.voice!r}; this model has {known}", param="voice"
            )
        return config.speakers[request.voice.lower()]

    # ---- content rows

    def _whole(self, body: Ids) -> NDArray[np.int64]:
        config = self._config
        text = self._rows([*body, config.tts_eos_token_id], config.codec_pad_id)
        return np.concatenate([text, self._rows([config.tts_pad_token_id], config.codec_bos_id)])

    def _in_context(self, text: Ids, codes_FN: NDArray[np.int64], is_streaming: bool) -> _Content:
        """Text and the recording's frames: side by side when streaming, else one after the
        other.
        """
        config = self._config
        text = [*text, config.tts_eos_token_id]
        audio = np.concatenate([self._rows([0], config.codec_bos_id)[:, 1:], codes_FN])
        if not is_streaming:
            pads = np.full(len(audio), config.tts_pad_token_id)
            spoken = np.column_stack([pads, audio])
            return _Content(np.concatenate([self._rows(text, config.codec_pad_id), spoken]), [])
        beside = [*text, *[config.tts_pad_token_id] * (len(audio) - len(text))]
        return _Content(np.column_stack([beside[: len(audio)], audio]), text[len(audio) :])

    # ---- rows

    def _text_rows(self, ids: Ids) -> NDArray[np.int64]:
        return self._rows(ids, self._config.no_code)

    def _rows(self, text: Ids, codec: int | Ids) -> NDArray[np.int64]:
        """Rows [len(text), 1 + N] with one codec id for all, or one for each."""
        rows = np.full((len(text), 1 + self._config.n_vq), self._config.no_code, np.int64)
        rows[:, 0] = text
        rows[:, 1] = codec
        return rows
