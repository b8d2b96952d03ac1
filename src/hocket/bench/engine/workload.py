"""The workload of `hocket bench engine`: voices, prompts and lengths like those of Seed-TTS EN,
random codes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.core import SpeechRequest
from hocket.models.family import PromptBuilder, WorkloadPrompt
from hocket.models.talker import TalkerConfig


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request: the rows of its text, the voice's codes, and its length in frames."""

    text_rows: int
    #: int64 [F, N]: the recording to continue; None: one of the model's own voices speaks.
    codes: NDArray[np.int64] | None
    frames: int
    #: Prompt rows that every request of the family has.
    template_rows: int

    @property
    def prompt_rows(self) -> int:
        return self.template_rows + self.text_rows + (0 if self.codes is None else len(self.codes))

    def request(self, seed: int | None, *, ignore_stop: bool) -> SpeechRequest:
        """The request for an engine; `ignore_stop` makes it exactly `frames` long."""
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


def read_workload(config: TalkerConfig, prompt: PromptBuilder, seed: int) -> list[WorkloadRequest]:
    """The packaged workload for a talker with a `WorkloadPrompt`, codes drawn from `seed`."""
    assert isinstance(prompt, WorkloadPrompt)
    file = resources.files("hocket.bench") / "data" / "workload_en1088_like.json"
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    random = np.random.default_rng(seed)
    entries = min(config.audio_codebook_sizes)
    voices = [
        random.integers(0, entries, (frames, config.n_vq))
        for frames in document["reference_frames"]
    ]
    return [
        WorkloadRequest(
            text_rows, voices[voice] if prompt.continues else None, frames, prompt.template_rows
        )
        for voice, text_rows, frames in document["requests"]
    ]
