"""Money, measures, telephone numbers and all other numbers."""

from __future__ import annotations

import re

from hocket.text.normalize.calendar import Match, Rule, after, before
from hocket.text.normalize.numbers import cardinal, decade, digits, fraction, number, ordinal, year
from hocket.text.normalize.tables import (
    CURRENCIES,
    CURRENCY_CODES,
    DOLLARS,
    MAGNITUDES,
    PER,
    UNITS,
    Noun,
)

#: A whole number of bounded length: longer ones are read in pieces, so that a text of digits takes
#: no longer than any other.
_WHOLE = r"(?:\d{1,3}(?:,\d{3}){1,6}(?![\d])|\d{1,40})"
_NUMBER = rf"(?:{_WHOLE}(?:\.\d{{1,40}})?|\.\d{{1,40}})"
_MINUS = r"(?P<minus>(?<![\w)\]])- ?(?=[\d.$£€¥₹]))?"
#: The match does not begin inside a number or word.
_FRESH = r"(?<![\w.,])"
_SYMBOL = f"[{re.escape(''.join(CURRENCIES))}]"
_CODE = rf"(?P<code>{'|'.join(CURRENCY_CODES)})\b"
_BIG = r"(?: ?(?P<big>hundred|thousand|million|billion|trillion|[kKmMbBT]|mn|bn|tn)\b)?"
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_PER = rf"(?:/(?P<per>{'|'.join(sorted(PER, key=len, reverse=True))})\b)?"


def _alternatives(kind: str) -> str:
    return rf"(?:(?P<low>{kind}) ?[-–] ?)?(?P<amount>{kind})"


def _is_adjective(match: Match) -> bool:
    """Whether the unit stays in the singular, as in "a $5 bill", "an 8 km run"."""
    lead = match.string[max(0, match.start() - 3) : match.start()]
    return (
        re.search(r"\b[Aa]n? $", lead) is not None
        and re.match(r" (?!(?:of|per|and|or|to)\b)[a-z]", after(match, 5)) is not None
    )


# ---- money


def _money(match: Match) -> str:
    groups = match.groupdict()
    nouns, hundredth = (
        CURRENCIES[groups["symbol"]] if groups.get("symbol") else CURRENCY_CODES[groups["code"]]
    )
    if dollars := groups.get("dollars"):
        nouns = (f"{DOLLARS[dollars]} {nouns[0]}", f"{DOLLARS[dollars]} {nouns[1]}")
    if _is_adjective(match):
        nouns = nouns[0], nouns[0]
    words = _amount_of_money(match["amount"], groups.get("big"), nouns, hundredth)
    low = f"{number(groups['low'])} to " if groups.get("low") else ""
    return f" {'minus ' if groups.get('minus') else ''}{low}{words}{_per(match)} "


def _amount_of_money(amount: str, big: str | None, nouns: Noun, hundredth: Noun | None) -> str:
    if big:
        return f"{number(amount)} {MAGNITUDES.get(big, big)} {nouns[1]}"
    whole, _, part = amount.partition(".")
    if len(part) != 2 or hundredth is None:
        return f"{number(amount)} {nouns[amount != '1']}"
    words = f"{cardinal(whole)} {nouns[whole != '1']}" if whole.strip("0") else ""
    if part == "00":
        return words or f"zero {nouns[1]}"
    small = f"{cardinal(str(int(part)))} {hundredth[part != '01']}"
    return f"{words} and {small}" if words else small


# ---- measures


def _measure(match: Match) -> str:
    one, several = UNITS[match["unit"]]
    power = {None: "", "2": "square ", "3": "cubic "}[match["power"]]
    is_adjective = match["gap"] == "-" or _is_adjective(match)
    noun = one if is_adjective or (match["amount"] == "1" and not match["low"]) else several
    low = f"{number(match['low'])} to " if match["low"] else ""
    minus = "minus " if match["minus"] else ""
    return f" {minus}{low}{number(match['amount'])} {power}{noun}{_per(match)} "


def _per(match: Match) -> str:
    return f" per {PER[match['per']]}" if match["per"] else ""


def _feet_and_inches(match: Match) -> str:
    feet, inches = match[1], match[2]
    words = f"{cardinal(feet)} {'foot' if feet == '1' else 'feet'}"
    return f"{words} {cardinal(inches)} {'inch' if inches == '1' else 'inches'}"


def _sizes(match: Match) -> str:
    return " by ".join(number(size) for size in re.findall(_NUMBER, match[0]))


# ---- telephone


def _telephone(match: Match) -> str:
    groups = re.findall(r"\d+", match[0])
    return ("plus " if match[0].startswith("+") else "") + ", ".join(
        digits(group) for group in groups
    )


def _international(match: Match) -> str:
    return _telephone(match) if len(re.findall(r"\d", match[0])) > 7 else match[0]


# ---- other numbers

_YEARLIKE = r"(?:1\d|20)\d\d"
#: First year that needs no word before it to be read as one: "in 1066", but "1066 is a number".
_FIRST_PLAIN_YEAR = "1100"
_BEFORE_YEARS = re.compile(
    r"(?:\b(?:in|since|by|from|until|till|of|year|before|after|around|circa|during|early|late|mid|"
    r"spring|summer|autumn|"
    r"fall|winter|to|and|between|class|copyright|A D)|[(,])[ -]$",
    re.IGNORECASE,
)
_COUNTED = re.compile(r" (?:[a-z]+s|people|men|women|children|more|other|different|or so)\b")


def _year_or_count(match: Match) -> str:
    """Read four digits as a year unless they count something: "2024 people" but "in 2024 sales"."""
    lead = match.string[max(0, match.start() - 16) : match.start()]
    is_counted = match[0] < _FIRST_PLAIN_YEAR or _COUNTED.match(after(match, 24))
    if is_counted and not _BEFORE_YEARS.search(lead):
        return cardinal(match[0])
    return year(match[0])


def _fraction(match: Match) -> str:
    whole, numerator, denominator = match["whole"], match["numerator"], match["denominator"]
    if numerator == denominator and not whole:
        return f"{cardinal(numerator)} {cardinal(denominator)}"
    if denominator == "10" and not whole:
        return f"{cardinal(numerator)} out of ten"
    if not 0 < int(numerator) < int(denominator):
        return f"{cardinal(numerator)} over {cardinal(denominator)}"
    if not whole:
        return fraction(numerator, denominator)
    part = fraction(numerator, denominator)
    return f"{cardinal(whole)} and {'a' + part[3:] if numerator == '1' else part}"


def _range(match: Match) -> str:
    read = (
        year if re.fullmatch(_YEARLIKE, match[1]) and re.fullmatch(_YEARLIKE, match[2]) else number
    )
    to = " " if match[1] == match[2] else " to "  # "a 50-50 chance"
    return read(match[1]) + to + read(match[2])


def _plain(match: Match) -> str:
    words = f"{'minus ' if match['minus'] else ''}{number(match['amount'])}"
    return f"{' ' * before(match).isalpha()}{words}{' ' * after(match, 1).isalpha()}"


#: Groups of digits that are read one by one.
_CODES = "|".join(
    (
        # (555) 123-4567
        r"(?<![\w.-])(?:(?:\+\d{1,3}|1)[ .-])?(?:\(\d{2,4}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])",
        r"(?<![\w.,-])\d{3}-\d{4}(?![\w-])",  # 555-1234
        r"(?<![\w.,-])0\d{2,4}[ -]\d{3,4}[ -]?\d{3,4}(?![\w-])",  # 020 7946 0958
        r"(?<![\w.,-])\d{4}(?:[ -]\d{4}){3}(?![\w-])",  # 1234 5678 9012 3456
        r"(?<![\w.,-])\d{1,7}(?:-\d{1,7}){2,6}(?![\w-])",  # 123-45-6789
    )
)
_AFTER_WORDS_FOR_CODES = (
    r"(?i:(?<=\bcall )|(?<=\bdial )|(?<=\bcode )|(?<=\bcode is )|(?<=\bPIN )|(?<=\bPIN is )|"
    r"(?<=\bextension ))"
)

QUANTITY_RULES: tuple[Rule, ...] = (
    # Continental notation: 1.234,56.
    (
        re.compile(rf"{_FRESH}\d{{1,3}}(?:\.\d{{3}}){{1,4}},\d\d(?!\d)"),
        lambda match: match[0].replace(".", "").replace(",", "."),
    ),
    (re.compile(_CODES), _telephone),
    (
        re.compile(r"(?<![\w.])\+(?:\d{1,3}(?:[ .-]\(?\d{1,5}\)?){1,6}|\d{8,15})(?!\d)"),
        _international,
    ),
    (
        re.compile(rf"{_AFTER_WORDS_FOR_CODES}\d{{3,15}}(?![.,]?\d|\w)"),
        lambda match: digits(match[0]),
    ),
    # Money.
    (
        re.compile(
            rf"{_MINUS}(?:(?P<dollars>\b(?:{'|'.join(DOLLARS)}))(?=\$))?(?P<symbol>{_SYMBOL}) ?"
            rf"(?:(?P<low>{_NUMBER}) ?[-–] ?(?:{_SYMBOL})?)?(?P<amount>{_NUMBER}){_BIG}{_PER}"
        ),
        _money,
    ),
    (
        re.compile(rf"{_FRESH}{_MINUS}{_alternatives(_NUMBER)}{_BIG} ?(?P<symbol>{_SYMBOL}){_PER}"),
        _money,
    ),
    (re.compile(rf"{_FRESH}{_MINUS}{_alternatives(_NUMBER)}{_BIG} ?{_CODE}{_PER}"), _money),
    (re.compile(rf"\b{_CODE} ?{_alternatives(_NUMBER)}{_BIG}{_PER}"), _money),
    (
        re.compile(r"(?<![\w.,])(\d{1,9}) ?¢"),
        lambda match: f"{cardinal(match[1])} cent{'s' * (match[1] != '1')}",
    ),
    # Ordinals, decades, and measures.
    (
        re.compile(rf"{_FRESH}({_WHOLE})(?:st|nd|rd|th|ST|ND|RD|TH)\b"),
        lambda match: ordinal(match[1]),
    ),
    (
        re.compile(r"(?<![\w.,])'?((?:1[1-9]|20)\d0|[2-9]0)(?:'?s)\b"),
        lambda match: decade(match[1]),
    ),
    (re.compile(r"(?<![\w.,])(\d{1,2})' ?(\d{1,2})(?:\"|''|\b)"), _feet_and_inches),
    (
        re.compile(
            rf"{_FRESH}{_MINUS}{_alternatives(_NUMBER)}(?P<gap>[ -]?)(?P<unit>{_UNIT})(?:\^(?"
            rf"P<power>[23]))?"
            rf"(?:(?<=[%°])|(?![\w'])){_PER}"
        ),
        _measure,
    ),
    (re.compile(rf"{_FRESH}{_NUMBER}(?: ?[xX] ?{_NUMBER}){{1,3}}(?![\w])"), _sizes),
    (re.compile(rf"{_FRESH}({_NUMBER})[xX]\b"), lambda match: f"{number(match[1])} times"),
    (
        re.compile(rf"{_FRESH}({_NUMBER})(k|mn|bn|tn|M)\b"),
        lambda match: f"{number(match[1])} {MAGNITUDES[match[2]]}",
    ),
    # Fractions, ratios and ranges.
    (
        re.compile(rf"{_FRESH}(\d{{1,3}}\.\d{{1,2}})/(\d{{1,3}})(?![\w/])"),
        lambda match: f"{number(match[1])} out of {cardinal(match[2])}",
    ),
    (
        re.compile(
            r"(?<![\w./,-])(?:(?P<whole>\d{1,6})[ -])?(?P<numerator>\d{1,3})/(?"
            r"P<denominator>[1-9]\d{0,3})(?![\w/])"
        ),
        _fraction,
    ),
    (
        re.compile(r"(?<![\w:.,])(\d{1,3}):(\d{1,3})(?![\w:])"),
        lambda match: f"{cardinal(match[1])} to {cardinal(match[2])}",
    ),
    (re.compile(rf"{_FRESH}(?<!-)({_NUMBER}) ?[-–] ?({_NUMBER})(?![\w-]|[.,]\d| ?=)"), _range),
    # Versions and addresses of machines.
    (
        re.compile(r"(?<![\w.])\d{1,9}(?:\.\d{1,9}){2,8}(?![\w])"),
        lambda match: " point ".join(cardinal(part) for part in match[0].split(".")),
    ),
    (re.compile(rf"(?<![\w.,-]){_YEARLIKE}(?![\w,]?\d|\.\d|\w)"), _year_or_count),
    (
        re.compile(r"(?<=\d) ?\^ ?([23])\b|(?<=[A-Za-z])\^([23])\b"),
        lambda match: " squared" if "2" in match[0] else " cubed",
    ),
    (re.compile(r"(?<=[\w)])\^(?=[\w(])"), lambda _: " to the power of "),
    (re.compile(r"(?<=\d) ?- ?(?=\d[^=]{0,40}=)"), lambda _: " minus "),
    (re.compile(r"(?<=\d)-(?=[\dA-Z])"), lambda _: " "),
    (re.compile(rf"{_MINUS}(?P<amount>{_NUMBER})"), _plain),
)
