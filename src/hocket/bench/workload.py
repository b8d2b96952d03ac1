"""The workload of `hocket bench engine`: voices, prompts and lengths as Seed-TTS EN has them, codes at random."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.core import PromptRows, ReferenceNeeds, SpeechRequest
from hocket.models.moss_local.config import MossLocalConfig

#: Rows of the fixed template: 85 text rows are usual (spec/moss 4.3), of which this workload's texts have 27.
TEMPLATE_ROWS = 58


@dataclass(frozen=True, slots=True)
class Spoken:
    """One request: the rows of its text beyond the template, the voice's codes, and the frames to be made."""

    text_rows: int
    #: int64 [F, N].
    codes: NDArray[np.int64]
    frames: int

    def request(self, number: int, *, ignore_stop: bool) -> SpeechRequest:
        """For the engine; `ignore_stop` makes it exactly `frames` long."""
        return SpeechRequest(
            text="x" * self.text_rows,
            text_front=False,
            reference=self.codes,
            reference_text="x",
            join="",
            seed=number,
            max_frames=self.frames,
            min_frames=self.frames if ignore_stop else 0,
        )


def read_workload(n_vq: int, codebook_sizes: Sequence[int], seed: int) -> list[Spoken]:
    """The packaged workload with codes drawn from `seed`."""
    file = resources.files("hocket.bench") / "data" / "workload_en1088_like.json"
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    random = np.random.default_rng(seed)
    voices = [random.integers(0, min(codebook_sizes), (frames, n_vq)) for frames in document["reference_frames"]]
    return [Spoken(text_rows, voices[voice], frames) for voice, text_rows, frames in document["requests"]]


class WorkloadPrompt:
    """Continuation prompts of the right number of rows: template, text, then the reference's frames (spec/moss 1.7).

    Text ids are drawn by the request's seed, so that two texts share no more pages than two real ones would: those of
    the template.
    """

    def __init__(self, config: MossLocalConfig) -> None:
        self._config = config
        self._template = np.random.default_rng(0).integers(0, min(1000, config.vocab_size), TEMPLATE_ROWS)

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
        words = np.random.default_rng(request.seed).integers(0, min(1000, config.vocab_size), len(request.text))
        text = np.concatenate([self._template, words])
        rows = np.full((len(text), 1 + config.n_vq), config.audio_pad_code, np.int64)
        rows[:, 0] = text
        audio = np.insert(prefix_FN, 0, config.audio_assistant_slot_token_id, axis=1)
        return PromptRows(np.concatenate([rows, audio]), prefix_FN)
