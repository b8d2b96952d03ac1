"""Prepares reference recordings for a codec's encoder: rate, channels, loudness (sources: MOSS
1.8).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hocket.audio.codes_file import as_codes, read_codes
from hocket.audio.io import MAX_CHANNELS, MAX_SAMPLE_RATE, decode_audio, resample
from hocket.config import ReferenceLimits
from hocket.core import AudioArray, PreparedReference, Reference
from hocket.errors import AudioFileError, ReferenceAudioError

_TARGET_LOUDNESS_DB = -20.0
_MAX_GAIN_DB = 3.0
#: 20 dB above full scale: no recording overshoots so far, but integers passed as floats do (scipy's
#: and wave's arrays).
_MAX_PEAK = 10.0


def load_reference_codes(reference: Reference) -> NDArray[np.int64] | None:
    """Codes [frames, codebooks] of a reference that is an integer array or `.npy` file; None for
    audio.

    Raises ReferenceAudioError.
    """
    try:
        if isinstance(reference, np.ndarray):
            if np.issubdtype(reference.dtype, np.floating):
                raise _refusal(
                    "the reference is a float array without a sample rate; give "
                    "AudioArray(samples, sample_rate)"
                )
            return as_codes(reference, "the reference")
        if isinstance(reference, str | Path) and Path(reference).suffix.lower() == ".npy":
            return read_codes(Path(reference))
    except AudioFileError as error:
        raise _refusal(str(error)) from error
    return None


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


def prepare_reference(
    reference: Reference,
    *,
    sample_rate: int,
    channels: int,
    limits: ReferenceLimits,
    level: bool = True,
) -> NDArray[np.float32]:
    """Read a recording and bring it to float32 [channels, S] at `sample_rate` Hz, ready to be
    encoded.

    With `level` it is brought to about the loudness of all other references.

    A mono recording is copied to every channel of the codec, surplus channels are dropped, and a
    mono codec gets the mean. Limits are checked first. Raises ReferenceAudioError.
    """
    if isinstance(reference, PreparedReference):
        if reference.sample_rate != sample_rate or reference.samples.shape[0] != channels:
            raise _refusal(
                f"the prepared reference has {reference.samples.shape[0]} channels at "
                f"{reference.sample_rate} Hz; this "
                f"model's codec takes {channels} at {sample_rate} Hz"
            )
        return reference.samples
    name = repr(str(reference)) if isinstance(reference, str | Path) else "the reference"
    audio = _read(reference, limits)
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


def _read(
    reference: Path | str | bytes | AudioArray | NDArray[np.int64], limits: ReferenceLimits
) -> AudioArray:
    if isinstance(reference, np.ndarray):
        raise _refusal(
            "the reference is an array without a sample rate; give AudioArray(samples, sample_rate)"
        )
    if isinstance(reference, AudioArray):
        samples = reference.samples
        if not (isinstance(samples, np.ndarray) and np.issubdtype(samples.dtype, np.floating)):
            raise _refusal(
                "the reference's samples are not a numpy array of floats in [-1, 1]; convert them"
            )
        if samples.ndim != 2 or not 1 <= samples.shape[0] <= MAX_CHANNELS:
            raise _refusal(
                f"the reference's samples have the shape {samples.shape}; give [1..{MAX_CHANNELS}, "
                "samples]"
            )
        rate = reference.sample_rate
        if not isinstance(rate, int | np.integer) or not 1 <= rate <= MAX_SAMPLE_RATE:
            raise _refusal(
                f"the reference's sample rate is {rate} Hz; give a whole number from 1 to "
                f"{MAX_SAMPLE_RATE}"
            )
        return reference
    source = Path(reference) if isinstance(reference, str) else reference
    try:
        return decode_audio(source, max_bytes=limits.max_file_bytes, max_seconds=limits.max_seconds)
    except AudioFileError as error:
        raise _refusal(str(error)) from error


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
