"""Prompts for benchmarks: continuations of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hocket.core import PromptRows, ReferenceNeeds, SpeechRequest
from hocket.models.family import WorkloadPrompt
from hocket.models.moss_local.config import MossLocalConfig


class ContinuationPrompt(WorkloadPrompt):
    """The template, the text, then the recording's frames (sources: MOSS 1.7)."""

    #: Requests usually have 85 text rows (sources: MOSS 4.3); this workload's texts have 27 of
    #: them.
    template_rows: ClassVar[int] = 58
    takes: ClassVar[frozenset[str]] = frozenset({"join"})
    continues: ClassVar[bool] = True

    def __init__(self, config: MossLocalConfig) -> None:
        self._config = config
        self._template = self.words(0, self.template_rows, config.vocab_size)

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
        text = np.concatenate(
            [self._template, self.words(request.seed, len(request.text), config.vocab_size)]
        )
        rows = np.full((len(text), 1 + config.n_vq), config.audio_pad_code, np.int64)
        rows[:, 0] = text
        audio = np.insert(prefix_FN, 0, config.audio_assistant_slot_token_id, axis=1)
        return PromptRows(np.concatenate([rows, audio]), prefix_FN)
