"""Server-sent events of speech: the audio inside, and when each piece of it had arrived.

OpenAI, vLLM-Omni and Hocket send `speech.audio.*`, SGLang-Omni `audio.speech.chunk`.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hocket.bench.faults import AnswerError, Fault

_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_PCM_TAG = 1


@dataclass(slots=True)
class EventAudio:
    """The audio that the events of one answer carried."""

    #: As one stream; of WAV pieces the samples alone.
    body: bytes = b""
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    #: What the events say of themselves: sample_rate, channels, seconds, finish_reason, seed, request_id.
    facts: dict[str, Any] = field(default_factory=dict)
    #: The pieces were WAV files or the beginning of one.
    is_wav: bool = False
    faults: list[Fault] = field(default_factory=list)


def read_events(body: bytes, arrivals: Sequence[tuple[float, int]]) -> EventAudio:
    """Raises AnswerError for an error event and for what are no events of speech."""
    audio, pieces, size, is_done = EventAudio(), list[bytes](), 0, False
    ends = [end for _, end in arrivals]
    for payload, end in _payloads(body):
        if payload == "[DONE]":
            is_done = True
            continue
        event = _object(payload)
        if event.get("error"):
            raise AnswerError("error_event", _message(event["error"]))
        piece, says = _audio_of(event)
        audio.facts |= says
        if piece.startswith(b"RIFF"):
            audio.is_wav = True
            piece = _strip_wav(piece, audio.facts)
        if piece:
            pieces.append(piece)
            size += len(piece)
            audio.arrivals.append((arrivals[bisect_left(ends, end)][0], size))
        is_done = is_done or event.get("type") == "speech.audio.done" or bool(event.get("finish_reason"))
    if not is_done:
        audio.faults.append(Fault("unfinished", "no speech.audio.done, finish_reason or [DONE]"))
    audio.body = b"".join(pieces)
    return audio


def _payloads(body: bytes) -> Iterator[tuple[str, int]]:
    """The data of each event, and the bytes of the body up to its end."""
    start = 0
    for match in _BLANK_LINE.finditer(body):
        lines = body[start : match.start()].decode("utf-8", "replace").splitlines()
        data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
        start = match.end()
        if data:
            yield "\n".join(data), match.end()


def _object(payload: str) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except ValueError:
        raise AnswerError("not_audio", "an event is not JSON") from None
    if not isinstance(event, dict):
        raise AnswerError("not_audio", "an event is not a JSON object")
    return event


def _audio_of(event: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """The piece of audio, if there is one, and what the event says beside it."""
    inner = event.get("audio")
    fields = {**event, **inner} if isinstance(inner, dict) else dict(event)
    encoded = inner.get("data") if isinstance(inner, dict) else inner
    names = {"audio_seconds": "seconds"}
    kept = ("sample_rate", "channels", "audio_seconds", "finish_reason", "seed", "request_id")
    says = {names.get(name, name): fields[name] for name in kept if fields.get(name) is not None}
    if not isinstance(encoded, str):
        return b"", says
    try:
        return base64.b64decode(encoded, validate=True), says
    except binascii.Error:
        raise AnswerError("not_audio", "an event's audio is not base64") from None


def _strip_wav(piece: bytes, facts: dict[str, Any]) -> bytes:
    """The samples of a WAV file (or of its beginning); its rate and channels go into `facts`."""
    at = 12
    while at + 8 <= len(piece):
        tag, size = piece[at : at + 4], int.from_bytes(piece[at + 4 : at + 8], "little")
        if tag == b"fmt " and at + 24 <= len(piece):
            kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", piece, at + 8)
            if (kind, bits) != (_PCM_TAG, 16):
                raise AnswerError("not_audio", f"a WAV piece of kind {kind} with {bits} bits; 16-bit PCM is read")
            facts |= {"sample_rate": rate, "channels": channels}
        if tag == b"data":
            return piece[at + 8 : at + 8 + size]
        at += 8 + size + size % 2
    raise AnswerError("not_audio", "a WAV piece without samples")


def _message(error: object) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return str(text)[:200]
