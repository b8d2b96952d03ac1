"""From bytes and their arrival times to samples and the times when they are playable."""

from __future__ import annotations

import contextlib
import io

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from hocket.bench.faults import ResponseError
from hocket.bench.http import Response
from hocket.bench.judge.decode import decode_response
from hocket.server.speech.encoders import AudioEncoder, encode_whole

RATE = 24_000
PIECE = 1920


def sound(seconds: float = 2.0) -> NDArray[np.float32]:
    time_S = np.arange(round(RATE * seconds)) / RATE
    noise = np.random.default_rng(0).normal(0.0, 0.03, len(time_S))
    return (0.3 * np.sin(2 * np.pi * 220 * time_S) + noise).astype(np.float32)[None]


def response(pieces: list[bytes], **headers: str) -> Response:
    """Piece i arrives at second i."""
    ends = np.cumsum([len(piece) for piece in pieces])
    arrivals = [(float(i), int(end)) for i, end in enumerate(ends)]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(0.0, 0.0, 200, named, arrivals, b"".join(pieces), float(len(pieces)))


def streamed(response_format: str) -> list[bytes]:
    encoder = AudioEncoder(response_format, RATE, 1)
    audio = sound()
    pieces = [encoder.feed(audio[:, i : i + PIECE]) for i in range(0, audio.shape[1], PIECE)]
    return [piece for piece in (*pieces, encoder.finish()) if piece]


def decodable_seconds(data: bytes) -> float:
    """The samples that FFmpeg decodes from the beginning of a file."""
    samples, rate = 0, 1
    try:
        with av.open(io.BytesIO(data), "r") as container:
            for frame in container.decode(audio=0):
                samples, rate = samples + frame.samples, frame.sample_rate
    except av.FFmpegError:
        pass
    return samples / rate


@pytest.mark.parametrize("response_format", ["wav", "mp3", "opus", "flac", "aac"])
def test_what_could_be_played_is_what_a_decoder_makes_of_the_bytes_so_far(
    response_format: str,
) -> None:
    pieces = streamed(response_format)
    decoded = decode_response(response(pieces), response_format, "raw")
    assert decoded.sample_rate == (48_000 if response_format == "opus" else RATE)
    assert decoded.channels == 1
    assert decoded.seconds == pytest.approx(2.0, abs=0.11)
    for count in (3, 8, 15, len(pieces)):
        there = decoded.marks[count - 1][1]
        # One frame of the codec, at most, is counted later than it could be heard; FFmpeg's WAV
        # packets are 85 ms.
        assert there == pytest.approx(decodable_seconds(b"".join(pieces[:count])), abs=0.09)
    assert decoded.marks[-1][1] == decoded.seconds
    assert [seconds for _, seconds in decoded.marks] == sorted(
        seconds for _, seconds in decoded.marks
    )


@pytest.mark.parametrize("response_format", ["wav", "mp3", "opus", "flac", "aac"])
def test_whole_files(response_format: str) -> None:
    body = encode_whole(response_format, sound(), RATE).body
    decoded = decode_response(response([body]), response_format, "whole")
    assert decoded.seconds == pytest.approx(2.0, abs=0.11)
    assert decoded.faults == []


def test_a_page_of_opus_can_be_played_when_it_ends() -> None:
    body = encode_whole("opus", sound(3.0), RATE).body  # pages of a second
    half = len(body) // 2
    decoded = decode_response(response([body[:half], body[half:]]), "opus", "raw")
    assert decoded.marks[0][1] == pytest.approx(decodable_seconds(body[:half]), abs=0.03)
    assert decoded.marks[0][1] < 1.5


def test_raw_samples_take_rate_and_channels_from_headers_or_the_content_type() -> None:
    stereo = np.arange(-800, 800, dtype="<i2")
    by_headers = decode_response(
        response([stereo.tobytes()], x_sample_rate="48000", x_channels="2"), "pcm", "raw"
    )
    assert (by_headers.sample_rate, by_headers.samples.shape) == (48_000, (2, 800))
    assert by_headers.samples[:, 1].tolist() == [-798 / 32768, -797 / 32768]
    by_type = decode_response(
        response([stereo.tobytes()], content_type="audio/pcm;rate=16000;channels=1"), "pcm", "raw"
    )
    assert (by_type.sample_rate, by_type.channels) == (16_000, 1)
    told = decode_response(response([stereo.tobytes()]), "pcm", "raw", (22_050, 1))
    assert told.sample_rate == 22_050


@pytest.mark.parametrize(
    ("response_format", "body"),
    [
        ("mp3", b"not audio at all" * 50),
        ("wav", encode_whole("mp3", sound(), RATE).body),
        ("pcm", b"RIFF" + bytes(100)),
    ],
)
def test_what_is_no_such_audio(response_format: str, body: bytes) -> None:
    with pytest.raises(ResponseError) as caught:
        decode_response(response([body], x_sample_rate="24000"), response_format, "raw")
    assert caught.value.fault.kind in {"not_audio", "wrong_format"}


@pytest.mark.parametrize("response_format", ["wav", "flac"])
def test_a_file_without_samples(response_format: str) -> None:
    body = encode_whole(response_format, np.zeros((1, 0), np.float32), RATE).body
    with pytest.raises(ResponseError) as caught:
        decode_response(response([body]), response_format, "whole")
    assert caught.value.fault.kind == "no_audio"


def test_random_bytes_never_raise_anything_else() -> None:
    random = np.random.default_rng(5)
    good = encode_whole("mp3", sound(), RATE).body
    for i in range(60):
        body = bytearray(good if i % 2 else random.bytes(3000))
        for place in random.integers(0, len(body), 20):
            body[place] = int(random.integers(256))
        for response_format in ("mp3", "wav", "flac", "opus", "pcm"):
            with contextlib.suppress(ResponseError):
                decode_response(
                    response([bytes(body)], x_sample_rate="24000"), response_format, "raw"
                )
