"""The text front: what is written, as it is spoken, for models that were trained on spoken text.

`normalise` is pure and fast and raises for no text. It runs where a request comes in, before the prompt is built, and
after long texts were cut: cutting knows the full stops of "Dr." and "3.5", and text that streams in shows no more than
its next sentence anyway.
"""

from __future__ import annotations

import re

from hocket.core import MAX_TEXT_CHARACTERS, SpeechRequest, TextFront
from hocket.errors import InvalidRequestError, Template
from hocket.text.normalize.characters import fold
from hocket.text.normalize.english import read_out

#: `[pause 3.2s]` asks the model for silence (spec/moss 1.7) and is no text.
_PAUSE = re.compile(r"(\[pause[ \t]{1,8}\d{1,6}(?:\.\d{1,6})?[ \t]{0,8}s\])", re.IGNORECASE)
_ENGLISH = {"english", "en"}


def normalise(text: str, language: str | None) -> str:
    """`text` with everything that is no word read out in English; as it is where `language` is another.

    `language` is a name or a tag ("English", "en-GB"), None where nothing was said. What comes out has letters,
    spaces and the marks . , ; : ! ? - ' (and pauses, which stay as they are); it is empty where `text` has nothing
    that can be read out, such as a lone emoji.
    """
    if language is not None and re.split("[-_]", language.strip().lower())[0] not in _ENGLISH:
        return text
    parts = _PAUSE.split(text)
    return " ".join(
        part if i % 2 else words for i, part in enumerate(parts) if (words := part if i % 2 else read_out(fold(part)))
    )


def spoken(request: SpeechRequest, text_front: TextFront | None) -> SpeechRequest:
    """`request` with its texts as they are spoken, if it wants that or, where it says nothing, an engine with this
    `text_front` does. Raises InvalidRequestError.
    """
    wanted = text_front is not None if request.text_front is None else request.text_front
    if not wanted:
        return request
    texts = {"text": _spoken(request.text, request.language, "text")}
    if request.reference_text is not None:
        texts["reference_text"] = _spoken(request.reference_text, request.language, "reference_text")
    return request.model_copy(update={**texts, "text_front": False})


def _spoken(text: str, language: str | None, param: str) -> str:
    words = normalise(text, language)
    if not words.strip():
        raise InvalidRequestError(
            Template("{param} has nothing that can be read out; give at least one word"), param=param
        )
    if len(words) > MAX_TEXT_CHARACTERS:
        raise InvalidRequestError(
            Template(
                "{param} has {characters:,} characters as it is read out; {limit:,} is the most, split it",
                characters=len(words),
                limit=MAX_TEXT_CHARACTERS,
            ),
            param=param,
        )
    return words
