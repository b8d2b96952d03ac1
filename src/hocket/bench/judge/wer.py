"""What was said against what was heard: texts brought to one form, and errors counted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from hocket.bench.optional import need

#: English names of languages, and the codes that recognisers use.
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
    """Edits between the two texts, and the length of what should have been said."""

    word_errors: int
    words: int
    character_errors: int
    characters: int

    @property
    def cer(self) -> float:
        return self.character_errors / max(1, self.characters)


def normal(text: str, language: str | None) -> str:
    """Lower case, no punctuation, numbers and spellings of English in one form (Whisper's normalisers)."""
    return " ".join(str(_normaliser(language)(text)).split())


def count_errors(said: str, heard: str, language: str | None) -> Errors:
    """Of normalised texts, by Levenshtein distance. An empty text has one word that can be wrong."""
    distance: Any = need("rapidfuzz", "--transcribe").distance.Levenshtein.distance
    right, found = normal(said, language), normal(heard, language)
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
