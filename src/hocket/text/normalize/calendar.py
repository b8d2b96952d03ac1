"""Dates and times of day."""

from __future__ import annotations

import re
from collections.abc import Callable

from hocket.text.normalize.numbers import cardinal, digits, ordinal, year
from hocket.text.normalize.tables import DAYS, MONTHS

Match = re.Match[str]
Rule = tuple[re.Pattern[str], Callable[[Match], str]]


def before(match: Match) -> str:
    """The character before `match`, or an empty string."""
    return match.string[max(0, match.start() - 1) : match.start()]


def after(match: Match, count: int) -> str:
    """Up to `count` characters after `match`; all of them would take quadratic time."""
    return match.string[match.end() : match.end() + count]


_MONTHS_AND_DAYS = 12, 31
_BY_ABBREVIATION = {month[:3]: month for month in MONTHS}
_MONTH = (
    r"(?P<month>Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|"
    r"Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_YEAR = r"(?P<year>[12]\d{3})"
#: The number does not continue after the match.
_MORE = r"(?![\w:]|[.,/-]\d)"
_HALF_DAY = r"(?P<half>[AaPp])(?:\.[Mm]\.|[Mm]\b)"


def _date(month: str, day: str, in_year: str | None) -> str:
    return f"{month} {ordinal(day)}" + (f", {year(in_year)}" if in_year else "")


def _month_of(match: Match) -> str:
    return _BY_ABBREVIATION[match["month"][:3]]


def _month_day(match: Match) -> str:
    return _date(_month_of(match), match["day"], match["year"])


def _day_month(match: Match) -> str:
    the = match["the"] or "the "
    in_year = f", {year(match['year'])}" if match["year"] else ""
    return f"{the}{ordinal(match['day'])} of {_month_of(match)}{in_year}"


def _month_year(match: Match) -> str:
    return f"{_month_of(match)} {year(match['year'])}"


def _iso_date(match: Match) -> str:
    date = _date(MONTHS[int(match["month"]) - 1], match["day"], match["year"])
    return f"{date}, " if match["clock"] else date


def _numeric_date(match: Match) -> str:
    """A date of numbers; where both orders are possible, the month comes first, as in America."""
    first, second, in_year = int(match["first"]), int(match["second"]), match["year"]
    month, day = (
        (second, first) if first > _MONTHS_AND_DAYS[0] or match["mark"] == "." else (first, second)
    )
    if not (1 <= month <= _MONTHS_AND_DAYS[0] and 1 <= day <= _MONTHS_AND_DAYS[1]):
        return match[0]
    if len(in_year) == 2:
        in_year = ("20" if in_year < "70" else "19") + in_year
    return _date(MONTHS[month - 1], str(day), in_year)


def _hour_of_half_day(match: Match) -> str:
    # The full stop of "p.m." also ends a sentence.
    stop = "." if match[0].endswith(".") and re.match(r"\s*$|\s+[A-Z]", after(match, 4)) else ""
    minutes = _minutes(match["minute"]) if match["minute"] not in (None, "00") else ""
    return f"{cardinal(str(int(match['hour'])))}{minutes} {match['half'].upper()} M{stop}"


def _time(match: Match) -> str:
    hour, minute, second = int(match["hour"]), match["minute"], match["second"]
    if minute != "00":
        words = (
            "twelve" + _minutes(minute) + " A M"
            if hour == 0
            else cardinal(str(hour)) + _minutes(minute)
        )
    elif hour == 0:
        words = "midnight"
    else:
        words = f"{cardinal(str(hour))} o'clock" if hour <= 12 else f"{cardinal(str(hour))} hundred"
    if second is None or second == "00":
        return words
    return f"{words} and {cardinal(str(int(second)))} second{'' if second == '01' else 's'}"


def _minutes(minute: str) -> str:
    return f" oh {digits(minute[1])}" if minute[0] == "0" else f" {cardinal(minute)}"


#: Rules in their order of application, before all other numbers.
CALENDAR_RULES: tuple[Rule, ...] = (
    (re.compile(rf"(?<=\d) ?[-–] ?(?={_MONTH.replace('?P<month>', '?:')} \d)"), lambda _: " to "),
    (
        re.compile(
            rf"\b({'|'.join(DAYS)})\b\.?(?=,? (?:{'|'.join(month[:3] for month in MONTHS)}|\d))"
        ),
        lambda match: DAYS[match[1]],
    ),
    (
        re.compile(
            r"(?<![\w.-])(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])(?:(?P<clock>T(?=\d))|(?![\w-]))"
        ),
        _iso_date,
    ),
    (
        re.compile(
            r"(?<![\w./-])(?P<first>\d{1,2})(?:(?P<mark>[/-])(?P<second>\d{1,2})(?P=mark)(?P<year>\d{4}|\d\d))(?![\w/-])"
        ),
        _numeric_date,
    ),
    (
        re.compile(
            r"(?<![\w./-])(?P<first>\d{1,2})(?P<mark>\.)(?P<second>\d{1,2})\.(?P<year>\d{4})(?![\w/-])"
        ),
        _numeric_date,
    ),
    (re.compile(rf"\b{_MONTH} {_DAY}(?:,? {_YEAR})?{_MORE}"), _month_day),
    (
        re.compile(
            rf"(?<![\w.,:-])(?P<the>[Tt]he )?{_DAY}(?: of)?[ -]{_MONTH}(?:[, -]+{_YEAR})?{_MORE}"
        ),
        _day_month,
    ),
    (re.compile(rf"\b{_MONTH},? {_YEAR}{_MORE}"), _month_year),
    (
        re.compile(rf"(?<![\d:.,])(?P<hour>\d{{1,2}})(?:[:.](?P<minute>[0-5]\d))? ?{_HALF_DAY}"),
        _hour_of_half_day,
    ),
    (
        re.compile(
            r"(?<![\d:.,])(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?:Z\b)?(?!:?\d)"
        ),
        _time,
    ),
)
