"""Text to ids, where text is only ever text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from hocket.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A checkpoint's byte-pair tokenizer without its added tokens.

    A user who writes `<|im_end|>` means these ten characters. So the added tokens are taken out before the tokenizer is
    built: no spelling of a text can produce a control id, and the prompt builder sets those by number.
    """

    _tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: Path, *, vocab_size: int | None = None) -> TextTokenizer:
        """Build from `folder`/tokenizer.json; with `vocab_size`, every id must be one of the model's.

        Raises CheckpointError.
        """
        path = folder / "tokenizer.json"
        try:
            definition = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{str(path)!r} is missing; give the folder of a whole checkpoint") from None
        except OSError as error:
            raise CheckpointError(f"cannot read {str(path)!r}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{str(path)!r} is not valid JSON; fetch the checkpoint again") from error
        try:
            tokenizer = Tokenizer.from_str(json.dumps(_without_added_tokens(definition)))
        except (
            Exception
        ) as error:  # the library raises bare Exception, and a wrong shape any of KeyError, TypeError, ...
            raise CheckpointError(f"{str(path)!r} is not a byte-pair tokenizer; fetch the checkpoint again") from error
        highest = max(tokenizer.get_vocab().values(), default=-1)
        if vocab_size is not None and highest >= vocab_size:
            raise CheckpointError(
                f"{str(path)!r} has ids up to {highest}, but the model embeds {vocab_size}; it belongs to another model"
            )
        cls._check_alphabet(tokenizer, definition, path)
        return cls(tokenizer)

    @staticmethod
    def _check_alphabet(tokenizer: Tokenizer, definition: dict[str, Any], path: Path) -> None:
        """A byte-pair tokenizer drops what it cannot spell without a word, so it must know every byte."""
        if "ByteLevel" not in json.dumps(definition.get("pre_tokenizer")):
            raise CheckpointError(f"{str(path)!r} is not byte-level; Hocket's families use byte-level tokenizers only")
        missing = set(ByteLevel.alphabet()) - set(tokenizer.get_vocab())
        if missing:
            raise CheckpointError(
                f"{str(path)!r} cannot spell {len(missing)} of 256 bytes, so texts would lose characters"
            )

    def encode(self, piece: str) -> list[int]:
        """The ids of one piece by itself: nothing is added to it, matched in it as a whole, or cut from it."""
        return self._tokenizer.encode(piece, add_special_tokens=False).ids


def _without_added_tokens(definition: dict[str, Any]) -> dict[str, Any]:
    """The definition without what adds, cuts or pads, and without special tokens in the vocabulary either.

    Some checkpoints list control tokens among the ordinary ones, where a tokenizer that looks whole words up
    (`ignore_merges`) would find them.
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
