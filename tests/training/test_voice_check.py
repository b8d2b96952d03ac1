"""The check of a voice, with a fake engine and fake judges."""

from __future__ import annotations

import json
import wave
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training.checks import Check
from training.panel import Figures, Judgement
from training.teacher import SAMPLE_RATE
from training.teacher_audio import Recordings, read_wav
from training.trial import Result, Speaker, Trial

from hocket import Sampling, Speech, SpeechRequest, Timings
from hocket.checkpoint.voices import BuiltinVoice
from training import panel, trial, voice_check

CHECKS = [
    Check("sentence", 1.0, "the red door"),
    Check("sentence", 2.0, "a cold day"),
    Check("sentence", 1.0, "go"),
]
FIGURES = Figures(0.05, 0.02, 4.0)


class FakeEngine:
    """Speaks every text as a tone whose level identifies the speaker, one second per word."""

    sample_rate, channels, conversions = SAMPLE_RATE, 1, None

    def __init__(self, finish: str = "stop") -> None:
        self.finish = finish
        self.voices = {"default": BuiltinVoice("any"), "emma": BuiltinVoice("a woman")}
        self.requests: list[SpeechRequest] = []

    def generate_many(self, requests: Any) -> list[Speech]:
        return [self._speech(request) for request in requests]

    def _speech(self, request: SpeechRequest) -> Speech:
        self.requests.append(request)
        level = (
            0.5 if request.references else {"default": 0.1, "emma": 0.2}[request.voice or "default"]
        )
        samples = np.full((1, SAMPLE_RATE * len(request.text.split())), level, np.float32)
        timings = Timings(0.0, 0.1, 0.2, 0.3, 0.0, 1.0)
        assert request.seed is not None
        finish: Any = self.finish
        return Speech(
            samples, SAMPLE_RATE, np.zeros((1, 1), np.int64), finish, request.seed, timings
        )


class FakePanel:
    """Recognises every text but for the word "cold"; similarity is the closeness of levels."""

    class recogniser:  # noqa: N801
        name = "fake"

    def __init__(self) -> None:
        self.judged = 0

    def judge(self, text: str, wave_S: Any, sample_rate: int) -> Judgement:
        self.judged += 1
        heard = text.replace("cold", "gold")
        return Judgement(
            text, heard, len(wave_S) / sample_rate, 4.0, self.embed(wave_S, sample_rate)
        )

    def embed(self, wave_S: Any, sample_rate: int) -> Any:
        level = float(np.abs(wave_S).mean())
        return np.array([np.cos(level), np.sin(level)], np.float32)


@pytest.fixture(autouse=True)
def error_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    def rates(said: list[str], heard: list[str]) -> tuple[float, float]:
        pairs = [
            pair
            for s, h in zip(said, heard, strict=True)
            for pair in zip(s.split(), h.split(), strict=True)
        ]
        wrong = sum(a != b for a, b in pairs) / len(pairs)
        return wrong, wrong / 4

    monkeypatch.setattr(panel, "error_rates", rates)


def make_trial(recordings: Path | None = None, finish: str = "stop") -> Trial:
    folder = None if recordings is None else Recordings(recordings)
    engine: Any = FakeEngine(finish)
    panel: Any = FakePanel()
    return Trial(engine, panel, sampling=Sampling(), seed=7, recordings=folder)


def write_tone(path: Path, level: float, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.full(int(SAMPLE_RATE * seconds), int(level * 32768), "<i2").tobytes())


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    for voice, level in (("af_heart", 0.1), ("bf_emma", 0.2), ("am_liam", 0.5)):
        for check in CHECKS:
            write_tone(Recordings(tmp_path).path(voice, check.text), level, check.seconds)
    Recordings(tmp_path).write_reference("am_liam", CHECKS[1].text)
    return tmp_path


def test_a_speaker_is_judged_against_the_teacher_and_the_other_speakers(recordings: Path) -> None:
    trial = make_trial(recordings)
    default, emma = trial.builtin()
    assert (default.teacher, emma.teacher) == ("af_heart", "bf_emma")
    emma = replace(emma, target=trial.panel.embed(np.full(9, 0.2), SAMPLE_RATE))
    result = trial.judge(default, CHECKS, [default, emma])
    assert result.figures.wer == pytest.approx(1 / 7, abs=1e-4)
    assert (result.stops, result.utterances, result.longest) == (3, 3, 3.0)
    assert (result.likeness, result.picked) == (1.0, 1.0)
    assert result.teacher == result.figures
    assert [row["heard"] for row in result.rows] == ["the red door", "a gold day", "go"]
    # A voice that sounds like another one is picked wrong.
    assert (
        trial.judge(replace(default, request={"voice": "emma"}), CHECKS, [default, emma]).picked
        == 0.0
    )


def test_seeds_count_up_so_that_a_run_can_be_repeated() -> None:
    trial = make_trial()
    trial.judge(trial.builtin()[0], CHECKS, [])
    engine: Any = trial.engine
    assert [request.seed for request in engine.requests] == [7, 8, 9]


def test_the_teachers_judgements_are_made_once(recordings: Path) -> None:
    trial = make_trial(recordings)
    first = trial.teacher_figures("bf_emma", CHECKS)
    judged = trial.panel.judged  # type: ignore[attr-defined]
    assert trial.teacher_figures("bf_emma", CHECKS) == first
    assert trial.panel.judged == judged == len(CHECKS)  # type: ignore[attr-defined]
    assert (
        trial.teacher_figures("bf_emma", [*CHECKS, Check("sentence", 1.0, "not recorded")]) is None
    )
    assert make_trial().teacher_figures("bf_emma", CHECKS) is None


def test_voices_that_training_never_heard_are_cloned_from_five_seconds(recordings: Path) -> None:
    write_tone(recordings / "am_liam" / "reference.wav", 0.5, 8)
    trial = make_trial(recordings)
    (clone,) = trial.held_out(["am_liam", "bf_isabella"])
    assert clone.request["reference"].seconds == 5.0
    result = trial.judge(clone, CHECKS, trial.builtin())
    assert (result.kind, result.likeness, result.picked) == ("clone", 1.0, 1.0)
    assert trial.held_out([]) == make_trial().held_out(["am_liam"]) == []


def test_what_is_kept_is_enough_to_check_a_voice_without_the_recordings(
    recordings: Path, tmp_path: Path
) -> None:
    write_tone(recordings / "am_liam" / "reference.wav", 0.5, 8)
    trial = make_trial(recordings)
    (default, _), (clone,) = trial.builtin(), trial.held_out(["am_liam"])
    before = [trial.judge(speaker, CHECKS, [default]) for speaker in (default, clone)]
    kept = tmp_path / "kept"
    Recordings(recordings).keep(kept, ["am_liam"], 5.0)
    names = {path.name for path in kept.rglob("*") if path.is_file()}
    assert names == {"judged-fake.json", "target.json", "reference.wav"}
    assert len(list(kept.rglob("reference.wav"))) == 1
    trial = make_trial(kept)
    (default, _), (clone,) = trial.builtin(), trial.held_out(["am_liam"])
    assert [trial.judge(speaker, CHECKS, [default]) for speaker in (default, clone)] == before


def test_lengths_and_words_count_what_a_listener_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        trial, "read_checks", lambda kind: [replace(check, kind=kind) for check in CHECKS]
    )
    default = Speaker("default", "default", {})
    lengths = make_trial(finish="length").lengths(default)
    assert (lengths["stops"], lengths["texts"], lengths["longest"]) == (0, 3, 3.0)
    words = make_trial().words(default)
    assert (words["recognised"], words["words"], words["longest_seconds"]) == (2, 3, 3.0)


def result(kind: str, wer: float, picked: float | None = None) -> Result:
    return Result(
        kind, kind, replace(FIGURES, wer=wer), 3, 3, 1.5, 0.9, picked, Figures(0.01, 0.0, 4.5), []
    )


def test_figures_are_those_that_bounds_are_about() -> None:
    results = [
        result("default", 0.05, 1.0),
        result("built-in", 0.1, 0.8),
        result("built-in", 0.2, 0.9),
    ]
    results.append(result("clone", 0.3))
    report = {
        "lengths": {"stops": 199, "texts": 200, "longest": 2.0},
        "words": {"recognised": 17, "longest_seconds": 1.5},
        "speed": {"rtf": 0.2, "batch_rtf": 0.5, "first_audio_ms": 200.0},
    }
    found = voice_check.figures(results, report)
    assert found.keys() == voice_check.BOUNDS.keys() - {"megabytes"}
    assert [found[key] for key in ("wer", "voices-wer", "clone-wer")] == pytest.approx(
        [0.05, 0.15, 0.3]
    )
    assert (found["picked"], found["mos-loss"], found["stops"]) == (0.9, 0.5, 0.995)
    assert voice_check.figures([], {}) == {}


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ([], []),
        (["--max-wer", "0.1"], []),
        (["--max-wer", "0.04"], ["WER, default voice is 0.05, most 0.04"]),
        (["--min-words", "18"], ["single words recognised of 20 is 17, least 18"]),
        (["--max-rtf", "0.3"], ["RTF, one stream was not measured"]),
        (["--targets", "--voices"], ["single words recognised of 20 is 17, least 18"]),
        (["--targets", "--voices", "--min-words", "17"], []),
    ],
)
def test_bounds_that_do_not_hold_are_named(arguments: list[str], wrong: list[str]) -> None:
    args = voice_check.parse(arguments)
    assert voice_check.broken({"wer": 0.05, "words": 17}, args) == wrong


def test_a_whole_trial_must_measure_every_goal() -> None:
    wrong = voice_check.broken({"wer": 0.05, "words": 18}, voice_check.parse(["--targets"]))
    assert wrong == [
        f"{bound.figure} was not measured"
        for key, bound in voice_check.BOUNDS.items()
        if key not in ("wer", "words")
    ]


def test_what_runs_is_what_was_asked_for() -> None:
    def parts(*arguments: str) -> set[str]:
        return voice_check.chosen_parts(voice_check.parse(arguments))

    assert parts() == {"voices", "single-words", "stops", "speed"}
    assert parts("--stops") == {"stops"}
    assert parts("--speed", "--reference", "me.wav") == {"speed", "voices"}
    assert parts("--codec-only", "--recordings", "folder") == {"codec-only"}
    for bad in (["--codec-only"], ["--reference-text", "hello"], ["--judge", "nobody"]):
        with pytest.raises(SystemExit, match="2"):
            voice_check.parse(bad)


def test_a_broken_bound_fails_the_run_and_the_report_says_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    voices = [asdict(result("default", 0.5, 1.0))]
    report = {"settings": {"judge": "base"}, "machine": {"cores": 2, "load": 1.0}, "voices": voices}
    monkeypatch.setattr(voice_check, "run", lambda args: report | {"figures": {"wer": 0.5}})
    path = tmp_path / "report.json"
    assert voice_check.main(["--max-wer", "0.08", "--json", str(path)]) == 1
    shown = capsys.readouterr()
    assert "50.0 (1.0)" in shown.out
    assert "NO" in shown.out
    assert "WER, default voice is 0.5, most 0.08" in shown.err
    assert json.loads(path.read_text(encoding="utf-8"))["figures"] == {"wer": 0.5}
    assert voice_check.main(["--max-wer", "0.6"]) == 0


def test_a_recording_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
    with pytest.raises(ValueError, match="not 16-bit mono"):
        read_wav(path)
