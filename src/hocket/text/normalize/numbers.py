"""Numbers as English words, by num2words: "one hundred and five", as the texts that the shipped
voice learned from.
"""

from __future__ import annotations

from functools import lru_cache

from num2words import num2words

#: Most digits of a number that is read as a whole; longer ones are read digit by digit.
_MAX_DIGITS = 15
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def digits(written: str) -> str:
    """Read digit by digit: "07" is "zero seven"."""
    return " ".join(_DIGITS[int(digit)] for digit in written)


@lru_cache(maxsize=4096)
def cardinal(written: str) -> str:
    """A whole number: "1,234" or "1234". With a leading zero it is read digit by digit."""
    plain = written.replace(",", "")
    if len(plain) > _MAX_DIGITS or (len(plain) > 1 and plain[0] == "0"):
        return digits(plain)
    return _words(int(plain), "cardinal")


@lru_cache(maxsize=1024)
def ordinal(written: str) -> str:
    """ "21" is "twenty-first"."""
    plain = written.replace(",", "")
    return _words(int(plain), "ordinal") if len(plain) <= _MAX_DIGITS else digits(plain)


@lru_cache(maxsize=1024)
def year(written: str) -> str:
    """A year: "1984" is "nineteen eighty-four", "1905" "nineteen oh five", "2005" "two thousand and
    five".
    """
    return _words(int(written), "year").replace("oh-", "oh ")


def number(written: str) -> str:
    """A whole or decimal number, without sign."""
    whole, point, fraction = written.partition(".")
    words = cardinal(whole) if whole else ""
    return f"{words} point {digits(fraction)}".strip() if point else words


def decade(written: str) -> str:
    """ "1990" is "nineteen nineties", "90" "nineties", "2000" "two thousands"."""
    words = year(written) if len(written) == 4 else cardinal(written)
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def fraction(numerator: str, denominator: str) -> str:
    """ "3", "4" is "three quarters"."""
    one, several = {"2": ("half", "halves"), "4": ("quarter", "quarters")}.get(
        denominator, (ordinal(denominator), f"{ordinal(denominator)}s")
    )
    return f"{cardinal(numerator)} {one if numerator == '1' else several}"


def _words(value: int, kind: str) -> str:
    words: str = num2words(value, lang="en", to=kind)
    return words.replace(",", "")
