"""The text normalizer: a table of written and spoken texts, and properties of all texts."""

from __future__ import annotations

import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.core import MAX_TEXT_CHARACTERS, SpeechRequest
from hocket.errors import InvalidRequestError
from hocket.text.normalize import normalize, normalize_request
from tests.support.text_cases import CASES

#: All characters that rules look at, so that most generated texts match one.
TRICKY = "0123456789.,:;-–/'\"$€%°² \n()+=&@#~^xXABIVkmstndrhpJanMyDcw"


@pytest.mark.parametrize("kind", CASES)
def test_the_table(kind: str) -> None:
    for written, wanted in CASES[kind]:
        assert normalize(written, None) == wanted
        assert normalize(wanted, None) == wanted, "what is spoken is read as it is"


@settings(deadline=None)
@given(text=st.one_of(st.text(max_size=60), st.text(alphabet=TRICKY, max_size=40)))
def test_any_text_comes_to_letters_and_marks(text: str) -> None:
    words = normalize(text, "English")
    assert all(c in " .,;:!?-'" or unicodedata.category(c)[0] in "LM" for c in words), words
    assert "  " not in words
    assert words == words.strip()
    if any(unicodedata.category(c)[0] in "LN" for c in text):
        assert words


@settings(deadline=None)
@given(value=st.integers(0, 10**15 - 1))
def test_numbers_are_read_whole(value: int) -> None:
    plain, grouped = normalize(f"{value} cats", None), normalize(f"{value:,} cats", None)
    assert grouped == plain
    assert plain.endswith(" cats")
    assert not any(c.isdigit() for c in plain)


def test_other_languages_are_left_alone() -> None:
    text = "Es kostet 3,50 €  am 3.4. – “gut”"
    for language in ("German", "de", "de-AT", "Chinese"):
        assert normalize(text, language) == text
    for spelling in (None, "English", "english", "en", "en-GB", "EN_us"):
        assert normalize("5 cats", spelling) == "five cats"


@pytest.mark.parametrize(
    "unit",
    ["1", "1-", ".,", "- ", "\n ", "+1", "a.", "AB ", "$1 ", "1/", "'", "3:45 pm ", "é", "x@"],
)
def test_long_texts_take_time_in_proportion(unit: str) -> None:
    """A rule that scanned the rest of the text at every match would take 100 times as long for 10
    times the text.
    """

    def seconds(characters: int) -> float:
        text = (unit * characters)[:characters]
        start = time.process_time()
        normalize(text, None)
        return time.process_time() - start

    assert seconds(40_000) < 40 * min(seconds(4_000) for _ in range(3)) + 0.5


def test_a_request_is_spoken_once_and_only_if_it_is_wanted() -> None:
    request = SpeechRequest(text="5 km", reference="a.wav", reference_text="4 km", seed=3)
    done = normalize_request(request, "en")
    assert (done.text, done.reference_text, done.text_front) == (
        "five kilometers",
        "four kilometers",
        False,
    )
    assert done.model_dump(exclude={"text", "reference_text", "text_front"}) == request.model_dump(
        exclude={"text", "reference_text", "text_front"}
    )
    assert normalize_request(done, "en") is done
    assert normalize_request(request, None) is request
    assert (
        normalize_request(SpeechRequest(text="5 km", text_front=True), None).text
        == "five kilometers"
    )
    assert normalize_request(SpeechRequest(text="5 km", text_front=False), "en").text == "5 km"
    assert normalize_request(SpeechRequest(text="5 km", language="German"), "en").text == "5 km"


@pytest.mark.parametrize("text", ["😀", "…?!", "*** --- ***"])
def test_nothing_to_read_out_is_an_error(text: str) -> None:
    with pytest.raises(
        InvalidRequestError, match="text has nothing that can be read out"
    ) as caught:
        normalize_request(SpeechRequest(text=text), "en")
    assert caught.value.param == "text"


def test_a_text_that_becomes_too_long_is_an_error() -> None:
    with pytest.raises(
        InvalidRequestError, match="characters as it is read out; 100,000 is the most"
    ):
        normalize_request(SpeechRequest(text="7" * MAX_TEXT_CHARACTERS), "en")
