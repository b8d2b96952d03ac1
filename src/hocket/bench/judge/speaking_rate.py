"""How long a text takes to be spoken: bounds that no intelligible speech leaves, for each kind of script."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

#: Letters of other characters' worth: "7" is read as five letters or so, a Han character or kana as one syllable.
_DIGIT_LETTERS = 4.5
_SYMBOL_LETTERS = 6.0
_WIDE_LETTERS = 3.0
_PAUSES = frozenset(".!?;:,…。！？；：，、—")


@dataclass(frozen=True, slots=True)
class SpeakingRate:
    """Letters a second. English at 150 words a minute, as audio books have it, is 11; a quick voice has 16."""

    slowest: float = 7.0
    fastest: float = 24.0
    #: Silence before, after, and at each mark of punctuation.
    edge_seconds: float = 1.5
    pause_seconds: float = 0.7

    def bounds(self, text: str) -> tuple[float, float]:
        """Seconds that speech of `text` takes at least and at most."""
        letters = spoken_letters(text)
        pauses = sum(character in _PAUSES for character in text)
        max_seconds = letters / self.slowest + self.edge_seconds + pauses * self.pause_seconds
        return max(0.05, letters / self.fastest - 0.1), max_seconds


def spoken_letters(text: str) -> float:
    """The length of `text` as read aloud, in Latin letters."""
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
