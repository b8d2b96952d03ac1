"""The command line when all is well: its options, its files, what it prints and where, and how fast
it answers.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from hocket import Sampling, SpeechRequest, __version__
from hocket.audio.io import decode_audio, write_audio
from hocket.engine.engine import Engine
from hocket.errors import InvalidRequestError
from tests.support.cli_runner import CODEC, CODES_ONLY, PAIR, TALKER, listing, run, run_process

HOCKET = [sys.executable, "-W", "error", "-m", "hocket"]
#: Standard output as users have it, buffered: what fails only when the buffer is emptied must be
#: reported as well.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def say(*options: str) -> NDArray[np.int64]:
    """The codes of a short sampled speech."""
    done = run("say", "Hello world.", *CODES_ONLY, "--seed", "5", "--max-frames", "6", *options)
    assert done.code == 0, done.err
    codes: NDArray[np.int64] = np.load("codes.npy")
    return codes


# --------------------------------------------------------------------------------------------------
# options

OPTIONS = {
    ("say",): (
        "--output --model --codec --voice --reference --reference-text --language --instruction "
        "--task-type --streaming-text --quality --sound-event --ambient-sound --tokens --join "
        "--seed --temperature --top-p --top-k --repetition-penalty --predictor-temperature "
        "--predictor-top-p --predictor-top-k --max-frames --text-front --codes-out --device "
        "--dtype --json --help"
    ),
    ("codec", "encode"): "--output --codec --codebooks --as-reference --device --dtype --help",
    ("codec", "decode"): "--output --codec --float --device --dtype --help",
    ("info",): "--dtype --rows --json --help",
    ("voices",): "--model --json --help",
    (): "--version --debug --help",
}


@pytest.mark.parametrize("command", OPTIONS)
def test_the_options_are_these(command: tuple[str, ...]) -> None:
    done = run(*command, "--help")
    assert done.code == 0
    assert (
        re.findall(r"^  (?:-o, )?(--[a-z-]+)", done.out, re.MULTILINE) == OPTIONS[command].split()
    )
    assert ("-o, --output" in done.out) == ("--output" in OPTIONS[command])


@pytest.mark.parametrize(
    "options",
    [
        ["--seed", "6"],
        ["--temperature", "0"],
        ["--temperature", "0.3"],
        ["--top-p", "0.1"],
        ["--top-k", "2"],
        ["--repetition-penalty", "3"],
        ["--max-frames", "2"],
        ["--language", "English"],
        ["--instruction", "warm"],
        ["--quality", "high"],
        ["--sound-event", "door"],
        ["--ambient-sound", "rain"],
        ["--tokens", "20"],
        ["--dtype", "bfloat16"],
    ],
)
def test_every_option_has_an_effect(options: list[str]) -> None:
    plain = say()
    assert np.array_equal(say(), plain)
    assert not np.array_equal(say(*options), plain)


def test_every_option_reaches_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[SpeechRequest] = []

    def spy(_: Engine, request: SpeechRequest) -> NoReturn:
        requests.append(request)
        raise InvalidRequestError("seen")

    monkeypatch.setattr(Engine, "generate", spy)
    words: dict[str, Any] = {
        name: f"some {name}"
        for name in (
            "reference_text",
            "language",
            "instruction",
            "quality",
            "sound_event",
            "ambient_sound",
            "join",
        )
    }
    numbers: dict[str, Any] = {"tokens": 20, "seed": 1, "max_frames": 2}
    sampling: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "repetition_penalty": 1.5,
    }
    given = words | numbers | sampling | {"reference": "a.npy"}
    options = [
        part
        for name, value in given.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    run("say", "Hello.", *CODES_ONLY, *options)
    run("say", "Hello.", *CODES_ONLY, "--reference", "a.wav", "--reference", "b.npy")
    voice = [Path("a.npy")]
    wanted = SpeechRequest(
        text="Hello.", reference=voice, sampling=Sampling(**sampling), **words, **numbers
    )
    assert requests == [
        wanted,
        SpeechRequest(text="Hello.", reference=[Path("a.wav"), Path("b.npy")]),
    ]


def test_without_a_seed_one_is_drawn_and_reported() -> None:
    sampled = ("say", "Hello world.", *CODES_ONLY, "--max-frames", "6", "--json")
    seed = json.loads(run(*sampled).out)["seed"]
    first = np.load("codes.npy")
    assert json.loads(run(*sampled, "--seed", str(seed)).out)["seed"] == seed
    assert np.array_equal(np.load("codes.npy"), first)
    assert json.loads(run(*sampled).out)["seed"] != seed


def test_a_wav_is_written_when_no_file_is_named() -> None:
    assert run("say", "Hello world.", *PAIR, "--seed", "1").code == 0
    assert list(listing()) == ["out.wav"]


# --------------------------------------------------------------------------------------------------
# recordings

FORMATS = ["wav", "flac", "mp3", "opus", "m4a"]


def recording(rate: int, seconds: float = 1.2) -> NDArray[np.float32]:
    """Something like speech, stereo: harmonics of a gliding voice in syllables, and breath."""
    t = np.arange(round(rate * seconds)) / rate
    pitch = 2 * np.pi * np.cumsum(140 + 30 * np.sin(2 * np.pi * 1.5 * t)) / rate
    voice = sum(np.sin(k * pitch) / k for k in range(1, 20)) * (
        0.5 + 0.5 * np.sin(2 * np.pi * 4 * t)
    )
    breath = np.random.default_rng(1).normal(size=t.size)
    mono = 0.1 * voice + 0.005 * breath
    return np.stack([mono, 0.8 * mono]).astype(np.float32)


@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
def test_a_recording_in_any_format(rate: int, babble: Path) -> None:
    """Encoded, decoded, and cloned (24 kHz, mono). Lossy formats may pad by a frame."""
    encoded: dict[str, NDArray[np.int64]] = {}
    for suffix in FORMATS:
        write_audio(Path(f"in.{suffix}"), recording(rate), rate)
        done = run("codec", "encode", f"in.{suffix}", "-o", "codes.npy")
        assert done.code == 0, done.err
        encoded[suffix] = np.load("codes.npy")
        assert encoded[suffix].shape[1] == 10
        assert abs(len(encoded[suffix]) - 15) <= 1
        done = run("codec", "decode", "codes.npy", "-o", f"back.{suffix}")
        assert done.code == 0, done.err
        back = decode_audio(Path(f"back.{suffix}"), max_bytes=2**20, max_seconds=9)
        assert back.samples.shape[0] == 1
        assert abs(back.seconds - 0.08 * len(encoded[suffix])) < 0.06
        speech = (
            "say",
            "Hello.",
            "--reference",
            f"in.{suffix}",
            "-o",
            f"said.{suffix}",
            "--max-frames",
            "5",
            "--json",
        )
        done = run(*speech, "--seed", "3", "--model", str(babble))
        assert done.code == 0, done.err
        assert json.loads(done.out)["output"] == f"said.{suffix}"
    assert np.array_equal(encoded["flac"], encoded["wav"])


def test_a_recording_and_its_codes_are_the_same_reference() -> None:
    write_audio(Path("in.wav"), recording(16_000), 16_000)
    common = ("--codec", CODEC, "--codebooks", "12")
    assert (
        run("codec", "encode", "in.wav", "-o", "reference.npy", "--as-reference", *common).code == 0
    )
    assert run("codec", "encode", "in.wav", "-o", "bare.npy", *common).code == 0
    said = {}
    for name in ("in.wav", "reference.npy", "bare.npy"):
        for transcript in ([], ["--reference-text", "So."]):
            done = run("say", "Hi.", *PAIR, "--reference", name, *transcript, "--temperature", "0",
            "-o", "o.wav",
                       "--codes-out", "codes.npy", "--max-frames", "12")  # fmt: skip
            assert done.code == 0, done.err
            said[name, bool(transcript)] = (
                Path("o.wav").read_bytes(),
                Path("codes.npy").read_bytes(),
            )
    for continued in (False, True):
        assert said["in.wav", continued] == said["reference.npy", continued]
        assert (
            said["in.wav", continued] != said["bare.npy", continued]
        )  # the loudness rule matters here
    assert said["in.wav", False] != said["in.wav", True]


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 names only")
def test_file_names_need_not_be_utf8() -> None:
    name = b"caf\xe9"
    done = run(
        "say", "Hello.", *PAIR, "-o", name + b".wav", "--codes-out", name + b".npy", "--seed", "1"
    )
    assert done.code == 0, done.err
    assert done.out.startswith(r"caf\udce9.wav: ")
    assert {os.fsencode(path) for path in Path().iterdir()} == {name + b".wav", name + b".npy"}
    assert run("codec", "decode", name + b".npy", "-o", name + b".flac", "--codec", CODEC).code == 0
    assert "caf\\udce9.xyz" in run("codec", "decode", name + b".npy", "-o", name + b".xyz").error


# --------------------------------------------------------------------------------------------------
# what is printed


def test_json_is_one_line_and_the_rest_is_silent() -> None:
    done = run_process("say", "Hello world.", *PAIR, "-o", "a.wav", "--codes-out", "a.npy",
    "--temperature", "0",
                       "--seed", "7", "--json", FORCE_COLOR="1", TTY_COMPATIBLE="1")  # fmt: skip
    assert done.code == 0
    assert done.err == ""
    assert done.out.count("\n") == 1
    facts = json.loads(done.out)
    assert facts.pop("taken_seconds") > 0
    wanted = {"audio_seconds": 0.48, "frames": 6, "seed": 7, "finish_reason": "stop"}
    assert facts == {**wanted, "output": "a.wav", "codes_out": "a.npy"}


def test_finish_reason_length() -> None:
    done = run(
        "say", "Hello world.", *CODES_ONLY, "--temperature", "0", "--max-frames", "3", "--json"
    )
    facts = json.loads(done.out)
    assert (facts["finish_reason"], facts["frames"], facts["audio_seconds"]) == ("length", 3, 0)
    assert (facts["output"], facts["codes_out"]) == (None, "codes.npy")


def test_people_get_a_sentence() -> None:
    done = run("say", "Hello world.", "--seed", "7", "--max-frames", "5", "-o", "a.flac")
    assert re.fullmatch(
        r"a\.flac: 0\.40 s of audio in \d+\.\d\d s, [\d.]+ times as fast as it plays \(5 frames, "
        r"seed 7, length\)\n",
        done.out,
    )
    assert done.err == ""
    named = run("say", "Hello world.", *PAIR, "-o", "b.wav")
    assert named.err == ""


def test_version_and_bare_command() -> None:
    assert run("--version").out == f"hocket {__version__}\n"
    assert run().out == run("--help").out
    assert run().code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 0), (["--help"], 0), (["say", "--help"], 0), (["--version"], 0), (["say", ""], 2)],
)
def test_answers_without_loading_torch(arguments: list[str], code: int) -> None:
    script = """
import sys
from hocket.cli.app import main
try:
    main()
finally:
    heavy = {"torch", "av", "tokenizers", "huggingface_hub", "safetensors"} & sys.modules.keys()
    assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], check=False, capture_output=True, timeout=60
    )
    assert done.returncode == code, done.stderr


# ----------------------------------------------------------------------------------------------- a
# process among others


class Terminal:
    """A process whose standard error is a terminal."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [*HOCKET, *arguments], stdout=subprocess.PIPE, stderr=slave, env=environment
        )
        os.close(slave)
        self.shown = b""

    def read(self, until: bytes | None = None) -> bytes:
        """Everything on the terminal, to the end or until `until` shows; a minute at most."""
        give_up = time.monotonic() + 60
        while until is None or until not in self.shown:
            ready, _, _ = select.select([self._master], [], [], give_up - time.monotonic())
            assert ready, self.shown[-1000:]
            try:
                data = os.read(self._master, 4096)
            except OSError:  # how Linux says that the other side has closed
                data = b""
            if not data:
                assert until is None, self.shown[-1000:]
                break
            self.shown += data
            assert time.monotonic() < give_up, self.shown[-1000:]
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._master)


@pytest.fixture(name="terminals")
def _terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_progress_on_a_terminal(terminals: list[Terminal]) -> None:
    terminals.append(
        terminal := Terminal("say", "Hello world.", *PAIR, "--temperature", "0", "--json")
    )
    shown = terminal.read()
    assert b"loading" in shown
    assert b"\x1b[2K" in shown  # taken away again
    out, _ = terminal.process.communicate(timeout=60)
    assert terminal.process.returncode == 0
    assert json.loads(out)["frames"] == 6


def endless_talker() -> None:
    """A copy of the golden talker in `endless` that never stops: one channel is kept for telling
    the stop head so.
    """
    shutil.copytree(TALKER, "endless", ignore=shutil.ignore_patterns("golden_*"))
    file = Path("endless/model.safetensors")
    tensors = load_file(file)
    tensors["local_transformer.ln_f.weight"][0] = 0
    tensors["local_transformer.ln_f.bias"][0] = 1
    for name, tensor in tensors.items():
        if name.startswith(("audio_embeddings.", "audio_lm_heads.")):
            tensor[:, 0] = 0  # no code hears of it
    tensors["local_text_lm_head.weight"][:] = 0
    tensors["local_text_lm_head.weight"][1, 0] = -1000
    save_file(tensors, file)


def test_ctrl_c_while_speaking(terminals: list[Terminal]) -> None:
    endless_talker()
    before = listing()
    speech = (
        "say",
        "Hello.",
        "--model",
        "endless",
        "--codec",
        CODEC,
        "--tokens",
        "3000",
    )  # so that 3000 are no runaway
    terminals.append(terminal := Terminal(*speech, "-o", "a.wav", "--codes-out", "a.npy"))
    terminal.read(until=b"speaking")
    time.sleep(0.2)
    terminal.process.send_signal(signal.SIGINT)
    shown = terminal.read()
    out, _ = terminal.process.communicate(timeout=60)
    assert terminal.process.returncode == 130
    assert out == b""
    assert shown.endswith(b"hocket: error: interrupted\r\n")
    assert b"Traceback" not in shown
    assert listing() == before


def test_a_reader_that_has_gone_away() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*HOCKET, "info"],
        check=False,
        env=BUFFERED,
        stdout=write_end,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_under_standard_output() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*HOCKET, "info"],
            check=False,
            env=BUFFERED,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert done.returncode == 2
    assert (
        done.stderr == b"hocket: error: cannot write to standard output: No space left on device\n"
    )


def test_no_standard_output_at_all() -> None:
    command = f'"{sys.executable}" -m hocket --version >&-'
    assert subprocess.run(command, check=False, shell=True, timeout=60).returncode == 0
