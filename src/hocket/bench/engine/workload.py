"""The workload of `hocket bench engine`: voices, prompts and lengths as Seed-TTS EN has them, codes at random."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hocket.core import PromptRows, ReferenceNeeds, SpeechRequest
from hocket.errors import ConfigError
from hocket.models.family import PromptBuilder, TalkerConfig
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.qwen3_tts.config import Qwen3TtsConfig

#: Text ids are drawn from the first so many: ordinary words in every vocabulary.
_WORD_IDS = 1000


@dataclass(frozen=True, slots=True)
class Spoken:
    """One request: the rows of its text, the voice's codes, and the frames to be made."""

    text_rows: int
    #: int64 [F, N]: the recording that is continued; None: a voice of the model's own speaks.
    codes: NDArray[np.int64] | None
    frames: int
    #: Prompt rows that every request of the family has.
    template_rows: int

    @property
    def prompt_rows(self) -> int:
        return self.template_rows + self.text_rows + (0 if self.codes is None else len(self.codes))

    def request(self, seed: int | None, *, ignore_stop: bool) -> SpeechRequest:
        """For the engine; `ignore_stop` makes it exactly `frames` long."""
        is_continuation = self.codes is not None
        return SpeechRequest(
            text="x" * self.text_rows,
            text_front=False,
            reference=self.codes,
            reference_text="x" if is_continuation else None,
            join="" if is_continuation else None,
            seed=seed,
            max_frames=self.frames,
            min_frames=self.frames if ignore_stop else 0,
        )


class WorkloadPrompt(PromptBuilder, Protocol):
    """Prompts with as many rows as the workload says, without a tokenizer.

    Text ids are drawn by the request's seed, so that two texts share no more pages than two real ones would: those of
    the template.
    """

    #: Prompt rows that are no text and no recording.
    template_rows: ClassVar[int]
    #: Whether a request continues its voice's recording.
    continues: ClassVar[bool]


class ContinuationPrompt:
    """MOSS-TTS-Local: template, text, then the recording's frames (spec/moss 1.7)."""

    #: 85 text rows are usual (spec/moss 4.3), of which this workload's texts have 27.
    template_rows: ClassVar[int] = 58
    takes = frozenset({"join"})
    continues: ClassVar[bool] = True

    def __init__(self, config: MossLocalConfig) -> None:
        self._config = config
        self._template = _words(0, self.template_rows, config.vocab_size)

    def needs(self, request: SpeechRequest) -> ReferenceNeeds:
        return ReferenceNeeds(codes=True, voice=False)

    def build(
        self,
        request: SpeechRequest,
        references: Sequence[NDArray[np.int64]],
        voices: Sequence[NDArray[np.float32]] = (),
    ) -> PromptRows:
        config = self._config
        (prefix_FN,) = references
        text = np.concatenate([self._template, _words(request.seed, len(request.text), config.vocab_size)])
        rows = np.full((len(text), 1 + config.n_vq), config.audio_pad_code, np.int64)
        rows[:, 0] = text
        audio = np.insert(prefix_FN, 0, config.audio_assistant_slot_token_id, axis=1)
        return PromptRows(np.concatenate([rows, audio]), prefix_FN)


class CustomVoicePrompt:
    """Qwen3-TTS: the model's first speaker, the language left to it, the whole text up front (spec/qwen3 4)."""

    #: Role 3, tags 3, speaker, pad; after the text its end and the codec's begin.
    template_rows: ClassVar[int] = 10
    takes: ClassVar[frozenset[str]] = frozenset()
    continues: ClassVar[bool] = False

    def __init__(self, config: Qwen3TtsConfig) -> None:
        """Raises ConfigError for a checkpoint that takes its voice from elsewhere."""
        if config.kind != "custom_voice" or not config.speakers:
            raise ConfigError(
                f"this is a {config.task_type} checkpoint, and the workload is for speakers by name; "
                "give a CustomVoice checkpoint"
            )
        self._config = config
        self._speaker = next(iter(config.speakers.values()))

    def needs(self, request: SpeechRequest) -> ReferenceNeeds:
        return ReferenceNeeds(codes=False, voice=False)

    def build(
        self,
        request: SpeechRequest,
        references: Sequence[NDArray[np.int64]],
        voices: Sequence[NDArray[np.float32]] = (),
    ) -> PromptRows:
        config = self._config
        words = _words(request.seed, len(request.text), config.im_start_token_id)
        role = [config.im_start_token_id, *_words(0, 2, config.im_start_token_id)]
        text = [*role, *[config.tts_pad_token_id] * 4, config.tts_bos_token_id]
        text += [*words, config.tts_eos_token_id, config.tts_pad_token_id]
        codec = [*[config.no_code] * 3, config.codec_nothink_id, config.codec_think_bos_id, config.codec_think_eos_id]
        codec += [self._speaker, *[config.codec_pad_id] * (len(words) + 2), config.codec_bos_id]
        rows = np.full((len(text), 1 + config.n_vq), config.no_code, np.int64)
        rows[:, 0], rows[:, 1] = text, codec
        return PromptRows(rows, np.empty((0, config.n_vq), np.int64))


#: How each family is asked, by its talker's configuration.
_PROMPTS: Mapping[type, Callable[[Any], WorkloadPrompt]] = {
    MossLocalConfig: ContinuationPrompt,
    Qwen3TtsConfig: CustomVoicePrompt,
}


def workload_prompt(config: TalkerConfig) -> WorkloadPrompt:
    """The prompts of a talker's family. Raises ConfigError for a checkpoint that cannot speak the workload."""
    return _PROMPTS[type(config)](config)


def read_workload(config: TalkerConfig, seed: int) -> list[Spoken]:
    """The packaged workload as the family speaks it, codes drawn from `seed`. Errors as for `workload_prompt`."""
    file = resources.files("hocket.bench") / "data" / "workload_en1088_like.json"
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    prompt, random = workload_prompt(config), np.random.default_rng(seed)
    entries = min(config.audio_codebook_sizes)
    voices = [random.integers(0, entries, (frames, config.n_vq)) for frames in document["reference_frames"]]
    return [
        Spoken(text_rows, voices[voice] if prompt.continues else None, frames, prompt.template_rows)
        for voice, text_rows, frames in document["requests"]
    ]


def _words(seed: int | None, count: int, vocabulary: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, min(_WORD_IDS, vocabulary), count)
