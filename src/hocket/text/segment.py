"""Cuts texts into pieces: long ones where a reader would breathe, streamed ones at the end of each
sentence.

A cut never falls inside a user-perceived character (letters with marks, conjuncts, emoji sequences)
or a `[pause 1.5s]`. Only such a unit may exceed the limit, as a piece of its own.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator
from enum import IntEnum

from hocket.text.pauses import MAX_PAUSE_CHARACTERS, PAUSE

#: Stops that end a sentence without a space after them or have no other meaning: ideographic and
#: fullwidth, danda, Arabic, Ethiopic, Burmese, Khmer, Tibetan, Armenian, Mongolian, Javanese, Ol
#: Chiki, Meitei.
_PLAIN_STOPS = "。！？｡।॥؟۔።፧፨။។៕།༎։᠃᠉꧉᱾᱿꯫"
#: Brackets and quotation marks that belong to the sentence before them.
_CLOSERS = re.escape("\"'”’»›)]}」』】）》〉〕］｝＂＇")
#: One or more stops with their closing brackets and quotation marks.
_SENTENCE_END = re.compile(rf"[.．!?…‼⁇⁈⁉{_PLAIN_STOPS}]+[{_CLOSERS}]*")
#: Where a reader takes a breath: Latin marks before white space, others anywhere, dashes.
_CLAUSE_END = re.compile(rf"[,;:][{_CLOSERS}]?(?=\s)|[，、；：､،؛፣፤၊]|[—–](?![\d—–])")
_SPACES = re.compile(r"\s+")
_NO_BREAK_SPACES = "\u00a0\u2007\u202f"
_LINE_END = re.compile(r"\r\n|[\n\r\x85\u2028]")
#: Marks between words (or syllables) of scripts without spaces: the zero-width space, the Tibetan
#: tsheg.
_WORD_END = re.compile("[\u200b\u0f0b]")

#: Before a full stop that ends no sentence, in lower case. Single letters (initials, "e.g.",
#: "U.S.") need no entry.
_ABBREVIATIONS = frozenset(
    (  # noqa: SIM905 - a hundred quoted words are harder to read
        "mr mrs ms mx dr prof sr jr st mt ft rev hon gen col sgt capt lt cmdr gov sen rep pres vs "
        "etc approx al cf nos vol fig figs eq sec ch pp ed eds inc ltd co corp dept est univ ave "
        "blvd rd jan feb mar apr jun jul aug sep sept oct nov dec ph.d bzw usw ca nr bd hr fr str "
        "evtl ggf inkl zzgl vgl geb mme mlle mgr env sra srta ud uds avda sig dott"
    ).split()
)
_LAST_WORD = re.compile(r"[^\W_]+(?:\.[^\W_]+)*\Z")
#: Characters that are searched for the word before a full stop.
_MAX_WORD = 24
#: Most digits of an ordinal before a full stop, which ends no sentence: "3. May", "1. First".
_MAX_ORDINAL_DIGITS = 2
#: Pieces of this length are not cut again for their spoken length, which would divide numbers.
_SHORTEST_PIECE = 20


class _Kind(IntEnum):
    """Cut-point ranks, ascending."""

    WORD = 0
    CLAUSE = 1
    SENTENCE = 2
    PARAGRAPH = 3


def split_text(text: str, max_characters: int, length: Callable[[str], int] = len) -> list[str]:
    """Cut `text` into pieces of at most `max_characters` code points.

    `length` measures a piece: "1984" is spoken in 20 letters. A piece whose measure exceeds the
    limit is cut again into smaller ones.

    A piece ends at the last paragraph in reach if that is past half of the limit, else at the last
    sentence, else at the last clause past a quarter, else after a word, else (scripts without
    spaces, very long words) after a character. Only white space around pieces is dropped; a blank
    text gives no piece.
    """
    cuts = _Cuts(text.rstrip())
    pieces: list[str] = []
    start = _skip_space(cuts.text, 0)
    while start < len(cuts.text):
        end = cuts.piece_end(start, max_characters)
        pieces.append(cuts.text[start:end])
        start = _skip_space(cuts.text, end)
    if length is len:
        return pieces
    return [part for piece in pieces for part in _split_again(piece, max_characters, length)]


def _split_again(piece: str, max_characters: int, length: Callable[[str], int]) -> list[str]:
    real = length(piece)
    if real <= max_characters or len(piece) <= _SHORTEST_PIECE:
        return [piece]
    # Even parts: 401 spoken letters are better as two parts of 200 than as 400 and one.
    parts = split_text(piece, max(_SHORTEST_PIECE, -(-len(piece) // -(-real // max_characters))))
    if len(parts) == 1:
        return parts
    return [smaller for part in parts for smaller in _split_again(part, max_characters, length)]


class SentenceBuffer:
    """Turns text that arrives in parts into sentences, which do not depend on how it was divided.

    A sentence is complete once the character after it shows so. One longer than `max_characters` is
    cut as by `split_text`.
    """

    def __init__(self, max_characters: int) -> None:
        self._max_characters = max_characters
        self._pending = ""

    def push(self, text: str) -> list[str]:
        """The sentences that `text` completes, without white space around them."""
        text = self._pending + text
        cuts = _Cuts(text)
        sentences: list[str] = []
        start = _skip_space(text, 0)
        while (end := self._complete_end(cuts, start)) is not None:
            sentences.append(text[start:end])
            start = _skip_space(text, end)
        # A mark may still join the last white space.
        self._pending = text[start:] or text[-1:]
        return sentences

    def flush(self) -> str | None:
        """Return the rest, complete or not, or None. It may exceed the limit by 40 characters."""
        rest, self._pending = self._pending.rstrip(), ""
        return rest or None

    def _complete_end(self, cuts: _Cuts, start: int) -> int | None:
        end = cuts.sentence_end(start, self._max_characters)
        if end is None:
            # No later text may move the cut: neither the rest of a pause nor what follows white
            # space.
            if (
                len(cuts.text) - _skip_space(cuts.text, start + self._max_characters)
                <= MAX_PAUSE_CHARACTERS
            ):
                return None
            end = cuts.piece_end(start, self._max_characters)
        # The next character decides whether this is the end.
        return end if _skip_space(cuts.text, end) < len(cuts.text) else None


class _Cuts:
    """The cut points of a text, each before the white space there."""

    def __init__(self, text: str) -> None:
        self.text = text
        kinds: dict[int, _Kind] = {}
        for match in _WORD_END.finditer(text):
            kinds[match.end()] = _Kind.WORD
        for match in _SPACES.finditer(text):
            if (kind := _kind_of_space(match.group())) is not None:
                kinds[match.start()] = kind
        for match in _CLAUSE_END.finditer(text):
            kinds[match.end()] = max(_Kind.CLAUSE, kinds.get(match.end(), _Kind.CLAUSE))
        for end in _sentence_ends(text):
            kinds[end] = max(_Kind.SENTENCE, kinds.get(end, _Kind.SENTENCE))
        self._in_pause = {
            position
            for match in PAUSE.finditer(text)
            for position in range(match.start() + 1, match.end())
        }
        self._positions = [p for p in sorted(kinds) if 0 < p < len(text) and not self._joined(p)]
        self._kinds = [kinds[position] for position in self._positions]

    def sentence_end(self, start: int, max_characters: int) -> int | None:
        """End of the first sentence from `start`, if it is in reach and not the end of the text."""
        reach = range(
            bisect_right(self._positions, start),
            bisect_right(self._positions, start + max_characters),
        )
        return next((self._positions[i] for i in reach if self._kinds[i] >= _Kind.SENTENCE), None)

    def piece_end(self, start: int, max_characters: int) -> int:
        """End of the piece from `start`, by the rule of `split_text`."""
        if len(self.text) - start <= max_characters:
            return len(self.text)
        furthest = dict.fromkeys(_Kind, start)
        for i in range(
            bisect_right(self._positions, start),
            bisect_right(self._positions, start + max_characters),
        ):
            furthest[self._kinds[i]] = self._positions[i]
        if furthest[_Kind.PARAGRAPH] - start > max_characters / 2:
            return furthest[_Kind.PARAGRAPH]
        sentence = max(furthest[_Kind.SENTENCE], furthest[_Kind.PARAGRAPH])
        if sentence > start:
            return sentence
        if furthest[_Kind.CLAUSE] - start > max_characters / 4:
            return furthest[_Kind.CLAUSE]
        return (
            max(furthest.values())
            if max(furthest.values()) > start
            else self._character_end(start, max_characters)
        )

    def _character_end(self, start: int, max_characters: int) -> int:
        end = start + max_characters
        while end > start and self._joined(end):
            end -= 1
        if end == start:  # one unit, longer than the limit
            end = start + 1
            while end < len(self.text) and self._joined(end):
                end += 1
        return end

    def _joined(self, position: int) -> bool:
        return position in self._in_pause or _is_inside_character(self.text, position)


def _kind_of_space(spaces: str) -> _Kind | None:
    line_ends = len(_LINE_END.findall(spaces))
    if line_ends > 1 or "\u2029" in spaces:
        return _Kind.PARAGRAPH
    if line_ends == 1:
        return _Kind.CLAUSE
    return _Kind.WORD if spaces.strip(_NO_BREAK_SPACES) else None


def _sentence_ends(text: str) -> Iterator[int]:
    for match in _SENTENCE_END.finditer(text):
        end = match.end()
        if end == len(text):
            return
        plain = any(stop in _PLAIN_STOPS for stop in match.group())
        if plain or (
            (text[end].isspace() or _is_ideographic(text[end])) and not _goes_on(text, match)
        ):
            yield end


def _is_ideographic(character: str) -> bool:
    """Whether `character` is a letter of a script without spaces, where Latin stops need none
    either.
    """
    return (
        unicodedata.category(character) == "Lo" and unicodedata.east_asian_width(character) == "W"
    )


def _goes_on(text: str, match: re.Match[str]) -> bool:
    """Whether a sentence continues after a Latin stop: before a lower-case letter, or after an
    abbreviation or ordinal.
    """
    following = _skip_space(text, match.end())
    if following < len(text) and text[following].islower():
        return True
    if match.group() not in {".", "．"}:
        return False
    found = _LAST_WORD.search(text[max(0, match.start() - _MAX_WORD) : match.start()])
    if found is None:
        return False
    word = found.group().lower()
    if word.isdigit():
        return len(word) <= _MAX_ORDINAL_DIGITS
    last = word.rsplit(".", 1)[-1]
    return word in _ABBREVIATIONS or (len(last) == 1 and last.isalpha())


def _skip_space(text: str, position: int) -> int:
    """The next position without white space, or with white space that carries a mark."""
    while position < len(text) and text[position].isspace():
        if (
            position + 1 < len(text)
            and not text[position + 1].isspace()
            and _is_inside_character(text, position + 1)
        ):
            break
        position += 1
    return position


# ------------------------------------------------------------------------------------- characters

#: Characters outside the mark categories (M) that continue the one before them: zero-width joiners,
#: Thai and Lao AM, halfwidth sound marks, skin tones, tags.
_EXTENDERS = re.compile(
    "[\u200c\u200d\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
)
#: Characters that belong to the one after them: the joiner, vowels that Thai and Lao write first,
#: Arabic number and verse signs.
_PREFIXES = re.compile(
    "[\u200d\u0e40-\u0e44\u0ec0-\u0ec4\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2]"
)
_HANGUL_LEADS = re.compile("[\u1100-\u115f\ua960-\ua97c]")
_HANGUL_TAILS = re.compile("[\u1160-\u11ff\ud7b0-\ud7fb]")
_HANGUL = re.compile("[\u1100-\u11ff\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7fb]")
_REGIONAL_INDICATORS = re.compile("[\U0001f1e6-\U0001f1ff]+\\Z")
_VIRAMA_CLASS = 9


def _is_inside_character(text: str, position: int) -> bool:
    """Whether a cut at `position`, inside the text, would divide a user-perceived character.

    This follows Unicode's extended grapheme clusters (UAX 29), and also keeps the conjuncts of all
    Indic scripts and prefixed vowels.
    """
    before, after = text[position - 1], text[position]
    if after.isspace():
        return before == "\r" and after == "\n"
    if unicodedata.category(after)[0] == "M" or _EXTENDERS.match(after):
        return True
    if unicodedata.combining(before) == _VIRAMA_CLASS or _PREFIXES.match(before):
        return True
    if _HANGUL_TAILS.match(after):
        return _HANGUL.match(before) is not None
    if _HANGUL_LEADS.match(before):
        return _HANGUL.match(after) is not None
    if "\U0001f1e6" <= after <= "\U0001f1ff":  # flags are pairs
        flags = _REGIONAL_INDICATORS.search(text, 0, position)
        return flags is not None and len(flags.group()) % 2 == 1
    return "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff"
