"""Joins the transcript of a recording and the text that continues it, in any script."""

from __future__ import annotations

import unicodedata

#: Blocks of scripts written without spaces between words, and of their punctuation.
_UNSPACED_BLOCKS = (
    (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
    (0x1000, 0x109F),  # Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x2E80, 0x312F),  # Han radicals, CJK punctuation, kana, Bopomofo
    (0x31A0, 0x31FF),  # Bopomofo, strokes, kana
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),  # Han
    (0xA980, 0xA9FF),  # Javanese, Burmese
    (0xAA60, 0xAA7F),  # Burmese
    (0xF900, 0xFAFF),  # Han
    (0xFE30, 0xFE4F),  # CJK punctuation
    (0xFF01, 0xFF9F),  # full-width letters and punctuation, half-width kana
    (0x1AFF0, 0x1B16F),  # kana
    (0x20000, 0x3FFFF),  # Han
)


def join_texts(before: str, after: str, join: str | None) -> str:
    """Concatenate `before`, `join` and `after`. The default `join` is one space between spaced
    scripts.

    White space at the border counts as the separator. Chinese, Japanese, Thai, Lao, Khmer, Burmese
    and Tibetan take no space; Korean, Arabic and Hebrew do. Digits, shared punctuation and emoji
    belong to the script of the nearest letter on their side, or to a spaced script without one.
    """
    if join is None:
        bordered = before[-1:].isspace() or after[:1].isspace()
        join = " " if not bordered and _takes_spaces(before[::-1]) and _takes_spaces(after) else ""
    return before + join + after


def _takes_spaces(side: str) -> bool:
    """Whether the script of `side`, read from the border inwards, puts spaces between words."""
    for character in side:
        if any(first <= ord(character) <= last for first, last in _UNSPACED_BLOCKS):
            return False
        if unicodedata.category(character).startswith("L"):
            return True
    return True
