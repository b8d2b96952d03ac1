"""Text to token ids; no text can produce a control id."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
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
        file = _checked(definition, path)
        try:
            tokenizer = _unpanicked(lambda: Tokenizer.from_str(json.dumps(file.definition())))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                f"{str(path)!r} is not a byte-pair tokenizer; fetch the checkpoint again"
            ) from error
        if file.pre_tokenizer is None:
            raise CheckpointError(
                f"{str(path)!r} is not byte-level; Hocket's families use byte-level tokenizers only"
            )
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
        missing = set(ByteLevel.alphabet()) - set(tokenizer.get_vocab())
        if missing:  # a byte-pair tokenizer silently drops what it cannot spell
            raise CheckpointError(
                f"{str(path)!r} cannot spell {len(missing)} of 256 bytes, so texts would lose "
                "characters"
            )
        return cls(tokenizer)

    def encode(self, piece: str) -> list[int]:
        """Ids of one piece by itself, without added, specially matched or truncated tokens."""
        return _unpanicked(lambda: self._tokenizer.encode(piece, add_special_tokens=False).ids)


T = TypeVar("T")


def _unpanicked(call: Callable[[], T]) -> T:
    """`call()`. A panic of the library, which is no Exception, becomes a RuntimeError."""
    try:
        return call()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError("the tokenizer panicked") from None


# --------------------------------------------------------------------------------------------------
# What a file may hold. A tokenizer runs its file's normalizer and patterns on every text, and both
# can take forever: each replacement may make its input ten times as long, and a pattern may try
# every way to cut a text up. So only those of the families are taken.

#: Pre-tokens of Qwen2: contractions, words with the character before them, single digits, symbols,
#: line breaks, white space.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: Pre-tokens of models that were trained here: a whole line of the prompt's template with its usual
#: value is one piece; every other character is a piece of its own.
TEMPLATE_SPLIT = (
    r"<user_inst>\n- Reference\(s\):\n|\n</user_inst>|user\n|assistant\n"
    r"|- (?:Instruction|Tokens|Quality|Sound Event|Ambient Sound|Language|Text):\n(?:None\n|"
    r"English\n)?"
    r"|^None$|[\s\S]"
)
#: Qwen3's tokenizer.json has 11 MB.
_MAX_FILE_BYTES = 64 * 2**20


class _Part(BaseModel):
    """A part of tokenizer.json. Keys that change nothing here are left out."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class _Nfc(_Part):
    type: Literal["NFC"]


class _Regex(_Part):
    Regex: Literal[QWEN2_SPLIT, TEMPLATE_SPLIT]  # type: ignore[valid-type]


class _Split(_Part):
    type: Literal["Split"]
    pattern: _Regex
    behavior: Literal["Isolated"]
    invert: Literal[False] = False


class _ByteLevel(_Part):
    type: Literal["ByteLevel"]
    add_prefix_space: bool
    trim_offsets: bool = True
    use_regex: bool = True


class _Sequence(_Part):
    type: Literal["Sequence"]
    pretokenizers: tuple[_Split, _ByteLevel] | tuple[_ByteLevel]


class _BytePairs(_Part):
    type: Literal["BPE"]
    vocab: dict[str, int]
    merges: list[tuple[str, str]] | list[str]
    ignore_merges: bool = False
    dropout: None = None
    continuing_subword_prefix: Literal["", None] = None
    end_of_word_suffix: Literal["", None] = None


class _AddedToken(_Part):
    content: str
    special: bool


class _TokenizerFile(_Part):
    """tokenizer.json."""

    normalizer: _Nfc | None = None
    pre_tokenizer: _ByteLevel | _Sequence | None = None
    model: _BytePairs
    added_tokens: list[_AddedToken] = []

    def definition(self) -> dict[str, object]:
        """The tokenizer without what adds, truncates or pads, and without special tokens.

        Some checkpoints list control tokens among the ordinary ones, where a tokenizer that looks
        whole words up (`ignore_merges`) would find them.
        """
        special = {token.content for token in self.added_tokens if token.special}
        definition = self.model_dump(exclude={"added_tokens"})
        vocab = self.model.vocab
        definition["model"]["vocab"] = {
            token: token_id for token, token_id in vocab.items() if token not in special
        }
        return {"version": "1.0", "added_tokens": [], **definition}


def _checked(definition: object, path: Path) -> _TokenizerFile:
    try:
        return _TokenizerFile.model_validate_json(json.dumps(definition))
    except ValidationError as error:
        places = {str(part["loc"][0]) for part in error.errors(include_input=False) if part["loc"]}
    strange = places & {"normalizer", "pre_tokenizer"}
    if places != strange or not strange:
        raise CheckpointError(
            f"{str(path)!r} is not a byte-pair tokenizer; fetch the checkpoint again"
        )
    raise CheckpointError(
        f"{str(path)!r} has a {min(strange)} that no family of Hocket's uses, so it may not end on "
        "some texts; fetch the checkpoint of its authors"
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
        "pattern": {"Regex": QWEN2_SPLIT},
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
        if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
            path.stat()
            raise CheckpointError(
                f"{str(path)!r} is no file of at most {_MAX_FILE_BYTES >> 20} MiB; fetch the "
                "checkpoint again"
            )
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
