"""Reference recordings: refusals, and the samples that the codec gets."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import load_file

from hocket.audio.codes_file import write_codes
from hocket.audio.io import resample, write_audio
from hocket.audio.reference import (
    load_encoded,
    normalise_loudness,
    prepare_audio,
    prepare_reference,
)
from hocket.config import ReferenceLimits
from hocket.core import AudioArray, EncodedReference, Recording, Reference
from hocket.errors import AudioFileError, ReferenceAudioError

RATE = 16000
LIMITS = ReferenceLimits(min_seconds=0.5, max_seconds=3.0)


def noise(seconds: float = 1.0, channels: int = 2, level: float = 0.1) -> NDArray[np.float32]:
    """Noise [C, S] of the rms `level`; each channel is louder than the one before."""
    noise_CS = np.random.default_rng(5).standard_normal((channels, round(seconds * RATE)))
    scaled_CS = noise_CS * np.linspace(1.0, 2.0, channels)[:, None]
    return (scaled_CS * level / np.sqrt(np.square(scaled_CS).mean())).astype(np.float32)


def prepared(
    reference: Recording, *, sample_rate: int = RATE, channels: int = 2
) -> NDArray[np.float32]:
    return prepare_reference(reference, sample_rate=sample_rate, channels=channels, limits=LIMITS)


def power_db(samples_CS: NDArray[np.float32]) -> float:
    return float(10 * np.log10(np.mean(np.square(samples_CS, dtype=np.float64))))


@pytest.mark.parametrize("level", ["quiet", "mid", "loud"])
def test_loudness_is_the_official_one(golden: Path, level: str) -> None:
    tensors = load_file(golden / "local_tiny" / "golden_prompts.safetensors")
    found_CS = normalise_loudness(tensors[f"loudness/{level}/in"].numpy())
    np.testing.assert_allclose(
        found_CS, tensors[f"loudness/{level}/out"].numpy(), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize(
    ("level_db", "wanted_db"), [(-40, -37), (-22, -20), (-20, -20), (-18.5, -20), (-10, -13)]
)
def test_loudness_moves_by_3_db_at_most(level_db: float, wanted_db: float) -> None:
    assert power_db(normalise_loudness(noise(level=10 ** (level_db / 20)))) == pytest.approx(
        wanted_db, abs=0.01
    )
    assert power_db(
        prepared(AudioArray(noise(level=10 ** (level_db / 20)), RATE))
    ) == pytest.approx(wanted_db, abs=0.01)


def test_every_way_to_give_a_recording_gives_the_same(tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    samples_CS = noise()
    write_audio(path, samples_CS, RATE, float32=True)
    wanted_CS = prepared(AudioArray(samples_CS, RATE))
    for reference in (
        path,
        str(path),
        path.read_bytes(),
        AudioArray(samples_CS.astype(np.float64), RATE),
    ):
        assert np.array_equal(prepared(reference), wanted_CS)


def test_channels_follow_the_codec() -> None:
    six_CS = noise(channels=6)
    mono_CS, stereo_CS = six_CS[:1], six_CS[:2]
    for given_CS, channels, wanted_CS in [
        (mono_CS, 2, np.repeat(mono_CS, 2, axis=0)),
        (stereo_CS, 2, stereo_CS),
        (six_CS, 2, stereo_CS),
        (mono_CS, 1, mono_CS),
        (six_CS, 1, six_CS.mean(axis=0, keepdims=True)),
    ]:
        found_CS = prepared(AudioArray(given_CS, RATE), channels=channels)
        np.testing.assert_allclose(found_CS, normalise_loudness(wanted_CS), rtol=1e-6)


def test_resampled_before_its_loudness_is_measured() -> None:
    samples_CS = noise()
    found_CS = prepared(AudioArray(samples_CS, RATE), sample_rate=44100)
    assert found_CS.dtype == np.float32
    np.testing.assert_array_equal(found_CS, normalise_loudness(resample(samples_CS, RATE, 44100)))


def test_audio_that_is_no_reference_has_no_limits_and_keeps_its_loudness(tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    for samples_CS in (noise(0.01), noise(4.0), np.zeros((2, RATE), np.float32)):
        write_audio(path, samples_CS, RATE, float32=True)
        found_CS = prepare_audio(path, sample_rate=44100, channels=1)
        np.testing.assert_array_equal(
            found_CS, resample(samples_CS.mean(axis=0, keepdims=True), RATE, 44100)
        )
    with pytest.raises(AudioFileError, match="No such file"):
        prepare_audio(tmp_path / "absent.wav", sample_rate=RATE, channels=2)


def test_nothing_of_the_callers_is_changed() -> None:
    samples_CS = noise()
    samples_CS.setflags(write=False)
    before_CS = samples_CS.copy()
    prepared(AudioArray(samples_CS, RATE))
    assert np.array_equal(samples_CS, before_CS)


def with_value(value: float) -> NDArray[np.float32]:
    samples_CS = noise()
    samples_CS[1, 77] = value
    return samples_CS


@pytest.mark.parametrize(
    ("samples_CS", "message"),
    [
        (noise(0.05), r"lasts 0\.05 s; a reference lasts 0\.5 to 3 s"),
        (noise(3.5), r"lasts 3\.50 s; a reference lasts 0\.5 to 3 s"),
        (np.zeros((2, 0), np.float32), r"lasts 0\.00 s"),
        (with_value(np.nan), "NaN or infinity"),
        (with_value(-np.inf), "NaN or infinity"),
        (with_value(300.0), "reaches 300; full scale is 1"),
        (
            np.zeros((2, RATE), np.float32),
            r"is silent: its rms level is 0\.0e\+00, a reference's is at least 1\.0e-04",
        ),
        (np.full((2, RATE), 0.5, np.float32), "is silent"),
        (np.stack([np.full(RATE, 0.5), np.full(RATE, -0.5)]).astype(np.float32), "is silent"),
        (noise(level=5e-5), r"is silent: its rms level is 5\.0e-05"),
        (noise(channels=1)[0], r"have the shape \(16000,\)"),
        (noise().T, r"have the shape \(16000, 2\)"),
        (np.zeros((2, RATE), np.int16), "not a numpy array of floats"),
    ],
)
def test_unusable_samples_are_refused(samples_CS: NDArray[np.float32], message: str) -> None:
    with pytest.raises(ReferenceAudioError, match=message) as caught:
        prepared(AudioArray(samples_CS, RATE))
    assert caught.value.param == "reference"
    assert "\n" not in str(caught.value)


def test_opposite_channels_are_silent_for_a_codec_of_one() -> None:
    one_CS = noise(channels=1)
    both = AudioArray(np.concatenate([one_CS, -one_CS]), RATE)
    assert prepared(both).shape == (2, RATE)
    with pytest.raises(ReferenceAudioError, match="is silent"):
        prepared(both, channels=1)


@pytest.mark.parametrize("sample_rate", [0, -1, 1_000_000, 44100.5])
def test_impossible_sample_rates_are_refused(sample_rate: int) -> None:
    with pytest.raises(ReferenceAudioError, match="give a whole number from 1 to 192000"):
        prepared(AudioArray(noise(), sample_rate))


def test_unusable_files_are_refused_by_name(tmp_path: Path) -> None:
    long = tmp_path / "long.wav"
    write_audio(long, noise(3.5), RATE)
    short = tmp_path / "short.wav"
    write_audio(short, noise(0.1), RATE)
    for path, message in [
        (long, r"longer than the limit of 3 s \(its header says 3\.5 s\)"),
        (short, r"lasts 0\.10 s; a reference lasts 0\.5 to 3 s"),
        (tmp_path / "absent.wav", "No such file"),
        (tmp_path, "it is a folder"),
    ]:
        with pytest.raises(ReferenceAudioError, match=message) as caught:
            prepared(str(path))
        assert caught.value.param == "reference"
        assert repr(str(path)) in str(caught.value)
    with pytest.raises(ReferenceAudioError, match="has 10 bytes; the limit is 9"):
        prepare_reference(
            bytes(10), sample_rate=RATE, channels=2, limits=ReferenceLimits(max_file_bytes=9)
        )


def test_length_is_checked_before_anything_else() -> None:
    with pytest.raises(ReferenceAudioError, match=r"lasts 3\.50 s"):
        prepared(AudioArray(np.full((2, round(3.5 * RATE)), np.nan, np.float32), RATE))


def test_eight_bit_files_of_silence_are_silent() -> None:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(1)
        writer.setframerate(8000)
        writer.writeframes(b"\x80" * 8000)
    with pytest.raises(ReferenceAudioError, match="is silent"):
        prepared(buffer.getvalue())


def test_codes_are_told_from_audio(tmp_path: Path) -> None:
    codes_FN = np.arange(24).reshape(2, 12)
    write_codes(tmp_path / "voice.npy", codes_FN)
    path = tmp_path / "voice.npy"
    references: list[Reference] = [codes_FN, codes_FN.astype(np.uint16), path, str(path)]
    for reference in references:
        found = load_encoded(reference)
        assert isinstance(found, EncodedReference)
        found_FN = found.codes
        assert found_FN is not None
        assert found.voice is None
        assert found_FN.dtype == np.int64
        assert np.array_equal(found_FN, codes_FN)
    for audio in (tmp_path / "voice.wav", "voice.mp3", b"RIFF", AudioArray(noise(), RATE)):
        assert load_encoded(audio) is audio
    encoded = EncodedReference(codes_FN)
    assert load_encoded(encoded) is encoded


def test_arrays_that_are_neither_are_refused(tmp_path: Path) -> None:
    (tmp_path / "voice.npy").write_bytes(b"text")
    floats: NDArray[np.int64] = noise()  # type: ignore[assignment]
    cases: list[tuple[Reference, str]] = [
        (floats, r"without a sample rate; give AudioArray"),
        (np.arange(12), "codes are"),
        (np.full((2, 12), -1), "holds -1"),
        (tmp_path / "voice.npy", "is not a .npy file"),
        (tmp_path / "absent.npy", "No such file"),
    ]
    for reference, message in cases:
        with pytest.raises(ReferenceAudioError, match=message) as caught:
            load_encoded(reference)
        assert caught.value.param == "reference"
