"""Text to token ids; no text can produce a control id."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from hocket.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A checkpoint's byte-pair tokenizer without its added tokens.

    A user who writes `<|im_end|>` means these ten characters. So the added tokens are removed
    before the tokenizer is built: no text can produce a control id, and prompt builders set those
    by number.
    """

    _tokenizer: Tokenizer

    @classmethod
    def load(
        cls, folder: Path, *, vocab_size: int | None = None, reserved: Collection[int] = ()
    ) -> TextTokenizer:
        """Build from `folder`/tokenizer.json, or else from vocab.json and merges.txt as Qwen2 reads
        them.

        With `vocab_size`, every id must be below it; no text may produce a `reserved` id.
        Raises CheckpointError.
        """
        path = folder / "tokenizer.json"
        if path.exists() or not (folder / "vocab.json").exists():
            definition = _read_json(path)
        else:
            path = folder / "vocab.json"
            definition = _qwen2_definition(folder)
        try:
            tokenizer = Tokenizer.from_str(json.dumps(_without_added_tokens(definition)))
        # the library raises bare Exception, and a wrong shape any of KeyError, TypeError,
        # ...
        except Exception as error:
            raise CheckpointError(
                f"{str(path)!r} is not a byte-pair tokenizer; fetch the checkpoint again"
            ) from error
        ids = set(tokenizer.get_vocab().values())
        highest = max(ids, default=-1)
        if vocab_size is not None and highest >= vocab_size:
            raise CheckpointError(
                f"{str(path)!r} has ids up to {highest}, but the model embeds {vocab_size}; it "
                "belongs to another model"
            )
        if taken := sorted(ids.intersection(reserved)):
            raise CheckpointError(
                f"{str(path)!r} gives ordinary text the control id {taken[0]}; fetch the "
                "checkpoint again"
            )
        cls._check_alphabet(tokenizer, definition, path)
        return cls(tokenizer)

    @staticmethod
    def _check_alphabet(tokenizer: Tokenizer, definition: dict[str, Any], path: Path) -> None:
        """Check that it knows every byte: a byte-pair tokenizer silently drops what it cannot
        spell.
        """
        if "ByteLevel" not in json.dumps(definition.get("pre_tokenizer")):
            raise CheckpointError(
                f"{str(path)!r} is not byte-level; Hocket's families use byte-level tokenizers only"
            )
        missing = set(ByteLevel.alphabet()) - set(tokenizer.get_vocab())
        if missing:
            raise CheckpointError(
                f"{str(path)!r} cannot spell {len(missing)} of 256 bytes, so texts would lose "
                "characters"
            )

    def encode(self, piece: str) -> list[int]:
        """Ids of one piece by itself, without added, specially matched or truncated tokens."""
        return self._tokenizer.encode(piece, add_special_tokens=False).ids


#: Pre-tokens of Qwen2: contractions, words with the character before them, single digits, symbols,
#: line breaks, white space.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _qwen2_definition(folder: Path) -> dict[str, Any]:
    """The content of tokenizer.json, made from the older files (sources: Qwen3 1)."""
    lines = _read(folder / "merges.txt").split("\n")
    if lines[0].startswith("#version:"):
        del lines[0]
    names = folder / "added_tokens.json"
    added = _read_json(names) if names.exists() else {}
    split = {
        "type": "Split",
        "pattern": {"Regex": _QWEN2_SPLIT},
        "behavior": "Isolated",
        "invert": False,
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": _read_json(folder / "vocab.json"),
            "merges": [line.split() for line in lines if line.strip()],
        },
        "added_tokens": [{"content": name, "special": True} for name in added],
    }


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            f"{str(path)!r} is missing; give the folder of a whole checkpoint"
        ) from None
    except OSError as error:
        raise CheckpointError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} is not UTF-8; fetch the checkpoint again") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{str(path)!r} is not valid JSON; fetch the checkpoint again"
        ) from error


def _without_added_tokens(definition: dict[str, Any]) -> dict[str, Any]:
    """Remove from the definition what adds, truncates or pads, and special tokens in the
    vocabulary.

    Some checkpoints list control tokens among the ordinary ones, where a tokenizer that looks whole
    words up (`ignore_merges`) would find them.
    """
    model = definition["model"]
    if model["type"] != "BPE":
        raise ValueError(f"a {model['type']} model")
    special = {token["content"] for token in definition.get("added_tokens", []) if token["special"]}
    vocab = {token: token_id for token, token_id in model["vocab"].items() if token not in special}
    return definition | {
        "added_tokens": [],
        "model": model | {"vocab": vocab},
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
