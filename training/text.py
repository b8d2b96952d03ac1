"""Texts for the teacher to speak, by kind: public-domain sentences, generated lines, drills, short
and long utterances.

The corpora beside this file are in the public domain: State of the Union addresses since 1945 and
Moby-Dick (CC0), and Jane Austen's novels. The Harvard sentences are for testing only:
`training_texts` drops every line that holds one.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import NamedTuple

from hocket.core import StrictModel
from training.drills import drill_lines, frequent_words, word_lines
from training.phrases import fragments, generated, sentences

TEXT_DIR = Path(__file__).parent / "text"
CORPORA = ("corpus_sotu_cc0.txt", "corpus_mobydick_cc0.txt", "corpus_austen_pd.txt")
HARVARD = TEXT_DIR / "harvard_580.txt"
#: Maximum words of a line: with more, the teacher's speech exceeds 18 s.
MAX_WORDS = 40


class Line(NamedTuple):
    #: A key of `TextConfig.shares`.
    kind: str
    text: str


class TextConfig(StrictModel):
    """Number of lines of each kind, and its share of the speech."""

    generated_lines: int
    #: Number of the most frequent words that are drilled, and repetitions of each.
    drill_words: int
    drill_repeats: int
    #: Number of the most frequent words that stand alone.
    single_words: int
    fragments: int
    joined_lines: int
    #: Share of the seconds of speech, by kind.
    shares: dict[str, float]


def _normal(line: str) -> str:
    return re.sub(r"[^a-z ]", "", line.lower())


def _spans(corpus: list[str], count: int, rng: random.Random) -> list[str]:
    """`count` pieces of one to four words from the middle of sentences."""
    spans: list[str] = []
    while len(spans) < count:
        words = rng.choice(corpus).split()
        start = rng.randrange(len(words))
        span = " ".join(words[start : start + rng.randint(1, 4)]).strip(",;:.!?'- ")
        if span:
            spans.append(
                (span[0].upper() + span[1:] if rng.random() < 0.5 else span)
                + rng.choice((".", ".", "?", ""))
            )
    return spans


def _joined(corpora: list[list[str]], count: int, seed: int) -> list[str]:
    """Neighbours of a corpus, or two or three generated sentences, as one text of at most
    `MAX_WORDS` words.
    """
    rng = random.Random(seed)
    made = sentences(2 * count, seed + 1)
    lines: list[str] = []
    while len(lines) < count:
        source = made if rng.random() < 0.4 else rng.choice(corpora)
        start, length = rng.randrange(len(source) - 3), rng.choice((2, 2, 3))
        line = " ".join(source[start : start + length])
        if len(line.split()) <= MAX_WORDS:
            lines.append(line)
    return lines


def training_texts(config: TextConfig, seed: int) -> list[Line]:
    """Every line the teacher speaks, each once, shuffled."""
    rng = random.Random(seed)
    corpora = [(TEXT_DIR / name).read_text(encoding="utf-8").splitlines() for name in CORPORA]
    corpus = [line for lines in corpora for line in lines]
    words = frequent_words(config.drill_words)
    kinds = {
        "corpus": corpus,
        "generated": generated(config.generated_lines, seed),
        "drill": drill_lines(words, config.drill_repeats, seed),
        "short": word_lines(words[: config.single_words], seed)
        + fragments(config.fragments // 2, seed)
        + _spans(corpus, config.fragments // 2, rng),
        "joined": _joined(corpora, config.joined_lines, seed),
    }
    if kinds.keys() != config.shares.keys():
        raise ValueError(
            f"shares name {sorted(config.shares)}, the kinds of lines are {sorted(kinds)}"
        )
    banned = {_normal(line) for line in HARVARD.read_text(encoding="utf-8").splitlines()}
    lines = {text: kind for kind, texts in kinds.items() for text in texts}
    kept = [
        Line(kind, text)
        for text, kind in lines.items()
        if not any(
            _normal(part).strip() in banned for part in [text, *re.split(r"(?<=[.!?]) ", text)]
        )
    ]
    rng.shuffle(kept)
    return kept
