"""Reading, resampling and writing audio, with real files made in a temporary folder."""

from __future__ import annotations

import io
import math
import os
import stat
import struct
import wave
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hocket.audio.io import (
    check_writable,
    decode_audio,
    resample,
    to_float32,
    to_int16,
    to_int16_on_device,
    write_audio,
)
from hocket.core import AudioArray
from hocket.errors import AudioFileError

LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}


def tone(
    rate: int, seconds: float = 1.0, channels: int = 1, hertz: float = 440.0
) -> NDArray[np.float32]:
    """A sine [C, S]; each channel has its own pitch and level."""
    times_S = np.arange(round(rate * seconds)) / rate
    return np.stack(
        [0.5 / (c + 1) * np.sin(2 * np.pi * hertz * (1 + c / 7) * times_S) for c in range(channels)]
    ).astype(np.float32)


def encoded(samples_CS: NDArray[np.float32], rate: int, muxer: str, codec: str) -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=muxer) as container:
        layout = LAYOUTS[samples_CS.shape[0]]
        stream = container.add_stream(
            codec, rate=rate, layout=layout, options={"strict": "experimental"}
        )
        assert isinstance(stream, av.AudioStream)
        container.start_encoding()
        if samples_CS.size:
            interleaved = np.ascontiguousarray(samples_CS.T).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(interleaved, format="flt", layout=layout)
            frame.sample_rate = rate
            frame.pts = 0
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def decoded(source: Path | bytes) -> AudioArray:
    return decode_audio(source, max_bytes=1 << 26, max_seconds=30.0)


def signal_to_noise_db(wanted_CS: NDArray[np.float32], found_CS: NDArray[np.float32]) -> float:
    return float(10 * np.log10(np.square(wanted_CS).sum() / np.square(wanted_CS - found_CS).sum()))


# ---------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("codec", "step"),
    [
        ("pcm_u8", 2**-7),
        ("pcm_s16le", 2**-15),
        ("pcm_s24le", 2**-23),
        ("pcm_s32le", 2**-23),
        ("pcm_f32le", 0),
        ("pcm_f64le", 0),
    ],
)
def test_every_wav_sample_format_is_read_at_its_own_scale(codec: str, step: float) -> None:
    samples_CS = tone(16000, channels=2)
    audio = decoded(encoded(samples_CS, 16000, "wav", codec))
    assert audio.sample_rate == 16000
    assert audio.samples.dtype == np.float32
    assert audio.samples.shape == samples_CS.shape
    assert np.abs(audio.samples - samples_CS).max() <= step


@pytest.mark.parametrize("channels", [1, 2, 6, 8])
@pytest.mark.parametrize("rate", [8000, 44100, 192000])
def test_rates_and_channels_are_kept(rate: int, channels: int) -> None:
    samples_CS = tone(rate, 0.3, channels)
    for muxer, codec in [("wav", "pcm_s16le"), ("flac", "flac")]:
        audio = decoded(encoded(samples_CS, rate, muxer, codec))
        assert (audio.sample_rate, audio.samples.shape) == (rate, samples_CS.shape)
        assert np.abs(audio.samples - samples_CS).max() <= 2**-15


@pytest.mark.parametrize(
    ("muxer", "codec", "rate"),
    [
        ("mp3", "libmp3lame", 44100),
        ("ogg", "libopus", 48000),
        ("ogg", "vorbis", 44100),
        ("webm", "libopus", 48000),
        ("ipod", "aac", 44100),
        ("ipod", "alac", 44100),
        ("adts", "aac", 48000),
        ("aiff", "pcm_s16be", 22050),
        ("matroska", "flac", 48000),
    ],
)
def test_compressed_formats_are_read(muxer: str, codec: str, rate: int) -> None:
    samples_CS = tone(rate, 1.0, 2)
    audio = decoded(encoded(samples_CS, rate, muxer, codec))
    delay = 1024 if muxer == "adts" else 0  # ADTS states no delay
    assert audio.sample_rate == rate
    assert audio.samples.shape[0] == 2
    found_CS = audio.samples[:, delay + rate // 4 : delay + rate // 2]
    assert signal_to_noise_db(samples_CS[:, rate // 4 : rate // 2], found_CS) > 15


def test_a_file_and_its_bytes_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "voice.flac"
    write_audio(path, tone(16000), 16000)
    assert np.array_equal(decoded(path).samples, decoded(path.read_bytes()).samples)


def wav_bytes(samples: int = 16000) -> bytes:
    return encoded(tone(16000, samples / 16000), 16000, "wav", "pcm_s16le")


def test_wav_of_unknown_length_is_read_to_its_end() -> None:
    data = bytearray(wav_bytes())
    for size in (0, 0xFFFFFFFF, 0x7FFFFFFF):
        data[4:8] = size.to_bytes(4, "little")
        assert decoded(bytes(data)).samples.shape == (1, 16000)


def test_tags_that_are_not_utf8_do_not_matter() -> None:
    tag = b"TIT2" + (4).to_bytes(4, "big") + b"\0\0" + b"\x03\xe9\xe9\xe9"
    id3 = b"ID3\x03\0\0" + len(tag).to_bytes(4, "big") + tag
    assert decoded(id3 + encoded(tone(44100), 44100, "mp3", "libmp3lame")).samples.shape[0] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"<html><body>Not found</body></html>" * 30, "is not an audio file, or is corrupt"),
        (b"some notes\n" * 50, "is not an audio file, or is corrupt"),
        (bytes(range(256)) * 20, "is not an audio file, or is corrupt"),
        (wav_bytes()[:16000], "is cut short"),
        (wav_bytes(0), "holds no samples"),
    ],
)
def test_what_is_not_audio_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "voice.wav"
    path.write_bytes(content)
    with pytest.raises(AudioFileError, match=message) as caught:
        decoded(path)
    assert repr(str(path)) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(AudioFileError, match=message):
        decoded(content)


# A part of an Ogg stream is a valid one, so a truncated one cannot be detected.
DAMAGE = [
    *(
        (muxer, codec, "cut")
        for muxer, codec in [("flac", "flac"), ("ipod", "aac"), ("webm", "libopus")]
    ),
    *(
        (muxer, codec, "overwritten")
        for muxer, codec in [("flac", "flac"), ("ipod", "aac"), ("webm", "libopus")]
    ),
    *(
        (muxer, codec, "overwritten")
        for muxer, codec in [("ogg", "libopus"), ("adts", "aac"), ("mp3", "libmp3lame")]
    ),
]


@pytest.mark.parametrize(("muxer", "codec", "damage"), DAMAGE)
def test_damaged_files_are_refused(muxer: str, codec: str, damage: str) -> None:
    noise_CS = (np.random.default_rng(0).standard_normal((2, 48000 * 3)) * 0.1).astype(np.float32)
    data = encoded(noise_CS, 48000, muxer, codec)
    half = len(data) // 2
    rubbish = np.random.default_rng(1).integers(0, 256, 3000, dtype=np.uint8).tobytes()
    broken = data[:half] if damage == "cut" else data[:half] + rubbish + data[half + len(rubbish) :]
    with pytest.raises(AudioFileError, match="corrupt"):
        decoded(broken)


def test_missing_files_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AudioFileError, match="No such file"):
        decoded(tmp_path / "absent.wav")
    with pytest.raises(AudioFileError, match="it is a folder"):
        decoded(tmp_path)
    os.mkfifo(tmp_path / "pipe.wav")
    with pytest.raises(AudioFileError, match="not a regular file"):
        decoded(tmp_path / "pipe.wav")


def test_video_without_audio_is_refused() -> None:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("mpeg4", rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width = stream.height = 64
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(AudioFileError, match="no audio track"):
        decoded(buffer.getvalue())


def test_a_script_cannot_open_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.wav").write_bytes(wav_bytes())
    monkeypatch.chdir(tmp_path)
    script = b"ffconcat version 1.0\nfile 'secret.wav'\n"
    with av.open(io.BytesIO(script)) as container:  # FFmpeg's behaviour without the guard
        assert container.streams.audio
    with pytest.raises(AudioFileError, match="is not an audio file"):
        decoded(script)


def test_size_limit_is_checked_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "large.wav"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(AudioFileError, match=f"has {1 << 40} bytes; the limit is 1000"):
        decode_audio(path, max_bytes=1000, max_seconds=1.0)
    with pytest.raises(AudioFileError, match="the limit is 10"):
        decode_audio(wav_bytes(), max_bytes=10, max_seconds=1.0)


def test_decoding_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = 0
    original = av.AudioFrame.to_ndarray

    def counting(frame: av.AudioFrame) -> NDArray[np.generic]:
        nonlocal frames
        frames += 1
        return original(frame)

    data = encoded(np.zeros((1, 8000 * 600), np.float32), 8000, "flac", "flac")
    monkeypatch.setattr("hocket.audio.io._frame_samples", counting)
    with pytest.raises(
        AudioFileError, match=r"longer than the limit of 2 s \(its header says 600.0 s\)"
    ):
        decode_audio(data, max_bytes=1 << 26, max_seconds=2.0)
    assert 0 < frames < 100  # of more than a thousand


def test_a_recording_of_exactly_the_limit_is_read() -> None:
    assert decode_audio(wav_bytes(16000), max_bytes=1 << 20, max_seconds=1.0).seconds == 1.0
    with pytest.raises(AudioFileError, match="longer"):
        decode_audio(wav_bytes(16001), max_bytes=1 << 20, max_seconds=1.0)


# ------------------------------------------------------------------------------------- resampling


def direct_resample(
    samples_S: NDArray[np.float32], from_rate: int, to_rate: int
) -> NDArray[np.float64]:
    """The defining sum, output by output, in float64: sum over inputs of x[i] h(n / to - i /
    from).
    """
    cutoff_hertz = 0.99 * min(from_rate, to_rate)
    outputs = []
    for n in range(math.ceil(len(samples_S) * to_rate / from_rate)):
        t = (np.arange(len(samples_S)) / from_rate - n / to_rate) * cutoff_hertz
        window = np.where(np.abs(t) < 6, np.cos(np.pi * t / 12) ** 2, 0.0)
        outputs.append(np.sum(samples_S * np.sinc(t) * window) * cutoff_hertz / from_rate)
    return np.array(outputs)


RATE_PAIRS = [
    (44100, 48000),
    (11025, 48000),
    (22050, 48000),
    (24000, 48000),
    (192000, 48000),
    (48000, 44100),
    (48000, 8000),
    (44101, 48000),
    (48000, 44101),
    (191999, 8000),
]


@pytest.mark.parametrize(("from_rate", "to_rate"), RATE_PAIRS)
@pytest.mark.parametrize("length", [1, 7, 500])
def test_resampling_is_the_defining_sum(from_rate: int, to_rate: int, length: int) -> None:
    samples_CS = np.random.default_rng(length).standard_normal((2, length)).astype(np.float32)
    found_CS = resample(samples_CS, from_rate, to_rate)
    assert found_CS.dtype == np.float32
    for samples_S, found_S in zip(samples_CS, found_CS, strict=True):
        wanted_S = direct_resample(samples_S, from_rate, to_rate)
        assert found_S.shape == wanted_S.shape
        # Float32 times are off by 6e-8 of a period of the two rates, which is long where they have
        # no common divisor.
        period_taps = max(from_rate, to_rate) / math.gcd(from_rate, to_rate)
        np.testing.assert_allclose(
            found_S, wanted_S, rtol=0, atol=5e-5 if period_taps < 1000 else 5e-4
        )


@settings(max_examples=50, deadline=None)
@given(
    from_rate=st.integers(4000, 20000),
    to_rate=st.integers(4000, 20000),
    length=st.integers(1, 3000),
)
def test_resampled_length_is_rounded_up(from_rate: int, to_rate: int, length: int) -> None:
    assert resample(np.ones((1, length), np.float32), from_rate, to_rate).shape == (
        1,
        -(-length * to_rate // from_rate),
    )


@pytest.mark.parametrize(("from_rate", "to_rate"), RATE_PAIRS)
def test_a_tone_below_both_nyquist_frequencies_is_kept(from_rate: int, to_rate: int) -> None:
    found_CS, wanted_CS = resample(tone(from_rate, 0.2), from_rate, to_rate), tone(to_rate, 0.2)
    inner = slice(to_rate // 50, to_rate // 10)
    assert signal_to_noise_db(wanted_CS[:, inner], found_CS[:, inner]) > 55


def test_a_tone_above_the_new_nyquist_frequency_is_removed() -> None:
    found_CS = resample(tone(48000, 0.2, hertz=7000), 48000, 8000)
    assert np.abs(found_CS[:, 100:-100]).max() < 0.01


def test_equal_rates_change_nothing() -> None:
    samples_CS = tone(44100, 0.1, 2)
    assert np.array_equal(resample(samples_CS, 44100, 44100), samples_CS)
    assert resample(np.zeros((2, 0), np.float32), 44100, 48000).shape == (2, 0)


def test_read_only_samples_are_resampled() -> None:
    samples_CS = tone(8000, 0.1)
    samples_CS.setflags(write=False)
    assert resample(samples_CS, 8000, 16000).shape == (1, 1600)


# ---------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [48000, 24000, 44100, 16000])
@pytest.mark.parametrize(
    ("suffix", "decibels", "edge"),
    # `edge`: allowed surplus of samples; ADTS and WebM state no padding, the others are exact.
    [
        (".wav", 75, 0),
        (".flac", 75, 0),
        (".mp3", 15, 0),
        (".opus", 15, 0),
        (".ogg", 15, 0),
        (".m4a", 15, 0),
        (".aac", 15, 3072),
        (".webm", 15, 960),
    ],
)
def test_what_is_written_is_read(
    tmp_path: Path, suffix: str, decibels: float, edge: int, rate: int, channels: int
) -> None:
    path = tmp_path / f"speech{suffix.upper() if channels == 1 else suffix}"
    samples_CS = tone(rate, 1.2345, channels, hertz=rate / 60)
    write_audio(path, samples_CS, rate)
    audio = decoded(path)
    wanted_CS = resample(samples_CS, rate, audio.sample_rate)
    if suffix in {".wav", ".flac"}:
        assert audio.sample_rate == rate
    assert audio.samples.shape[0] == channels
    assert 0 <= audio.samples.shape[1] - wanted_CS.shape[1] <= edge
    delay = 1024 if suffix == ".aac" else 0
    quarter, half = wanted_CS.shape[1] // 4, wanted_CS.shape[1] // 2
    found_CS = audio.samples[:, quarter + delay : half + delay]
    assert signal_to_noise_db(wanted_CS[:, quarter:half], found_CS) > decibels
    assert sorted(tmp_path.iterdir()) == [path]


def test_the_rate_that_an_encoder_lacks_is_its_next_higher_one(tmp_path: Path) -> None:
    rates = {}
    for suffix, rate in [
        (".mp3", 300),
        (".mp3", 44000),
        (".mp3", 96000),
        (".m4a", 47999),
        (".m4a", 192000),
    ]:
        write_audio(tmp_path / f"speech{suffix}", tone(rate, 0.5, hertz=100), rate)
        rates[suffix, rate] = decoded(tmp_path / f"speech{suffix}").sample_rate
    assert list(rates.values()) == [8000, 44100, 48000, 48000, 96000]


def test_wav_headers_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    for length in (0, 1, 12345):
        write_audio(path, tone(48000, length / 48000, 2), 48000)
        data = path.read_bytes()
        assert len(data) == 44 + 4 * length
        assert struct.unpack("<4sI8sIHHIIHH4sI", data[:44]) == (
            *(
                b"RIFF",
                36 + 4 * length,
                b"WAVEfmt ",
                16,
                1,
                2,
                48000,
                192000,
                4,
                16,
                b"data",
                4 * length,
            ),
        )
        with wave.open(str(path)) as reader:
            assert reader.getnframes() == length


def test_rounding_and_clipping_to_16_bits(tmp_path: Path) -> None:
    values = [
        0.0,
        0.5,
        1.0,
        2.0,
        -1.0,
        -2.0,
        0.5 / 32768,
        1.5 / 32768,
        2.5 / 32768,
        -0.5 / 32768,
        -1.6 / 32768,
    ]
    wanted = [0, 16384, 32767, 32767, -32768, -32768, 0, 2, 2, 0, -2]
    for suffix in (".wav", ".flac"):
        path = tmp_path / f"speech{suffix}"
        write_audio(path, np.array([values], np.float32), 48000)
        assert (decoded(path).samples * 32768).tolist() == [wanted]


def test_16_bits_on_the_device_are_those_of_the_host() -> None:
    random = np.random.default_rng(0)
    ties = (np.arange(-65540, 65541) / 2 / 32768).astype(np.float32)
    samples = np.concatenate(
        [ties, np.nextafter(ties, np.float32(9)), np.nextafter(ties, np.float32(-9))]
    )
    samples = np.concatenate(
        [
            samples,
            random.normal(size=100_000).astype(np.float32),
            np.array([1e30, -1e30, 1e-40], np.float32),
        ]
    )
    wanted = to_int16(samples)
    assert (int(wanted.min()), int(wanted.max()), wanted.dtype.name) == (-32768, 32767, "int16")
    before = samples.copy()
    assert np.array_equal(to_int16_on_device(torch.from_numpy(samples)).numpy(), wanted)
    assert np.array_equal(samples, before)


def test_16_bits_come_back_from_floats() -> None:
    integers = np.arange(-32768, 32768).astype(np.int16)[None]
    floats = to_float32(integers)
    assert (floats.dtype.name, float(floats.min()), float(floats.max())) == (
        "float32",
        -1.0,
        32767 / 32768,
    )
    assert np.array_equal(to_int16(floats), integers)
    assert to_int16(integers) is integers
    assert to_float32(floats) is floats


@pytest.mark.parametrize("suffix", [".wav", ".flac", ".mp3", ".opus"])
def test_16_bit_samples_are_written(tmp_path: Path, suffix: str) -> None:
    path, floats_CS = tmp_path / f"speech{suffix}", 1.5 * tone(44100, 0.3, 2)
    integers_CS, contents = to_int16(floats_CS), []
    for samples_CS in (integers_CS, to_float32(integers_CS), floats_CS):
        write_audio(path, samples_CS, 44100)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    if suffix in {".wav", ".flac"}:
        assert contents[0] == contents[2]
    if suffix == ".wav":
        write_audio(path, integers_CS, 44100, float32=True)
        assert np.array_equal(decoded(path).samples, to_float32(integers_CS))


def test_float_wav_keeps_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    samples_CS = np.array([[0.1, 1.7, -3.0, 1e-30], [0, 1, 2, 3]], np.float32)
    write_audio(path, samples_CS, 48000, float32=True)
    assert np.array_equal(decoded(path).samples, samples_CS)
    check_writable(path, float32=True)
    with pytest.raises(AudioFileError, match=r"only \.wav"):
        check_writable(tmp_path / "speech.flac", float32=True)
    with pytest.raises(AudioFileError, match=r"only \.wav"):
        write_audio(tmp_path / "speech.flac", samples_CS, 48000, float32=True)


@pytest.mark.parametrize(
    "suffix", [".wav", ".flac", ".mp3", ".opus", ".ogg", ".webm", ".m4a", ".aac"]
)
def test_same_samples_same_bytes_and_no_samples_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"speech{suffix}"
    contents = []
    for _ in range(2):
        write_audio(path, tone(48000, 0.3, 2), 48000)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    write_audio(path, np.zeros((2, 0), np.float32), 48000)
    assert path.exists()
    with pytest.raises(AudioFileError):
        decoded(path)


def test_loud_samples_are_clipped_before_a_lossy_encoder(tmp_path: Path) -> None:
    write_audio(tmp_path / "speech.m4a", 20 * tone(48000), 48000)
    assert np.abs(decoded(tmp_path / "speech.m4a").samples).max() < 2


def unknown_suffix(folder: Path) -> Path:
    return folder / "speech.xyz"


def no_folder(folder: Path) -> Path:
    return folder / "absent" / "speech.wav"


def a_folder(folder: Path) -> Path:
    (folder / "speech.wav").mkdir()
    return folder / "speech.wav"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "speech.wav")
    return folder / "speech.wav"


def below_a_file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "speech.wav"


def too_long(folder: Path) -> Path:
    return folder / ("a" * 300 + ".wav")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (unknown_suffix, "unknown suffix"),
        (no_folder, "does not exist; create it"),
        (a_folder, "it is a folder"),
        (a_pipe, "not a regular file"),
        (below_a_file, "does not exist"),
        (too_long, "too long"),
    ],
)
def test_what_cannot_be_written_is_said_before_and_at_writing(
    tmp_path: Path, make: Callable[[Path], Path], message: str
) -> None:
    path = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(AudioFileError, match=message):
        check_writable(path)
    with pytest.raises(AudioFileError, match=message):
        write_audio(path, tone(8000), 8000)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_permission_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_writable(tmp_path / "speech.wav")
    monkeypatch.setattr(
        os, "access", lambda *_: False
    )  # permissions do not bind a test that runs as root
    with pytest.raises(AudioFileError, match="no permission"):
        check_writable(tmp_path / "speech.wav")


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(b"old")

    def fail(_: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    wanted = AudioFileError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(wanted) as caught:
        write_audio(path, tone(8000), 8000)
    assert not isinstance(failure, OSError) or "No space left" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "speech.wav"
    previous = os.umask(0o027)
    try:
        write_audio(path, tone(8000), 8000)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.wav").symlink_to(tmp_path / "real.wav")
    write_audio(tmp_path / "link.wav", tone(8000), 8000)
    assert (tmp_path / "link.wav").is_symlink()
    assert decoded(tmp_path / "real.wav").sample_rate == 8000


@pytest.mark.parametrize(
    ("samples_CS", "suffix", "message"),
    [
        (np.array([[0.0, np.nan]], np.float32), ".wav", "NaN or infinity"),
        (np.zeros(100, np.float32), ".wav", "shape"),
        (np.zeros((100, 2), np.float32), ".wav", "shape"),
        (tone(48000, 0.1, 6), ".mp3", "refuses 6 channels at 48000 Hz"),
    ],
)
def test_samples_that_no_file_can_hold(
    tmp_path: Path, samples_CS: NDArray[np.float32], suffix: str, message: str
) -> None:
    with pytest.raises(AudioFileError, match=message):
        write_audio(tmp_path / f"speech{suffix}", samples_CS, 48000)
    assert not list(tmp_path.iterdir())
