"""Texts to speak: the built-in sentences, a folder in the layout of Seed-TTS, or lines of JSON."""

from __future__ import annotations

import base64
import itertools
import json
import mimetypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from hocket.core import StrictModel
from hocket.errors import ConfigError, ReferenceAudioError

#: Largest recording that is sent inside a request.
_MAX_REFERENCE_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Item:
    """One text and its voice."""

    id: str
    text: str
    #: English name.
    language: str | None = None
    voice: str | None = None
    #: A recording of the voice, and its transcript.
    reference: Path | None = None
    reference_text: str | None = None


class _Line(StrictModel):
    """A line of a JSONL file."""

    text: Annotated[str, Field(min_length=1)]
    id: str | None = None
    language: str | None = None
    voice: str | None = None
    #: Relative to the file.
    reference: str | None = None
    reference_text: str | None = None


@cache
def _sentences() -> dict[str, dict[str, Any]]:
    file = resources.files("hocket.bench") / "data" / "sentences.json"
    sets: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return sets


def set_names() -> tuple[str, ...]:
    """Names of the built-in sets."""
    return tuple(_sentences())


def load_dataset(kind: str, path: Path | None) -> list[Item]:
    """`kind` is "seed-tts" or "jsonl" with a `path`, or built-in sets: "plain", "plain,numbers",
    "all".

    Raises ConfigError for a file that is missing or malformed.
    """
    if kind in {"seed-tts", "jsonl"}:
        if path is None:
            raise ConfigError(f"--dataset {kind} needs a path after it", param="dataset")
        return _seed_tts(path) if kind == "seed-tts" else _jsonl(path)
    if path is not None:
        raise ConfigError(
            f"--dataset {kind} is built in and takes no path; only seed-tts and jsonl do",
            param="dataset",
        )
    names = list(set_names()) if kind == "all" else [name.strip() for name in kind.split(",")]
    unknown = [name for name in names if name not in _sentences()]
    if unknown:
        known = ", ".join((*set_names(), "all", "seed-tts PATH", "jsonl PATH"))
        raise ConfigError(f"--dataset {unknown[0]!r} is not known; use {known}", param="dataset")
    return [
        Item(f"{name}-{i + 1}", text, _sentences()[name]["language"])
        for name in names
        for i, text in enumerate(_sentences()[name]["texts"])
    ]


def choose(
    items: Sequence[Item],
    *,
    seed: int | None,
    limit: int | None,
    voices: Sequence[str] = (),
    references: bool = True,
) -> list[Item]:
    """Shuffle by `seed` (None keeps the order), take the first `limit`, and assign `voices` in
    turn.
    """
    chosen = list(items)
    if seed is not None:
        random.Random(seed).shuffle(chosen)
    chosen = chosen[:limit]
    if not references:
        chosen = [replace(item, reference=None, reference_text=None) for item in chosen]
    if voices:
        chosen = [
            replace(item, voice=voice)
            for item, voice in zip(chosen, itertools.cycle(voices), strict=False)
        ]
    return chosen


@cache
def data_uri(path: Path) -> str:
    """Encode a recording for JSON. Raises ReferenceAudioError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReferenceAudioError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if len(data) > _MAX_REFERENCE_BYTES:
        raise ReferenceAudioError(
            f"{str(path)!r} has {len(data)} bytes; the limit is {_MAX_REFERENCE_BYTES}"
        )
    kind = mimetypes.guess_type(path.name)[0] or "audio/wav"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _seed_tts(path: Path) -> list[Item]:
    """Read lines `id|reference text|reference file|text[|recording]`; the folder's name tells the
    language.
    """
    file = path / "meta.lst" if path.is_dir() else path
    language = {"en": "English", "zh": "Chinese"}.get(file.resolve().parent.name)
    items = []
    for number, line in _lines(file):
        fields = line.split("|")
        if len(fields) not in (4, 5):
            raise ConfigError(
                f"{file}, line {number}: {len(fields)} fields; want id|reference text|file|text"
            )
        name, words, reference, text = (field.strip() for field in fields[:4])
        if not text:
            raise ConfigError(f"{file}, line {number}: no text")
        items.append(
            Item(name, text, language, None, _inside(file, reference, number), words or None)
        )
    return _not_empty(items, file)


def _jsonl(path: Path) -> list[Item]:
    items = []
    for number, line in _lines(path):
        try:
            fields = _Line.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "the line"
            raise ConfigError(f"{path}, line {number}: {where}: {problem['msg']}") from None
        items.append(
            Item(
                fields.id or f"line-{number}",
                fields.text,
                fields.language,
                fields.voice,
                None if fields.reference is None else _inside(path, fields.reference, number),
                fields.reference_text,
            )
        )
    return _not_empty(items, path)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    if "\0" in str(path):
        raise ConfigError("the path has a NUL in it", param="dataset")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot read {str(path)!r}: {error.strerror}", param="dataset"
        ) from error
    except UnicodeDecodeError:
        raise ConfigError(
            f"{str(path)!r} is not UTF-8; convert it first", param="dataset"
        ) from None
    # Not splitlines: texts may contain U+2028 and the like.
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _inside(file: Path, name: str, number: int) -> Path:
    """Resolve a recording that a list names, below the list's own folder only.

    Lists are downloaded, and the files that they name are sent to a server.
    """
    folder = file.resolve().parent
    try:
        found = (folder / name).resolve()
        is_there = found.is_file()
    except (OSError, ValueError):  # too long, or a NUL
        raise ConfigError(
            f"{file}, line {number}: the recording has a name that no file can have"
        ) from None
    if not found.is_relative_to(folder):
        raise ConfigError(
            f"{file}, line {number}: the recording {name!r} lies outside of the list's folder"
        )
    if not is_there:
        raise ConfigError(f"{file}, line {number}: the recording {name!r} is not there")
    return found


def _not_empty(items: list[Item], file: Path) -> list[Item]:
    if not items:
        raise ConfigError(f"{str(file)!r} has no lines", param="dataset")
    return items
