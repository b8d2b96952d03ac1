"""Generated lines of every kind that a voice must speak: questions, dialogue, numbers, dates,
prices, directions, weather, phrases of assistants, narrative, and short declaratives from a small
grammar with a wide vocabulary.

A template's `{slot}` becomes a random word of that kind, and `{slot2}` another one. Numbers are
written as words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from training import templates as t
from training import words as w

Make = Callable[[random.Random], str]

#: Words whose first letter misleads about the article.
_A_BEFORE = re.compile(r"(one|once|u[nks]e|uni[^mn]|useful|useless|usual|euro)", re.IGNORECASE)
_AN_BEFORE = re.compile(r"(hour|honest|heir)", re.IGNORECASE)


def number_words(value: int) -> str:
    """English words of 0 <= value < 10**9, as spoken ("three hundred and five")."""
    if not 0 <= value < 10**9:
        raise ValueError(f"number_words takes 0 <= value < 10**9, got {value}")
    if value < 20:
        return w.ONES[value]
    if value < 100:
        return w.TENS[value // 10] + (f"-{w.ONES[value % 10]}" if value % 10 else "")
    for size, word in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if value >= size:
            head, rest = divmod(value, size)
            glue = " and " if rest < 100 else " "
            return f"{number_words(head)} {word}" + (glue + number_words(rest) if rest else "")
    raise AssertionError("unreachable: every value of 100 or more has a hundred")


def _plural(noun: str) -> str:
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    if noun.endswith("f") and not noun.endswith(("ff", "oof", "eef")):
        return f"{noun[:-1]}ves"
    return {
        "knife": "knives",
        "tooth": "teeth",
        "mouse": "mice",
        "goose": "geese",
        "sheep": "sheep",
    }.get(noun, f"{noun}s")


def _place(rng: random.Random) -> str:
    return rng.choice((rng.choice(w.CITIES), rng.choice(w.COUNTRIES), f"the {rng.choice(w.SPOTS)}"))


def _year(rng: random.Random) -> str:
    century, rest = rng.randint(14, 20), rng.randint(1, 99)
    return f"{number_words(century)} " + (
        number_words(rest) if rest > 9 else f"oh {number_words(rest)}"
    )


def _minute(rng: random.Random) -> str:
    return rng.choice(
        (
            "",
            "",
            " fifteen",
            " thirty",
            " forty-five",
            " oh five",
            f" {number_words(rng.randint(10, 59))}",
        )
    )


def _from(options: tuple[str, ...]) -> Make:
    return lambda rng: rng.choice(options)


_SLOTS: dict[str, Make] = {
    "name": _from(w.NAMES),
    "surname": _from(w.SURNAMES),
    "city": _from(w.CITIES),
    "country": _from(w.COUNTRIES),
    "place": _place,
    "spot": _from(w.SPOTS),
    "room": _from(w.ROOMS),
    "thing": _from(w.THINGS),
    "things": lambda rng: _plural(rng.choice(w.THINGS)),
    "mass": _from(w.MASS),
    "animal": _from(w.ANIMALS),
    "animals": lambda rng: _plural(rng.choice(w.ANIMALS)),
    "person": _from(w.PEOPLE),
    "food": _from(w.FOODS),
    "weather": _from(w.WEATHER),
    "device": _from(w.DEVICES),
    "adjective": _from(w.ADJECTIVES),
    "colour": _from(w.COLOURS),
    "adverb": _from(w.ADVERBS),
    "verb": lambda rng: rng.choice(w.VERBS)[0],
    "verbed": lambda rng: rng.choice(w.VERBS)[1],
    "verbing": lambda rng: rng.choice(w.VERBS)[2],
    "moved": lambda rng: rng.choice(w.MOVES)[0],
    "move": lambda rng: rng.choice(w.MOVES)[1],
    "preposition": _from(w.PREPOSITIONS),
    "day": _from(w.DAYS),
    "month": _from(w.MONTHS),
    "ordinal": _from(w.ORDINALS),
    "letter": _from(tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
    "digit": _from(w.ONES[:10]),
    "few": lambda rng: number_words(rng.randint(2, 12)),
    "number": lambda rng: number_words(rng.randint(2, 99)),
    "big": lambda rng: number_words(rng.randrange(100, 10 ** rng.randint(3, 7))),
    "unit": _from(w.UNITS),
    "year": _year,
    "hour": lambda rng: number_words(rng.randint(1, 12)),
    "minute": _minute,
    "part": _from(("morning", "afternoon", "evening", "night")),
    "who": _from(
        ("he", "she", "they", "we", "I", "you", "the children", "my parents", "everyone", "nobody")
    ),
    "his": _from(("his", "her", "their", "my", "our", "your")),
    "side": _from(("left", "right", "north", "south", "east", "west")),
}


def _polish(line: str) -> str:
    """Correct articles before vowels, capitalise the start, and drop repeated words."""

    def article(match: re.Match[str]) -> str:
        word = match[2]
        vowel = bool(_AN_BEFORE.match(word)) or (
            word[0].lower() in "aeiou" and not _A_BEFORE.match(word)
        )
        return f"{match[1]}{'n' if vowel else ''} {word}"

    line = re.sub(r"\b([Aa]) ([A-Za-z]+)", article, line)
    line = re.sub(r"\b(\w+) \1\b", r"\1", line)
    return line[0].upper() + line[1:]


def fill(template: str, rng: random.Random) -> str:
    """The template with its slots filled."""
    line = re.sub(r"{([a-z]+?)\d?}", lambda match: _SLOTS[match[1]](rng), template)
    return _polish(line.replace("mys.", "mine.").replace("hiss.", "his."))


def _digits(rng: random.Random) -> str:
    groups = [
        " ".join(rng.choice(w.ONES[:10]) for _ in range(size))
        for size in (3, rng.choice((3, 4)), 4)
    ]
    return rng.choice(("", "Call ", "My number is ", "The code is ")) + ", ".join(groups) + "."


def _letters(rng: random.Random) -> str:
    letters = " ".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(1, 6)))
    return rng.choice(
        (f"{letters}.", f"It is spelled {letters}.", f"Gate {letters[0]} {rng.choice(w.ONES)}.")
    )


def _list(rng: random.Random) -> str:
    items = [
        f"the {rng.choice(w.ADJECTIVES)} {thing}"
        for thing in rng.sample(w.THINGS, rng.randint(2, 5))
    ]
    return rng.choice(
        (
            f"I need {', '.join(items[:-1])} and {items[-1]}.",
            f"{', '.join(items[:-1])}, or {items[-1]}?".capitalize(),
        )
    )


def _templates(*templates: str) -> Make:
    return lambda rng: fill(rng.choice(templates), rng)


_KINDS: tuple[tuple[float, Make], ...] = (
    (3.0, _templates(*t.QUESTIONS)),
    (3.0, _templates(*t.STATEMENTS)),
    (8.0, _templates(*t.DECLARATIVES)),
    (1.5, _templates(*t.DIALOGUE)),
    (1.5, _templates(*t.ASSISTANT)),
    (0.6, _templates(*t.DIRECTIONS)),
    (0.5, _templates(*t.WEATHER)),
    (2.0, _templates(*t.NARRATIVE)),
    (0.4, _templates(*t.COOKING)),
    (1.5, _templates(*t.NUMBERS)),
    (0.8, _templates(*t.DATES)),
    (0.5, _digits),
    (0.5, _letters),
    (0.5, _list),
    (0.2, lambda rng: f"{rng.choice(w.NAMES)} {rng.choice(w.SURNAMES)}{rng.choice('.!?')}"),
)
#: Shares of generated lines that lose their full stop, and their capitals.
_UNSTOPPED, _LOWER = 0.06, 0.03


def _distinct(count: int, make: Make, rng: random.Random, first: tuple[str, ...] = ()) -> list[str]:
    lines = dict.fromkeys(first[:count])
    while len(lines) < count:
        lines[make(rng)] = None
    return list(lines)


def _any_kind(rng: random.Random) -> str:
    weights, makers = zip(*_KINDS, strict=True)
    line: str = rng.choices(makers, weights)[0](rng)
    if rng.random() < _UNSTOPPED:
        line = line.removesuffix(".")
    return line.lower() if rng.random() < _LOWER else line


def generated(count: int, seed: int) -> list[str]:
    """`count` different generated lines; the same seed gives the same lines."""
    return _distinct(count, _any_kind, random.Random(seed))


def sentences(count: int, seed: int) -> list[str]:
    """`count` different sentences that may stand beside each other in a longer text."""
    make = _templates(*t.STATEMENTS, *t.DECLARATIVES, *t.NARRATIVE, *t.QUESTIONS)
    return _distinct(count, make, random.Random(seed))


def fragments(count: int, seed: int) -> list[str]:
    """`count` different utterances of one to five words, the common greetings first."""

    def make(rng: random.Random) -> str:
        phrase = fill(rng.choice(t.FRAGMENTS), rng)
        return (phrase.lower() if rng.random() < 0.2 else phrase) + rng.choice(
            (".", ".", ".", "!", "?", "")
        )

    return _distinct(count, make, random.Random(seed), w.GREETINGS)
