"""Server-sent events of speech: their audio, and the arrival time of each piece.

OpenAI, vLLM-Omni and Hocket send `speech.audio.*`, SGLang-Omni `audio.speech.chunk`.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hocket.bench.faults import Fault, ResponseError, one_line

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_PCM_TAG = 1
#: Larger numbers are not metadata; seeds may have 64 bits.
_MAX_NUMBER = 2**64


@dataclass(slots=True)
class EventAudio:
    """The audio in the events of one response."""

    #: One stream of samples or of file bytes; headers of WAV pieces are stripped.
    body: bytes = b""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    #: Metadata that the events state: sample_rate, channels, seconds, finish_reason, seed,
    #: request_id.
    facts: dict[str, Any] = field(default_factory=dict)
    #: The pieces were WAV files, or the beginnings of some.
    is_wav: bool = False
    faults: list[Fault] = field(default_factory=list)


def read_events(body: bytes, arrivals: Sequence[tuple[float, int]]) -> EventAudio:
    """Read the events of a body. Raises ResponseError for an error event and for events without
    speech.
    """
    audio, pieces, size, is_done = EventAudio(), list[bytes](), 0, False
    shapes: set[tuple[int, ...]] = set()
    ends = [end for _, end in arrivals]
    for name, payload, end in _payloads(body):
        if payload == "[DONE]":
            is_done = True
            continue
        event = _object(payload)
        if name == "error" or event.get("error") or str(event.get("type")).endswith("error"):
            raise ResponseError("error_event", _message(event.get("error") or event))
        piece, says = _audio_of(event)
        audio.facts |= says
        if piece.startswith(b"RIFF"):
            audio.is_wav = True
            piece, shape = _strip_wav(piece)
            audio.facts |= shape
            shapes.add(tuple(shape.values()))
        if piece:
            pieces.append(piece)
            size += len(piece)
            audio.arrivals.append((arrivals[bisect_left(ends, end)][0], size))
        is_done = (
            is_done or event.get("type") == "speech.audio.done" or bool(event.get("finish_reason"))
        )
    if len(shapes) > 1:
        audio.faults.append(
            Fault(
                "wrong_rate", f"pieces with {len(shapes)} different rates or channels in one answer"
            )
        )
    if not is_done:
        audio.faults.append(Fault("unfinished", "no speech.audio.done, finish_reason or [DONE]"))
    audio.body = b"".join(pieces)
    return audio


def _payloads(body: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield name ("" without one), data, and end position in the body, for each event."""
    start = 0
    for match in _BLANK_LINE.finditer(body):
        lines = body[start : match.start()].decode("utf-8", "replace").splitlines()
        data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        names = [line.removeprefix("event:").strip() for line in lines if line.startswith("event:")]
        start = match.end()
        if data:
            yield "".join(names[-1:]), "\n".join(data), match.end()


def _object(payload: str) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError):
        raise ResponseError("not_audio", "an event is not JSON") from None
    if not isinstance(event, dict):
        raise ResponseError("not_audio", "an event is not a JSON object")
    return event


def _audio_of(event: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """The event's audio, b"" without one, and its metadata."""
    inner = event.get("audio")
    fields = {**event, **inner} if isinstance(inner, dict) else dict(event)
    encoded = inner.get("data") if isinstance(inner, dict) else inner
    names = {"audio_seconds": "seconds"}
    kept = ("sample_rate", "channels", "audio_seconds", "finish_reason", "seed", "request_id")
    says = {names.get(name, name): fields[name] for name in kept if _is_fact(fields.get(name))}
    if not isinstance(encoded, str):
        return b"", says
    try:
        return base64.b64decode(encoded, validate=True), says
    except ValueError:  # binascii.Error, and text that is not ASCII
        raise ResponseError("not_audio", "an event's audio is not base64") from None


def _is_fact(value: object) -> bool:
    """Whether a report can hold `value`: a finite number or a short text."""
    if isinstance(value, str):
        return one_line(value) == value
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER
    )


def _strip_wav(piece: bytes) -> tuple[bytes, dict[str, int]]:
    """The samples of a WAV file, or of its beginning, and its shape."""
    shape: dict[str, int] = {}
    at = 12
    while at + 8 <= len(piece):
        tag, size = piece[at : at + 4], int.from_bytes(piece[at + 4 : at + 8], "little")
        if tag == b"fmt " and at + 24 <= len(piece):
            kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", piece, at + 8)
            if (kind, bits) != (_PCM_TAG, 16):
                raise ResponseError(
                    "not_audio", f"a WAV piece of kind {kind} with {bits} bits; 16-bit PCM is read"
                )
            shape = {"sample_rate": rate, "channels": channels}
        if tag == b"data":
            return piece[at + 8 : at + 8 + size], shape
        at += 8 + size + size % 2
    raise ResponseError("not_audio", "a WAV piece without samples")


def _message(error: object) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return str(text)
