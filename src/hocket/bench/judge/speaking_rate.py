"""Duration bounds that intelligible speech of a text stays within, for each kind of script."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

#: Other characters in letters: "7" is read as about five letters, a Han character or kana as one
#: syllable.
_DIGIT_LETTERS = 4.5
_SYMBOL_LETTERS = 6.0
_WIDE_LETTERS = 3.0
_PAUSES = frozenset(".!?;:,…。！？；：，、—")


@dataclass(frozen=True, slots=True)
class SpeakingRate:
    """Letters a second. Audio books in English (150 words a minute) have 11, a quick voice has
    16.
    """

    slowest: float = 7.0
    fastest: float = 24.0
    #: Silence around the speech, and at each punctuation mark.
    edge_seconds: float = 1.5
    pause_seconds: float = 0.7

    def bounds(self, text: str) -> tuple[float, float]:
        """Minimum and maximum duration of `text`, in seconds."""
        letters = spoken_letters(text)
        pauses = sum(character in _PAUSES for character in text)
        max_seconds = letters / self.slowest + self.edge_seconds + pauses * self.pause_seconds
        return max(0.05, letters / self.fastest - 0.1), max_seconds


def spoken_letters(text: str) -> float:
    """Length of `text` as read aloud, in Latin letters."""
    total = 0.0
    for character in text:
        category = unicodedata.category(character)[0]
        if unicodedata.east_asian_width(character) in "WF" and category == "L":
            total += _WIDE_LETTERS
        elif category == "L":
            total += 1.0
        elif category == "N":
            total += _DIGIT_LETTERS
        elif category == "S":
            total += _SYMBOL_LETTERS
    return total
