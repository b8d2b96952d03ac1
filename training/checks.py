"""Test texts for a trained voice, and the duration of each by the teacher's default voice.

`text/checks.tsv` has a line per text: its kind, the teacher's seconds, the text (written by
`evaluate lengths`). The sentences are Harvard sentences, which no training text contains; texts of
1 to 40 words are made of others of these.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.text import HARVARD, MAX_WORDS, TEXT_DIR

Kind = Literal["sentence", "length", "word"]

CHECKS = TEXT_DIR / "checks.tsv"
_SENTENCES, _TEXTS_PER_LENGTH, _SEED = 100, 5, 2026
#: A text that is shorter than the shortest sentence is the beginning of one.
_SHORTEST_SENTENCE = 5
_WORDS = (
    "No", "Hi!", "seven", "Yes.", "Hello!", "Thanks.", "water", "Monday", "eleven", "Stop!",
    "Please.", "window",
    "Tomorrow.", "Goodbye.", "green", "kitchen", "Why?", "Okay.", "telephone", "London",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Check:
    kind: Kind
    #: Duration by the teacher.
    seconds: float
    text: str


def choose_texts() -> dict[Kind, list[str]]:
    """The texts of every kind; always the same."""
    rng = random.Random(_SEED)
    sentences = HARVARD.read_text(encoding="utf-8").splitlines()
    rng.shuffle(sentences)
    rest = sentences[_SENTENCES:]
    lengths = [
        _exactly(n, rest, rng) for n in range(1, MAX_WORDS + 1) for _ in range(_TEXTS_PER_LENGTH)
    ]
    return {"sentence": sentences[:_SENTENCES], "length": lengths, "word": list(_WORDS)}


def _exactly(words: int, sentences: list[str], rng: random.Random) -> str:
    """Make a text of so many words."""
    if words < _SHORTEST_SENTENCE:
        return " ".join(rng.choice(sentences).split()[:words]).strip(",;.") + "."
    while True:
        text: list[str] = []
        while len(text) < words:
            text += rng.choice(sentences).split()
        if len(text) == words:
            return " ".join(text)


def read_checks(kind: Kind, count: int | None = None, path: Path = CHECKS) -> list[Check]:
    """The first `count` (or all) checks of a kind."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [Check(kind, float(seconds), text) for name, seconds, text in rows if name == kind][
        :count
    ]


def write_checks(checks: list[Check], path: Path = CHECKS) -> None:
    rows = [f"{check.kind}\t{check.seconds:.2f}\t{check.text}\n" for check in checks]
    path.write_text("".join(rows), encoding="utf-8")
