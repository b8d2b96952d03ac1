"""All judges together: their judgement of one recording, and of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from training.judges import Likeness, Listener, Recogniser, Wave, error_rates, to_judge_rate


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of one recording."""

    #: The text and its transcript, both normalised.
    said: str
    heard: str
    seconds: float
    #: Predicted opinion, 1 .. 5.
    mos: float
    #: Unit vector of the speaker.
    embedding: Wave

    def row(self) -> dict[str, Any]:
        """The judgement as a report has it, without the vector."""
        return {key: value for key, value in asdict(self).items() if key != "embedding"}


@dataclass(frozen=True, slots=True)
class Figures:
    """The judgement of many recordings. Error rates are errors / words (characters) over all of
    them.
    """

    wer: float
    cer: float
    mos: float

    @classmethod
    def of(cls, judged: Sequence[Judgement]) -> Figures:
        wer, cer = error_rates([j.said for j in judged], [j.heard for j in judged])
        return cls(round(wer, 4), round(cer, 4), round(float(np.mean([j.mos for j in judged])), 3))


class Panel:
    """A recogniser, a judge of naturalness and one of similarity."""

    def __init__(self, recogniser: Recogniser) -> None:
        self.recogniser, self._listener, self._likeness = recogniser, Listener(), Likeness()

    def judge(self, text: str, wave_S: Wave, sample_rate: int) -> Judgement:
        # A voice that stops at once returns no samples; the judges get silence instead.
        audible_S = np.pad(wave_S, (0, max(0, sample_rate // 2 - len(wave_S))))
        judged_S = to_judge_rate(audible_S, sample_rate)
        return Judgement(
            said=self.recogniser.normal(text),
            heard=self.recogniser.words(judged_S),
            seconds=round(len(wave_S) / sample_rate, 3),
            mos=self._listener.opinion(judged_S),
            embedding=self._likeness.embed(judged_S),
        )

    def embed(self, wave_S: Wave, sample_rate: int) -> Wave:
        """The unit vector of the speaker."""
        return self._likeness.embed(to_judge_rate(wave_S, sample_rate))


def centroid(embeddings: Sequence[Wave]) -> Wave:
    """The unit vector of the mean."""
    mean = np.mean(embeddings, axis=0)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)
