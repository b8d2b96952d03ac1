"""A trial of a voice: the product speaks the test texts, and the panel judges it beside the
teacher.

All speech comes from `hocket.Engine` (or from a server), many requests at once with fixed seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket import AudioArray, AudioChunk, Engine, Sampling, Speech, SpeechRequest
from hocket.audio.io import to_float32
from hocket.checkpoint.voices import DEFAULT_VOICE
from hocket.engine.references.conversions import Conversions
from training.checks import Check, read_checks
from training.judges import Wave
from training.make_data import DataConfig
from training.panel import Figures, Judgement, Panel
from training.served import ServedEngine
from training.teacher import SAMPLE_RATE
from training.teacher_audio import Recordings, read_wav

#: Length of a reference in the cloning test (the first seconds of a longer recording).
REFERENCE_SECONDS = 5.0
_BATCH, _STREAMS = 8, 10


@dataclass(frozen=True, slots=True)
class Speaker:
    """The voice on trial: a built-in one, or a recording to clone."""

    name: str
    kind: str
    #: Fields of its requests.
    request: dict[str, Any]
    #: The teacher's voice that is its target.
    teacher: str | None = None
    #: Unit vector of its target.
    target: Wave | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """A speaker's row of the table."""

    name: str
    kind: str
    figures: Figures
    #: Number of utterances that the model ended itself, and of all.
    stops: int
    utterances: int
    #: Longest utterance / the teacher's; None where the teacher's is not known.
    longest: float | None
    #: Mean cosine between utterance and target; share of utterances that are closer to it than to
    #: all other targets.
    likeness: float | None
    picked: float | None
    #: The teacher's own recordings of the same texts.
    teacher: Figures | None
    #: Judgements by utterance, for diagnosis.
    rows: list[dict[str, Any]] = field(repr=False)


class Trial:
    """One engine, one panel, and optionally a folder of the teacher's recordings."""

    def __init__(
        self,
        engine: Engine | ServedEngine,
        panel: Panel,
        *,
        sampling: Sampling,
        seed: int,
        recordings: Recordings | None,
    ) -> None:
        self.engine, self.panel, self.recordings = engine, panel, recordings
        self._sampling, self._seed = sampling, seed

    # ---- speaking

    def speak(self, speaker: Speaker, texts: Iterable[str]) -> list[Speech]:
        return self.engine.generate_many(
            SpeechRequest(
                text=text, seed=self._seed + i, sampling=self._sampling, **speaker.request
            )
            for i, text in enumerate(texts)
        )

    @property
    def local(self) -> Engine:
        """The engine, in this process."""
        if isinstance(self.engine, ServedEngine):
            raise SystemExit("this needs a model in this process; leave --server out")
        return self.engine

    def decode(self, codes_FN: NDArray[np.int64]) -> Wave:
        """float32 [S]: codes, decoded by the codec."""
        conversions = self._conversions()
        conversions.decode("codes", codes_FN)
        return np.concatenate([chunk.samples.mean(axis=0) for chunk in _all_chunks(conversions)])

    def recode(self, wave_S: Wave) -> Wave:
        """float32 [S]: mono audio at the codec's rate, coded and decoded."""
        conversions = self._conversions()
        conversions.encode("audio", np.tile(wave_S, (self.local.channels, 1)), None)
        return self.decode(
            np.concatenate([chunk.codes for chunk in _all_chunks(conversions) if chunk.end is None])
        )

    def _conversions(self) -> Conversions:
        conversions = self.local.parts.conversions
        if conversions is None:
            raise SystemExit("the model has no codec; give --codec")
        return conversions

    # ---- voices

    def builtin(self) -> list[Speaker]:
        """The voices of the checkpoint."""
        speakers = []
        for name, voice in self.engine.voices.items():
            is_default = name == DEFAULT_VOICE
            teacher = target = None
            if self.recordings is not None:
                teacher = self.recordings.find(
                    DataConfig.load().default_voice if is_default else name
                )
            if voice.codes is not None:
                target = self.panel.embed(self.decode(voice.codes), self.local.sample_rate)
            elif teacher is not None and self.recordings is not None:
                target = self.recordings.target(self.panel, teacher)
            speakers.append(
                Speaker(
                    name, "default" if is_default else "built-in", {"voice": name}, teacher, target
                )
            )
        return speakers

    def clone(
        self, name: str, wave_S: Wave, sample_rate: int, text: str | None, teacher: str | None
    ) -> Speaker:
        """A speaker whose voice comes from a recording; given its words, requests continue it."""
        audio = AudioArray(wave_S[None], sample_rate)
        return Speaker(
            name,
            "clone" if text is None else "continuation",
            {"reference": audio} | ({} if text is None else {"reference_text": text}),
            teacher,
            self.panel.embed(wave_S, sample_rate),
        )

    def held_out(self, voices: Sequence[str]) -> list[Speaker]:
        """Clones of the teacher's voices that are not in the training data, from the first seconds
        of their references.
        """
        speakers = []
        for voice in voices:
            reference_S = None if self.recordings is None else self.recordings.reference(voice)
            if reference_S is not None:
                beginning_S = reference_S[: int(REFERENCE_SECONDS * SAMPLE_RATE)]
                speakers.append(
                    self.clone(f"clone of {voice}", beginning_S, SAMPLE_RATE, None, voice)
                )
        return speakers

    # ---- judging

    def judge(self, speaker: Speaker, checks: Sequence[Check], others: Sequence[Speaker]) -> Result:
        """Speak and judge the checks; `others` are the voices that it must differ from."""
        speeches, judged = self._heard(speaker, checks)
        targets = [
            other.target
            for other in others
            if other.target is not None and other.name != speaker.name
        ]
        likeness = picked = None
        if speaker.target is not None:
            own = [float(j.embedding @ speaker.target) for j in judged]
            likeness = round(statistics.fmean(own), 3)
            if targets:
                wins = [
                    o > max(float(j.embedding @ t) for t in targets)
                    for j, o in zip(judged, own, strict=True)
                ]
                picked = round(statistics.fmean(wins), 3)
        return Result(
            name=speaker.name,
            kind=speaker.kind,
            figures=Figures.of(judged),
            stops=sum(speech.finish_reason == "stop" for speech in speeches),
            utterances=len(speeches),
            longest=longest(checks, speeches),
            likeness=likeness,
            picked=picked,
            teacher=self.teacher_figures(speaker.teacher, checks),
            rows=[
                j.row() | {"finish": s.finish_reason, "seed": s.seed}
                for j, s in zip(judged, speeches, strict=True)
            ],
        )

    def _heard(
        self, speaker: Speaker, checks: Sequence[Check]
    ) -> tuple[list[Speech], list[Judgement]]:
        speeches = self.speak(speaker, [check.text for check in checks])
        pairs = zip(checks, speeches, strict=True)
        return speeches, [
            self.panel.judge(c.text, to_float32(s.samples).mean(axis=0), s.sample_rate)
            for c, s in pairs
        ]

    def teacher_figures(self, teacher: str | None, checks: Sequence[Check]) -> Figures | None:
        """Judgement of the teacher's own recordings of the checks, where known."""
        if teacher is None or self.recordings is None:
            return None
        return self.recordings.judged(self.panel, teacher, checks)

    def codec(self, teacher: str, checks: Sequence[Check]) -> Result:
        """The codec alone: the teacher's recordings, coded and decoded."""
        assert self.recordings is not None
        judged, likeness = [], []
        for check in checks:
            path = self.recordings.path(teacher, check.text)
            if not path.exists():
                raise SystemExit(
                    f"{path} is missing; record it with `python -m training.evaluate speak`"
                )
            wave_S = read_wav(path)
            judged.append(self.panel.judge(check.text, self.recode(wave_S), self.local.sample_rate))
            likeness.append(float(judged[-1].embedding @ self.panel.embed(wave_S, SAMPLE_RATE)))
        return Result(
            name=f"codec on {teacher}",
            kind="codec",
            figures=Figures.of(judged),
            stops=len(judged),
            utterances=len(judged),
            longest=None,
            likeness=round(statistics.fmean(likeness), 3),
            picked=None,
            teacher=self.teacher_figures(teacher, checks),
            rows=[j.row() for j in judged],
        )

    # ---- without the whole panel

    def lengths(self, speaker: Speaker) -> dict[str, Any]:
        """Check that texts of 1 to 40 words end by themselves, and measure their lengths."""
        checks = read_checks("length")
        speeches = self.speak(speaker, [check.text for check in checks])
        rows = [
            {
                "text": c.text,
                "finish": s.finish_reason,
                "seconds": round(s.seconds, 2),
                "teacher": c.seconds,
            }
            for c, s in zip(checks, speeches, strict=True)
        ]
        stops = sum(speech.finish_reason == "stop" for speech in speeches)
        return {
            "stops": stops,
            "texts": len(checks),
            "longest": longest(checks, speeches),
            "rows": rows,
        }

    def words(self, speaker: Speaker) -> dict[str, Any]:
        """Check that single words are recognised, and measure their lengths."""
        checks = read_checks("word")
        _, judged = self._heard(speaker, checks)
        return {
            "recognised": sum(j.said == j.heard.strip() for j in judged),
            "words": len(checks),
            "longest_seconds": max(j.seconds for j in judged),
            "rows": [j.row() for j in judged],
        }

    def speed(self, speaker: Speaker) -> dict[str, Any]:
        """Real-time factors and time to first audio, on the engine's device."""
        texts = [check.text for check in read_checks("sentence", _STREAMS)]
        ends = []
        # The first one warms up.
        for i, text in enumerate([texts[0], *texts]):
            request = SpeechRequest(
                text=text, seed=self._seed + i, sampling=self._sampling, **speaker.request
            )
            ends += [chunk.end for chunk in self.local.stream(request) if chunk.end is not None]
        timings = [end.timings for end in ends[1:]]
        batch = self.speak(speaker, texts[:_BATCH])
        return {
            "rtf": round(statistics.median(t.rtf for t in timings), 4),
            "first_audio_ms": round(
                1000 * statistics.median(t.first_audio_seconds for t in timings), 1
            ),
            "first_audio_worst_ms": round(1000 * max(t.first_audio_seconds for t in timings), 1),
            "batch": _BATCH,
            "batch_rtf": round(statistics.fmean(s.timings.rtf for s in batch), 4),
            "streams": [asdict(t) for t in timings],
        }


def _all_chunks(conversions: Conversions) -> list[AudioChunk]:
    chunks = []
    while not conversions.idle:
        chunks += conversions.step()
    return chunks


def longest(checks: Sequence[Check], speeches: Sequence[Speech]) -> float | None:
    """The largest ratio of a speech's length to the teacher's, where that is known."""
    ratios = [s.seconds / c.seconds for c, s in zip(checks, speeches, strict=True) if c.seconds > 0]
    return round(max(ratios), 3) if ratios else None
