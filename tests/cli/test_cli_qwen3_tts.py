"""Qwen3-TTS through the command line alone: the golden cases, what `info` and `voices` say, and
refusals.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hocket.audio.io import decode_audio, write_audio
from tests.support.cli_runner import refused, run
from tests.support.paths import GOLDEN

FOLDER = GOLDEN / "qwen3_tts"
#: All checkpoints share one codec, which the golden files hold once.
CODEC = ("--codec", str(FOLDER / "base_1b7" / "speech_tokenizer"))
CHECKPOINTS = ("base_1b7", "base_0b6", "custom_1b7", "custom_0b6", "design_1b7")
#: The options of the official arguments.
FLAGS = {
    "language": "--language",
    "speaker": "--voice",
    "instruct": "--instructions",
    "ref_text": "--reference-text",
}
#: Of the official codec's own chunks against its whole decode, in float32 (sources: Qwen3 9); the
#: waves' deviation is 0.33.
TOLERANCE = 2e-4


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def model(name: str) -> tuple[str, ...]:
    return ("--model", str(FOLDER / name), *CODEC)


def golden_cases() -> list[tuple[str, str, int]]:
    found = []
    for name in CHECKPOINTS:
        for case, entry in json.loads((FOLDER / f"golden_{name}.json").read_text()).items():
            found += [(name, case, number) for number in range(len(entry["frames"]))]
    return found


def options(asked: dict[str, Any]) -> list[str]:
    """`hocket say`'s options for the arguments of an official call."""
    chosen = [
        part
        for key, flag in FLAGS.items()
        if asked.get(key) is not None
        for part in (flag, asked[key])
    ]
    if "non_streaming_mode" in asked:
        chosen.append("--no-streaming-text" if asked["non_streaming_mode"] else "--streaming-text")
    return chosen


@pytest.mark.parametrize(("name", "case", "number"), golden_cases())
def test_golden_cases(name: str, case: str, number: int) -> None:
    entry = json.loads((FOLDER / f"golden_{name}.json").read_text())[case]
    tensors = load_file(FOLDER / f"golden_{name}.safetensors")
    asked = {
        key: value[number] if isinstance(value, list) else value
        for key, value in entry["request"].items()
    }
    settings = entry["generate_kwargs"]
    more = options(asked)
    if f"{case}/ref/wav{number}" in tensors:
        write_audio(
            Path("voice.wav"), tensors[f"{case}/ref/wav{number}"][None], 24_000, float32=True
        )
        more += ["--reference", "voice.wav"]
    done = run(
        *("say", asked["text"], *model(name), *more, "-o", "out.wav", "--codes-out", "codes.npy"),
        *("--temperature", "0", "--repetition-penalty", str(settings["repetition_penalty"])),
        *("--max-frames", str(settings["max_new_tokens"] - 1)),
    )
    assert done.code == 0, done.err
    assert np.array_equal(np.load("codes.npy"), tensors[f"{case}/codes/{number}"])
    audio = decode_audio(Path("out.wav"), max_bytes=2**22, max_seconds=60)
    assert audio.sample_rate == 24_000
    wanted = tensors[f"{case}/wav/{number}"]
    assert audio.samples.shape == (1, len(wanted))
    assert np.abs(audio.samples[0] - wanted).max() < TOLERANCE + 2.0**-15  # the file's 16 bits


def test_seeds_and_the_predictors_own_parameters() -> None:
    """The same seed gives the same codes; greedy code 0 leaves the others greedy unless they are
    asked not to be.
    """

    def codes(*more: str) -> Any:
        done = run(
            *(
                "say",
                "hello there",
                *model("design_1b7")[:2],
                "--codec",
                "none",
                "--max-frames",
                "8",
            ),
            *("--codes-out", "codes.npy", *more),
        )
        assert done.code == 0, done.err
        return np.load("codes.npy")

    seeded = codes("--seed", "5")
    assert np.array_equal(codes("--seed", "5"), seeded)
    assert not np.array_equal(codes("--seed", "6"), seeded)
    greedy = codes("--temperature", "0", "--seed", "5")
    assert np.array_equal(codes("--temperature", "0", "--seed", "6"), greedy)
    loose = codes("--temperature", "0", "--predictor-temperature", "2", "--seed", "5")
    assert np.array_equal(loose[0, 0], greedy[0, 0])
    assert not np.array_equal(loose[0], greedy[0])


def test_info() -> None:
    for name, task in (
        ("base_1b7", "Base"),
        ("custom_0b6", "CustomVoice"),
        ("design_1b7", "VoiceDesign"),
    ):
        done = run("info", str(FOLDER / name), "--json")
        assert done.code == 0, done.err
        facts = json.loads(done.out)
        assert (facts["kind"], facts["family"], facts["task_type"]) == ("talker", "qwen3_tts", task)
        stored = sum(
            array.size for array in load_file(FOLDER / name / "model.safetensors").values()
        )
        parts = [size for key, size in facts.items() if key.startswith("parameters_")]
        assert facts["parameters"] == stored == sum(parts)


def test_voices() -> None:
    done = run("voices", "--model", str(FOLDER / "custom_1b7"))
    assert [line.split()[0] for line in done.out.splitlines()] == [
        *(
            "default",
            "aiden",
            "dylan",
            "eric",
            "ono_anna",
            "ryan",
            "serena",
            "sohee",
            "uncle_fu",
            "vivian",
        )
    ]


def test_refusals() -> None:
    np.save("codes.npy", np.zeros((3, 16), np.int64))
    custom, base, design = (model(name) for name in ("custom_1b7", "base_1b7", "design_1b7"))
    refused("a CustomVoice checkpoint needs a voice; it has aiden", "say", "Hi.", *custom)
    refused("there is no voice 'nobody'", "say", "Hi.", *custom, "--voice", "nobody")
    refused(
        "language is 'Klingon'; this model knows auto",
        "say",
        "Hi.",
        *design,
        "--language",
        "Klingon",
    )
    refused("this checkpoint is for VoiceDesign", "say", "Hi.", *design, "--task-type", "Base")
    refused("--task-type is Song; it must be 'Base'", "say", "Hi.", *design, "--task-type", "Song")
    refused("the voice of one recording, got 0", "say", "Hi.", *base)
    refused("hears a voice in its recording", "say", "Hi.", *base, "--reference", "codes.npy")
    refused("this model does not know task_type", "say", "Hi.", "--task-type", "Base")
    refused("it has no predictor_top_k", "say", "Hi.", "--predictor-top-k", "5")


def test_a_voice_alone_needs_no_codec() -> None:
    """Its vector comes from the talker's own encoder; continuing it takes codes."""
    tensors = load_file(FOLDER / "golden_base_1b7.safetensors")
    write_audio(Path("voice.wav"), tensors["xvec_stream/ref/wav0"][None], 24_000, float32=True)
    alone = (
        "say",
        "Hi.",
        "--model",
        str(FOLDER / "base_1b7"),
        "--codec",
        "none",
        "--codes-out",
        "codes.npy",
    )
    done = run(*alone, "--reference", "voice.wav", "--max-frames", "3")
    assert done.code == 0, done.err
    refused("needs a codec", *alone, "--reference", "voice.wav", "--reference-text", "Words.")
