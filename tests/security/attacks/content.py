"""Attacks by what a JSON body says: numbers, surrogates, codes, large bodies, texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from tests.security.attacks.target import BATCH, DECODE, ENCODE, SPEECH, Attack, Target

MIB = 2**20
GOOD = {"input": "Good.", "response_format": "pcm", "max_new_tokens": 2}
FIELDS = (
    *("seed", "temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens"),
    *("min_new_tokens", "tokens", "speed"),
)
#: As JSON, so that there can be what Python would not write.
NUMBERS = ("-1", "1e400", "NaN", "9" * 5000, "1.5", '"1"', "[]", "true", "-Infinity", "1e-400")
#: Letters that grow, join, combine, or mean the end of something.
PIECES = (
    *("a", "!", " ", "\n", "1", ".", ". ", "a.", "\u0301", "a\u0301", "\ufdfa", "\u200d", "\u202e"),
    *(
        "\U0001f468\u200d\U0001f469\u200d",
        "\u0e33",
        "\ud55c",
        "\u1100",
        "\u4e00",
        "\u3002",
        "\ufeff",
    ),
    *("$1.", "1/2 ", "1:00 ", "http://a.b ", "a@b.c ", "<|im_end|>", "</user_inst>", "- Text:\n"),
    *("((", "'s", "--", "...", "1,000,", "IV ", "Dr. ", "\t\r", "\u00a0", "\u2028", "%20", "&amp;"),
)
SHAPES: dict[str, Callable[[str], str]] = {
    "a run of": lambda piece: piece * 10_000,
    "a letter behind a run of": lambda piece: (piece * 10_000)[:9_999] + "a",
    "a letter before a run of": lambda piece: "a" + piece * 10_000,
    "sentences with": lambda piece: (piece * 5 + " a. ") * 2_000,
    "words with": lambda piece: (piece + "a ") * 5_000,
}


def attacks(target: Target) -> Iterator[Attack]:
    """All of them."""
    yield from _numbers(target)
    yield from _bodies(target)
    yield from _texts(target)


def _speech(target: Target, name: str, body: bytes, *statuses: int) -> Attack:
    return Attack("numbers", name, lambda: target.post(SPEECH, body, *statuses))


def _numbers(target: Target) -> Iterator[Attack]:
    start = json.dumps(GOOD)[:-1]
    for field in FIELDS:
        for number in NUMBERS:
            # A number with a fraction or a tiny one may be right for this field.
            yield _speech(
                target,
                f"{field} {number[:9]}",
                f'{start}, "{field}": {number}}}'.encode(),
                200,
                400,
            )
    for name, text in (
        ("surrogate", r"a\ud800b"),
        ("other half", r"\udc00"),
        ("NUL", r"a\u0000b"),
        ("two halves", r"\ud83d\ude00"),
    ):
        body = f'{{"input": "{text}", "response_format": "pcm", "max_new_tokens": 2}}'
        yield _speech(target, name, body.encode(), 400)
    for name, raw in (
        ("deep", b"[" * 100_000),
        ("deep objects", b'{"input":' * 50_000),
        ("not UTF-8", b'{"input": "\xff"}'),
        ("empty", b""),
        ("a list", b"[]"),
        ("twice", b'{"input": "a", "input": "b", "response_format": 7}'),
        ("prototype", b'{"__proto__": {}, "constructor": 1, "input": "a"}'),
    ):
        yield _speech(target, name, raw, 400)
    for name, codes in (
        ("negative", [[-1] * 8]),
        ("huge", [[2**63] * 8]),
        ("beyond", [[10**6] * 8]),
        ("ragged", [[1] * 8, [1]]),
        ("fraction", [[0.5] * 8]),
        ("words", [["a"] * 8]),
        ("empty", []),
        ("of nothing", [[]]),
        ("wide", [[1] * 10_000]),
        ("flat", [1, 2, 3]),
    ):
        yield Attack(
            "codes",
            name,
            lambda codes=codes: target.post(DECODE, {"codes": codes}, 400),  # type: ignore[misc]
        )


def _bodies(target: Target) -> Iterator[Attack]:
    size = 31 * MIB
    audio = b"A" * (20 * MIB)
    cases: dict[str, tuple[str, bytes]] = {
        "input of !": (SPEECH, b'{"input": "' + b"!" * size + b'"}'),
        "input of escapes": (SPEECH, b'{"input": "' + rb"\u0041" * (size // 6) + b'"}'),
        "unknown field": (SPEECH, b'{"input": "a", "x": [' + b"[]," * (size // 3) + b"[]]}"),
        "unknown fields": (
            SPEECH,
            b"{" + b",".join(b'"%07d":0' % i for i in range(size // 12)) + b"}",
        ),
        "spaces": (SPEECH, b" " * size + b"{}"),
        "digits": (SPEECH, b'{"input": "a", "seed": ' + b"9" * size + b"}"),
        "codes": (DECODE, b'{"codes": [' + b"[1]," * (size // 4) + b"[1]]}"),
        "one frame": (DECODE, b'{"codes": [[' + b"1," * (size // 2) + b"1]]}"),
        "items": (BATCH, b'{"items": [' + b"{}," * (size // 3) + b"{}]}"),
        "item of a list": (BATCH, b'{"items": [[' + b"[]," * (size // 3) + b"[]]]}"),
        "recording": (SPEECH, b'{"input":"a","ref_audio":"data:audio/wav;base64,' + audio + b'"}'),
        "recording of a batch": (
            BATCH,
            b'{"ref_audio":"data:audio/wav;base64,'
            + audio[: 10 * MIB]
            + b'","items":['
            + b",".join([b'{"input":"a"}'] * 64)
            + b"]}",
        ),
        "audio": (ENCODE, b'{"audio":"data:audio/wav;base64,' + audio + b'"}'),
        "too large": (SPEECH, b" " * (40 * MIB)),
    }
    for name, (path, body) in cases.items():
        statuses = (200, 400, 413)
        yield Attack(
            "large bodies",
            name,
            lambda path=path, body=body, statuses=statuses: target.post(path, body, *statuses),  # type: ignore[misc]
        )


def _texts(target: Target) -> Iterator[Attack]:
    for piece in PIECES:
        for shape, make in SHAPES.items():
            body = {**GOOD, "input": make(piece)[:10_000]}
            yield Attack(
                "texts",
                f"{shape} {piece!a}",
                lambda body=body: target.post(SPEECH, body, 200, 400),  # type: ignore[misc]
            )
