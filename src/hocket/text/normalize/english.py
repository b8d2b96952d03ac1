"""English: the rules that turn written text into words, in their order of application."""

from __future__ import annotations

import re

from hocket.text.normalize.calendar import CALENDAR_RULES, Match, Rule, after, before
from hocket.text.normalize.numbers import cardinal, ordinal
from hocket.text.normalize.quantities import QUANTITY_RULES
from hocket.text.normalize.tables import (
    ABBREVIATIONS,
    BEFORE_NUMBERS,
    CURRENCIES,
    DOMAINS,
    NEVER_LAST,
    NUMBERED,
    PER,
    REGNAL,
    SAID_AS_WORDS,
    STREETS,
    SYMBOLS,
    TITLES,
    WRITTEN_WORDS,
)

#: Share of capital letters from which a text counts as written in capitals, which then mean
#: nothing.
_SHOUTED = 0.7
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50}


def read_out(text: str) -> str:
    """Spell out `text`, which `characters.fold` has folded."""
    for pattern, replace in _RULES_BEFORE_ACRONYMS:
        text = pattern.sub(replace, text)
    text = _acronyms(text)
    for pattern, replace in _RULES_AFTER_ACRONYMS:
        text = pattern.sub(replace, text)
    return _tidy(text)


# ---- addresses

_ADDRESS_MARKS = {
    ".": " dot ",
    "-": " dash ",
    "_": " underscore ",
    "/": " slash ",
    "?": " question mark ",
    "=": " equals ",
    "&": " and ",
    "#": " hash ",
    "%": " percent ",
    "+": " plus ",
    "@": " at ",
    ":": " colon ",
    "~": " tilde ",
}
_ADDRESS_MARK = re.compile("[" + re.escape("".join(_ADDRESS_MARKS)) + "]")


def _address(match: Match) -> str:
    """A web or mail address without its scheme."""
    address = re.sub(r"^https?://", "", match[0]).rstrip("/")
    address = re.sub(r"^www\b", "W W W", address)
    return f" {_ADDRESS_MARK.sub(lambda mark: _ADDRESS_MARKS[mark[0]], address)} "


# ---- words


def _at_end(match: Match) -> bool:
    """Whether a full stop at the end of `match` ends the sentence as well."""
    return re.match(r"[\"')\]]*(?:\s*$|\s+[\"'(]*[A-Z])", after(match, 8)) is not None


def _title_or_street(match: Match) -> str:
    """ "St. Paul" is a saint, "Main St." a street; "Dr. No" a doctor, "Elm Dr." a drive."""
    lead = re.search(
        r"(?:^|[\s(])([A-Za-z]\w*|\d\w*) $",
        match.string[max(0, match.start() - 24) : match.start()],
    )
    follows_name = lead is not None and (lead[1][0].isupper() or lead[1][0].isdigit())
    goes_on = re.match(r" ?[A-Z]", after(match, 2)) is not None
    word = match[1] or match[2]
    if word in STREETS and (
        not goes_on or (word == "St" and follows_name and lead and len(lead[1]) > 2)
    ):
        return STREETS[word] + ("." if _at_end(match) else "")
    return TITLES[word]


def _abbreviation(match: Match) -> str:
    words = ABBREVIATIONS[match[1].lower()]
    if match[1][0].isupper() and words.islower():
        words = words.capitalize()
    return words + ("." if _at_end(match) and match[1].lower() not in NEVER_LAST else "")


#: Words that begin a sentence; any other word after "the U.S." continues it, as in "the U.S.
#: Senate".
_STARTERS = re.compile(
    r"\s+[\"'(]*(?:A|An|And|As|At|But|By|For|He|Her|His|How|However|I|If|In|It|My|No|On|Our|She|"
    r"So|That|The|Then|There|"
    r"These|They|This|To|We|What|When|Where|Who|Why|With|You|Your)\b"
)


def _dotted_letters(match: Match) -> str:
    ends = _at_end(match) and (not after(match, 2).strip() or _STARTERS.match(after(match, 12)))
    return " ".join(match[0].replace(".", "").upper()) + ("." if ends else "")


def _roman(match: Match) -> str:
    value, highest = 0, 0
    for letter in reversed(match[2]):
        worth = _ROMAN[letter]
        value += worth if worth >= highest else -worth
        highest = max(highest, worth)
    if match[1] in NUMBERED:
        return f"{match[1]} {cardinal(str(value))}"
    return f"{match[1]} the {ordinal(str(value))}"


def _acronyms(text: str) -> str:
    """Spell acronyms: "FBI" letter by letter, "CEOs" with a plural; no change in a text of
    capitals.
    """
    capitals = sum(map(str.isupper, text))
    if capitals > _SHOUTED * sum(map(str.isalpha, text)) and _CAPITAL_WORDS.search(text):
        return text
    return _ACRONYM.sub(
        lambda match: (
            match[0]
            if match[1] in SAID_AS_WORDS
            else " ".join(match[1]) + ("'s" if match[2] else "")
        ),
        text,
    )


_CAPITAL_WORDS = re.compile(r"[A-Z]\W+[A-Z]{2}")
_ACRONYM = re.compile(r"\b([A-Z]{2,5})('?s)?\b")
_WORD = {re.escape(word) for word in WRITTEN_WORDS}
_RULES_BEFORE_ACRONYMS: tuple[Rule, ...] = (
    (re.compile(r"\n[^\S\n]*\n\s*"), lambda match: " " if before(match) in ".,;:!?" else ". "),
    (re.compile(r"https?://[^\s<>\"')]*[\w/]|\bwww\.[^\s<>\"')]*[\w/]"), _address),
    (re.compile(r"(?<![\w.@])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}"), _address),
    (
        re.compile(
            rf"(?<![\w.@-])(?:[A-Za-z0-9-]{{1,63}}\.){{1,4}}(?:{'|'.join(DOMAINS)})\b(?!\.\w)(?"
            rf":/[^\s<>\"')]*[\w/])?"
        ),
        _address,
    ),
    (
        re.compile(
            rf"(?<![\w/.])(?:{'|'.join(sorted(_WORD, key=len, reverse=True))})(?![\w/+#])(?!\.)"
        ),
        lambda match: WRITTEN_WORDS[match[0]],
    ),
    (
        re.compile(rf"\b({'|'.join(TITLES)})\.(?= ?(?:[A-Z]|&|and ))|\b(?=St\.|Dr\.)(St|Dr)\."),
        _title_or_street,
    ),
    *CALENDAR_RULES,
    (
        re.compile(rf"(?i)(?<![\w.])({'|'.join(BEFORE_NUMBERS)})\. ?(?=\d)"),
        lambda match: f"{BEFORE_NUMBERS[match[1].lower()]} ",
    ),
    (
        re.compile(
            rf"(?i)(?<![\w.])(?<!\d )({'|'.join(re.escape(word) for word in ABBREVIATIONS)})\."
        ),
        _abbreviation,
    ),
    (re.compile(r"(?<![\w.])(?:[A-Za-z]\.){2,8}(?!\w)"), _dotted_letters),
    (re.compile(r"(?<=[A-Za-z])-(?=\d)"), lambda _: " "),
    (re.compile(r"\bv(?=\d)"), lambda _: "version "),
    (re.compile(r"#(?=\d)"), lambda _: "number "),
    (re.compile(r"~ ?(?=\d)"), lambda _: "about "),
    *QUANTITY_RULES,
    (
        re.compile(
            rf"\b({'|'.join(REGNAL | NUMBERED)}) (?=[IVXL]+\b)(X{{0,3}}(?:I[XV]|V?I{{0,3}}))(?<! )"
            rf"(?![\w'])"
        ),
        _roman,
    ),
)
_RULES_AFTER_ACRONYMS: tuple[Rule, ...] = (
    (
        re.compile(rf"(?<=[a-z]) ?/ ?({'|'.join(word for word in PER if len(word) > 2)})\b"),
        lambda match: f" per {PER[match[1]]}",
    ),
    (re.compile(r"#(?=[A-Za-z])"), lambda _: "hashtag "),
    (re.compile("[" + re.escape("".join(SYMBOLS)) + "]"), lambda match: f" {SYMBOLS[match[0]]} "),
    (
        re.compile("[" + re.escape("".join(CURRENCIES)) + "]"),
        lambda match: f" {CURRENCIES[match[0]][0][1]} ",
    ),
)


# ---- spaces and marks

_TIDYING: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[()\[\]{}–|]|(?:(?<=\s)|^)-+(?=\s|$)|--+"), ", "),
    # Apostrophes inside words only; hyphens between letters only.
    (re.compile(r"(?<![^\W\d_])'|'(?![^\W\d_])"), ""),
    (re.compile(r"(?<![^\W\d_])-|-(?![^\W\d_])"), " "),
    # Beyond ASCII only letters of other scripts and their marks are left.
    (re.compile(r"[^\w\s.,;:!?'\-\u0100-\U0010ffff]|[\d_]"), " "),
    (re.compile(r"\s+"), " "),
    (re.compile(r" (?=[.,;:!?])"), ""),
)
_MARKS = re.compile(r"[.,;:!?]+ ?(?=(\w?))")


def _tidy(text: str) -> str:
    """Keep letters, single spaces and audible marks."""
    for pattern, replacement in _TIDYING:
        text = pattern.sub(replacement, text)
    return _MARKS.sub(_strongest, text.lstrip(" .,;:!?-")).strip()


def _strongest(match: Match) -> str:
    """The strongest of several marks in a row."""
    mark = next(mark for mark in "!?.;:," if mark in match[0])
    if mark in "!?":
        mark = next(mark for mark in match[0] if mark in "!?")
    return mark + (" " if match[1] or match[0].endswith(" ") else "")
