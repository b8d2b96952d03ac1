"""The teacher's texts and voices."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from training.checks import choose_texts, read_checks
from training.drills import drill_lines, word_lines
from training.make_data import Casting, DataConfig, _rounds, _spoken_seconds
from training.phrases import fill, fragments, generated, number_words, sentences
from training.text import HARVARD, MAX_WORDS, TextConfig, training_texts

WORDS = [
    f"{a}{b}"
    for a in ("ba", "co", "di", "fu", "ge")
    for b in ("lam", "net", "rop", "sit", "tuk", "vex")
]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (305, "three hundred and five"),
        (1_000_001, "one million and one"),
        (21_120, "twenty-one thousand one hundred and twenty"),
        (999_999_999, "nine hundred and ninety-nine million nine hundred and ninety-nine thousand "
                      "nine hundred and "
         "ninety-nine"),
    ],
)  # fmt: skip
def test_numbers_are_spelled_as_spoken(value: int, words: str) -> None:
    assert number_words(value) == words


def test_numbers_out_of_range_are_refused() -> None:
    for value in (-1, 10**9):
        with pytest.raises(ValueError, match="takes 0"):
            number_words(value)


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("a apple", "An apple"),
        ("a hour in a university", "An hour in a university"),
        ("a useful one", "A useful one"),
        ("a uncle of a European", "An uncle of a European"),
        ("the the end", "The end"),
    ],
)
def test_articles_and_doubles_are_put_right(template: str, line: str) -> None:
    assert fill(template, random.Random(0)) == line


@pytest.mark.parametrize("make", [generated, sentences, fragments])
def test_generated_lines_are_distinct_complete_and_repeatable(make: object) -> None:
    assert callable(make)
    lines = make(3000, 5)
    assert len(set(lines)) == len(lines) == 3000
    assert make(3000, 5) == lines
    assert make(3000, 6) != lines
    for line in lines:
        assert not re.search(r"[{}\d]|  ", line), line
        assert not re.search(r"\ba [aei]\w", line), line
        assert line.strip() == line
        assert line


def test_a_drill_says_every_word_as_often_as_asked_in_lines_of_three_to_nine() -> None:
    lines = drill_lines(WORDS, 4, seed=1)
    split = [re.findall(r"[a-z]+", line.lower()) for line in lines]
    assert Counter(word for words in split for word in words) == dict.fromkeys(WORDS, 4)
    assert {len(words) for words in split} <= set(range(3, 12))
    assert len({line[-1] for line in lines} & set(".?!")) == 3


def test_single_words_come_as_sentences_and_as_people_type_them() -> None:
    lines = word_lines(WORDS, seed=1)
    assert len(lines) == 2 * len(WORDS)
    assert [line for line in lines if line[0].islower()]
    assert all(f"{word.capitalize()}." in lines for word in WORDS)


@pytest.fixture(scope="module")
def text_config() -> TextConfig:
    counts = {
        "generated_lines": 400,
        "drill_words": 30,
        "drill_repeats": 2,
        "single_words": 10,
        "fragments": 200,
    }
    return TextConfig(**counts, joined_lines=2000, shares=DataConfig.load().texts.shares)


def test_no_training_text_holds_a_test_sentence(
    text_config: TextConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    harvard = HARVARD.read_text(encoding="utf-8").splitlines()
    # The generator is made to draw them, alone and behind another sentence, so that they must be
    # dropped.
    leaked = [harvard[0], harvard[1].upper(), f"I see. {harvard[2]}", f"{harvard[3]} Go on."]
    monkeypatch.setattr("training.text.frequent_words", lambda count: WORDS[:count])
    monkeypatch.setattr(
        "training.text.generated", lambda count, seed: [*generated(count, seed), *leaked]
    )
    lines = training_texts(text_config, seed=3)
    plain = [re.sub(r"[^a-z ]", "", line.text.lower()) for line in lines]
    assert {line.kind for line in lines} == text_config.shares.keys()
    for sentence in harvard:
        words = re.sub(r"[^a-z ]", "", sentence.lower())
        assert not any(words in line for line in plain), sentence
    assert max(len(line.text.split()) for line in lines if line.kind == "joined") <= MAX_WORDS


def _lines(config: DataConfig) -> list[dict[str, str]]:
    lengths = {"corpus": 80, "generated": 45, "drill": 50, "short": 9, "joined": 130}
    assert lengths.keys() == config.texts.shares.keys()
    return [
        {"kind": kind, "text": f"{kind} {i}", "us": "ə" * n, "gb": "ə" * n}
        for kind, n in lengths.items()
        for i in range(50)
    ]


def test_a_round_keeps_the_shares_of_seconds_and_says_everything_before_it_repeats() -> None:
    config = DataConfig.load()
    lines = _lines(config)
    rounds = _rounds(lines, config.texts.shares, 600, np.random.default_rng(0))
    said = next(rounds)
    seconds: Counter[str] = Counter()
    for line in said:
        seconds[line["kind"]] += _spoken_seconds(line["us"])  # type: ignore[assignment]
    for kind, share in config.texts.shares.items():
        assert seconds[kind] / sum(seconds.values()) == pytest.approx(share, abs=0.01)
    for kind in config.texts.shares:
        times = Counter(line["text"] for line in said if line["kind"] == kind)
        assert max(times.values()) - min([*times.values(), *([0] * (len(times) < 50))]) <= 1


def test_casting_gives_the_default_voice_its_share_and_every_blend_many_lines() -> None:
    config = DataConfig.load()
    names = [*config.favourite_voices, *config.held_out_voices, *(f"af_{i}" for i in range(18))]
    voices = {name: np.full((2, 256), i, np.float32) for i, name in enumerate(names)}
    casting = Casting(config, voices)
    rng = np.random.default_rng(1)
    cast = [casting.choose(rng) for _ in range(20_000)]
    default = [speed for blend, speed in cast if blend == {config.default_voice: 1.0}]
    assert default.count(1.0) / len(cast) == pytest.approx(config.default_share, abs=0.02)
    blends = Counter(json.dumps(blend) for blend, _ in cast if len(blend) > 1)
    assert len(blends) == config.blends
    assert min(blends.values()) > 3
    assert sum(blends.values()) / len(cast) == pytest.approx(0.88 * config.blend_fraction, abs=0.02)
    assert not {name for blend, _ in cast for name in blend} & set(config.held_out_voices)
    assert all(sum(blend.values()) == pytest.approx(1, abs=2e-3) for blend, _ in cast)
    # Every process has the same blends.
    assert Casting(config, voices).blends == casting.blends


def test_checks_hold_the_chosen_texts_and_the_teachers_seconds() -> None:
    for kind, texts in choose_texts().items():
        checks = read_checks(kind)
        assert [check.text for check in checks] == texts
        assert all(0.3 < check.seconds < 25 for check in checks)
    lengths = Counter(len(check.text.split()) for check in read_checks("length"))
    assert lengths == dict.fromkeys(range(1, MAX_WORDS + 1), 5)
    sentences_in_test = {check.text for check in read_checks("sentence")}
    assert len(sentences_in_test) == 100
    assert not any(
        sentence in check.text for sentence in sentences_in_test for check in read_checks("length")
    )
    assert len(read_checks("sentence", 10)) == 10


def test_the_data_recipe_covers_every_kind(tmp_path: Path) -> None:
    config = DataConfig.load()
    assert sum(config.texts.shares.values()) == pytest.approx(1)
    assert config.default_voice not in config.held_out_voices
    path = tmp_path / "data.json"
    path.write_text(json.dumps(config.model_dump(mode="json") | {"surprise": 1}), encoding="utf-8")
    with pytest.raises(ValueError, match="surprise"):
        DataConfig.load(path)
