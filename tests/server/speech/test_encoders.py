"""Streaming and whole encoding in every format: the input comes out, at the stated rate, for any
chunking.
"""

from __future__ import annotations

import io
import itertools
import math
import struct

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hocket.audio.io import decode_audio, resample, to_float32, to_int16
from hocket.core import AudioArray, Samples
from hocket.errors import AudioFileError, HocketError, InvalidRequestError
from hocket.server.speech.encoders import RESPONSE_FORMATS, AudioEncoder, encode_whole
from hocket.server.speech.mp3 import DELAY_SAMPLES, info_frame

#: Samples that a format's own coding may add to what was fed, by a player that heeds what the body
#: says: less than one of its frames behind the end (a streamed mp3 cannot say where that is), and
#: in aac, which says nothing at all, a whole frame before the beginning.
PADDING_SAMPLES = {("mp3", 24000): 576, ("mp3", 44100): 1152, ("mp3", 48000): 1152}
PADDING_SAMPLES |= {("aac", rate): 1024 for rate in (24000, 44100, 48000)}
PRIMING_SAMPLES = {"aac": 1024}
#: Milliseconds of audio held back, as the module's docstring states them, by response format and
#: rate.
DELAYS_MS = {
    ("wav", 48000): 0,
    ("pcm", 48000): 0,
    ("flac", 48000): 24,
    ("opus", 48000): 46,
    ("aac", 48000): 64,
    ("mp3", 48000): 72,
    ("wav", 24000): 0,
    ("pcm", 24000): 0,
    ("flac", 24000): 24,
    ("opus", 24000): 46,
    ("aac", 24000): 128,
    ("mp3", 24000): 95,
}


def voice(rate: int, seconds: float, channels: int = 1) -> NDArray[np.float32]:
    """Something like speech [C, S]: a gliding pitch with overtones, louder and softer four times a
    second.
    """
    t = np.arange(round(rate * seconds)) / rate
    phase = 2 * np.pi * (150 * t + 40 * np.sin(2 * np.pi * t) / (2 * np.pi))
    tone = sum(np.sin(k * phase) / k for k in range(1, 6)) * (0.6 + 0.4 * np.sin(8 * np.pi * t))
    return np.stack([0.2 * tone / (c + 1) for c in range(channels)]).astype(np.float32)


def decoded(body: bytes, response_format: str, rate: int, channels: int) -> AudioArray:
    if response_format == "pcm":
        samples_SC = np.frombuffer(body, "<i2").reshape(-1, channels)
        return AudioArray(
            np.ascontiguousarray(samples_SC.T).astype(np.float32) / np.float32(32768), rate
        )
    return decode_audio(body, max_bytes=1 << 26, max_seconds=60)


def streamed(
    response_format: str, samples_CS: Samples, rate: int, cuts: list[int], speed: float = 1.0
) -> bytes:
    encoder = AudioEncoder(response_format, rate, samples_CS.shape[0], speed)
    edges = [0, *sorted(cuts), samples_CS.shape[1]]
    pieces = [encoder.feed(samples_CS[:, a:b]) for a, b in itertools.pairwise(edges)]
    return b"".join([*pieces, encoder.finish()])


def signal_to_noise_db(wanted_CS: NDArray[np.float32], found_CS: NDArray[np.float32]) -> float:
    return float(10 * np.log10(np.square(wanted_CS).sum() / np.square(wanted_CS - found_CS).sum()))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [48000, 24000, 44100])
@pytest.mark.parametrize("response_format", RESPONSE_FORMATS)
def test_a_stream_is_what_its_encoder_says(response_format: str, rate: int, channels: int) -> None:
    samples_CS = voice(rate, 1.2345, channels)
    encoder = AudioEncoder(response_format, rate, channels)
    pieces = [
        encoder.feed(samples_CS[:, i : i + 1920]) for i in range(0, samples_CS.shape[1], 1920)
    ]
    body = b"".join([*pieces, encoder.finish()])
    audio = decoded(body, response_format, rate, channels)
    assert (encoder.channels, encoder.sample_rate) == (audio.samples.shape[0], audio.sample_rate)
    if response_format == "aac":
        assert encoder.seconds == audio.seconds
    else:
        assert encoder.seconds == pytest.approx(1.2345, abs=1 / rate)
    assert encoder.sample_rate == (48000 if response_format == "opus" else rate)

    wanted_CS = resample(samples_CS, rate, audio.sample_rate)
    priming = PRIMING_SAMPLES.get(response_format, 0)
    excess = audio.samples.shape[1] - priming - wanted_CS.shape[1]
    assert 0 <= excess < PADDING_SAMPLES.get((response_format, rate), 1)
    inner = slice(wanted_CS.shape[1] // 4, wanted_CS.shape[1] * 3 // 4)
    found_CS = audio.samples[:, priming:][:, inner]
    exact = response_format in {"wav", "pcm", "flac"}
    assert signal_to_noise_db(wanted_CS[:, inner], found_CS) > (70 if exact else 13)


@pytest.mark.parametrize("rate", [48000, 24000, 44100])
@pytest.mark.parametrize("response_format", RESPONSE_FORMATS)
def test_a_whole_body_is_gapless_where_the_format_can_be(response_format: str, rate: int) -> None:
    samples_CS = voice(rate, 0.777, 2)
    whole = encode_whole(response_format, samples_CS, rate)
    audio = decoded(whole.body, response_format, rate, 2)
    assert (whole.sample_rate, whole.channels) == (audio.sample_rate, 2)
    assert audio.samples.shape[1] == round(whole.seconds * audio.sample_rate)
    if response_format == "aac":
        assert 1024 <= audio.samples.shape[1] - round(0.777 * rate) < 2048
        assert whole.body == streamed("aac", samples_CS, rate, [])
    else:
        assert whole.seconds == pytest.approx(0.777, abs=1 / rate)


@settings(max_examples=60, deadline=None)
@given(
    response_format=st.sampled_from(["mp3", "opus", "flac", "aac"]),
    rate=st.sampled_from([24000, 44100, 48000]),
    samples=st.integers(4000, 12000),
    channels=st.sampled_from([1, 2]),
)
def test_every_length_is_kept_within_a_coding_frame(
    response_format: str, rate: int, samples: int, channels: int
) -> None:
    samples_CS = voice(rate, samples / rate, channels)
    for body in (
        streamed(response_format, samples_CS, rate, [samples // 3]),
        encode_whole(response_format, samples_CS, rate).body,
    ):
        audio = decoded(body, response_format, rate, channels)
        wanted = round(samples * audio.sample_rate / rate) + PRIMING_SAMPLES.get(response_format, 0)
        assert (
            0 <= audio.samples.shape[1] - wanted < PADDING_SAMPLES.get((response_format, rate), 1)
        )


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 32000, 44100, 48000])
def test_a_streamed_mp3_says_where_it_begins(rate: int, channels: int) -> None:
    """A silent frame of its own, of the others' size and kind, with the tag that players
    look for.
    """
    body = streamed("mp3", voice(rate, 0.5, channels), rate, [])
    lead = info_frame(body)  # any frame of the body makes the same one
    assert body.startswith(lead)
    assert body[len(lead) :][:2] == lead[:2] == body[:2]
    tag = lead.index(b"Info")
    assert (
        tag
        == 4
        + {(True, 1): 17, (True, 2): 32, (False, 1): 9, (False, 2): 17}[rate >= 32000, channels]
    )
    assert lead[tag + 4 : tag + 12] == b"\0\0\0\2\xff\xff\xff\xff"
    assert int.from_bytes(lead[tag + 33 : tag + 36], "big") == 576 << 12
    # A decoder that knows nothing of tags plays one silent frame more, and the delay.
    with av.open(io.BytesIO(body[len(lead) :]), "r") as container:
        bare = sum(frame.samples for frame in container.decode(container.streams.audio[0]))
    assert bare == decoded(body, "mp3", rate, channels).samples.shape[1] + DELAY_SAMPLES


def test_whole_headers_state_the_length() -> None:
    samples_CS = voice(24000, 0.5)
    wav = encode_whole("wav", samples_CS, 24000).body
    assert struct.unpack("<4sI", wav[:8]) == (b"RIFF", len(wav) - 8)
    assert struct.unpack("<4sI", wav[36:44]) == (b"data", len(wav) - 44)
    flac = encode_whole("flac", samples_CS, 24000).body
    assert int.from_bytes(flac[21:26], "big") & (2**36 - 1) == 12000
    mp3 = encode_whole("mp3", samples_CS, 24000).body
    assert b"Info" in mp3[:256] or b"Xing" in mp3[:256]


def test_a_streamed_wav_says_that_its_size_is_unknown() -> None:
    body = streamed("wav", voice(24000, 0.1, 2), 24000, [])
    assert struct.unpack("<4sI8sIHHIIHH4sI", body[:44]) == (
        *(b"RIFF", 0xFFFFFFFF, b"WAVEfmt ", 16, 1, 2, 24000, 96000, 4, 16, b"data", 0xFFFFFFFF),
    )
    assert len(body) == 44 + 2400 * 4


CUTS = st.lists(st.integers(0, 4800), max_size=12)


@settings(max_examples=40, deadline=None)
@given(
    response_format=st.sampled_from(RESPONSE_FORMATS),
    rate=st.sampled_from([24000, 44100]),
    speed=st.sampled_from([1.0, 1.0, 0.3, 0.75, 1.9, 3.5]),
    cuts=CUTS,
)
def test_any_chunking_gives_the_same_bytes(
    response_format: str, rate: int, speed: float, cuts: list[int]
) -> None:
    samples_CS = voice(rate, 4800 / rate)
    assert streamed(response_format, samples_CS, rate, cuts, speed) == streamed(
        response_format, samples_CS, rate, [], speed
    )


@settings(max_examples=25, deadline=None)
@given(
    speed=st.sampled_from([1.0, 0.25, 0.9, 2.0, 4.0]), cuts=CUTS, channels=st.sampled_from([1, 2])
)
def test_streamed_samples_are_those_of_the_whole(
    speed: float, cuts: list[int], channels: int
) -> None:
    samples_CS = voice(24000, 0.2, channels)
    whole = encode_whole("pcm", samples_CS, 24000, speed)
    assert streamed("pcm", samples_CS, 24000, cuts, speed) == whole.body
    assert streamed("wav", samples_CS, 24000, cuts, speed)[44:] == whole.body
    assert encode_whole("wav", samples_CS, 24000, speed).body[44:] == whole.body


@pytest.mark.parametrize(("response_format", "rate"), DELAYS_MS)
def test_what_was_fed_can_be_heard_after_the_stated_delay(response_format: str, rate: int) -> None:
    encoder = AudioEncoder(response_format, rate, 1)
    step = rate // 500
    samples_CS = voice(rate, 0.6)
    body = bytearray()
    held_back_ms = []
    for end in range(step, samples_CS.shape[1] + 1, step):
        body += encoder.feed(samples_CS[:, end - step : end])
        if end < rate // 4 or end % (7 * step):
            continue
        audio = decoded(bytes(body), response_format, rate, 1)
        heard = audio.seconds - PRIMING_SAMPLES.get(response_format, 0) / rate
        held_back_ms.append(1000 * (end / rate - heard))
    assert (
        DELAYS_MS[response_format, rate] * 0.7
        <= max(held_back_ms)
        <= DELAYS_MS[response_format, rate] + 1e-6
    )


@pytest.mark.parametrize("rate", [24000, 48000])
@pytest.mark.parametrize("speed", [0.25, 0.4, 0.5, 0.8, 1.25, 2.0, 3.0, 4.0])
def test_speed_changes_the_length_and_not_the_pitch(speed: float, rate: int) -> None:
    t = np.arange(2 * rate) / rate
    samples_CS = (0.3 * np.sin(2 * np.pi * 440 * t)[None]).astype(np.float32)
    samples_CS[:, round(1.9 * rate) :] = 0
    whole = encode_whole("pcm", samples_CS, rate, speed)
    assert whole.seconds == pytest.approx(2 / speed, abs=1 / rate)
    found_S = decoded(whole.body, "pcm", rate, 1).samples[0]
    spectrum = np.abs(np.fft.rfft(found_S[rate // 10 : rate // 10 + rate // 4]))
    assert np.argmax(spectrum) * 4 == pytest.approx(440, abs=8)
    # Nothing of the end is lost, nothing is put before the beginning: within half of atempo's 43 ms
    # window.
    loud = np.flatnonzero(np.abs(found_S) > 0.05)
    assert loud[0] / rate < 0.01
    assert loud[-1] / rate == pytest.approx(1.9 / speed, abs=0.02)


@pytest.mark.parametrize(("speed", "min_energy"), [(2.0, 0.4), (3.0, 0.3), (4.0, 0.15)])
def test_high_speed_blends_and_does_not_skip(speed: float, min_energy: float) -> None:
    """With short noises ten times a second, a single atempo beyond 2 would skip some of them."""
    rate = 24000
    samples_CS = np.zeros((1, 3 * rate), np.float32)
    for start in range(500, 3 * rate, rate // 10):
        samples_CS[0, start : start + 120] = 0.3 * np.random.default_rng(start).standard_normal(120)
    found_CS = decoded(encode_whole("pcm", samples_CS, rate, speed).body, "pcm", rate, 1).samples
    assert np.square(found_CS).sum() / np.square(samples_CS).sum() > min_energy


def test_speed_in_a_stream_comes_with_a_bounded_delay() -> None:
    for speed, limit_ms in [(0.25, 75), (0.75, 75), (1.5, 75), (2.0, 90), (4.0, 210)]:
        encoder = AudioEncoder("pcm", 48000, 1, speed)
        samples_CS = voice(48000, 1.0)
        given_samples = 0
        for end in range(480, 48001, 480):
            given_samples += len(encoder.feed(samples_CS[:, end - 480 : end])) // 2
            assert 1000 * (end - given_samples * speed) / 48000 <= limit_ms


@pytest.mark.parametrize("speed", [1.0, 1.3])
@pytest.mark.parametrize("rate", [24000, 22050])
@pytest.mark.parametrize("response_format", RESPONSE_FORMATS)
def test_16_bit_samples_are_coded_as_the_floats_that_they_are(
    response_format: str, rate: int, speed: float
) -> None:
    samples_CS = to_int16(2.5 * voice(rate, 0.4, 2))  # some of them at full scale
    samples_CS.flags.writeable = False  # as what has come in a message
    cuts = [100, 101, 3000]
    assert streamed(response_format, samples_CS, rate, cuts, speed) == streamed(
        response_format, to_float32(samples_CS), rate, cuts, speed
    )
    assert encode_whole(response_format, samples_CS, rate, speed) == encode_whole(
        response_format, to_float32(samples_CS), rate, speed
    )


@pytest.mark.parametrize("samples", [0, 1, 100])
@pytest.mark.parametrize("speed", [0.25, 1.0, 1.3])
@pytest.mark.parametrize("response_format", RESPONSE_FORMATS)
def test_very_short_audio_keeps_its_length(
    response_format: str, speed: float, samples: int
) -> None:
    samples_CS = np.full((1, samples), 0.25, np.float32)
    for body in (
        streamed(response_format, samples_CS, 24000, [], speed),
        encode_whole(response_format, samples_CS, 24000, speed).body,
    ):
        if response_format == "pcm" or samples:
            audio = decoded(body, response_format, 24000, 1)
            assert audio.samples.shape[1] >= round(samples / speed)
            if response_format in {"wav", "pcm", "flac"}:
                assert audio.samples.shape[1] == round(samples / speed)
        else:
            with pytest.raises(
                AudioFileError, match=r"holds no samples|is not an audio file|is empty"
            ):
                decoded(body, response_format, 24000, 1)


def test_silence_before_anything_else_has_a_header() -> None:
    """A response begins as soon as it can: the first bytes do not wait for samples."""
    for response_format in ("wav", "flac", "opus"):
        assert AudioEncoder(response_format, 24000, 1).feed(np.zeros((1, 0), np.float32))


@pytest.mark.parametrize("speed", [0.0, 0.2499, 4.001, -1.0, 100.0, math.nan, math.inf])
def test_a_speed_out_of_range_is_refused(speed: float) -> None:
    for call in (
        lambda: AudioEncoder("wav", 24000, 1, speed),
        lambda: encode_whole("wav", voice(24000, 0.1), 24000, speed),
    ):
        with pytest.raises(InvalidRequestError, match=r"give 0\.25 to 4") as caught:
            call()
        assert caught.value.param == "speed"


@pytest.mark.parametrize("response_format", ["", "WAV", "ogg", "mp4"])
def test_an_unknown_format_is_refused_with_the_choices(response_format: str) -> None:
    for call in (
        lambda: AudioEncoder(response_format, 24000, 1),
        lambda: encode_whole(response_format, voice(24000, 0.1), 24000),
    ):
        with pytest.raises(InvalidRequestError, match="wav, pcm, mp3, opus, flac, aac") as caught:
            call()
        assert caught.value.param == "response_format"


def test_channels_that_a_format_does_not_have_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="cannot hold 6 channels"):
        AudioEncoder("mp3", 48000, 6)
    with pytest.raises(InvalidRequestError, match="cannot hold 6 channels"):
        encode_whole("mp3", voice(48000, 0.1, 6), 48000)


@pytest.mark.parametrize("response_format", RESPONSE_FORMATS)
def test_the_order_of_calls_is_enforced(response_format: str) -> None:
    encoder = AudioEncoder(response_format, 24000, 2)
    for wrong in (np.zeros((1, 10), np.float32), np.zeros(10, np.float32)):
        with pytest.raises(HocketError, match="takes"):
            encoder.feed(wrong)
    with pytest.raises(HocketError, match="NaN"):
        encoder.feed(np.full((2, 10), np.nan, np.float32))
    encoder.feed(voice(24000, 0.1, 2))
    encoder.finish()
    with pytest.raises(HocketError, match="is finished"):
        encoder.feed(voice(24000, 0.1, 2))
    with pytest.raises(HocketError, match="is finished"):
        encoder.finish()
    with pytest.raises(HocketError, match="NaN"):
        encode_whole(response_format, np.full((1, 10), np.inf, np.float32), 24000)
