"""Prompts for benchmarks: a speaker of the model's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hocket.core import PromptRows, ReferenceNeeds, SpeechRequest
from hocket.errors import ConfigError
from hocket.models.family import WorkloadPrompt
from hocket.models.qwen3_tts.config import Qwen3TtsConfig


class CustomVoicePrompt(WorkloadPrompt):
    """The model's first speaker, the language left to it, the whole text up front (sources: Qwen3
    4).
    """

    #: Three rows of the role, three tags, speaker, pad; after the text its end and the codec's
    #: begin.
    template_rows: ClassVar[int] = 10
    continues: ClassVar[bool] = False

    def __init__(self, config: Qwen3TtsConfig) -> None:
        """Raises ConfigError for a checkpoint without named speakers."""
        if config.kind != "custom_voice" or not config.speakers:
            raise ConfigError(
                f"this is a {config.task_type} checkpoint, and the workload is for speakers by "
                "name; give a CustomVoice checkpoint"
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
        words = self.words(request.seed, len(request.text), config.im_start_token_id)
        role = [config.im_start_token_id, *self.words(0, 2, config.im_start_token_id)]
        text = [*role, *[config.tts_pad_token_id] * 4, config.tts_bos_token_id]
        text += [*words, config.tts_eos_token_id, config.tts_pad_token_id]
        codec = [
            *[config.no_code] * 3,
            config.codec_nothink_id,
            config.codec_think_bos_id,
            config.codec_think_eos_id,
        ]
        codec += [self._speaker, *[config.codec_pad_id] * (len(words) + 2), config.codec_bos_id]
        rows = np.full((len(text), 1 + config.n_vq), config.no_code, np.int64)
        rows[:, 0], rows[:, 1] = text, codec
        return PromptRows(rows, np.empty((0, config.n_vq), np.int64))
