"""Recognisers, and error counts of their transcripts."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hocket.bench.judge.asr import RATE, load_recogniser, to_recogniser
from hocket.bench.judge.wer import count_errors
from hocket.errors import HocketError
from tests.support.faulty_server import RATE as SPOKEN_RATE
from tests.support.faulty_server import faulty_server, speak


@pytest.mark.parametrize(
    ("said", "heard", "language", "word_errors", "words"),
    [
        ("The old radio plays better.", "the old radio plays better", "English", 0, 5),
        (
            "She paid $1,249.99 on March 3rd.",
            "She paid one thousand two hundred forty nine dollars and ninety nine cents on March "
            "third.",
            "English",
            0,
            6,
        ),
        ("Two boats drifted past.", "Two goats drifted past it", "English", 2, 4),
        ("No.", "", "English", 1, 1),
        ("Grüße, Straße!", "grüße straße", "German", 0, 2),
        ("雨停了以后。", "雨停了以前", "Chinese", 1, 5),
        ("?!", "anything", "English", 1, 1),
    ],
)
def test_words_are_compared_in_one_form(
    said: str, heard: str, language: str, word_errors: int, words: int
) -> None:
    errors = count_errors(said, heard, language)
    assert (errors.word_errors, errors.words) == (word_errors, words)


def test_characters_do_not_mind_where_words_end() -> None:
    errors = count_errors("rain forest", "rainforest", "English")
    assert (errors.word_errors, errors.character_errors, errors.characters) == (2, 0, 10)


def test_audio_comes_to_the_recogniser_as_mono_at_16_khz() -> None:
    stereo = np.stack([np.full(48_000, 0.5, np.float32), np.zeros(48_000, np.float32)])
    mono = to_recogniser(stereo, 48_000)
    assert mono.shape == (RATE,)
    assert mono[100:-100] == pytest.approx(0.25, abs=1e-3)


def test_a_transcription_server_hears_what_was_said() -> None:
    samples = speak("seven boats").astype(np.float32)[None] / np.float32(32768)
    with faulty_server() as url:
        recogniser = load_recogniser(url, model="tones", api_key="k")
        assert (
            recogniser.words(to_recogniser(samples, SPOKEN_RATE), "English").strip()
            == "seven boats"
        )
    with pytest.raises(HocketError, match="did not answer"):
        recogniser.words(np.zeros(1000, np.float32), None)


def test_faster_whisper_is_asked_greedily_and_in_the_language_of_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[dict[str, Any]] = []

    class Model:
        def __init__(self, name: str, **options: Any) -> None:
            assert (name, options["device"]) == ("base", "cpu")

        def transcribe(self, audio: Any, **options: Any) -> tuple[Iterator[Any], None]:
            sent.append(options)
            return iter(
                [types.SimpleNamespace(text=" Two"), types.SimpleNamespace(text=" parts.")]
            ), None

    monkeypatch.setitem(sys.modules, "faster_whisper", types.SimpleNamespace(WhisperModel=Model))
    recogniser = load_recogniser("base", model="", api_key=None)
    assert recogniser.words(np.zeros(10, np.float32), "German") == "Two parts."
    assert recogniser.words(np.zeros(10, np.float32), None) == "Two parts."
    assert [options["language"] for options in sent] == ["de", None]
    assert {options["temperature"] for options in sent} == {0.0}
    assert not any(options["condition_on_previous_text"] for options in sent)
