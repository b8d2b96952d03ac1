"""Checkpoints from strangers: a folder that hangs, panics or leads elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket.errors import CheckpointError, ConfigError, HocketError
from hocket.models.registry import builtin_model, codec_folder, load_talker
from hocket.text import tokenizer as module
from hocket.text.tokenizer import QWEN2_SPLIT, TextTokenizer
from tests.support.paths import REPOSITORY

MINI = builtin_model()
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
BOMB = {"type": "Replace", "pattern": {"String": "."}, "content": "aaaaaaaaaa"}


def split(pattern: dict[str, str], behavior: str = "Isolated", *, invert: bool = False) -> Any:
    piece = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    return {"type": "Sequence", "pretokenizers": [piece, {**BYTE_LEVEL, "use_regex": False}]}


NORMALIZERS: list[Any] = [
    {"type": "Sequence", "normalizers": [BOMB] * 8},
    BOMB,
    {"type": "Prepend", "prepend": "x" * 10_000},
    {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    *({"type": name} for name in ("NFKC", "NFD", "Lowercase", "Nmt", "ByteLevel", "Unheard-of")),
    {"type": "NFC", "normalizers": 7} | {"type": "Sequence"},
    [],
    "NFC",
]
PRE_TOKENIZERS: list[Any] = [
    *(
        split({"Regex": pattern})
        for pattern in (
            r"(a|a)*b",
            r"(a+)+$",
            r"(?:(?:(?:a*)*)*)*c",
            r"(.*)\1(.*)\2x",
            "a{1000}{1000}",
            "(" * 5_000,
            "",
            "[",
            QWEN2_SPLIT + "|(a+)+$",
            QWEN2_SPLIT[:-1],
        )
    ),
    split({"String": "a"}),
    split({"Regex": QWEN2_SPLIT}, "Removed"),
    split({"Regex": QWEN2_SPLIT}, invert=True),
    {"type": "Sequence", "pretokenizers": [BYTE_LEVEL] * 10_000},
    {"type": "Sequence", "pretokenizers": [split({"Regex": QWEN2_SPLIT})]},
    {"type": "Sequence", "pretokenizers": []},
    {"type": "Metaspace", "replacement": "_", "add_prefix_space": True},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "ByteLevel"},
    [],
]
MODELS: list[dict[str, Any]] = [
    {"type": "WordPiece"},
    {"type": "Unigram", "vocab": []},
    {"continuing_subword_prefix": "\u00e9\u00e9"},
    {"end_of_word_suffix": "</w>"},
    {"dropout": 0.5},
    {"dropout": 1e400},
    {"vocab": []},
    {"vocab": {"a": -1}},
    {"vocab": {"a": 2**64}},
    {"vocab": {"a": 1.5}},
    {"merges": [["a"]]},
    {"merges": [["a", "b", "c"]]},
    {"merges": ["a"]},
    {"merges": [["a", "\u4e00"]]},
    {"merges": {"a": "b"}},
    {"ignore_merges": "yes"},
]


def written(folder: Path, **changes: Any) -> Path:
    definition = json.loads((MINI / "tokenizer.json").read_text(encoding="utf-8"))
    model = definition["model"] | changes.pop("model", {})
    content = json.dumps(definition | changes | {"model": model})
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    return folder


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=lambda value: str(value)[:40])
def test_only_known_normalizers_run(tmp_path: Path, normalizer: Any) -> None:
    with pytest.raises(CheckpointError, match="a normalizer that no family") as caught:
        TextTokenizer.load(written(tmp_path, normalizer=normalizer))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pre_tokenizer", PRE_TOKENIZERS, ids=lambda value: str(value)[:60])
def test_only_known_patterns_run(tmp_path: Path, pre_tokenizer: Any) -> None:
    with pytest.raises(CheckpointError, match="a pre_tokenizer that no family"):
        TextTokenizer.load(written(tmp_path, pre_tokenizer=pre_tokenizer))


@pytest.mark.parametrize("model", MODELS, ids=lambda value: str(value)[:40])
def test_only_plain_byte_pairs_are_taken(tmp_path: Path, model: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="is not a byte-pair tokenizer"):
        TextTokenizer.load(written(tmp_path, model=model))


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
@pytest.mark.parametrize("pattern", [QWEN2_SPLIT, module.TEMPLATE_SPLIT])
def test_what_the_families_have_ends_on_every_text(
    tmp_path: Path, normalizer: Any, pattern: str
) -> None:
    found = TextTokenizer.load(
        written(tmp_path, normalizer=normalizer, pre_tokenizer=split({"Regex": pattern}))
    )
    for piece in (" ", "\n ", "a", "'s", "\u0301", "\ufdfa", "!", "1", " !\n", "\t\r", "- Text:\n"):
        for text in (piece * (10_000 // len(piece)), piece * 5_000 + "x"):
            assert len(found.encode(text)) >= 1_000


def test_a_panic_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    panic = type("PanicException", (BaseException,), {})

    def fail() -> list[int]:
        raise panic("called `Result::unwrap()` on an `Err` value: RetryLimitInMatchOver")

    with pytest.raises(RuntimeError, match=r"^the tokenizer panicked$") as caught:
        module._unpanicked(fail)
    assert caught.value.__cause__ is None
    with pytest.raises(KeyboardInterrupt):
        module._unpanicked(lambda: (_ for _ in ()).throw(KeyboardInterrupt))


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    shutil.copytree(MINI, tmp_path / "mini", copy_function=os.symlink)
    (tmp_path / "mini" / "tokenizer.json").unlink()
    written(tmp_path / "mini", normalizer=NORMALIZERS[0])
    done = subprocess.run(
        [sys.executable, "-m", "hocket", "say", "hello", "--model", "mini", "-o", "out.wav"],
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert "has a normalizer that no family" in done.stderr


# --------------------------------------------------------------------------------------------------
# files that are none


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def no_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_hole(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [a_pipe, no_end, a_hole, a_folder])
@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "hocket.json", "model.safetensors", "voices/bella.json"],
)
def test_what_is_no_file_is_not_read(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    shutil.copytree(MINI, tmp_path / "mini", copy_function=os.symlink)
    path = tmp_path / "mini" / name
    path.unlink()
    make(path)
    with pytest.raises(HocketError) as caught:
        load_talker(tmp_path / "mini", device=torch.device("cpu"), dtype=torch.float32)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": ["moss_tts_local"]},
        {"model_type": {}, "architectures": [["a"], {}, None]},
        {"model_type": "x" * 10_000},
    ],
)
def test_a_family_is_a_word(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="has model_type") as caught:
        load_talker(tmp_path, device=torch.device("cpu"), dtype=torch.float32)
    assert len(str(caught.value)) < 1_000


# --------------------------------------------------------------------------------------------------
# a codec elsewhere


def test_a_codec_that_the_checkpoint_names_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "talker").mkdir()
    (tmp_path / "codec").mkdir()
    config = {"audio_tokenizer_name_or_path": str(tmp_path / "codec")}
    (tmp_path / "talker" / "config.json").write_text(json.dumps(config))
    for _ in range(2):
        assert codec_folder(tmp_path / "talker", None) == tmp_path / "codec"
    assert [record.getMessage() for record in caplog.records] == [
        f"the codec is {str(tmp_path / 'codec')!r}, as {tmp_path / 'talker'}/config.json names it"
    ]
    caplog.clear()
    codec_folder(MINI, None)
    assert caplog.records == []
