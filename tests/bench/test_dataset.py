"""Datasets and dialects: the texts of a run, and the requests that each server gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hocket.bench.dataset import Item, choose, data_uri, load_dataset, set_names
from hocket.bench.dialects import DELIVERIES, DIALECTS, find_dialect
from hocket.bench.judge.wer import LANGUAGE_CODES
from hocket.errors import ConfigError


def test_the_built_in_sets_are_there_and_say_different_things() -> None:
    items = load_dataset("all", None)
    assert {"plain", "numbers", "names", "paragraphs", "short", "de", "zh"} <= set(set_names())
    assert len({item.text for item in items}) == len(items) > 150
    assert len({item.id for item in items}) == len(items)
    assert {item.language for item in items} <= set(LANGUAGE_CODES)
    assert all(len(item.text) > 250 for item in load_dataset("paragraphs", None))
    assert all(
        any(c.isdigit() for c in item.text) or "quarter" in item.text
        for item in load_dataset("numbers", None)
    )
    assert len(load_dataset("plain,short", None)) == 40


def test_order_is_that_of_the_seed() -> None:
    items = load_dataset("plain", None)
    assert choose(items, seed=None, limit=None) == items
    once, again, other = (choose(items, seed=seed, limit=5) for seed in (1, 1, 2))
    assert once == again != other
    voiced = choose(items, seed=None, limit=5, voices=["a", "b"])
    assert [item.voice for item in voiced] == ["a", "b", "a", "b", "a"]


def seed_tts(folder: Path, lines: list[str]) -> Path:
    (folder / "en" / "prompt-wavs").mkdir(parents=True)
    (folder / "en" / "prompt-wavs" / "v1.wav").write_bytes(b"RIFF....")
    (folder / "en" / "meta.lst").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "en"


def test_seed_tts_layout(tmp_path: Path) -> None:
    folder = seed_tts(
        tmp_path,
        [
            "a|Words of it.|prompt-wavs/v1.wav|Say this.",
            "b||prompt-wavs/v1.wav|And this.|wavs/b.wav",
        ],
    )
    first, second = load_dataset("seed-tts", folder)
    assert first == Item(
        "a", "Say this.", "English", None, folder / "prompt-wavs" / "v1.wav", "Words of it."
    )
    assert second.reference_text is None
    assert load_dataset("seed-tts", folder / "meta.lst")[0] == first
    assert first.reference is not None
    assert data_uri(first.reference).startswith("data:audio/")
    (plain,) = choose([first], seed=None, limit=None, references=False)
    assert (plain.reference, plain.reference_text) == (None, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a|b|c", "line 1: 3 fields"),
        ("a|b|prompt-wavs/v1.wav|", "line 1: no text"),
        ("a|b|prompt-wavs/none.wav|Say.", "is not there"),
        ("a|b|../../secret.wav|Say.", "lies outside"),
        ("a|b|/etc/passwd|Say.", "lies outside"),
        ("", "has no lines"),
    ],
)
def test_lists_that_are_not_in_order(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "secret.wav").write_bytes(b"x")
    with pytest.raises(ConfigError, match=message):
        load_dataset("seed-tts", seed_tts(tmp_path, [line]))


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    (tmp_path / "v.wav").write_bytes(b"x")
    lines = [
        {"text": "One."},
        {"text": "Zwei.", "language": "German", "voice": "anna", "reference": "v.wav", "id": "two"},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    assert load_dataset("jsonl", path) == [
        Item("line-1", "One."),
        Item("two", "Zwei.", "German", "anna", tmp_path / "v.wav"),
    ]
    path.write_text('{"text": "One.", "colour": 1}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1: colour"):
        load_dataset("jsonl", path)


@pytest.mark.parametrize(
    ("kind", "path"),
    [("plane", None), ("seed-tts", None), ("plain", "x"), ("jsonl", "missing.jsonl")],
)
def test_what_is_no_dataset(kind: str, path: str | None) -> None:
    with pytest.raises(ConfigError):
        load_dataset(kind, None if path is None else Path(path))


def test_every_dialect_asks_in_its_own_words() -> None:
    item = Item("a", "Hello.", "English", "anna", Path("v.wav"), "Words.")
    bodies = {
        name: dialect.body(
            item,
            delivery="raw",
            response_format="pcm",
            model="m",
            reference_uri="data:x",
            seed=3,
            extra={"top_k": 5},
        )
        for name, dialect in DIALECTS.items()
    }
    shared = {
        "model": "m",
        "input": "Hello.",
        "voice": "anna",
        "response_format": "pcm",
        "top_k": 5,
    }
    assert bodies["openai"] == shared
    assert bodies["kokoro-fastapi"] == shared | {"stream": True, "lang_code": "a"}
    cloned = {"language": "English", "seed": 3}
    assert bodies["hocket"] == shared | cloned | {
        "stream_format": "audio",
        "reference_audio": "data:x",
        "reference_text": "Words.",
    }
    for name in ("vllm-omni", "sglang-omni"):
        assert bodies[name] == shared | cloned | {
            "stream": True,
            "stream_format": "audio",
            "ref_audio": "data:x",
            "ref_text": "Words.",
        }


def test_our_own_dialect_is_what_our_server_takes() -> None:
    from hocket.server.schemas import SpeechBody, read_body
    from hocket.server.settings import ServerSettings

    item = Item("a", "Hello.", "English", "anna", Path("v.wav"), "Words.")
    for delivery in DELIVERIES:
        fields = DIALECTS["hocket"].body(
            item,
            delivery=delivery,
            response_format="mp3",
            model=None,
            reference_uri="data:x",
            seed=3,
            extra={},
        )
        assert read_body(SpeechBody, fields, ServerSettings()).delivery == {"raw": "stream"}.get(
            delivery, delivery
        )


def test_what_a_dialect_cannot_say_is_refused() -> None:
    cloned = [Item("a", "Hello.", reference=Path("v.wav"))]
    with pytest.raises(ConfigError, match="no --delivery sse"):
        find_dialect("kokoro-fastapi").check("sse", "mp3", [])
    with pytest.raises(ConfigError, match="streams pcm, wav only"):
        find_dialect("vllm-omni").check("raw", "mp3", [])
    with pytest.raises(ConfigError, match="no field for reference audio"):
        find_dialect("openai").check("raw", "mp3", cloned)
    with pytest.raises(ConfigError, match="--format"):
        find_dialect("hocket").check("raw", "ogg", [])
    with pytest.raises(ConfigError, match="--dialect"):
        find_dialect("nobody")
    find_dialect("vllm-omni").check("whole", "mp3", cloned)
