"""The text normalizer: written text as it is spoken, for models that were trained on spoken text.

`normalize` is pure and fast and never raises. It runs when a request arrives, before the prompt is
built and after long texts are cut: cutting knows the full stops of "Dr." and "3.5", and streamed
text shows only its next sentence.
"""

from __future__ import annotations

import re

from hocket.core import MAX_TEXT_CHARACTERS, SpeechRequest, TextNormalizer
from hocket.errors import InvalidRequestError, Template
from hocket.text.normalize.characters import fold
from hocket.text.normalize.english import read_out
from hocket.text.pauses import PAUSE

_ENGLISH = {"english", "en"}


def normalize(text: str, language: str | None) -> str:
    """Replace everything in `text` that is not a word by English words; other languages are
    unchanged.

    `language` is a name or a tag ("English", "en-GB") or None. The result has letters, spaces, the
    marks . , ; : ! ? - ' and pauses, which are kept; it is empty for a text without anything to
    read out, such as a lone emoji.
    """
    if language is not None and re.split("[-_]", language.strip().lower())[0] not in _ENGLISH:
        return text
    parts, end = [], 0
    for pause in PAUSE.finditer(text):
        parts += [read_out(fold(text[end : pause.start()])), pause[0]]
        end = pause.end()
    return " ".join(part for part in (*parts, read_out(fold(text[end:]))) if part)


def normalize_request(request: SpeechRequest, text_front: TextNormalizer | None) -> SpeechRequest:
    """Return `request` with its texts as they are spoken, if normalization is on for it.

    The request's own `text_front` decides; where it is None, the engine's. Raises
    InvalidRequestError.
    """
    wanted = text_front is not None if request.text_front is None else request.text_front
    if not wanted:
        return request
    texts = {"text": _normalized(request.text, request.language, "text")}
    if request.reference_text is not None:
        texts["reference_text"] = _normalized(
            request.reference_text, request.language, "reference_text"
        )
    return request.model_copy(update={**texts, "text_front": False})


def _normalized(text: str, language: str | None, param: str) -> str:
    words = normalize(text, language)
    if not words.strip():
        raise InvalidRequestError(
            Template("{param} has nothing that can be read out; give at least one word"),
            param=param,
        )
    if len(words) > MAX_TEXT_CHARACTERS:
        raise InvalidRequestError(
            Template(
                "{param} has {characters:,} characters as it is read out; {limit:,} is the most, "
                "split it",
                characters=len(words),
                limit=MAX_TEXT_CHARACTERS,
            ),
            param=param,
        )
    return words
