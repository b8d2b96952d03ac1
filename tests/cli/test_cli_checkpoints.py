"""Checkpoints that are not what they should be: the same promises as for other bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from tests.support.cli_runner import CODEC, TALKER, refused, run_process
from tests.support.paths import GOLDEN

Array = NDArray[np.generic]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def copy(name: str = "local_tiny") -> Path:
    return Path(shutil.copytree(GOLDEN / name, "copy", ignore=shutil.ignore_patterns("golden_*")))


def damage_config(**changes: object) -> None:
    file = copy() / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def damage_tensors(change: Callable[[dict[str, Array]], object]) -> None:
    file = copy() / "model.safetensors"
    tensors: dict[str, Array] = load_file(file)
    change(tensors)
    save_file(tensors, file)


def remove(file: Path) -> None:
    file.unlink()


def cut(file: Path, keep: int) -> None:
    file.write_bytes(file.read_bytes()[:keep])


NORM = "transformer.norm.weight"
BAD_TALKERS: dict[str, tuple[Callable[[], object], str]] = {
    "missing": (lambda: None, "'copy' is neither a folder nor a hub id"),
    "file": (lambda: Path("copy").touch(), "copy is a file; give the folder"),
    "empty folder": (lambda: Path("copy").mkdir(), "copy holds no config.json"),
    "no weights": (
        lambda: remove(copy() / "model.safetensors"),
        "copy holds no .*safetensors file",
    ),
    "no tokenizer": (lambda: remove(copy() / "tokenizer.json"), "tokenizer.json' is missing"),
    "config is no JSON": (
        lambda: (copy() / "config.json").write_text("{"),
        "config.json is not valid JSON",
    ),
    "wrong family": (
        lambda: damage_config(model_type="llama"),
        "config.json has model_type 'llama'",
    ),
    "codec for a talker": (lambda: copy("codec2_tiny"), "copy is a codec, not a talker"),
    "wrong dimension": (lambda: damage_config(n_vq=0), "n_vq"),
    "truncated": (
        lambda: cut(copy() / "model.safetensors", 100_000),
        "model.safetensors is truncated",
    ),
    "only a header": (
        lambda: cut(copy() / "model.safetensors", 4),
        "model.safetensors is truncated",
    ),
    "extra tensor": (
        lambda: damage_tensors(lambda t: t.update(extra=np.zeros(3, np.float32))),
        "copy holds 'extra'",
    ),
    "missing tensor": (lambda: damage_tensors(lambda t: t.pop(NORM)), f"copy lacks '{NORM}'"),
    "misshaped tensor": (
        lambda: damage_tensors(lambda t: t.update({NORM: np.ones(63, np.float32)})),
        rf"'{NORM}' in .* has shape \[63\], but config.json asks for \[64\]",
    ),
    "integer tensor": (
        lambda: damage_tensors(lambda t: t.update({NORM: np.ones(64, np.int32)})),
        f"'{NORM}' in .* is stored as I32",
    ),
}


@pytest.mark.parametrize("name", BAD_TALKERS)
def test_talker(name: str) -> None:
    make, message = BAD_TALKERS[name]
    make()
    refused(message, "say", "Hi.", "--model", "copy", "--codec", "none", "--codes-out", "codes.npy")


@pytest.mark.parametrize("name", ["missing", "empty folder", "wrong family", "config is no JSON"])
def test_info(name: str) -> None:
    make, message = BAD_TALKERS[name]
    make()
    refused(message, "info", "copy")


BAD_CODECS = {
    TALKER: "local_tiny is a talker, not a codec",
    "absent": "'absent' is neither a folder nor a hub id",
    str(
        GOLDEN / "codec1_tiny"
    ): "12 codes a frame out of 64, the codec knows 8 out of 64; give the codec that belongs",
}


@pytest.mark.parametrize("codec", BAD_CODECS)
def test_codec(codec: str) -> None:
    refused(BAD_CODECS[codec], "say", "Hi.", "--model", TALKER, "--codec", codec, "-o", "out.wav")


def test_a_codec_of_another_rate() -> None:
    refused(
        "codec makes 300 Hz; give the codec that belongs to the model",
        "say",
        "Hi.",
        "--codec",
        CODEC,
    )


def test_a_talker_that_names_no_codec() -> None:
    refused("names no codec; give one with --codec", "say", "Hi.", "--model", TALKER)


def test_a_hub_id_that_is_not_cached_when_offline(tmp_path: Path) -> None:
    done = run_process("info", "nobody/nothing", HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert done.error.startswith(
        "hocket: error: 'nobody/nothing' is not fully cached and HF_HUB_OFFLINE forbids"
    )
    assert done.code == 2
