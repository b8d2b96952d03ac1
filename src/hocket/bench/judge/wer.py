"""Word and character errors between a text and its transcript, both normalised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from hocket.bench.optional import need

#: Language codes of recognisers, by English name.
LANGUAGE_CODES = {
    "English": "en",
    "German": "de",
    "French": "fr",
    "Spanish": "es",
    "Italian": "it",
    "Portuguese": "pt",
    "Chinese": "zh",
    "Japanese": "ja",
    "Korean": "ko",
    "Russian": "ru",
}
#: Written without spaces between words: each character counts as a word.
_UNSPACED = frozenset({"Chinese", "Japanese"})


@dataclass(frozen=True, slots=True)
class Errors:
    """Edits between the two texts, and the length of the reference text."""

    word_errors: int
    words: int
    character_errors: int
    characters: int

    @property
    def cer(self) -> float:
        return self.character_errors / max(1, self.characters)


def normal(text: str, language: str | None) -> str:
    """Normalise with Whisper's rules: lower case, no punctuation, one form of numbers and of
    English spelling.
    """
    return " ".join(str(_normaliser(language)(text)).split())


def count_errors(text: str, transcript: str, language: str | None) -> Errors:
    """Count errors of normalised texts, by Levenshtein distance. An empty reference counts as one
    word.
    """
    distance: Any = need("rapidfuzz", "--transcribe").distance.Levenshtein.distance
    right, found = normal(text, language), normal(transcript, language)
    letters, found_letters = right.replace(" ", ""), found.replace(" ", "")
    return Errors(
        int(distance(right.split(), found.split())),
        max(1, len(right.split())),
        int(distance(letters, found_letters)),
        max(1, len(letters)),
    )


@cache
def _normaliser(language: str | None) -> Any:
    if language in {None, "English"}:
        return need("whisper_normalizer.english", "--transcribe").EnglishTextNormalizer()
    basic = need("whisper_normalizer.basic", "--transcribe").BasicTextNormalizer
    return basic(split_letters=language in _UNSPACED)
