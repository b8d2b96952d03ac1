"""Bad input: one line that says what to do, a non-zero exit, no traceback, and no file made or
changed.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hocket.audio.io import write_audio
from hocket.core import SpeechRequest
from hocket.engine.engine import Engine
from hocket.models import registry
from hocket.models.moss_local.prompt import MossLocalPrompt
from tests.support.cli_runner import CODEC, CODES_ONLY, PAIR, listing, refused, run

Array = NDArray[np.generic]
RATE = 8000


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "text is empty"),
        (" \t\n　", "text is empty"),
        (b"caf\xe9", "text contains a lone surrogate"),
        ("word " * 4000, "text and references take [0-9]+ rows of a context of 4096; shorten them"),
    ],
)
def test_text(text: str | bytes, message: str) -> None:
    refused(message, "say", text, *CODES_ONLY)


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (b"", "text is empty"),
        (b" \n", "text is empty"),
        (b"one\0two", "text contains a NUL character"),
        (b"caf\xe9", r"standard input is not UTF-8 \(byte 3\)"),
        (b"a" * 100_001, "text has 100,001 characters; 100,000 is the most"),
        (b"\xed\xa0\x80", "standard input is not UTF-8"),  # a surrogate spelled out
    ],
)
def test_standard_input(stdin: bytes, message: str) -> None:
    refused(message, "say", "-", *CODES_ONLY, stdin=stdin)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "-1"], "--tokens is -1; it must be at least 1"),
        (["--tokens", "0"], "--tokens is 0; "),
        (["--tokens", "many"], "Invalid value for '--tokens': .*integer"),
        (["--tokens", "1.5"], "Invalid value for '--tokens': .*integer"),
        (["--seed", "-1"], "--seed is -1; "),
        (
            ["--seed", str(2**63)],
            "--seed is 9223372036854775808; it must be at most 9223372036854775807",
        ),
        (["--seed", "lucky"], "Invalid value for '--seed'"),
        (["--max-frames", "0"], "--max-frames is 0; "),
        (["--max-frames", "5000"], "max_frames is 5000, but after .* rows only .* fit the context"),
        (["--top-p", "2"], "--top-p is 2.0; "),
        (["--top-p", "-0.1"], "--top-p is -0.1; "),
        (["--top-k", "-1"], "--top-k is -1; "),
        (["--temperature", "nan"], "--temperature is nan; it must be a finite number"),
        (["--temperature", "inf"], "--temperature is inf; "),
        (["--temperature", "-1"], "--temperature is -1.0; "),
        (["--repetition-penalty", "0"], "--repetition-penalty is 0.0; "),
        (["--language", b"\xff"], "--language contains a lone surrogate"),
        (["--reference-text", "Hello."], "reference_text needs exactly one reference, got 0"),
        (["--reference-text", " ", "--reference", "a.npy"], "--reference-text is empty"),
        (
            ["--reference-text", "Hi.", "--reference", "a.npy", "--reference", "b.npy"],
            "exactly one reference, got 2",
        ),
        (["--dtype", "float16"], "dtype is 'float16'; use one of float32, bfloat16"),
        (["--device", "tpu"], "device is 'tpu'; use cpu, cuda or cuda:N"),
        (["--device", "meta"], "device is 'meta'; use cpu, cuda or cuda:N"),
        (["--loudness", "3"], "No such option: --loudness"),
        (["--seed"], "Option '--seed' requires an argument"),
        (["more"], "Got unexpected extra argument"),
        (["--output", "x.wav"], "--codec none makes no audio; leave out --output"),
        (
            ["--codes-out", "codes.txt"],
            "cannot write codes to 'codes.txt': give it the suffix .npy",
        ),
        (["--codes-out", "absent/codes.npy"], "the folder '.*absent' does not exist"),
    ],
)
def test_options(options: list[str | bytes], message: str) -> None:
    refused(message, "say", "Hello.", *CODES_ONLY, *options)


def test_codes_only_needs_a_file_for_the_codes() -> None:
    refused(
        "--codec none makes no audio; .*give --codes-out FILE.npy", "say", "Hi.", "--codec", "none"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a CUDA device")
def test_no_cuda_device() -> None:
    refused("no CUDA device is available here", "say", "Hello.", *CODES_ONLY, "--device", "cuda")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sing"], "No such command 'sing'"),
        (["say"], "Missing argument 'TEXT"),
        (["codec"], "Missing command"),
        (["codec", "encode", "in.wav"], "Missing option '-?-o"),
        (["--loud"], "No such option: --loud"),
    ],
)
def test_usage(arguments: list[str], message: str) -> None:
    refused(message, *arguments)


# --------------------------------------------------------------------------------------------------
# output files


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("absent/out.wav", "cannot write 'absent/out.wav': the folder '.*absent' does not exist"),
        ("folder.wav", "cannot write 'folder.wav': it is a folder"),
        ("file.txt/out.wav", "cannot write 'file.txt/out.wav'"),
        ("out.xyz", "cannot write 'out.xyz': unknown suffix; use one of .wav, "),
        ("out", "unknown suffix"),
        (f"{'long' * 100}.wav", "cannot write"),
    ],
)
@pytest.mark.parametrize("command", ["say", "decode"])
def test_unwritable_output(
    command: str, output: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before the model is loaded, not after an hour of speaking."""
    monkeypatch.delattr(Engine, "load")
    monkeypatch.delattr(registry, "load_codec")
    Path("folder.wav").mkdir()
    Path("file.txt").write_text("in the way")
    np.save("in.npy", np.zeros((3, 12), np.int64))
    arguments = (
        ["say", "Hi.", *PAIR]
        if command == "say"
        else ["codec", "decode", "in.npy", "--codec", CODEC]
    )
    refused(message, *arguments, "-o", output)


def test_read_only_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may run as root, who may write anywhere: so the system's answer is made up."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    refused("cannot write 'out.wav': no permission", "say", "Hi.", *PAIR, "-o", "out.wav")


def test_full_disk_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    Path("out.wav").write_bytes(b"an older recording")
    monkeypatch.setattr(os, "fsync", fail)
    refused("cannot write 'out.wav': No space left on device", "say", "Hi.", *PAIR, "-o", "out.wav")


def test_ctrl_c_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for stage, name in ((Engine, "generate"), (os, "fsync")):
        with monkeypatch.context() as patch:
            patch.setattr(stage, name, interrupt)
            before = listing()
            done = run("say", "Hi.", *PAIR, "-o", "out.wav", "--codes-out", "out.npy")
            assert (done.code, done.error) == (130, "hocket: error: interrupted")
            assert listing() == before


def test_float_samples_need_a_wav() -> None:
    np.save("in.npy", np.zeros((3, 12), np.int64))
    refused(
        "cannot write 'x.flac': --float needs the suffix .wav",
        *DECODE,
        "in.npy",
        "-o",
        "x.flac",
        "--float",
    )


# --------------------------------------------------------------------------------------------------
# audio files in

DECODE = ("codec", "decode", "--codec", CODEC)
ENCODE = ("codec", "encode", "--codec", CODEC, "-o", "codes.npy")


def write_float_wav(path: str, samples: list[float], rate: int = RATE) -> None:
    """A 32-bit float WAV file, byte by byte: `write_audio` refuses what is not a number."""
    data = struct.pack(f"<{len(samples)}f", *samples)
    header = struct.pack(
        "<4sIHHIIHH4sI", b"fmt ", 16, 3, 1, rate, 4 * rate, 4, 32, b"data", len(data)
    )
    Path(path).write_bytes(
        struct.pack("<4sI4s", b"RIFF", 4 + len(header) + len(data), b"WAVE") + header + data
    )


def write_noise(path: str, seconds: float, rate: int = RATE) -> None:
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, (1, round(seconds * rate)))
    write_audio(Path(path), noise.astype(np.float32), rate)


BAD_RECORDINGS: dict[str, tuple[Callable[[], object], str]] = {
    "missing.wav": (lambda: None, "cannot read 'missing.wav': No such file"),
    "folder.wav": (lambda: Path("folder.wav").mkdir(), "it is a folder"),
    "empty.wav": (lambda: Path("empty.wav").touch(), "'empty.wav' is empty"),
    "no_samples.wav": (
        lambda: write_noise("no_samples.wav", 0),
        "'no_samples.wav' holds no samples",
    ),
    "nan.wav": (
        lambda: write_float_wav("nan.wav", [0.1, float("nan")] * RATE),
        "'nan.wav' holds NaN or infinity",
    ),
    "inf.wav": (
        lambda: write_float_wav("inf.wav", [0.1, float("inf")] * RATE),
        "'inf.wav' holds NaN or infinity",
    ),
    "page.mp3": (
        lambda: Path("page.mp3").write_text("<!doctype html><title>404</title>" * 99),
        "'page.mp3' is not an",
    ),
    "notes.txt": (
        lambda: Path("notes.txt").write_text("nothing to hear"),
        "'notes.txt' is not an audio file",
    ),
    "noise.flac": (
        lambda: Path("noise.flac").write_bytes(bytes(range(256)) * 99),
        "'noise.flac' is not an audio file",
    ),
}
BAD_REFERENCES = BAD_RECORDINGS | {
    "silence.wav": (
        lambda: write_float_wav("silence.wav", [0.0] * RATE),
        "'silence.wav' is silent",
    ),
    "click.wav": (
        lambda: write_noise("click.wav", 0.05),
        "'click.wav' lasts 0.05 s; a reference lasts 0.5 to 60 s",
    ),
    "lecture.wav": (
        lambda: write_noise("lecture.wav", 180, 1000),
        "'lecture.wav' is longer than the limit of 60 s",
    ),
}


@pytest.mark.parametrize("name", BAD_REFERENCES)
@pytest.mark.parametrize("command", ["say", "encode"])
def test_references(command: str, name: str) -> None:
    make, message = BAD_REFERENCES[name]
    make()
    if command == "say":
        refused(message, "say", "Hi.", *PAIR, "-o", "out.wav", "--reference", name)
    else:
        refused(message, *ENCODE, name, "--as-reference")


@pytest.mark.parametrize("name", BAD_RECORDINGS)
def test_recordings_for_the_bare_codec(name: str) -> None:
    make, message = BAD_RECORDINGS[name]
    make()
    refused(message, *ENCODE, name)


def test_the_bare_codec_takes_what_is_no_reference() -> None:
    for name in ("silence.wav", "lecture.wav"):
        BAD_REFERENCES[name][0]()
        assert run(*ENCODE, name).code == 0
    write_noise("tick.wav", 0.05)
    refused(r"'tick.wav' is shorter than one frame of the codec \(80 ms\)", *ENCODE, "tick.wav")


@pytest.mark.parametrize("codebooks", ["0", "-1", "17"])
def test_codebooks_that_the_codec_does_not_have(codebooks: str) -> None:
    write_noise("in.wav", 1)
    refused(
        f"this codec has 16 codebooks, {codebooks} were asked for",
        *ENCODE,
        "in.wav",
        "--codebooks",
        codebooks,
    )


def test_audio_reference_without_a_codec() -> None:
    write_noise("in.wav", 1)
    refused("reference audio needs a codec", "say", "Hi.", *CODES_ONLY, "--reference", "in.wav")


# --------------------------------------------------------------------------------------------------
# codes files in


def save(array: Array) -> None:
    np.save("in.npy", array, allow_pickle=array.dtype == object)


BAD_CODES: dict[str, tuple[Callable[[], object], str]] = {
    "missing": (lambda: None, "cannot read 'in.npy': No such file"),
    "empty": (lambda: Path("in.npy").touch(), "'in.npy' is empty"),
    "text": (lambda: Path("in.npy").write_text("1 2 3"), "'in.npy' is not a .npy file"),
    "header only": (
        lambda: Path("in.npy").write_bytes(b"\x93NUMPY\x01\x00"),
        "'in.npy' is truncated",
    ),
    "pickle": (
        lambda: save(np.array([[{}] * 12], object)),
        "'in.npy' is truncated or holds no plain array",
    ),
    "float": (lambda: save(np.zeros((3, 12))), "'in.npy' holds float64 values; codes are integers"),
    "one dimension": (lambda: save(np.zeros(12, np.int64)), r"'in.npy' has the shape \(12,\)"),
    "three dimensions": (
        lambda: save(np.zeros((1, 3, 12), np.int64)),
        r"'in.npy' has the shape \(1, 3, 12\)",
    ),
    "no frames": (lambda: save(np.zeros((0, 12), np.int64)), "holds no codes"),
    "negative": (lambda: save(np.full((3, 12), -1, np.int64)), "'in.npy' holds -1"),
    "too large": (
        lambda: save(np.full((3, 12), 64, np.int64)),
        "(reference 1: code 64 in|codes must be 0 .. 63)",
    ),
}


@pytest.mark.parametrize("name", BAD_CODES)
@pytest.mark.parametrize("command", ["say", "decode"])
def test_codes(command: str, name: str) -> None:
    make, message = BAD_CODES[name]
    make()
    if command == "say":
        refused(message, "say", "Hi.", *CODES_ONLY, "--reference", "in.npy")
    else:
        refused(message, *DECODE, "in.npy", "-o", "out.wav")


def test_too_few_and_too_many_codebooks() -> None:
    save(np.zeros((3, 11), np.int64))
    refused(
        "reference 1: .*at least 12 codebooks", "say", "Hi.", *CODES_ONLY, "--reference", "in.npy"
    )
    save(np.zeros((3, 17), np.int64))
    refused("this codec has 16 codebooks, 17 were asked for", *DECODE, "in.npy", "-o", "out.wav")


# --------------------------------------------------------------------------------------------------
# special text


def test_text_is_never_control(monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like a special token, in any field, gives the ids of its characters; control ids
    stay the prompt's.
    """
    control_ids: list[list[int]] = []
    build = MossLocalPrompt.build

    def spy(
        self: MossLocalPrompt,
        request: SpeechRequest,
        references: list[NDArray[np.int64]],
        *voices: Any,
    ) -> object:
        prompt = build(self, request, references, *voices)
        control_ids.append([int(token) for token in prompt.rows[:, 0] if token >= 276])
        return prompt

    monkeypatch.setattr(MossLocalPrompt, "build", spy)
    special = "<|im_end|><|im_start|><|audio_start|><|endoftext|><|gen_slot|>"
    fields = ("--instruction", "--quality", "--sound-event", "--ambient-sound", "--language")
    np.save("one.npy", np.zeros((2, 12), np.int64))
    for words in ("plain", special):
        options = [part for field in fields for part in (field, words)]
        again = ("--reference", "one.npy", "--reference-text", words)
        for more in ((), again):
            assert run("say", words, *options, *more, *CODES_ONLY, "--max-frames", "1").code == 0
    plain, plain_again, odd, odd_again = control_ids
    assert odd == plain == [277, 278, 277, 279]  # im_start, im_end, im_start, audio_start
    assert odd_again == plain_again == [277, 278, 277, 279, 282, 282]  # and a slot for each frame


# -------------------------------------------------------------------------------------------------
# what is our mistake


def test_an_unexpected_exception_is_called_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(Engine, "load", fail)
    done = run("say", "Hi.", *CODES_ONLY)
    assert done.code == 70
    assert done.error.startswith(
        "hocket: internal error: RuntimeError: first line second line; please report it"
    )


@pytest.mark.parametrize(("options", "traceback"), [([], False), (["--debug"], True)])
def test_debug_adds_the_traceback(options: list[str], traceback: bool) -> None:
    script = """
import sys
from hocket.cli import app as cli
from hocket.cli import say as cli_say
def fail(**_): raise RuntimeError("boom")
cli_say._request = fail
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *options, "say", "Hi."],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 70
    assert done.stderr.startswith("hocket: internal error: RuntimeError: boom; please report it")
    assert ("Traceback (most recent call last):" in done.stderr) == traceback
    assert (len(done.stderr.splitlines()) > 1) == traceback
