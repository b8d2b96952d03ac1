"""Decoding of a response: samples, their true rate, and the time when each second of them became
playable.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from hocket.audio.io import (
    MAX_CHANNELS,
    MAX_SAMPLE_RATE,
    decode_audio,
    open_audio,
    to_float32,
)
from hocket.bench.dialects import Delivery
from hocket.bench.faults import Fault, ResponseError, one_line
from hocket.bench.http import Response
from hocket.bench.judge.sse import read_events
from hocket.errors import AudioFileError

_HTTP_OK = 200
_MAX_SECONDS = 3600.0
_MAX_BYTES = 2**30
#: FFmpeg's names of the containers that each format may have.
_CONTAINERS = {
    "wav": ("wav",),
    "mp3": ("mp3",),
    "opus": ("ogg", "matroska,webm"),
    "flac": ("flac", "ogg"),
    "aac": ("aac", "mov,mp4,m4a,3gp,3g2,mj2"),
}
#: First bytes of file formats, which raw samples must not have.
_MAGIC = {b"RIFF": "wav", b"OggS": "ogg", b"fLaC": "flac", b"ID3": "mp3"}
#: A body that begins with this many printable characters is text (an error page, JSON, events), not
#: samples.
_TEXT_BYTES = 40
#: Content types under which a player would not play raw samples correctly.
_FILE_TYPES = frozenset(
    f"audio/{name}"
    for name in (
        "wav",
        "x-wav",
        "wave",
        "vnd.wave",
        "mpeg",
        "mp3",
        "ogg",
        "opus",
        "webm",
        "flac",
        "aac",
        "mp4",
    )
)
#: Headers of streams with an unknown length state this size or more.
_WAV_UNKNOWN_SIZE = 0x7FFF0000
_WAV_DATA_AT = 44
#: Stated and real lengths may differ by codec frames and rounding.
_LENGTH_TOLERANCE_SECONDS = 0.15
#: A number in a header has fewer digits than this.
_MAX_DIGITS = 10

Arrivals = list[tuple[float, int]]


@dataclass(slots=True)
class DecodedAudio:
    """The audio of one response."""

    #: float32 [C, S].
    samples: NDArray[np.float32]
    sample_rate: int
    #: (time, seconds): from this time on, so many seconds are playable. Both grow.
    marks: list[tuple[float, float]]
    #: Metadata that the server states: sample_rate, channels, seconds, finish_reason, seed,
    #: request_id.
    facts: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.samples.shape[1] / self.sample_rate

    @property
    def channels(self) -> int:
        return self.samples.shape[0]


def decode_response(
    response: Response,
    response_format: str,
    delivery: Delivery,
    raw_shape: tuple[int, int] | None = None,
) -> DecodedAudio:
    """Decode `response`; `raw_shape` is (rate, channels) of raw samples where the server states
    none.

    Raises ResponseError when there is no audio; other faults are in `faults`.
    """
    if response.status not in (0, _HTTP_OK):
        raise ResponseError(f"status_{response.status}", error_text(response.body))
    if response.broken is not None:
        raise ResponseError(response.broken, response.detail)
    facts, body, arrivals, kind = (
        _header_facts(response.headers),
        response.body,
        response.arrivals,
        response_format,
    )
    faults: list[Fault] = []
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if _contradicts(content_type, delivery, kind):
        raise ResponseError(
            "wrong_format", f"asked for {delivery} {kind}, got {content_type or 'no content type'}"
        )
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ResponseError(
            "wrong_format",
            f"encoded as {response.headers['content-encoding']}, which was not requested",
        )
    if delivery == "sse":
        audio = read_events(body, arrivals)
        body, arrivals, faults = audio.body, audio.arrivals, audio.faults
        kind = "pcm" if audio.is_wav else kind
        facts |= audio.facts
    if not body:
        raise ResponseError("no_audio", "an empty body")
    decoded = (
        _raw(body, arrivals, facts, raw_shape) if kind == "pcm" else _file(body, arrivals, kind)
    )
    if decoded.samples.shape[1] == 0:
        raise ResponseError("no_audio", "not one sample")
    decoded.facts = facts
    decoded.faults = [*faults, *decoded.faults, *_contradictions(decoded)]
    return decoded


def error_text(body: bytes) -> str:
    """The server's error message, on one line of at most 200 characters."""
    try:
        document = json.loads(body)
        error = document.get("error", document.get("detail", document))
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError, RecursionError):
        text = body[:1000].decode("utf-8", "replace")
    return one_line(str(text))


def _contradicts(content_type: str, delivery: Delivery, kind: str) -> bool:
    """Whether the content type contradicts the request. Players rely on it."""
    if (delivery == "sse") != (content_type == "text/event-stream"):
        return True
    if delivery == "sse":
        return False
    is_text = content_type.startswith("text/") or content_type.endswith(
        ("/json", "+json", "/xml", "+xml")
    )
    return is_text or (kind == "pcm" and content_type in _FILE_TYPES)


def _raw(
    body: bytes, arrivals: Arrivals, facts: Mapping[str, Any], shape: tuple[int, int] | None
) -> DecodedAudio:
    for magic, name in _MAGIC.items():
        if body[: len(magic)].lower() == magic.lower():
            raise ResponseError("wrong_format", f"asked for pcm, got {name}")
    begin = body[:_TEXT_BYTES]
    if (
        len(begin) == _TEXT_BYTES
        and begin.isascii()
        and begin.decode().replace("\n", "").replace("\r", "").isprintable()
    ):
        raise ResponseError("wrong_format", f"asked for pcm, got text: {begin.decode()}")
    rate, channels = facts.get("sample_rate"), facts.get("channels")
    if shape is not None:
        rate, channels = rate or shape[0], channels or shape[1]
    if not isinstance(rate, int):
        raise ResponseError(
            "unknown_rate", "the answer states no rate; give --pcm-rate and --pcm-channels"
        )
    channels = channels if isinstance(channels, int) else 1
    if not (1 <= channels <= MAX_CHANNELS and 1 <= rate <= MAX_SAMPLE_RATE):
        raise ResponseError("not_audio", f"{channels} channels at {rate} Hz")
    frame_bytes = 2 * channels
    whole = len(body) // frame_bytes * frame_bytes
    samples_SC = to_float32(np.frombuffer(body[:whole], "<i2").reshape(-1, channels))
    marks = [(at, end // frame_bytes / rate) for at, end in arrivals]
    faults = (
        []
        if whole == len(body)
        else [Fault("wrong_length", f"{len(body)} bytes are no whole samples")]
    )
    return DecodedAudio(np.ascontiguousarray(samples_SC.T), rate, marks, faults=faults)


def _file(body: bytes, arrivals: Arrivals, kind: str) -> DecodedAudio:
    """Decode a file, and find when each of its packets was complete."""
    faults = []
    if kind == "wav":
        faults = _wav_faults(body)
    try:
        playable = _playable(body, kind)
        audio = decode_audio(body, max_bytes=_MAX_BYTES, max_seconds=_MAX_SECONDS)
    except (av.FFmpegError, IndexError):
        raise ResponseError("not_audio", f"no {kind} that FFmpeg can read") from None
    except AudioFileError as error:
        kind_of = "no_audio" if "holds no samples" in str(error) else "not_audio"
        raise ResponseError(kind_of, str(error).partition(";")[0]) from None
    ends_N = np.array([end for end, _ in playable])
    marks = []
    for at, end in arrivals:
        ready = int(np.searchsorted(ends_N, end, "right"))
        marks.append((at, min(audio.seconds, playable[ready - 1][1]) if ready else 0.0))
    # Every sample of a WAV file is playable on arrival; FFmpeg's packets are larger.
    if kind == "wav":
        scale = audio.seconds / max(1, len(body) - _WAV_DATA_AT)
        marks = [(at, max(0, end - _WAV_DATA_AT) * scale) for at, end in arrivals]
    marks[-1] = (marks[-1][0], audio.seconds)
    return DecodedAudio(audio.samples, audio.sample_rate, marks, faults=faults)


def _playable(body: bytes, kind: str) -> list[tuple[int, float]]:
    """(bytes, seconds) for each packet: so many bytes of the file decode to so many seconds."""
    table: list[tuple[int, float]] = []
    with open_audio(body) as container:
        name = container.format.name
        if name not in _CONTAINERS[kind]:
            raise ResponseError("wrong_format", f"asked for {kind}, got {name}")
        stream = container.streams.audio[0]
        seconds = 0.0
        for packet in container.demux(stream):
            if packet.pos is None or packet.duration is None or not stream.time_base:
                continue
            seconds += float(packet.duration * stream.time_base)
            # All packets of an Ogg page have the page's position, and are complete at its end.
            table.append((packet.pos + (0 if name == "ogg" else packet.size), seconds))
    if name == "ogg":
        return _by_page_ends(table, len(body))
    ends = itertools.accumulate((end for end, _ in table), max)
    return [(end, seconds) for end, (_, seconds) in zip(ends, table, strict=True)]


def _by_page_ends(table: list[tuple[int, float]], size: int) -> list[tuple[int, float]]:
    """Replace each page's position by its end, where the next page begins."""
    starts = sorted({start for start, _ in table})
    end_of = dict(zip(starts, [*starts[1:], size], strict=True))
    return [(end_of[start], seconds) for start, seconds in table]


def _wav_faults(body: bytes) -> list[Fault]:
    """Contradictions between a WAV header and the body. Raises ResponseError when the body is
    truncated.
    """
    faults = []
    if body.count(b"WAVEfmt ") > 1:
        faults.append(
            Fault("headers_inside", f"{body.count(b'WAVEfmt ')} WAV headers in one answer")
        )
    at = body.find(b"data")
    stated = int.from_bytes(body[at + 4 : at + 8], "little")
    there = len(body) - at - 8
    if at < 0 or stated >= _WAV_UNKNOWN_SIZE:
        return faults
    if there < stated:
        raise ResponseError(
            "wrong_length", f"the header promises {stated} bytes of samples, {there} came"
        )
    if there - stated > 1 and body[at + 8 + stated : at + 12 + stated] not in (
        b"LIST",
        b"id3 ",
        b"ID3 ",
    ):
        faults.append(
            Fault("wrong_length", f"the header states {stated} bytes of samples, {there} came")
        )
    return faults


def _header_facts(headers: Mapping[str, str]) -> dict[str, Any]:
    """Metadata in HTTP headers, such as X-Sample-Rate, or in the content type
    (audio/pcm;rate=24000).
    """
    facts: dict[str, Any] = {}
    parameters = dict(
        part.strip().lower().partition("=")[::2]
        for part in headers.get("content-type", "").split(";")[1:]
    )
    for name, keys in {
        "sample_rate": ("x-sample-rate", "x-audio-sample-rate", "sample-rate", "rate"),
        "channels": ("x-channels", "x-audio-channels", "channels"),
    }.items():
        for key in keys:
            value = headers.get(key) or parameters.get(key)
            if value and value.isdecimal() and len(value) < _MAX_DIGITS:
                facts.setdefault(name, int(value))
    for name, key in {
        "finish_reason": "x-finish-reason",
        "seed": "x-seed",
        "request_id": "x-request-id",
    }.items():
        if key in headers:
            facts[name] = one_line(headers[key])
    with contextlib.suppress(KeyError, ValueError):
        seconds = float(headers["x-audio-seconds"])
        if math.isfinite(seconds):
            facts["seconds"] = seconds
    return facts


def _contradictions(decoded: DecodedAudio) -> list[Fault]:
    """Contradictions between the stated metadata and the audio."""
    faults = []
    for name, real, unit in (
        ("sample_rate", decoded.sample_rate, " Hz"),
        ("channels", decoded.channels, " channels"),
    ):
        stated = decoded.facts.get(name)
        if stated is not None and stated != real:
            faults.append(
                Fault("wrong_rate", f"the answer says {stated}{unit}, the audio has {real}{unit}")
            )
    stated = decoded.facts.get("seconds")
    if (
        isinstance(stated, int | float)
        and abs(stated - decoded.seconds) > _LENGTH_TOLERANCE_SECONDS
    ):
        faults.append(
            Fault(
                "wrong_length",
                f"the answer says {stated:.2f} s, the audio has {decoded.seconds:.2f} s",
            )
        )
    return faults
