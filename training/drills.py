"""Pronunciation drills: the most frequent English words, in random company and alone.

The word list is symspellpy's (MIT): SCOWL's words in order of their frequency in Google's n-grams
(CC BY 3.0). Vulgar words of better-profanity's list (MIT) are left out.
"""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

_WORDS = ("symspellpy", "frequency_dictionary_en_82_765.txt")
_VULGAR = ("better_profanity", "profanity_wordlist.txt")
#: One-letter words.
_LETTERS = frozenset("ai")
#: Words of one drill line.
_LINE_WORDS = (3, 9)


def _lines(package: str, name: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"{package} is not installed; see training/requirements-bare.txt")
    return (Path(spec.origin).parent / name).read_text(encoding="utf-8-sig").split("\n")


def frequent_words(count: int) -> list[str]:
    """The `count` most frequent plain words, most frequent first."""
    vulgar = {line.strip().lower() for line in _lines(*_VULGAR)}
    words = []
    for line in _lines(*_WORDS):
        word = line.partition(" ")[0]
        vowel = any(letter in "aeiouy" for letter in word)
        if (
            word.isascii()
            and word.isalpha()
            and vowel
            and word not in vulgar
            and (len(word) > 1 or word in _LETTERS)
        ):
            words.append(word)
        if len(words) == count:
            return words
    raise ValueError(f"the word list has only {len(words)} plain words, {count} were asked for")


def _company(words: list[str], rng: random.Random) -> str:
    """A line of unconnected words in varied punctuation."""
    style = rng.random()
    if style < 0.45:
        line = ", ".join(words)
    elif style < 0.85:
        line = " ".join(words)
    else:
        line = (
            " ".join(word + rng.choice(("", "", "", ",", ";", ",")) for word in words[:-1])
            + f" {words[-1]}"
        )
    end = rng.choice((".", ".", ".", "?", "!", ""))
    return (line[0].upper() + line[1:] if rng.random() < 0.7 else line) + end


def drill_lines(words: list[str], repeats: int, seed: int) -> list[str]:
    """Lines of 3 to 9 random words in which every word comes `repeats` times."""
    rng = random.Random(seed)
    lines = []
    for _ in range(repeats):
        order = rng.sample(words, len(words))
        while order:
            size = rng.randint(*_LINE_WORDS)
            # A rest shorter than a line joins this one.
            size = len(order) if len(order) - size < _LINE_WORDS[0] else size
            lines.append(_company(order[:size], rng))
            del order[:size]
    return lines


def word_lines(words: list[str], seed: int) -> list[str]:
    """Every word alone, twice: as a sentence, and typed in another way."""
    rng = random.Random(seed)
    return [
        line
        for word in words
        for line in (
            f"{word.capitalize()}.",
            rng.choice((word, word.capitalize(), f"{word.capitalize()}!", f"{word}?")),
        )
    ]
