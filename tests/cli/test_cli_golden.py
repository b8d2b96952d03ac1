"""The golden checkpoints through the command line alone (sources: MOSS 5.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from hocket.audio.io import decode_audio, write_audio
from tests.support.cli_runner import CODEC, PAIR, TALKER, Done, run
from tests.support.paths import GOLDEN

CASES: dict[str, Any] = json.loads((GOLDEN / "local_tiny" / "golden_prompts.json").read_text())[
    "cases"
]
PROMPTS = load_file(GOLDEN / "local_tiny" / "golden_prompts.safetensors")
FRAMES = load_file(GOLDEN / "local_tiny" / "golden_local.safetensors")
CODEC1, CODEC2 = (
    load_file(GOLDEN / f"{name}_tiny" / f"golden_{name}.safetensors")
    for name in ("codec1", "codec2")
)
REFERENCES = {"one_ref": ["r1"], "two_ref": ["r1", "r2"], "continuation": ["c1"]}
LOCAL_CASES = ["plain", "fields", "one_ref", "two_ref", "continuation"]
#: Samples per channel in one frame.
FRAME_SAMPLES = 24


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def say(case: str, *more: str) -> Done:
    """`hocket say` with the fields and references of a golden case."""
    fields = dict(CASES[case]["fields"])
    text = fields.pop("text")
    options = [
        part
        for name, value in fields.items()
        if value is not None
        for part in (flag(name), str(value))
    ]
    for name in REFERENCES.get(case, []):
        np.save(f"{name}.npy", PROMPTS[f"codes/{name}"])
        options += ["--reference", f"{name}.npy"]
    if case == "continuation":
        transcript = "None of this."
        options += ["--reference-text", transcript, "--join", ""]
        text = text.removeprefix(transcript)
    done = run("say", text, *options, "--temperature", "0", "--codes-out", "codes.npy", *more)
    assert done.code == 0, done.err
    return done


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def samples(path: str) -> NDArray[np.float32]:
    audio = decode_audio(Path(path), max_bytes=2**20, max_seconds=60)
    assert audio.sample_rate == 300
    return audio.samples


@pytest.mark.parametrize("case", LOCAL_CASES)
@pytest.mark.parametrize(
    ("penalty", "golden"), [("1", "greedy_frames"), ("1.5", "greedy_frames_reppen1.5")]
)
def test_greedy_frames(case: str, penalty: str, golden: str) -> None:
    wanted = FRAMES[f"{case}/{golden}"]
    done = say(
        case, "--model", TALKER, "--codec", "none", "--repetition-penalty", penalty, "--json"
    )
    codes = np.load("codes.npy")
    assert codes.dtype == np.int64
    assert np.array_equal(codes, wanted)
    assert json.loads(done.out)["frames"] == len(wanted)
    assert json.loads(done.out)["finish_reason"] == "stop"


@pytest.mark.parametrize("case", LOCAL_CASES)
def test_audio_is_the_decoded_frames(case: str) -> None:
    """A continuation's audio begins where its reference ends: the codec has heard the reference's
    frames first.
    """
    say(case, *PAIR, "-o", "said.wav")
    frames = np.load("codes.npy")
    assert np.array_equal(frames, FRAMES[f"{case}/greedy_frames"])
    before = PROMPTS["codes/c1"] if case == "continuation" else frames[:0]
    np.save("all.npy", np.concatenate([before, frames]))
    assert run("codec", "decode", "all.npy", "-o", "decoded.wav", "--codec", CODEC).code == 0
    wanted = samples("decoded.wav")[:, len(before) * FRAME_SAMPLES :]
    said = samples("said.wav")
    assert said.shape == (2, len(frames) * FRAME_SAMPLES)
    np.testing.assert_allclose(
        said, wanted, rtol=0, atol=1.5 / 32768
    )  # 16 bits: the last one may round either way
    # A codec that has heard nothing makes something else of the same frames.
    if case == "continuation":
        assert run("codec", "decode", "codes.npy", "-o", "cold.wav", "--codec", CODEC).code == 0
        assert np.abs(samples("cold.wav") - said).max() > 0.1


def test_a_transcript_and_a_text_are_joined_by_a_space_unless_told_otherwise() -> None:
    np.save("c1.npy", PROMPTS["codes/c1"])
    arguments = (
        "say",
        "Hello world.",
        "--reference",
        "c1.npy",
        "--reference-text",
        "None of this.",
    )
    options = (
        "--language",
        "English",
        "--temperature",
        "0",
        "--model",
        TALKER,
        "--codec",
        "none",
        "--codes-out",
    )
    assert run(*arguments, *options, "space.npy").code == 0
    assert run(*arguments, *options, "none.npy", "--join", "").code == 0
    assert np.array_equal(np.load("space.npy"), FRAMES["continuation/greedy_frames"])
    assert not np.array_equal(np.load("none.npy"), FRAMES["continuation/greedy_frames"])


def test_text_from_standard_input_is_taken_as_it_is() -> None:
    text = CASES["fields"]["fields"]["text"]
    assert text.endswith("\n")
    options = (
        "--instruction",
        "warm, slow",
        "--tokens",
        "125",
        "--quality",
        "high",
        "--language",
        "English",
    )
    common = (
        "--temperature",
        "0",
        "--model",
        TALKER,
        "--codec",
        "none",
        "--codes-out",
        "codes.npy",
    )
    assert run("say", "-", *options, *common, stdin=text.encode()).code == 0
    assert np.array_equal(np.load("codes.npy"), FRAMES["fields/greedy_frames"])


@pytest.mark.parametrize(
    ("codec", "wave", "codes", "options"),
    [
        ("codec2", "encode/wav0", "encode/codes0", ["--codebooks", "12"]),
        ("codec2", "encode/wav1", "encode/codes1", ["--codebooks", "12"]),
        ("codec2", "encode/wav0", "encode/codes0_all16", []),
        ("codec2", "encode/wav1", "encode/codes1_all16", []),
        ("codec1", "encode/wav", "encode/codes", ["--codebooks", "8"]),
        ("codec1", "encode/wav", "encode/codes", []),
    ],
)
def test_encoding(codec: str, wave: str, codes: str, options: list[str]) -> None:
    golden = {"codec1": CODEC1, "codec2": CODEC2}[codec]
    write_audio(Path("in.wav"), golden[wave], 300, float32=True)
    folder = str(GOLDEN / f"{codec}_tiny")
    done = run("codec", "encode", "in.wav", "-o", "codes.npy", "--codec", folder, *options)
    assert done.code == 0, done.err
    made = np.load("codes.npy")
    assert made.dtype == np.int64
    assert np.array_equal(made, golden[codes].T)


@pytest.mark.parametrize("codec", ["codec1", "codec2"])
def test_decoding(codec: str) -> None:
    golden = {"codec1": CODEC1, "codec2": CODEC2}[codec]
    np.save("codes.npy", golden["decode/codes"].T)
    done = run(
        "codec",
        "decode",
        "codes.npy",
        "-o",
        "out.wav",
        "--float",
        "--codec",
        str(GOLDEN / f"{codec}_tiny"),
    )
    assert done.code == 0, done.err
    made, wanted = samples("out.wav"), golden["decode/offline"]
    assert made.shape == wanted.shape
    assert np.abs(wanted).max() > 10  # far over full scale: nothing is clipped
    assert np.abs(made - wanted).max() <= 2e-5
