"""Messages come off the wire as they were sent."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import pytest
import zmq

from hocket import errors
from hocket.config import ChunkPolicy, EngineConfig
from hocket.core import (
    MAX_SEED,
    AudioArray,
    AudioChunk,
    EngineInfo,
    PreparedReference,
    RequestEnd,
    SampleFormat,
    Sampling,
    SpeechRequest,
    Timings,
    VoiceTraits,
)
from hocket.worker.messages import (
    VERSION,
    Chunk,
    EngineSpec,
    OutMessage,
    Ready,
    Submit,
    WireError,
    chunk_message,
    decode_from_worker,
    decode_to_worker,
    encode,
    read_chunk,
    read_request,
    submit_message,
)

ALL_ERRORS = [
    error
    for _, error in inspect.getmembers(errors, inspect.isclass)
    if issubclass(error, errors.HocketError)
]


def wire(message: OutMessage) -> Sequence[zmq.Frame]:
    return [zmq.Frame(frame) for frame in message]


def test_request_travels_exactly() -> None:
    request = SpeechRequest(
        text="Ein Satz, 一个句子, 👩‍👩‍👧, a\u0301, \ufeff and \t tabs\n",
        language="German",
        instruction="leise",
        quality="high",
        sound_event="rain",
        ambient_sound="café",
        tokens=7,
        reference=AudioArray(np.zeros((1, 1), np.float32), 8000),
        reference_text="Worte",
        join="",
        sampling=Sampling(
            temperature=0.1 + 0.2, top_p=1e-9, top_k=0, repetition_penalty=1.1, stop_temperature=0.3
        ),
        seed=MAX_SEED,
        max_frames=1_000_000,
        min_frames=3,
    )
    samples = np.random.default_rng(0).normal(size=(3, 1000)).astype(np.float32)
    samples[0, :4] = [-0.0, math.inf, math.nan, 1e-45]
    sent = submit_message(
        "id", request, [PreparedReference(samples, 44100)], priority=-3, streaming=False
    )
    header, *frames = wire(sent)
    submit = decode_to_worker(header)
    assert isinstance(submit, Submit)
    assert (submit.request_id, submit.priority, submit.streaming) == ("id", -3, False)
    got = read_request(submit, frames)
    assert got.model_dump(exclude={"reference"}) == request.model_dump(exclude={"reference"})
    (reference,) = got.references
    assert isinstance(reference, PreparedReference)
    assert reference.sample_rate == 44100
    assert (reference.samples.shape, reference.samples.tobytes()) == (
        samples.shape,
        samples.tobytes(),
    )


def test_defaults_and_several_references() -> None:
    codes = np.arange(24, dtype=np.int64).reshape(2, 12).T  # not contiguous
    audio = PreparedReference(np.arange(8, dtype=np.float32).reshape(4, 2).T, 16000)
    request = SpeechRequest(text="x", reference=[codes, audio])
    header, *frames = wire(submit_message("i", request, [codes, audio], priority=0, streaming=True))
    submit = decode_to_worker(header)
    assert isinstance(submit, Submit)
    got = read_request(submit, frames)
    assert got.sampling == Sampling()
    assert got.seed is None
    first, second = got.references
    assert isinstance(first, np.ndarray)
    assert isinstance(second, PreparedReference)
    np.testing.assert_array_equal(first, codes)
    np.testing.assert_array_equal(second.samples, audio.samples)
    assert read_request(*_submitted(SpeechRequest(text="y"))).references == ()


def _submitted(request: SpeechRequest) -> tuple[Submit, Sequence[zmq.Frame]]:
    header, *frames = wire(submit_message("i", request, [], priority=0, streaming=True))
    submit = decode_to_worker(header)
    assert isinstance(submit, Submit)
    return submit, frames


@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.parametrize("frames", [0, 1, 15])
def test_chunk_travels_exactly(frames: int, dtype: SampleFormat) -> None:
    random = np.random.default_rng(frames)
    samples = random.normal(scale=1000, size=(2, 2 * frames * 24)).astype(dtype)[:, ::2]
    chunk = AudioChunk("engine's", samples, 300, random.integers(0, 1024, (frames, 12)))
    header, *rest = wire(chunk_message("front end's", chunk))
    message = decode_from_worker(header)
    assert isinstance(message, Chunk)
    got = read_chunk(message, rest)
    assert (got.request_id, got.sample_rate, got.end) == ("front end's", 300, None)
    assert (got.samples.shape, got.samples.dtype.name) == (samples.shape, dtype)
    assert got.samples.tobytes() == samples.tobytes()
    assert len(rest[0].bytes) == samples.nbytes
    assert got.codes.dtype == np.int64
    assert got.codes.shape == (frames, 12)
    np.testing.assert_array_equal(got.codes, chunk.codes)


@pytest.mark.parametrize("error", [None, *ALL_ERRORS])
def test_end_travels_with_its_error(error: type[errors.HocketError] | None) -> None:
    timings = Timings(0.1, 0.2, math.nan, 1e9, 0.0)
    problem = None if error is None else error("it is so; do that", param="text")
    end = RequestEnd(
        "stop" if error is None else "error", MAX_SEED, timings, problem, prompt_rows=77
    )
    chunk = AudioChunk("a", np.zeros((2, 0), np.float32), 300, np.zeros((0, 12), np.int64), end)
    header, *rest = wire(chunk_message("b", chunk))
    message = decode_from_worker(header)
    assert isinstance(message, Chunk)
    got = read_chunk(message, rest).end
    assert got is not None
    assert (got.finish_reason, got.seed, got.prompt_rows) == (end.finish_reason, end.seed, 77)
    np.testing.assert_equal(astuple(got.timings), astuple(timings))
    assert type(got.error) is (type(None) if error is None else error)
    if got.error is not None:
        assert (str(got.error), got.error.param) == ("it is so; do that", "text")


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_every_error_has_its_place_in_the_table(kind: type[errors.HocketError]) -> None:
    assert type(WireError.of(kind("x")).error()) is kind


def test_a_message_that_names_fields_travels_as_such() -> None:
    words = errors.Template("{param} is {asked} of {limit:g}: {max_frames}", asked="{x}", limit=2.0)
    error = WireError.of(errors.InvalidRequestError(words, param="text")).error()
    assert isinstance(error, errors.InvalidRequestError)
    assert str(error) == "text is {x} of 2: max_frames"
    assert str(error.renamed({"text": "input", "max_frames": "most"})) == "input is {x} of 2: most"


def test_what_an_engine_is_keeps_its_bytes() -> None:
    """The fields of `EngineInfo` follow the pid: changing a byte here means raising `VERSION`."""
    traits = VoiceTraits(task_type="Base", hears_recordings=True, levels_references=False)
    info = EngineInfo(
        model="m",
        sample_rate=48_000,
        channels=2,
        frame_seconds=0.08,
        rows=4,
        max_waiting=9,
        context_rows=1024,
        codec_id="id",
        reference_id="how",
        reference_min_seconds=0.5,
        reference_max_seconds=60.0,
        reference_min_rms=1e-4,
        reference_max_file_bytes=2**20,
        text_front="en",
        segment_characters=300,
        voice_traits=traits,
        samples="int16",
    )
    header = encode(Ready(7, info))
    assert header.hex() == (
        "dc0013a5726561647907a16dcdbb8002cb3fb47ae147ae147b0409cd0400a26964a3686f77cb3fe00000"
        "00000000cb404e000000000000cb3f1a36e2eb1c432dce00100000a2656ecd012c83a97461736b5f7479"
        "7065a442617365b068656172735f7265636f7264696e6773c3b16c6576656c735f7265666572656e6365"
        "73c2a5696e743136"
    )
    assert VERSION == 9
    assert decode_from_worker(zmq.Frame(header)) == Ready(7, info)


def test_spec_travels() -> None:
    spec = EngineSpec(
        model="m", config=EngineConfig(rows=3, chunks=ChunkPolicy(ramp_frames=(3, 5)), strict=True)
    )
    assert EngineSpec.model_validate_json(spec.model_dump_json()) == spec
