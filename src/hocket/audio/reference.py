"""Prepares reference recordings for a codec's encoder: rate, channels, loudness (sources: MOSS
1.8).
"""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hocket.audio.codes_file import as_codes, read_codes
from hocket.audio.io import (
    MAX_CHANNELS,
    MAX_SAMPLE_RATE,
    decode_audio,
    read_audio_file,
    resample,
)
from hocket.config import ReferenceLimits
from hocket.core import (
    AudioArray,
    EncodedReference,
    EngineInfo,
    PreparedReference,
    Recording,
    Reference,
)
from hocket.errors import AudioFileError, ReferenceAudioError

#: Version of decoding, resampling and levelling; raised when they give other samples.
_STEPS = 1

_TARGET_LOUDNESS_DB = -20.0
_MAX_GAIN_DB = 3.0
#: 20 dB above full scale: no recording overshoots so far, but integers passed as floats do (scipy's
#: and wave's arrays).
_MAX_PEAK = 10.0


@dataclass(frozen=True, slots=True)
class RecordingForm:
    """What an engine's recordings are checked against, and what they are brought to."""

    sample_rate: int
    channels: int
    limits: ReferenceLimits
    #: Whether recordings are brought to one loudness.
    level: bool

    @classmethod
    def of(cls, info: EngineInfo) -> RecordingForm:
        """The form of that engine."""
        limits = ReferenceLimits.of(info)
        return cls(info.sample_rate, info.channels, limits, info.voice_traits.levels_references)


def preparation_id(encoder_id: str, form: RecordingForm) -> str:
    """`EngineInfo.reference_id`: identity of the encoder, of the form and of the steps to it."""
    facts = f"{_STEPS} {encoder_id} {form!r}"
    return hashlib.blake2b(facts.encode(), digest_size=20).hexdigest()


def load_encoded(reference: Reference) -> Recording | EncodedReference:
    """Codes (an integer array, a `.npy` file) as an EncodedReference; anything else as it is.

    Raises ReferenceAudioError.
    """
    try:
        if isinstance(reference, np.ndarray):
            if np.issubdtype(reference.dtype, np.floating):
                raise _refusal(
                    "the reference is a float array without a sample rate; give "
                    "AudioArray(samples, sample_rate)"
                )
            return EncodedReference(as_codes(reference, "the reference"))
        if isinstance(reference, str | Path) and Path(reference).suffix.lower() == ".npy":
            return EncodedReference(read_codes(Path(reference)))
    except AudioFileError as error:
        raise _refusal(str(error)) from error
    return reference


def read_content(
    recording: Recording, limits: ReferenceLimits
) -> bytes | AudioArray | PreparedReference:
    """The content of a recording, as it is hashed; nothing is decoded. Raises
    ReferenceAudioError.
    """
    if isinstance(recording, AudioArray):
        _check_array(recording)
    if not isinstance(recording, str | Path):
        return recording
    try:
        return read_audio_file(Path(recording), limits.max_file_bytes)
    except AudioFileError as error:
        raise _refusal(str(error)) from error


def prepare_audio(
    source: Path | bytes, *, sample_rate: int, channels: int, max_seconds: float = math.inf
) -> NDArray[np.float32]:
    """Read a recording as float32 [channels, S] at `sample_rate` Hz, without a change of loudness.

    Channels follow the rule of `prepare_reference`. Raises AudioFileError.
    """
    name = repr(str(source)) if isinstance(source, Path) else "the audio"
    audio = decode_audio(source, max_bytes=sys.maxsize, max_seconds=max_seconds)
    if not np.isfinite(audio.samples).all():
        raise AudioFileError(f"{name} holds NaN or infinity; record or export it again")
    return resample(_to_channels(audio.samples, channels, name), audio.sample_rate, sample_rate)


def name_of(recording: Recording) -> str | None:
    """What messages about a recording call it; None: it has no name."""
    return repr(str(recording)) if isinstance(recording, str | Path) else None


def prepare_reference(
    reference: Recording,
    *,
    sample_rate: int,
    channels: int,
    limits: ReferenceLimits,
    level: bool = True,
    name: str | None = None,
) -> NDArray[np.float32]:
    """Read a recording and bring it to float32 [channels, S] at `sample_rate` Hz, ready to be
    encoded.

    With `level` it is brought to about the loudness of all other references.

    A mono recording is copied to every channel of the codec, surplus channels are dropped, and a
    mono codec gets the mean. Limits are checked first. Messages call the recording `name`, by
    default by its path. Raises ReferenceAudioError.
    """
    if isinstance(reference, PreparedReference):
        if reference.sample_rate != sample_rate or reference.samples.shape[0] != channels:
            raise _refusal(
                f"the prepared reference has {reference.samples.shape[0]} channels at "
                f"{reference.sample_rate} Hz; this "
                f"model's codec takes {channels} at {sample_rate} Hz"
            )
        return reference.samples
    given = name or name_of(reference)
    audio, name = _decode(reference, limits, given), given or "the reference"
    if not limits.min_seconds <= audio.seconds <= limits.max_seconds:
        raise _refusal(
            f"{name} lasts {audio.seconds:.2f} s; a reference lasts {limits.min_seconds:g} to "
            f"{limits.max_seconds:g} s"
        )
    samples_CS = audio.samples.astype(np.float32, copy=False)
    if not np.isfinite(samples_CS).all():
        raise _refusal(f"{name} holds NaN or infinity; record or export it again")
    peak = float(np.abs(samples_CS).max())
    if peak > _MAX_PEAK:
        raise _refusal(
            f"{name} reaches {peak:g}; full scale is 1, so divide integer samples by theirs (32768 "
            "for 16 bits)"
        )
    samples_CS = _to_channels(samples_CS, channels, name)
    rms = float(
        np.sqrt(
            np.mean(
                np.square(samples_CS - samples_CS.mean(axis=1, keepdims=True, dtype=np.float64))
            )
        )
    )
    if rms < limits.min_rms:
        raise _refusal(
            f"{name} is silent: its rms level is {rms:.1e}, a reference's is at least "
            f"{limits.min_rms:.1e}"
        )
    samples_CS = resample(samples_CS, audio.sample_rate, sample_rate)
    return normalise_loudness(samples_CS) if level else samples_CS


def normalise_loudness(samples_CS: NDArray[np.float32]) -> NDArray[np.float32]:
    """Bring the mean power of all samples towards -20 dB of full scale, by 3 dB at most (sources:
    MOSS 1.8).
    """
    power = float(np.mean(np.square(samples_CS, dtype=np.float64)))
    gain_db = np.clip(
        _TARGET_LOUDNESS_DB - 10.0 * np.log10(power + 1e-9), -_MAX_GAIN_DB, _MAX_GAIN_DB
    )
    return samples_CS * np.float32(10.0 ** (gain_db / 20.0))


def _decode(
    recording: Path | str | bytes | AudioArray, limits: ReferenceLimits, name: str | None
) -> AudioArray:
    if isinstance(recording, AudioArray):
        _check_array(recording)
        return recording
    source = Path(recording) if isinstance(recording, str) else recording
    try:
        return decode_audio(
            source, max_bytes=limits.max_file_bytes, max_seconds=limits.max_seconds, name=name
        )
    except AudioFileError as error:
        raise _refusal(str(error)) from error


def _check_array(audio: AudioArray) -> None:
    samples, rate = audio.samples, audio.sample_rate
    if not (isinstance(samples, np.ndarray) and np.issubdtype(samples.dtype, np.floating)):
        raise _refusal(
            "the reference's samples are not a numpy array of floats in [-1, 1]; convert them"
        )
    if samples.ndim != 2 or not 1 <= samples.shape[0] <= MAX_CHANNELS:
        raise _refusal(
            f"the reference's samples have the shape {samples.shape}; give [1..{MAX_CHANNELS}, "
            "samples]"
        )
    if not isinstance(rate, int | np.integer) or not 1 <= rate <= MAX_SAMPLE_RATE:
        raise _refusal(
            f"the reference's sample rate is {rate} Hz; give a whole number from 1 to "
            f"{MAX_SAMPLE_RATE}"
        )


def _to_channels(samples_CS: NDArray[np.float32], channels: int, name: str) -> NDArray[np.float32]:
    if channels == 1:
        return samples_CS.mean(axis=0, keepdims=True)
    if samples_CS.shape[0] == 1:
        return np.repeat(samples_CS, channels, axis=0)
    if samples_CS.shape[0] < channels:
        raise _refusal(
            f"{name} has {samples_CS.shape[0]} channels; this codec takes {channels}, or one for "
            "all"
        )
    return samples_CS[:channels]


def _refusal(message: str) -> ReferenceAudioError:
    return ReferenceAudioError(message, param="reference")
