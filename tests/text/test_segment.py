"""Cutting texts: where a reader would breathe, in every script, without losing anything."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hocket.text.segment import SentenceBuffer, split_text

#: Any Unicode, lone surrogates included, with more characters that make cutting hard.
HARD = st.sampled_from(
    [
        *(
            ".",
            "! ",
            "? ",
            "。",
            "」",
            " ",
            "\n",
            "\n\n",
            "\r\n",
            "\u2029",
            "\u00a0",
            "\u200b",
            "\u0301",
            "\u200d",
            ", ",
        ),
        *(
            "Dr.",
            "3.14",
            "[pause 1.5s]",
            "[pause",
            "👩\u200d👩\u200d👧",
            "🇩🇪",
            "👍🏽",
            "नमस्ते",
            "क्षत्रिय",
            "한국",
            "\u1112\u1161\u11ab",
        ),
        *(
            "สวัสดี",
            "ກິນ",
            "\ud83d",
            "\ude00",
            "e\u0301",
            "word",
            "A",
            "x" * 30,
            "\u0301" * 30,
            " " * 50,
        ),
    ]
)
ANY_TEXT = st.lists(st.one_of(HARD, st.text(st.characters(), max_size=6)), max_size=30).map("".join)


def without_space(text: str) -> str:
    return "".join(text.split())


def pushed(parts: list[str], max_characters: int) -> list[str]:
    buffer = SentenceBuffer(max_characters)
    sentences = [sentence for part in parts for sentence in buffer.push(part)]
    rest = buffer.flush()
    assert buffer.flush() is None
    return sentences if rest is None else [*sentences, rest]


@settings(max_examples=400, deadline=None)
@given(text=ANY_TEXT, max_characters=st.integers(1, 60))
@example(text="a \u0301b", max_characters=1)
def test_nothing_but_white_space_is_dropped(text: str, max_characters: int) -> None:
    pieces = split_text(text, max_characters)
    assert without_space("".join(pieces)) == without_space(text)
    position = 0
    for piece in pieces:
        assert piece
        found = text.index(piece, position)
        assert not text[position:found].strip()
        position = found + len(piece)
    assert not text[position:].strip()


@settings(max_examples=200, deadline=None)
@given(
    words=st.lists(
        st.text(st.sampled_from("aZ0.,!?;。，漢字 \n"), min_size=1, max_size=20), max_size=30
    ),
    max_characters=st.integers(1, 50),
)
def test_no_piece_is_too_long(words: list[str], max_characters: int) -> None:
    assert all(
        len(piece) <= max_characters for piece in split_text(" ".join(words), max_characters)
    )


WHOLE = [
    *(
        "e\u0301",
        "o\u0308\u0323\u0301",
        "👩\u200d👩\u200d👧\u200d👦",
        "👍🏽",
        "🏳\ufe0f\u200d🌈",
        "🇩🇪",
        "1\ufe0f\u20e3",
    ),
    *(
        "🏴\U000e0067\U000e0062\U000e007f",
        "क्षि",
        "ന്ദ്ര",
        "\u1112\u1161\u11ab",
        "\uac00\u11a8",
        "น้ำ",
        "เก",
        "ໂລ",
        "ｶﾞ",
    ),
    *("\ud83d\ude00", "[pause 1.5s]", "[PAUSE  12 s]", "\u06001"),
]


@pytest.mark.parametrize("unit", WHOLE)
@pytest.mark.parametrize("max_characters", range(1, 14))
def test_a_character_is_never_divided(unit: str, max_characters: int) -> None:
    for text in (unit * 8, "x" + unit * 8, "xy" + unit * 8):
        pieces = split_text(text, max_characters)
        assert "".join(pieces) == text
        assert "".join(piece.replace(unit, "") for piece in pieces) in {"", "x", "xy"}
        assert all(len(piece) <= max(max_characters, len(unit)) for piece in pieces)
        assert "".join(pushed(list(text), max_characters)) == text


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "One two. Three four! Five?  Six…  Seven",
            ["One two.", "Three four!", "Five?", "Six…", "Seven"],
        ),
        (
            'He said "Stop!" Then he left. (It was late.) End',
            ['He said "Stop!"', "Then he left.", "(It was late.)", "End"],
        ),
        ('"Why?" she asked. No... maybe... Yes', ['"Why?" she asked.', "No... maybe...", "Yes"]),
        (
            "Dr. Smith met Mr. J. R. Jones, e.g. in the U.S. Army, at 3.14 p.m. today. Then home",
            [
                "Dr. Smith met Mr. J. R. Jones, e.g. in the U.S. Army, at 3.14 p.m. today.",
                "Then home",
            ],
        ),
        (
            "Am 3. Mai kam z. B. Hr. Meier. Er blieb bis 2024. Dann ging er",
            ["Am 3. Mai kam z. B. Hr. Meier.", "Er blieb bis 2024.", "Dann ging er"],
        ),
        (
            "Version 1.2.3 is on example.com/a.b?c now. Get it",
            ["Version 1.2.3 is on example.com/a.b?c now.", "Get it"],
        ),
        (
            "今天天气很好。我们去公园吧！你觉得呢？好",
            ["今天天气很好。", "我们去公园吧！", "你觉得呢？", "好"],
        ),
        ("你好!我是小明.再见", ["你好!", "我是小明.", "再见"]),
        (
            "１．はじめに。２．次です．そして３．１４",
            ["１．はじめに。", "２．次です．", "そして３．１４"],
        ),
        ("彼は「行こう。」と言った。そして", ["彼は「行こう。」", "と言った。", "そして"]),
        ("यह पहला है। यह दूसरा है॥ तीसरा", ["यह पहला है।", "यह दूसरा है॥", "तीसरा"]),
        ("هل أنت بخير؟ نعم. یہ اردو ہے۔ اور", ["هل أنت بخير؟", "نعم.", "یہ اردو ہے۔", "اور"]),
        ("ሰላም ነው። እንዴት ነህ፧ ደህና", ["ሰላም ነው።", "እንዴት ነህ፧", "ደህና"]),
        ("មករា។ កុម្ភៈ", ["មករា។", "កុម្ភៈ"]),
        ("A heading\n\nThe text\ngoes on.\r\n\r\nEnd", ["A heading", "The text\ngoes on.", "End"]),
        ("Wait. [pause 1.5s] Go on. Now", ["Wait.", "[pause 1.5s] Go on.", "Now"]),
        ("  \n ", []),
        ("", []),
    ],
)
def test_sentences_of_all_scripts(text: str, sentences: list[str]) -> None:
    assert pushed([text], 1000) == sentences
    assert pushed(list(text), 1000) == sentences
    # As pieces: with room for the longest sentence they are cut between sentences only.
    if sentences:
        pieces = split_text(text, max(map(len, sentences)))
        assert without_space("".join(pieces)) == without_space(text)
        ends = {without_space("".join(sentences[: i + 1])) for i in range(len(sentences))}
        assert all(without_space("".join(pieces[: i + 1])) in ends for i in range(len(pieces)))


@settings(max_examples=300, deadline=None)
@example(text=" \u0301", max_characters=1, cuts=[1])
@given(
    text=ANY_TEXT,
    max_characters=st.integers(1, 60),
    cuts=st.lists(st.integers(0, 200), max_size=10),
)
def test_how_a_text_is_pushed_does_not_matter(
    text: str, max_characters: int, cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = [text[a:b] for a, b in itertools.pairwise(edges)]
    sentences = pushed(parts, max_characters)
    assert sentences == pushed([text], max_characters)
    assert without_space("".join(sentences)) == without_space(text)


def test_a_sentence_comes_out_as_soon_as_the_next_begins() -> None:
    buffer = SentenceBuffer(400)
    assert [
        buffer.push(part) for part in ("Hello", " there", ".", " How", " are you?", " I", " am")
    ] == [*([], [], [], ["Hello there."], [], ["How are you?"], [])]
    assert buffer.flush() == "I am"
    assert buffer.push("再见。") == []
    assert buffer.push("下") == ["再见。"]


def test_a_stream_without_sentences_is_cut_and_bounded() -> None:
    buffer = SentenceBuffer(50)
    out: list[str] = []
    for _ in range(100):
        out += buffer.push("สวัสดีครับ ")
    rest = buffer.flush()
    assert rest is not None
    assert len(out) >= 18
    assert len(rest) <= 100
    assert all(len(piece) <= 50 and piece.endswith("สวัสดีครับ") for piece in out)


def test_a_space_that_carries_a_mark_is_no_space_to_drop() -> None:
    assert split_text("a  \u0301b", 1) == ["a", " \u0301", "b"]
    assert pushed(list("Ab.  \u0301C"), 9) == ["Ab.", " \u0301C"]


def test_the_best_break_in_reach_is_taken() -> None:
    words = "lorem ipsum dolor sit amet"
    # A paragraph past the half wins over a later sentence; an early one does not.
    assert split_text(f"{words}\n\nA. {words}", 45) == [words, f"A. {words}"]
    assert split_text(f"Hm\n\n{words}. Yes {words}", 40) == [f"Hm\n\n{words}.", f"Yes {words}"]
    # A sentence, however short, before a clause; a clause past a quarter before a word; an early
    # one not.
    assert split_text(f"Ah. I {words}, {words}", 30) == ["Ah.", f"I {words},", words]
    assert split_text(f"{words}, {words}", 40) == [f"{words},", words]
    assert split_text(f"Oh, {words} {words}", 40) == [f"Oh, {words} lorem", "ipsum dolor sit amet"]
    # A line end ends a clause; a no-break space ends nothing.
    assert split_text(f"{words}\n{words}", 40) == [words, words]
    assert split_text("aaa 10\u00a0km", 8) == ["aaa", "10\u00a0km"]
    assert split_text("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]
    assert split_text("好，" + "字" * 30 + "，" + "字" * 10, 20) == [
        "好，",
        "字" * 20,
        "字" * 10 + "，",
        "字" * 10,
    ]
    assert split_text("བོད་སྐད་ཡིག་", 8) == ["བོད་སྐད་", "ཡིག་"]


@pytest.mark.parametrize(
    "text",
    [
        " " * 100_000 + "x",
        "a " * 50_000,
        "." * 100_000,
        "\u0301" * 100_000,
        "[pause " * 15_000,
        "🇩" * 20_000,
    ],
)
def test_hostile_texts_take_linear_time(text: str) -> None:
    start = time.perf_counter()
    split_text(text, 400)
    pushed([text], 400)
    assert time.perf_counter() - start < 5


@settings(deadline=None)
@given(text=st.text(alphabet="ab1 .,\n", max_size=300), most=st.integers(20, 60))
def test_pieces_are_measured_by_what_they_say(text: str, most: int) -> None:
    """A digit counts as ten letters."""

    def length(piece: str) -> int:
        return sum(10 if c.isdigit() else 1 for c in piece)

    pieces = split_text(text, most, length)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(length(piece) <= most or len(piece) <= 20 for piece in pieces)
    if length(text) == len(text):
        assert pieces == split_text(text, most)


def test_a_piece_that_says_more_is_cut_into_even_parts_at_sentences() -> None:
    text = "Call 1234. Call 5678. Call 9012. Call 3456."
    parts = ["Call 1234. Call 5678.", "Call 9012. Call 3456."]
    assert split_text(text, 60, lambda piece: 2 * len(piece)) == parts
    assert split_text("1984", 20, lambda piece: 99) == ["1984"]
