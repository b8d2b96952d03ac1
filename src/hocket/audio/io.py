"""Decodes audio files to planar float32, encodes them, and resamples."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import av
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hocket.audio.files import check_replaceable, write_atomically
from hocket.core import AudioArray, Samples
from hocket.errors import AudioFileError

if TYPE_CHECKING:
    import torch

MAX_CHANNELS = 8
MAX_SAMPLE_RATE = 192_000

# ----------------------------------------------------------------------------------------- reading

#: Containers that state their length, and the seconds that may be missing before a file counts as
#: cut short: codec delay and rounding stay under 0.2 s even at 8 kHz. Other containers (mp3, ADTS)
#: are bare sequences of packets: FFmpeg guesses their length from a bit rate, and any part of one
#: is valid.
_STATED_LENGTH_TOLERANCE_SECONDS = {
    "flac": 0.001,
    "wav": 0.25,
    "ogg": 0.25,
    "matroska,webm": 0.25,
    "mov,mp4,m4a,3gp,3g2,mj2": 0.25,
}
#: Sizes from here on mark a WAV header that was streamed without knowing the size.
_WAV_UNKNOWN_SIZE = 0x7FFF0000


def decode_audio(
    source: Path | bytes, *, max_bytes: int, max_seconds: float, name: str | None = None
) -> AudioArray:
    """Decode the first audio track of a file or of its bytes to float32, at its own rate and
    channels.

    Every format that FFmpeg reads is accepted (wav, flac, mp3, ogg, m4a, aac, webm and more), up to
    192 kHz and 8 channels. Encoder delay and padding are trimmed as the container says. Decoding
    stops once it passes `max_seconds`.

    Raises AudioFileError naming the file: missing, a folder, empty, not audio, without an audio
    track, corrupt, cut short, or over a limit.
    """
    name = name or (repr(str(source)) if isinstance(source, Path) else "the audio")
    data = read_audio_file(source, max_bytes) if isinstance(source, Path) else source
    if not data:
        raise AudioFileError(f"{name} is empty; give a recording")
    if len(data) > max_bytes:
        raise AudioFileError(f"{name} has {len(data)} bytes; the limit is {max_bytes}")
    if _wav_is_cut_short(data):
        raise AudioFileError(f"{name} is cut short: its header promises more bytes than it has")
    try:
        with open_audio(data) as container:
            return _decode_container(container, name, max_seconds)
    except av.FFmpegError as error:
        raise AudioFileError(
            f"{name} is not an audio file, or is corrupt; give wav, flac, mp3, ogg or m4a"
        ) from error


#: Tags that are not UTF-8 are no reason to refuse a recording: PyAV 19 takes any, before it had to
#: be told.
_ANY_TAGS: dict[str, Any] = (
    {} if int(av.__version__.split(".")[0]) >= 19 else {"metadata_errors": "ignore"}
)


def open_audio(data: bytes) -> av.container.InputContainer:
    """The container in the bytes of a file, which opens nothing else. Raises av.FFmpegError.

    FFmpeg opens what a playlist or a concat script names, be it a local file or a URL. No protocol
    has the name "none", so every such opening fails.
    """
    return av.open(io.BytesIO(data), "r", options={"protocol_whitelist": "none"}, **_ANY_TAGS)


def read_audio_file(path: Path, max_bytes: int) -> bytes:
    """The bytes of a file, for `decode_audio`. Raises AudioFileError naming it."""
    name = repr(str(path))
    try:
        if path.is_dir():
            raise AudioFileError(f"cannot read {name}: it is a folder; give an audio file")
        if path.exists() and not path.is_file():  # a pipe or a device could be waited on for ever
            raise AudioFileError(f"cannot read {name}: it is not a regular file")
        size = path.stat().st_size
        if size > max_bytes:
            raise AudioFileError(f"{name} has {size} bytes; the limit is {max_bytes}")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise AudioFileError(f"cannot read {name}: {reason}") from error


def _wav_is_cut_short(data: bytes) -> bool:
    """Read the header, because FFmpeg silently shortens the stated length of a truncated WAV
    file.
    """
    stated_bytes = int.from_bytes(data[4:8], "little") + 8
    return data[:4] == b"RIFF" and len(data) < stated_bytes < _WAV_UNKNOWN_SIZE


def _decode_container(
    container: av.container.InputContainer, name: str, max_seconds: float
) -> AudioArray:
    if not container.streams.audio:
        raise AudioFileError(f"{name} has no audio track")
    stream = container.streams.audio[0]
    stated_seconds = _stated_seconds(container, stream)
    rate, channels, count = 0, 0, 0
    pieces: list[NDArray[np.float32]] = []
    for frame in container.decode(stream):
        if not pieces:
            rate, channels = frame.sample_rate, frame.layout.nb_channels
            if not (1 <= channels <= MAX_CHANNELS and 1 <= rate <= MAX_SAMPLE_RATE):
                limits = f"{MAX_CHANNELS} channels and {MAX_SAMPLE_RATE} Hz"
                raise AudioFileError(
                    f"{name} has {channels} channels at {rate} Hz; the limits are {limits}"
                )
        if (frame.sample_rate, frame.layout.nb_channels) != (rate, channels):
            raise AudioFileError(
                f"{name} changes its sample rate or channels midway; convert it to a plain wav"
            )
        pieces.append(_frame_samples(frame))
        count += frame.samples
        if count > max_seconds * rate:
            stated = "" if stated_seconds is None else f" (its header says {stated_seconds:.1f} s)"
            raise AudioFileError(f"{name} is longer than the limit of {max_seconds:g} s{stated}")
    if count == 0:
        raise AudioFileError(f"{name} holds no samples")
    if stated_seconds is not None:
        if count / rate < stated_seconds - _STATED_LENGTH_TOLERANCE_SECONDS[container.format.name]:
            raise AudioFileError(
                f"{name} is corrupt or cut short: {count / rate:.2f} s of the {stated_seconds:.2f} "
                "s its header states"
            )
        # An MP4 file states its length, but FFmpeg decodes the last packet's padding all the same.
        excess = count - round(stated_seconds * rate)
        if "mp4" in container.format.name and 0 < excess < pieces[-1].shape[1]:
            pieces[-1] = pieces[-1][:, :-excess]
    return AudioArray(np.concatenate(pieces, axis=1), rate)


def _stated_seconds(container: av.container.InputContainer, stream: av.AudioStream) -> float | None:
    """Length that the header states, in seconds; None where FFmpeg would only guess it."""
    if container.format.name not in _STATED_LENGTH_TOLERANCE_SECONDS:
        return None
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    # The longest track's, which may be the video.
    if container.duration and not container.streams.video:
        return container.duration / av.time_base
    return None


def _frame_samples(frame: av.AudioFrame) -> NDArray[np.float32]:
    """Samples [C, S] of one decoded frame; integers are divided by full scale (32768 for 16
    bits).
    """
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite
        floats: NDArray[np.float32] = samples.astype(np.float32)
    if samples.dtype == np.uint8:
        return (floats - np.float32(128)) / np.float32(128)
    if np.issubdtype(samples.dtype, np.integer):
        return floats / np.float32(1 << (8 * samples.itemsize - 1))
    return floats


# ------------------------------------------------------------------------------------- resampling

_LOWPASS_ZEROS = 6
_ROLLOFF = 0.99
#: Output phases of one convolution. Its kernel is dense over the inputs of all phases, so more
#: phases mean more multiplications by zero and fewer mean more calls: 60 s of stereo, 44.1 to 48
#: kHz, take 0.1 s of one core with 64.
_PHASES = 64


def resample(samples_CS: NDArray[np.float32], from_rate: int, to_rate: int) -> NDArray[np.float32]:
    """Resample float32 [C, S] from `from_rate` Hz to [C, ceil(S * to_rate / from_rate)] at
    `to_rate` Hz.

    The kernel is a Hann-windowed sinc, six zero crossings wide, cut off at 0.99 of the lower
    Nyquist frequency. These are the defaults of torchaudio.functional.resample, which the models'
    own processors use; another kernel gives other codes (sources: MOSS 1.8). As there, it is
    evaluated in float32, but for 64 phases at a time: 44101 to 48000 Hz needs a kernel of 64 x 74
    instead of 48000 x 44115 (8 GiB).
    """
    divisor = math.gcd(from_rate, to_rate)
    down, up = from_rate // divisor, to_rate // divisor
    if down == up or samples_CS.shape[1] == 0:
        return samples_CS
    cutoff = min(down, up) * _ROLLOFF
    half_taps = math.ceil(_LOWPASS_ZEROS * down / cutoff)

    # A period is `down` inputs and `up` outputs; output p of a period lies p * down / up inputs
    # after its start.
    length = -(-samples_CS.shape[1] * up // down)
    periods = -(-length // up)
    right = max(0, periods * down + half_taps + 1 - samples_CS.shape[1])
    padded_CS = np.pad(samples_CS, ((0, 0), (half_taps, right)))
    output_CTP = np.empty((samples_CS.shape[0], periods, up), np.float32)
    for start in range(0, up, _PHASES):
        phase_P = np.arange(start, min(start + _PHASES, up))
        first_tap, last_tap = (
            start * down // up - half_taps,
            int(phase_P[-1]) * down // up + half_taps,
        )
        tap_K = np.arange(first_tap, last_tap + 1)
        time_PK = (-phase_P.astype(np.float32) / np.float32(up))[:, None] + tap_K.astype(
            np.float32
        ) / np.float32(down)
        kernel_PK = _windowed_sinc(time_PK * np.float32(cutoff)) * np.float32(cutoff / down)
        # Only the inputs that each period needs. A strided convolution would also read everything
        # between them: 86 s for a minute from 191999 Hz, where this takes one.
        windows_CTK = sliding_window_view(padded_CS[:, first_tap + half_taps :], len(tap_K), axis=1)
        inputs_CTK = np.ascontiguousarray(windows_CTK[:, ::down][:, :periods])
        output_CTP[:, :, start : start + _PHASES] = inputs_CTK @ kernel_PK.T
    return np.ascontiguousarray(output_CTP.reshape(samples_CS.shape[0], -1)[:, :length])


def _windowed_sinc(t: NDArray[np.float32]) -> NDArray[np.float32]:
    """sinc(t) under a Hann window that ends at the sixth zero crossing."""
    t = t.clip(-_LOWPASS_ZEROS, _LOWPASS_ZEROS)
    window = np.square(np.cos(t * np.float32(math.pi / _LOWPASS_ZEROS / 2)))
    t = t * np.float32(math.pi)
    return np.divide(np.sin(t), t, out=np.ones_like(t), where=t != 0) * window


# ---------------------------------------------------------------------------------------- writing


class ByteSink(Protocol):
    """The target of a container. If it can also seek, the header is completed at the end."""

    def write(self, data: bytes, /) -> int: ...


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """A container and the codec in it, by FFmpeg's names."""

    muxer: str
    codec: str
    #: Lossy codecs only.
    bits_per_second_per_channel: int | None = None

    def encoder_rate(self, sample_rate: int) -> int:
        """`sample_rate` if the codec supports it, else its next higher rate, else its highest; in
        Hz.
        """
        rates = av.Codec(self.codec, "w").audio_rates
        if not rates or sample_rate in rates:
            return sample_rate
        return min((rate for rate in rates if rate > sample_rate), default=max(rates))


#: Formats by file suffix.
FORMATS = {
    ".wav": AudioFormat("wav", "pcm_s16le"),
    ".flac": AudioFormat("flac", "flac"),
    ".mp3": AudioFormat("mp3", "libmp3lame", 96_000),
    ".opus": AudioFormat("ogg", "libopus", 64_000),
    ".ogg": AudioFormat("ogg", "libopus", 64_000),
    ".webm": AudioFormat("webm", "libopus", 64_000),
    ".m4a": AudioFormat("ipod", "aac", 96_000),
    ".aac": AudioFormat("adts", "aac", 96_000),
}
_FLOAT_WAV = AudioFormat("wav", "pcm_f32le")
LAYOUTS = {1: "mono", 2: "stereo", 3: "3.0", 4: "quad", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
#: RIFF counts bytes in 32 bits.
_MAX_WAV_BYTES = 2**32 - 2**10


def check_writable(path: Path, *, float32: bool = False) -> None:
    """Check, before any model work, that audio can be written: a known suffix, a writable folder.

    Raises AudioFileError.
    """
    _format_of(path, float32)
    check_replaceable(path)


def write_audio(
    path: Path, samples_CS: Samples, sample_rate: int, *, float32: bool = False
) -> None:
    """Write float32 or int16 [C, S] to `path` atomically, in the format of its suffix.

    `.wav` and `.flac` hold 16 bits: samples are clipped to [-1, 1], multiplied by 32768, rounded
    half to even and limited to 32767. `float32=True` (`.wav` only) keeps them as they are. `.mp3`,
    `.m4a` and `.aac` have 96 kbit/s per channel; `.opus`, `.ogg` and `.webm` are Opus at 64 kbit/s;
    samples are clipped to [-1, 1] first. A rate that the codec does not support is resampled to its
    next higher one (or its highest). The same samples give the same bytes.

    Zero samples give a file without samples. Raises AudioFileError.
    """
    audio_format = _format_of(path, float32)
    if samples_CS.ndim != 2 or not 1 <= samples_CS.shape[0] <= MAX_CHANNELS:
        raise AudioFileError(
            f"cannot write {str(path)!r}: samples of the shape {samples_CS.shape} are not [1..8, "
            "samples]"
        )
    if not np.isfinite(samples_CS).all():
        raise AudioFileError(f"cannot write {str(path)!r}: the samples hold NaN or infinity")
    if audio_format.muxer == "wav" and samples_CS.size * (4 if float32 else 2) > _MAX_WAV_BYTES:
        raise AudioFileError(f"cannot write {str(path)!r}: a .wav file ends at 4 GiB; write .flac")
    encoder_rate = audio_format.encoder_rate(sample_rate)
    try:
        resampled_CS = resample(to_float32(samples_CS), sample_rate, encoder_rate)
        data = encode_audio(audio_format, resampled_CS, encoder_rate)
    except (av.FFmpegError, ValueError) as error:
        shape = f"{samples_CS.shape[0]} channels at {sample_rate} Hz"
        raise AudioFileError(f"cannot write {str(path)!r}: its encoder refuses {shape}") from error
    write_atomically(path, data)


def _format_of(path: Path, float32: bool) -> AudioFormat:
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise AudioFileError(
            f"cannot write {str(path)!r}: unknown suffix; use one of {', '.join(FORMATS)}"
        )
    if not float32:
        return found
    if found.muxer != "wav":
        raise AudioFileError(
            f"cannot write {str(path)!r} with float32 samples: only .wav holds them"
        )
    return _FLOAT_WAV


def encode_audio(audio_format: AudioFormat, samples_CS: Samples, sample_rate: int) -> bytes:
    """Encode a whole file in memory; its header states sizes, sample counts, delay and padding.

    The codec must support `sample_rate`. Raises av.FFmpegError or ValueError for what it refuses.
    """
    # By default MP4 counts its length in units of 1 ms.
    options = {"movie_timescale": str(sample_rate)} if audio_format.muxer == "ipod" else {}
    buffer = io.BytesIO()
    container, stream = open_encoder(
        buffer, audio_format, sample_rate, samples_CS.shape[0], options, {}
    )
    with container:
        for frame in encoder_frames(audio_format, samples_CS, sample_rate):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def to_int16(samples: Samples) -> NDArray[np.int16]:
    """Clip finite samples to [-1, 1], multiply by 32768, round half to even and limit to 32767.

    int16 samples are returned as they are.
    """
    if samples.dtype == np.int16:
        return samples.astype(np.int16, copy=False)
    return np.rint(samples.clip(-1.0, 1.0) * 32768.0).clip(-32768, 32767).astype(np.int16)


def to_int16_on_device(samples: torch.Tensor) -> torch.Tensor:
    """The bits of `to_int16`, computed on the samples' device. Non-finite samples become some
    number.
    """
    return samples.clamp(-1.0, 1.0).mul_(32768.0).round_().clamp_(max=32767.0).short()


def to_float32(samples: Samples) -> NDArray[np.float32]:
    """Divide int16 by 32768, the inverse of `to_int16`; float32 is returned as it is."""
    floats = samples.astype(np.float32, copy=False)
    return floats / np.float32(32768) if samples.dtype == np.int16 else floats


def open_encoder(
    file: ByteSink,
    audio_format: AudioFormat,
    sample_rate: int,
    channels: int,
    muxer_options: dict[str, str],
    codec_options: dict[str, str],
) -> tuple[av.container.OutputContainer, av.AudioStream]:
    """Open a container on `file`, with one stream. The same samples give the same bytes.

    The codec must support `sample_rate`. Raises av.FFmpegError or ValueError for what it refuses.
    """
    # "bitexact" leaves out versions, dates and random ids.
    container = av.open(
        file, "w", format=audio_format.muxer, options={"fflags": "+bitexact", **muxer_options}
    )
    stream = container.add_stream(
        audio_format.codec, rate=sample_rate, layout=LAYOUTS[channels], options=codec_options
    )
    assert isinstance(stream, av.AudioStream)
    if audio_format.bits_per_second_per_channel is not None:
        stream.bit_rate = audio_format.bits_per_second_per_channel * channels
    container.start_encoding()
    return container, stream


def encoder_frames(
    audio_format: AudioFormat, samples_CS: Samples, sample_rate: int, first: int = 0
) -> Iterator[av.AudioFrame]:
    """Interleaved frames of at most a second, as 16-bit integers where the codec is exact in them.

    `first` is the number of samples before these.
    """
    channels, length = samples_CS.shape
    made_SC: NDArray[Any]
    for start in range(0, length, sample_rate):
        piece_SC = samples_CS[:, start : start + sample_rate].T
        if audio_format.codec in {"pcm_s16le", "flac"}:
            made_SC, kind = to_int16(piece_SC), "s16"
        elif audio_format is _FLOAT_WAV:
            made_SC, kind = to_float32(piece_SC), "flt"
        else:
            made_SC, kind = to_float32(piece_SC).clip(-1.0, 1.0), "flt"
        interleaved = np.ascontiguousarray(made_SC).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(interleaved, format=kind, layout=LAYOUTS[channels])
        frame.sample_rate = sample_rate
        frame.pts = first + start
        yield frame
