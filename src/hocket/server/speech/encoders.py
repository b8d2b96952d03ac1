"""Encodes speech as the body of a response: in OpenAI's six formats, whole or streamed, at any
speed.

Milliseconds of audio that are fed but not yet playable (48 / 24 kHz, measured in
tests/server/speech/test_encoders.py): wav and pcm 0 / 0, flac 24 / 24, opus 46 / 46, aac 64 / 128,
mp3 72 / 95. A speed other than 1 adds up to 75 ms, beyond 2 up to 210 ms.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
from numpy.typing import NDArray

from hocket.audio.io import (
    FORMATS,
    LAYOUTS,
    AudioFormat,
    encode_audio,
    encoder_frames,
    open_encoder,
    to_float32,
    to_int16,
)
from hocket.core import Samples
from hocket.errors import HocketError, InvalidRequestError, not_finite
from hocket.server.speech.mp3 import DELAY_SAMPLES, info_frame

MIN_SPEED = 0.25
MAX_SPEED = 4.0


@dataclass(frozen=True, slots=True)
class _ResponseFormat:
    content_type: str
    #: None: bare samples without a container.
    audio_format: AudioFormat | None
    #: Options that keep libav*'s latency low when it streams; its defaults wait for up to a second.
    muxer_options: dict[str, str] = field(default_factory=dict)
    codec_options: dict[str, str] = field(default_factory=dict)
    #: The rate at which every player plays the format, whatever the input.
    player_rate: int | None = None
    #: Coded frames without the audio's begin and end, so that players play all of them, padding
    #: included.
    is_bare: bool = False


_RESPONSE_FORMATS = {
    "wav": _ResponseFormat("audio/wav", FORMATS[".wav"]),
    "pcm": _ResponseFormat("audio/pcm", None),
    # Without the bit reservoir no frame waits for a later one. A stream gets a header of its own
    # (mp3.py).
    "mp3": _ResponseFormat(
        "audio/mpeg", FORMATS[".mp3"], {"write_xing": "0", "id3v2_version": "0"}, {"reservoir": "0"}
    ),
    # A page (in microseconds) for each packet.
    "opus": _ResponseFormat(
        "audio/ogg; codecs=opus", FORMATS[".opus"], {"page_duration": "1"}, player_rate=48_000
    ),
    # Level 2 has blocks of 24 ms, the default 96 ms; and there is nothing to pad a streamed header
    # for (8 KiB).
    "flac": _ResponseFormat(
        "audio/flac", FORMATS[".flac"], {"metadata_header_padding": "0"}, {"compression_level": "2"}
    ),
    "aac": _ResponseFormat("audio/aac", FORMATS[".aac"], is_bare=True),
}
RESPONSE_FORMATS = tuple(_RESPONSE_FORMATS)


@dataclass(frozen=True, slots=True)
class EncodedAudio:
    """A whole response body and its format."""

    body: bytes
    content_type: str
    #: Sample rate of a player, in Hz.
    sample_rate: int
    channels: int
    seconds: float


def encode_whole(
    response_format: str, samples_CS: Samples, sample_rate: int, speed: float = 1.0
) -> EncodedAudio:
    """Encode float32 or int16 [C, S] as one body with exact sizes, gapless in all formats but aac.

    wav and pcm hold the same samples as the stream, and aac the same bytes. Raises
    InvalidRequestError for an unknown format, a speed out of range or a number of channels that the
    format does not have, HocketError for samples that are not finite.
    """
    chosen = _chosen(response_format)
    channels = samples_CS.shape[0]
    if chosen.is_bare:  # it has no header, so the whole is what a stream is
        encoder = AudioEncoder(response_format, sample_rate, channels, speed)
        body = encoder.feed(samples_CS) + encoder.finish()
        return EncodedAudio(
            body, chosen.content_type, encoder.sample_rate, channels, encoder.seconds
        )
    converter = _Converter(chosen, sample_rate, channels, speed)
    _check_finite(samples_CS)
    converted_CS = converter.whole(samples_CS)
    if chosen.audio_format is None:
        body = _interleaved_bytes(converted_CS)
    else:
        try:
            body = encode_audio(chosen.audio_format, converted_CS, converter.to_rate)
        except (av.FFmpegError, ValueError) as error:
            raise _refused_shape(response_format, channels, converter.to_rate) from error
    seconds = converted_CS.shape[1] / converter.to_rate
    return EncodedAudio(
        body, chosen.content_type, chosen.player_rate or converter.to_rate, channels, seconds
    )


class AudioEncoder:
    """Encodes a stream: `feed` chunks of samples [channels, S], then call `finish` once.

    The bytes do not depend on how the audio was cut into chunks. Between calls it buffers less than
    half a second.
    """

    def __init__(
        self, response_format: str, sample_rate: int, channels: int, speed: float = 1.0
    ) -> None:
        """Raises InvalidRequestError like `encode_whole`."""
        chosen = _chosen(response_format)
        self._converter = _Converter(chosen, sample_rate, channels, speed)
        rate = self._converter.to_rate
        self.content_type = chosen.content_type
        #: Rate of the body: the format's own where it does not take the input's.
        self.sample_rate = chosen.player_rate or rate
        self.channels = channels
        self._writer: _PcmWriter | _ContainerWriter
        if chosen.audio_format is None:
            self._writer = _PcmWriter(b"")
        elif chosen.audio_format.muxer == "wav":
            self._writer = _PcmWriter(_endless_wav_header(rate, channels))
        else:
            try:
                self._writer = _ContainerWriter(chosen, rate, channels)
            except (av.FFmpegError, ValueError) as error:
                raise _refused_shape(response_format, channels, rate) from error
        self._samples = 0
        self._finished = False

    @property
    def seconds(self) -> float:
        """Length of the body as played: the audio, and in a bare format the padding around it."""
        return (self._samples + self._writer.added_samples) / self._converter.to_rate

    def feed(self, samples_CS: Samples) -> bytes:
        """Encode `samples_CS` [channels, S]. Raises HocketError when they are not finite."""
        if self._finished:
            raise HocketError("this encoder is finished; make another for more audio")
        if samples_CS.ndim != 2 or samples_CS.shape[0] != self.channels:
            raise HocketError(
                f"the encoder takes [{self.channels}, samples], got the shape {samples_CS.shape}"
            )
        _check_finite(samples_CS)
        return self._write(self._converter.feed(samples_CS))

    def finish(self) -> bytes:
        """The rest of the body."""
        if self._finished:
            raise HocketError("this encoder is finished; make another for more audio")
        self._finished = True
        return self._write(self._converter.finish()) + self._writer.close()

    def _write(self, samples_CS: Samples) -> bytes:
        self._samples += samples_CS.shape[1]
        return self._writer.write(samples_CS)


def _chosen(response_format: str) -> _ResponseFormat:
    chosen = _RESPONSE_FORMATS.get(response_format)
    if chosen is None:
        choices = ", ".join(RESPONSE_FORMATS)
        raise InvalidRequestError(
            f"response_format {response_format!r} is unknown; use one of {choices}",
            param="response_format",
        )
    return chosen


def _refused_shape(response_format: str, channels: int, sample_rate: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"response_format {response_format!r} cannot hold {channels} channels at {sample_rate} Hz; "
        "use wav or pcm",
        param="response_format",
    )


def _check_finite(samples_CS: Samples) -> None:
    if not np.isfinite(samples_CS).all():
        raise not_finite()


# --------------------------------------------------------------------------------------------------
# samples to bytes


def _interleaved_bytes(samples_CS: Samples) -> bytes:
    made_SC = np.empty(samples_CS.shape[::-1], "<i2")
    # Channel by channel: 60 us for 1.2 s of stereo at 48 kHz, where a copy of the transposed array
    # takes 300.
    for channel, made_S in enumerate(to_int16(samples_CS)):
        made_SC[:, channel] = made_S
    return made_SC.tobytes()


def _endless_wav_header(sample_rate: int, channels: int) -> bytes:
    """44 bytes for 16-bit samples of unknown number: both sizes are the largest value, by
    convention.
    """
    unknown, frame_bytes = 0xFFFFFFFF, 2 * channels
    fmt = struct.pack(
        "<IHHIIHH", 16, 1, channels, sample_rate, sample_rate * frame_bytes, frame_bytes, 16
    )
    return (
        b"RIFF"
        + struct.pack("<I", unknown)
        + b"WAVEfmt "
        + fmt
        + b"data"
        + struct.pack("<I", unknown)
    )


class _PcmWriter:
    added_samples = 0

    def __init__(self, header: bytes) -> None:
        self._header = header

    def write(self, samples_CS: Samples) -> bytes:
        header, self._header = self._header, b""
        return header + _interleaved_bytes(samples_CS)

    def close(self) -> bytes:
        return b""


class _Outbox:
    """A write-only file for FFmpeg, emptied after every call."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes, /) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


class _ContainerWriter:
    def __init__(self, chosen: _ResponseFormat, sample_rate: int, channels: int) -> None:
        """Raises av.FFmpegError or ValueError where the codec refuses the input."""
        assert chosen.audio_format is not None
        self._format = chosen.audio_format
        self._rate = sample_rate
        self._samples = self._packets = 0
        self._is_bare = chosen.is_bare
        self._is_mp3 = self._format.codec == "libmp3lame"
        self._is_begun = False
        #: Samples of padding around the audio that players play.
        self.added_samples = 0
        self._outbox = _Outbox()
        self._container, self._stream = open_encoder(
            self._outbox,
            self._format,
            sample_rate,
            channels,
            {"flush_packets": "1", **chosen.muxer_options},
            chosen.codec_options,
        )

    def write(self, samples_CS: Samples) -> bytes:
        for frame in encoder_frames(self._format, samples_CS, self._rate, self._samples):
            self._mux(self._stream.encode(frame))
        self._samples += samples_CS.shape[1]
        return self._take()

    def close(self) -> bytes:
        packets, frame_samples = self._stream.encode(None), self._stream.codec_context.frame_size
        if self._is_mp3 and self._samples:
            # LAME may end with a frame of padding only, which would be played. (FFmpeg does not
            # recognise a single frame as mp3.)
            frames = max(2, -(-(self._samples + DELAY_SAMPLES) // frame_samples))
            packets = packets[: frames - self._packets]
        self._mux(packets)
        self._container.close()
        if self._is_bare:
            self.added_samples = self._packets * frame_samples - self._samples
        return self._take()

    def _mux(self, packets: list[av.Packet[av.AudioStream]]) -> None:
        self._packets += len(packets)
        self._container.mux(packets)

    def _take(self) -> bytes:
        data = self._outbox.take()
        if self._is_mp3 and data and not self._is_begun:
            self._is_begun = True
            return info_frame(data) + data
        return data


# --------------------------------------------------------------------------------------------------
# speed and rate


#: Longer than the latency of all filters together (0.2 s).
_TAIL_SECONDS = 0.3


class _Converter:
    """Changes the speed at constant pitch (libavfilter's atempo) and the rate to one of the codec's
    (aresample).

    atempo's output depends on how its input is cut, so it always gets blocks of 10 ms. It also
    drops up to 65 ms at the end, so silence is appended and the output is cut to the expected
    length.
    """

    def __init__(
        self, chosen: _ResponseFormat, sample_rate: int, channels: int, speed: float
    ) -> None:
        if not MIN_SPEED <= speed <= MAX_SPEED:  # NaN, too
            raise InvalidRequestError(
                f"speed {speed:g} is out of range; give {MIN_SPEED:g} to {MAX_SPEED:g}",
                param="speed",
            )
        self.to_rate = (
            chosen.audio_format.encoder_rate(sample_rate) if chosen.audio_format else sample_rate
        )
        self._from_rate = sample_rate
        self._ratio = self.to_rate / sample_rate / speed
        self._graph = (
            None
            if self._ratio == speed == 1.0
            else _filter_graph(sample_rate, self.to_rate, channels, speed)
        )
        self._block = max(1, sample_rate // 100)
        self._rest_CS = np.zeros((channels, 0), np.float32)
        self._taken = self._pushed = self._given = 0

    def whole(self, samples_CS: Samples) -> Samples:
        """Convert all samples at once."""
        return (
            samples_CS
            if self._graph is None
            else np.concatenate([self.feed(samples_CS), self.finish()], axis=1)
        )

    def feed(self, samples_CS: Samples) -> Samples:
        """Convert a chunk.

        Returns the samples [C, S] that are ready: unchanged without a conversion, else float32.
        """
        if self._graph is None:
            return samples_CS
        self._taken += samples_CS.shape[1]
        ready_CS = self._push(self._graph, to_float32(samples_CS))
        self._given += ready_CS.shape[1]
        return ready_CS

    def finish(self) -> NDArray[np.float32]:
        """The remaining samples, which make round(S * to_rate / from_rate / speed) in all."""
        if self._graph is None:
            return self._rest_CS
        channels = self._rest_CS.shape[0]
        tail_CS = np.zeros((channels, round(_TAIL_SECONDS * self._from_rate)), np.float32)
        ready_CS = self._push(self._graph, tail_CS)
        self._graph.push(None)
        ready_CS = np.concatenate([ready_CS, *_pulled(self._graph)], axis=1)
        return ready_CS[:, : max(0, round(self._taken * self._ratio) - self._given)]

    def _push(self, graph: av.filter.Graph, samples_CS: NDArray[np.float32]) -> NDArray[np.float32]:
        waiting_CS = np.concatenate([self._rest_CS, samples_CS], axis=1)
        parts = [waiting_CS[:, :0]]
        whole = waiting_CS.shape[1] // self._block * self._block
        for start in range(0, whole, self._block):
            block_CS = np.ascontiguousarray(waiting_CS[:, start : start + self._block])
            frame = av.AudioFrame.from_ndarray(
                block_CS, format="fltp", layout=LAYOUTS[block_CS.shape[0]]
            )
            frame.sample_rate = self._from_rate
            frame.time_base = Fraction(1, self._from_rate)
            frame.pts = self._pushed
            self._pushed += self._block
            graph.push(frame)
            parts += _pulled(graph)
        self._rest_CS = waiting_CS[:, whole:].copy()
        return np.concatenate(parts, axis=1)


def _filter_graph(from_rate: int, to_rate: int, channels: int, speed: float) -> av.filter.Graph:
    graph = av.filter.Graph()
    layout = LAYOUTS[channels]
    nodes = [
        graph.add_abuffer(
            sample_rate=from_rate, format="fltp", layout=layout, time_base=Fraction(1, from_rate)
        )
    ]
    # Beyond 2 one atempo would skip samples instead of blending them, below 0.5 it refuses.
    while not 0.5 <= speed <= 2.0:
        step = 2.0 if speed > 1.0 else 0.5
        nodes.append(graph.add("atempo", f"{step:g}"))
        speed /= step
    if speed != 1.0:
        nodes.append(graph.add("atempo", f"{speed:.9f}"))
    if to_rate != from_rate:
        nodes.append(graph.add("aresample", str(to_rate)))
    nodes += [graph.add("aformat", "sample_fmts=fltp"), graph.add("abuffersink")]
    graph.link_nodes(*nodes).configure()
    return graph


def _pulled(graph: av.filter.Graph) -> Iterator[NDArray[np.float32]]:
    while True:
        try:
            frame = graph.pull()
        except (av.BlockingIOError, av.EOFError):
            return
        assert isinstance(frame, av.AudioFrame)
        yield frame.to_ndarray().astype(np.float32, copy=False)
