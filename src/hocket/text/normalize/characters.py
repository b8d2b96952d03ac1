"""Folds characters: Latin text to ASCII, other scripts to their plainest form."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from hocket.text.normalize.tables import CURRENCIES, SYMBOLS

#: Replacements made before Unicode's compatibility forms, which would lose their meaning.
_SUPERSCRIPTS = {ord(digit): f"^{i}" for i, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_PRE = str.maketrans(
    {
        **dict.fromkeys("“”„‟″〝〞«»＂", '"'),
        **dict.fromkeys("‘’‚‛′`´ʼʻ＇", "'"),
        **dict.fromkeys("‐‑‒−－", "-"),
        **dict.fromkeys("—―–⸺⸻", "–"),
        **dict.fromkeys("。｡।॥؞۔።", ". "),
        **dict.fromkeys("，、､،፣", ", "),
        **dict.fromkeys("；؛", "; "),
        **dict.fromkeys("：", ": "),
        **dict.fromkeys("？؟⸮", "? "),
        **dict.fromkeys("！", "! "),
        **dict.fromkeys("•‣◦·●▪■□★☆►▶©®™℠¿¡", " "),
        "…": "...",
        "ª": "a",
        "№": "number ",
        "×": " x ",
        "⁄": "/",
        "∕": "/",
        "﹪": "%",
        "＿": "_",
    }
)
#: Letters whose plain form differs from the letter without its marks.
_PLAIN_LETTERS = str.maketrans(
    {
        **dict.fromkeys("đð", "d"),
        **dict.fromkeys("ĐÐ", "D"),
        "æ": "ae",
        "Æ": "Ae",
        "œ": "oe",
        "Œ": "Oe",
        "ß": "ss",
        "ẞ": "Ss",
        "þ": "th",
        "Þ": "Th",
        "ŋ": "ng",
        "Ŋ": "Ng",
        "ø": "o",
        "Ø": "O",
        "ł": "l",
        "Ł": "L",
        "ı": "i",
        "ħ": "h",
    }
)
_GREEK = re.compile(r"(?<![\w])([α-ωΑ-Ω])(?![\w])")
#: Spaces of other widths between groups of digits.
_GROUPED = re.compile("(?<=\\d)[\u00a0\u2009\u202f](?=\\d{3}(?!\\d))")
_DEGREES = re.compile("(?<=\\d)º")
_VULGAR = re.compile("(?<=\\d)(?=[¼-¾⅐-⅞])")
#: Characters that the rules of `english` handle.
_KEPT = {*SYMBOLS, *CURRENCIES, *"–°¢μ"}
_DROPPED_CATEGORIES = ("C", "So", "Sk")


def fold(text: str) -> str:
    """Make quotes, dashes, digits, ligatures and accents plain, replace symbols by words, drop
    emoji.
    """
    if text.isascii():
        return text
    text = (
        _DEGREES.sub("°", _VULGAR.sub(" ", _GROUPED.sub("", text)))
        .translate(_PRE)
        .translate(_SUPERSCRIPTS)
    )
    text = unicodedata.normalize("NFKC", text).translate(_PRE).translate(_PLAIN_LETTERS)
    text = _GREEK.sub(lambda match: _plain_name(match[1]), text)
    return "".join(map(_fold_character, unicodedata.normalize("NFC", text)))


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    if character.isascii() or character in _KEPT:
        return character
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.digit(character))
    if category in ("Nl", "No"):
        value = unicodedata.numeric(character)
        return f" {int(value)} " if value == int(value) else f" {_plain_name(character)} "
    if category in ("Sm", "Sc"):
        return f" {_plain_name(character)} "
    if category.startswith(_DROPPED_CATEGORIES):
        return " " if category == "Cc" else ""
    if category[0] in "LM":
        return _without_marks(character)
    return " "  # punctuation of other scripts, spaces of other widths


def _without_marks(character: str) -> str:
    """Remove the accents of a Latin letter, and marks after one; anything else is unchanged."""
    base = unicodedata.normalize("NFD", character)
    if base[0].isascii():
        return base[0]
    return "" if "\u0300" <= character <= "\u036f" else character


def _plain_name(character: str) -> str:
    """The core of a character's Unicode name: "greek small letter pi" is pi, "tugrik sign" is
    tugrik.
    """
    name = unicodedata.name(character, "").lower()
    name = re.sub(r"^(?:greek|latin|cyrillic) (?:small|capital) letter ", "", name)
    name = re.sub(r"^greek \w+ symbol |\b(?:sign|symbol|operator)\b", "", name)
    return re.sub(r"[^a-z]+", " ", name).strip()
