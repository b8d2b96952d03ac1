"""16-bit audio equals `to_int16` of the float32 audio, and NaN is an error in both."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from hocket.audio.io import to_int16
from hocket.config import EngineConfig
from hocket.core import SampleFormat, SpeechRequest
from hocket.engine.references.conversions import Conversions
from hocket.errors import HocketError
from hocket.server.speech.encoders import AudioEncoder, encode_whole
from tests.support import tiny_engine
from tests.support.tiny_engine import EAGER, STRICT, Listener, endless_talker, engine, hear, traffic

FORMATS: tuple[SampleFormat, ...] = ("float32", "int16")


def in_16_bits(config: EngineConfig) -> EngineConfig:
    return config.model_copy(update={"samples": "int16"})


@contextmanager
def louder() -> Iterator[None]:
    """The golden codec of the first family at 200 times its level, so that it exceeds the range."""
    codec = tiny_engine.codec()
    decode = codec.decode
    with mock.patch.object(codec, "decode", lambda *given: 200.0 * decode(*given)):
        yield


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("talker", ["patient", "patient qwen3"])
def test_16_bit_audio_is_the_float_audio_rounded(talker: str, streaming: bool) -> None:
    model, calls = traffic(talker)
    requests = [call.request for call in calls[:6]]
    with louder():
        floats = hear(engine(STRICT, model), requests, streaming=streaming)
        integers = hear(engine(in_16_bits(STRICT), model), requests, streaming=streaming)
    for one, other in zip(integers, floats, strict=True):
        assert np.array_equal(one.all_codes, other.all_codes)
        assert [samples.shape for samples in one.samples] == [
            samples.shape for samples in other.samples
        ]
        assert np.array_equal(one.all_samples, to_int16(other.all_samples))
    peaks = np.concatenate([one.all_samples[0] for one in floats])
    assert np.abs(peaks).max() > 0.01
    if talker == "patient":
        assert np.abs(peaks).max() > 1.0


def test_calls_inside_the_engine_hand_it_out_too() -> None:
    request = SpeechRequest(text="One, and two.", seed=3, max_frames=9)
    floats = engine(STRICT, endless_talker()).generate(request)
    speaking = engine(in_16_bits(STRICT), endless_talker())
    speech, chunks = speaking.generate(request), list(speaking.stream(request))
    assert floats.samples.dtype == np.float32
    assert speech.samples.dtype == np.int16
    assert speech.samples.shape == (2, 9 * tiny_engine.FRAME_SAMPLES)
    assert np.array_equal(speech.samples, to_int16(floats.samples))
    assert {chunk.samples.dtype.name for chunk in chunks} == {"int16"}
    assert chunks[-1].end is not None


def test_an_engine_without_a_codec_has_none_of_it() -> None:
    speech = engine(in_16_bits(STRICT), endless_talker(), with_codec=False).generate(
        SpeechRequest(text="One.", seed=3, max_frames=3)
    )
    assert (speech.samples.dtype.name, speech.samples.shape, len(speech.codes)) == (
        "int16",
        (1, 0),
        3,
    )


def test_conversions_stay_float32() -> None:
    conversions: Conversions | None = engine(in_16_bits(STRICT), endless_talker()).parts.conversions
    assert conversions is not None
    conversions.decode("one", np.zeros((5, 12), np.int64))
    chunks = conversions.step()
    assert {chunk.samples.dtype.name for chunk in chunks} == {"float32"}


@pytest.mark.parametrize("response_format", ["pcm", "wav", "flac"])
def test_bodies_of_16_bits_are_the_same(response_format: str) -> None:
    request = SpeechRequest(text="Some words, and some more.", seed=5, max_frames=37)
    bodies, wholes = [], []
    with louder():
        for samples in FORMATS:
            config = STRICT.model_copy(update={"samples": samples})
            chunks = list(engine(config, endless_talker()).stream(request))
            encoder = AudioEncoder(response_format, 24_000, 2)
            bodies.append(
                b"".join([encoder.feed(chunk.samples) for chunk in chunks]) + encoder.finish()
            )
            whole_CS = np.concatenate([chunk.samples for chunk in chunks], axis=1)
            wholes.append(encode_whole(response_format, whole_CS, 24_000).body)
    assert bodies[0] == bodies[1]
    assert wholes[0] == wholes[1]
    assert len(bodies[0]) > 1000


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("samples", FORMATS)
def test_speech_that_is_no_number_ends_with_an_error(samples: SampleFormat, value: float) -> None:
    """One sample of one request is NaN, some frames on."""
    config = EAGER.model_copy(update={"samples": samples, "rows": 3})
    codec = tiny_engine.codec()
    decode = codec.decode
    spoilt = False

    def spoil(codes_BTN: Tensor, state: object, rows_B: Tensor, counts_B: Tensor) -> Tensor:
        nonlocal spoilt
        samples_BCS: Tensor = decode(codes_BTN, state, rows_B, counts_B)  # type: ignore[arg-type]
        second = torch.nonzero(rows_B == 1)
        if len(second) and counts_B[second[0, 0]] > 2 and not spoilt:
            samples_BCS[second[0, 0], 1, 2 * tiny_engine.FRAME_SAMPLES] = value
            spoilt = True
        return samples_BCS

    listener = Listener(engine(config, endless_talker()))
    names = [
        listener.add(SpeechRequest(text=f"Text {i}.", seed=i, max_frames=40)) for i in range(3)
    ]
    with mock.patch.object(codec, "decode", spoil):
        heard = listener.run()
    assert spoilt
    listener.assert_all_is_back()
    ended = [heard[name] for name in names]
    assert sorted(one.reason for one in ended) == ["error", "length", "length"]
    (broken,) = (one for one in ended if one.reason == "error")
    assert broken.end is not None
    assert type(broken.end.error) is HocketError
    assert "NaN or infinity" in str(broken.end.error)
    # What was handed out before is speech, and nothing of the chunk in question is.
    assert 0 < len(broken.all_codes) < 40
    assert np.isfinite(broken.all_samples).all()
    for one in ended:
        assert one is broken or len(one.all_codes) == 40
    assert {one.all_samples.dtype.name for one in ended} == {samples}


def test_the_error_reaches_whoever_waits_for_the_whole() -> None:
    codec = tiny_engine.codec()
    decode = codec.decode
    speaking = engine(in_16_bits(STRICT), endless_talker())
    request = SpeechRequest(text="Text.", seed=1, max_frames=9)
    with (
        mock.patch.object(codec, "decode", lambda *given: decode(*given) * math.nan),
        pytest.raises(HocketError, match="NaN or infinity"),
    ):
        speaking.generate(request)
    assert speaking.idle
    assert len(speaking.generate(request).codes) == 9
