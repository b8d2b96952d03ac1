"""Voices are compared to their references: similarities, failures, and the nearest voice."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hocket.bench.dataset import Item
from hocket.bench.dialects import find_dialect
from hocket.bench.http import Target
from hocket.bench.isolation import _match_voices, bench_isolation, print_isolation
from hocket.bench.judge.asr import RATE, load_recogniser
from hocket.bench.load.generator import Load
from hocket.bench.load.run_config import RunConfig
from hocket.bench.serve import bench_serve
from tests.support.faulty_server import faulty_server, speak, wav

#: Texts without a common letter.
TEXTS = ("abba cab bead fade cabbage decade", "zoo tutu pop sport your tutors out")


class Letters:
    """Embeds speech by the tones of its letters: the same text is 1, other letters are near 0."""

    name = "letters"

    def embed(self, mono_S: NDArray[np.float32]) -> NDArray[np.float32]:
        power = (
            np.square(np.abs(np.fft.rfft(mono_S, 4 * RATE)))[2000:12_000]
            .reshape(40, -1)
            .sum(axis=1)
        )
        return np.asarray(power / np.linalg.norm(power), np.float32)


class Angles:
    """Embeds the mean of the samples as an angle, so that similarity is the cosine of a
    difference.
    """

    name = "angles"

    def embed(self, mono_S: NDArray[np.float32]) -> NDArray[np.float32]:
        angle = math.pi * float(mono_S.mean())
        return np.array([math.cos(angle), math.sin(angle)], np.float32)


def recording(folder: Path, text: str) -> Path:
    path = folder / f"{text[:4]}.wav"
    path.write_bytes(wav(speak(text)))
    return path


def run_config(url: str, items: list[Item], **more: Any) -> RunConfig:
    fields: dict[str, Any] = {
        "target": Target.parse(url),
        "dialect": find_dialect("hocket"),
        "items": items,
        "loads": [Load(len(items), clients=2)],
        "warmup": 0,
        "has_self_check": False,
        "has_probe": False,
        "speaker_model": Letters(),
    }
    return RunConfig(**(fields | more))


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("references")
    return [recording(folder, text) for text in TEXTS]


def test_answers_unlike_their_references_fail_and_likeness_is_a_figure(voices: list[Path]) -> None:
    items = [
        Item("own", TEXTS[0], reference=voices[0]),
        Item("other", TEXTS[0] + " ", reference=voices[1]),
        Item("none", TEXTS[1]),
    ]
    with faulty_server() as url:
        (stage,) = bench_serve(run_config(url, items, min_similarity=0.5))["stages"]
        (lenient,) = bench_serve(run_config(url, items))["stages"]
    own, other, none = sorted(stage["requests"], key=lambda request: int(request["index"]))
    assert own["similarity"] > 0.9
    assert other["similarity"] < 0.2
    assert "similarity" not in none
    assert [[fault["kind"] for fault in request["faults"]] for request in (own, other, none)] == [
        [],
        ["wrong_voice"],
        [],
    ]
    assert other["faults"][0]["detail"].endswith("alike, at least 0.5")
    assert stage["figures"]["fault_wrong_voice"][0] == 1
    # The mean includes the wrong voice.
    mean = (own["similarity"] + other["similarity"]) / 2
    assert stage["figures"]["similarity_mean"][0] == pytest.approx(mean, abs=1e-3)
    assert "fault_wrong_voice" not in lenient["figures"]
    assert lenient["figures"]["similarity_mean"][0] == pytest.approx(mean, abs=1e-3)


def test_a_likeness_that_is_no_number_is_too_little(voices: list[Path]) -> None:
    class Broken(Letters):
        def embed(self, mono_S: NDArray[np.float32]) -> NDArray[np.float32]:
            return super().embed(mono_S) * np.float32("nan")

    items = [Item("own", TEXTS[0], reference=voices[0])]
    with faulty_server() as url:
        (stage,) = bench_serve(run_config(url, items, speaker_model=Broken(), min_similarity=-1.0))[
            "stages"
        ]
    (request,) = stage["requests"]
    assert [fault["kind"] for fault in request["faults"]] == ["wrong_voice"]
    assert "similarity" not in request
    assert "similarity_mean" not in stage["figures"]


def test_everybodys_own_words_in_the_voice_of_another_are_a_leak(voices: list[Path]) -> None:
    items = [
        Item(str(i), text, reference=path)
        for i, (text, path) in enumerate(zip(TEXTS, voices, strict=True))
    ]
    swapped = [
        replace(item, reference=path) for item, path in zip(items, reversed(voices), strict=True)
    ]
    with faulty_server() as url:
        recogniser = load_recogniser(url, model="tones", api_key=None)
        right = bench_isolation(run_config(url, items, recogniser=recogniser), "words")
        wrong = bench_isolation(run_config(url, swapped, recogniser=recogniser), "words")
    assert right["counts"] == wrong["counts"] == {"own": 2}
    assert [row["voice_verdict"] for row in right["answers"]] == ["own", "own"]
    assert (right["verdict"], wrong["verdict"]) == ("isolated", "leak")
    assert [(row["voice_verdict"], row["voice_match"]) for row in wrong["answers"]] == [
        ("other", 1),
        ("other", 0),
    ]
    assert "LEAK: request 0 was spoken in the voice of request 1" in print_isolation(wrong)


@pytest.mark.parametrize(
    ("degrees", "verdict", "match"),
    # References at 0 (its own) and at 72: the likeness of both is that of 36. The margin is 0.1.
    [
        (0, "own", 0),
        (28, "own", 0),
        (35, "own", 0),
        (39, "unclear", 1),
        (43, "other", 1),
        (72, "other", 1),
    ],
)
def test_voices_that_are_nearly_as_like_prove_no_leak(
    tmp_path: Path, degrees: int, verdict: str, match: int
) -> None:
    items = []
    for i, angle in enumerate((0, 72)):
        path = tmp_path / f"{angle}.wav"
        path.write_bytes(wav(np.full(RATE, round(angle / 180 * 32768), np.int16)))
        items.append(Item(str(i), f"text {i}", reference=path))
    # The middle of a resampled recording is its angle; so short an edge does not count.
    rows: list[dict[str, Any]] = [{}, {}]
    audio = [np.full(RATE, degrees / 180, np.float32), None]
    _match_voices(run_config("http://127.0.0.1:1", items, speaker_model=Angles()), audio, rows)
    assert rows[0]["voice_likeness_own"] == pytest.approx(math.cos(math.radians(degrees)), abs=0.01)
    assert (rows[0]["voice_verdict"], rows[0]["voice_match"]) == (verdict, match)
    assert rows[1] == {}  # a failed answer has no voice
