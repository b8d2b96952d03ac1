"""Texts for the teacher to speak: public-domain sentences, and generated lines of every other kind a voice must know.

The corpora beside this file are CC0 (State of the Union addresses since 1945, Moby-Dick). The Harvard sentences are for
testing only: `training_texts` drops every line that equals one of them.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

TEXT_DIR = Path(__file__).parent / "text"
CORPORA = ("corpus_sotu_cc0.txt", "corpus_mobydick_cc0.txt")
HARVARD = TEXT_DIR / "harvard_580.txt"

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = (
    "zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
    "twentieth", "twenty-first", "twenty-second", "twenty-third", "twenty-fourth", "twenty-fifth", "twenty-sixth",
    "twenty-seventh", "twenty-eighth", "twenty-ninth", "thirtieth", "thirty-first",
)  # fmt: skip
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_DAYS = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
_NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Iris", "Jack", "Karen", "Leo", "Maria",
    "Nathan", "Olivia", "Peter", "Quinn", "Rosa", "Samuel", "Tina", "Victor", "Wendy", "Xavier", "Yusuf", "Zoe",
    "Aisha", "Björn", "Chen", "Diego", "Elena", "Fatima", "George", "Hana", "Ivan", "Julia", "Kofi", "Laura",
    "Miguel", "Nina", "Omar", "Priya", "Ravi", "Sofia", "Thomas", "Ursula", "Vera", "William", "Yara", "Margaret",
    "Charles", "Elizabeth", "Joseph",
)  # fmt: skip
_SURNAMES = (
    "Smith", "Johnson", "Williams", "Brown", "Jones", "Garcia", "Miller", "Davis", "Martinez", "Lopez", "Wilson",
    "Anderson", "Taylor", "Moore", "Jackson", "Thompson", "White", "Harris", "Clark", "Lewis", "Walker", "Hall",
    "Young", "King", "Wright", "Hill", "Green", "Baker", "Nelson", "Carter", "Mitchell", "Turner", "Parker",
    "Evans", "Collins", "Murphy", "Cooper", "Bailey", "Kelly", "Howard", "Ward", "Brooks", "Gray", "Watson",
    "Hughes", "Foster", "Bennett", "Reed",
)  # fmt: skip
_PLACES = (
    "London", "Paris", "Berlin", "Madrid", "Rome", "Vienna", "Tokyo", "Sydney", "Toronto", "Chicago", "Boston",
    "Denver", "Dublin", "Cairo", "Lagos", "Nairobi", "Lima", "Oslo", "Helsinki", "Lisbon", "Athens", "Istanbul",
    "Mumbai", "Singapore", "New York", "San Francisco", "Los Angeles", "New Orleans", "Buenos Aires",
    "the airport", "the station", "the library", "the market", "the museum", "the harbour", "the office",
    "the old bridge", "the town square", "the bakery", "the hospital", "the theatre", "the garden",
    "the corner shop",
)  # fmt: skip
_THINGS = (
    "apple", "book", "camera", "door", "engine", "flower", "guitar", "hammer", "island", "jacket", "kettle",
    "lamp", "mirror", "notebook", "orange", "pencil", "quilt", "radio", "sandwich", "table", "umbrella", "violin",
    "window", "yacht", "zipper", "bicycle", "candle", "dragon", "elevator", "feather", "glacier", "helmet",
    "keyboard", "ladder", "magnet", "necklace", "oven", "puzzle", "rabbit", "scissors", "telescope", "vacuum",
    "whistle", "blanket", "carpet", "drawer", "envelope", "fountain", "garage", "hallway", "insect", "journal",
    "kitchen", "letter", "mountain", "napkin", "ocean", "parcel", "question", "river", "shoulder", "ticket",
    "uncle", "village", "wallet", "yard", "squirrel", "thunder", "breakfast", "chocolate", "strawberry",
    "thermometer", "vegetable", "wardrobe",
)  # fmt: skip
_ADJECTIVES = (
    "red", "blue", "green", "small", "large", "quiet", "loud", "bright", "dark", "heavy", "light", "strange",
    "new", "old", "broken", "wooden", "golden", "soft", "sharp", "warm", "cold", "empty", "full", "smooth",
    "rough", "thick", "thin", "narrow", "wide", "gentle", "curious", "honest", "lazy", "clever", "brave", "tired",
    "hungry", "thirsty", "beautiful", "ordinary", "peculiar", "enormous", "transparent", "square", "round",
    "fresh", "sour", "sweet", "bitter",
)  # fmt: skip
_VERBS = (
    "find", "lose", "carry", "open", "close", "paint", "wash", "fix", "break", "sell", "buy", "borrow", "return",
    "hide", "show", "move", "measure", "throw", "catch", "draw", "choose", "count", "describe", "explain",
    "forget", "remember", "follow", "leave", "watch", "hold", "lift", "push", "pull", "clean",
)  # fmt: skip
_UNITS = (
    "dollars", "euros", "pounds", "miles", "kilometers", "meters", "inches", "hours", "minutes", "seconds",
    "days", "weeks", "years", "percent", "degrees", "pages",
)  # fmt: skip
_SHORT = (
    "Yes.", "No.", "Hi!", "Hello.", "Hello!", "Hey!", "Okay.", "Sure.", "Thanks.", "Thank you.", "Please.",
    "Sorry.", "Stop!", "Wait.", "Go!", "Why?", "What?", "When?", "Who?", "Where?", "How?", "Really?", "Maybe.",
    "Never.", "Always.", "Today.", "Tomorrow.", "Good morning.", "Good night.", "Goodbye.", "Welcome back.",
    "Of course.", "Not yet.", "Come in.", "Sit down.", "Look out!", "Well done!", "No problem.", "I see.",
    "I know.", "You too.", "Right now.", "One moment, please.", "What time is it?", "How are you?",
    "I don't know.", "That's right.", "Never mind.", "Help!", "Congratulations!", "Excuse me.", "After you.",
    "Nice to meet you.", "See you soon.", "Good luck!", "Be careful.", "Turn left.", "Turn right.",
    "Go straight on.",
)  # fmt: skip
_QUESTIONS = (
    "Where can I {verb} a {adjective} {thing}?",
    "Did {name} {verb} the {thing} yesterday?",
    "Why would anyone {verb} that {thing}?",
    "Have you ever been to {place}, {name}?",
    "Can you {verb} the {thing} before {day}?",
    "Who told {name} about the {adjective} {thing}?",
    "How many {thing}s does it take to fill {place}?",
    "Is it true that {name} lives near {place}?",
    "Would you rather {verb} a {thing} or {verb2} a {thing2}?",
    "What happens if we {verb} it again?",
    "When does the next train leave for {place}?",
    "Isn't the {thing} a little too {adjective}?",
)
_STATEMENTS = (
    "{name} will {verb} the {thing} on {day}.",
    "Please {verb} the {adjective} {thing} near {place}.",
    "I never wanted to {verb} a {thing}, but here we are!",
    "The {adjective} {thing} belongs to {name} {surname}.",
    "They met {name} at {place}, and everyone began to laugh.",
    "First {verb} the {thing}; then {verb2} the {thing2}.",
    "What a {adjective} {thing}!",
    "{name}, {name2} and {name3} went to {place} together.",
    "My neighbour, {name} {surname}, likes to {verb} every {thing} she sees.",
    "It was a {adjective}, {adjective2} evening in {place}.",
    "Nobody knew how to {verb} the {thing}, so {name} asked for help.",
    "Doctor {surname} says you should {verb} more often.",
)


def number_words(value: int) -> str:
    """English words of 0 <= value < 10**9, as spoken ("three hundred and five")."""
    if not 0 <= value < 10**9:
        raise ValueError(f"number_words takes 0 <= value < 10**9, got {value}")
    if value < 20:
        return _ONES[value]
    if value < 100:
        return _TENS[value // 10] + (f"-{_ONES[value % 10]}" if value % 10 else "")
    for size, word in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if value >= size:
            head, rest = divmod(value, size)
            glue = " and " if rest < 100 else " "
            return f"{number_words(head)} {word}" + (glue + number_words(rest) if rest else "")
    raise AssertionError("unreachable: every value of 100 or more has a hundred")


def _fill(template: str, rng: random.Random) -> str:
    words = {
        "name": _NAMES,
        "surname": _SURNAMES,
        "place": _PLACES,
        "thing": _THINGS,
        "adjective": _ADJECTIVES,
        "verb": _VERBS,
        "day": _DAYS,
    }
    return re.sub(r"{([a-z]+)\d?}", lambda match: rng.choice(words[match[1]]), template)


def _number(rng: random.Random) -> str:
    value = rng.randrange(10 ** rng.randint(1, 7))
    words, unit = number_words(value), rng.choice(_UNITS)
    return rng.choice(
        (
            f"{words.capitalize()}.",
            f"That will be {words} {unit}.",
            f"It took {words} {unit} to reach {rng.choice(_PLACES)}.",
            f"The answer is {words} point {rng.choice(_ONES[:10])} {rng.choice(_ONES[:10])}.",
            f"Chapter {number_words(value % 100)}.",
            f"About {words} {unit} more than last year.",
        )
    )


def _date(rng: random.Random) -> str:
    year = f"{number_words(rng.randint(14, 20))} {number_words(rng.randint(10, 99))}"
    day, month = rng.choice(_ORDINALS), rng.choice(_MONTHS)
    hour, minute = number_words(rng.randint(1, 12)), rng.choice(("", " fifteen", " thirty", " forty-five", " oh five"))
    return rng.choice(
        (
            f"{month} {day}, {year}.",
            f"On {rng.choice(_DAYS)}, the {day} of {month}, we open at {hour}{minute}.",
            f"She was born on {month} {day}, {year}.",
            f"The meeting starts at {hour}{minute} in the {rng.choice(('morning', 'afternoon', 'evening'))}.",
            f"It is half past {hour} on {rng.choice(_DAYS)}.",
        )
    )


def _digits(rng: random.Random) -> str:
    groups = [" ".join(rng.choice(_ONES[:10]) for _ in range(size)) for size in (3, rng.choice((3, 4)), 4)]
    return rng.choice(("", "Call ", "My number is ", "The code is ")) + ", ".join(groups) + "."


def _letters(rng: random.Random) -> str:
    letters = " ".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randint(1, 6)))
    return rng.choice((f"{letters}.", f"It is spelled {letters}.", f"Gate {letters[0]} {rng.choice(_ONES)}."))


def _list(rng: random.Random) -> str:
    items = [f"the {rng.choice(_ADJECTIVES)} {thing}" for thing in rng.sample(_THINGS, rng.randint(2, 5))]
    return f"I need {', '.join(items[:-1])} and {items[-1]}."


_KINDS: tuple[tuple[float, Callable[[random.Random], str]], ...] = (
    (3.0, lambda rng: _fill(rng.choice(_QUESTIONS), rng)),
    (3.0, lambda rng: _fill(rng.choice(_STATEMENTS), rng)),
    (2.0, _number),
    (1.0, _date),
    (1.0, _digits),
    (0.7, _letters),
    (0.7, _list),
    (0.4, lambda rng: f"{rng.choice(_NAMES)} {rng.choice(_SURNAMES)}{rng.choice('.!?')}"),
)


def generated(count: int, seed: int) -> list[str]:
    """`count` different generated lines; the same seed gives the same lines."""
    rng = random.Random(seed)
    weights, makers = zip(*_KINDS, strict=True)
    lines: dict[str, None] = dict.fromkeys(_SHORT[:count])
    while len(lines) < count:
        line = rng.choices(makers, weights)[0](rng)
        lines[line[0].upper() + line[1:]] = None
    return list(lines)


def _normal(line: str) -> str:
    return re.sub(r"[^a-z ]", "", line.lower())


def training_texts(*, generated_lines: int, single_words: int, joined_lines: int, seed: int) -> list[str]:
    """Every line the teacher speaks, shuffled: corpora, their most frequent words alone, neighbours joined into long
    lines, and generated ones. No Harvard sentence is among them.
    """
    rng = random.Random(seed)
    corpora = [(TEXT_DIR / name).read_text(encoding="utf-8").splitlines() for name in CORPORA]
    sentences = [line for corpus in corpora for line in corpus]
    counts = Counter(word for line in sentences for word in re.findall(r"[a-z]+", line.lower()) if len(word) > 1)
    words = [word.capitalize() + rng.choice((".", ".", "!", "?")) for word, _ in counts.most_common(single_words)]
    joined = []
    for _ in range(joined_lines):
        corpus = rng.choice(corpora)
        start, length = rng.randrange(len(corpus) - 3), rng.choice((2, 2, 3))
        joined.append(" ".join(corpus[start : start + length]))
    banned = {_normal(line) for line in HARVARD.read_text(encoding="utf-8").splitlines()}
    lines = dict.fromkeys(sentences + words + joined + generated(generated_lines, seed))
    kept = [line for line in lines if _normal(line) not in banned]
    rng.shuffle(kept)
    return kept
