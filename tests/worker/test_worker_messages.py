"""Messages come off the wire as they were sent."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

import hocket
from hocket import errors
from hocket.checkpoint.voices import VoiceNotFoundError
from hocket.config import ChunkPolicy, EngineConfig
from hocket.core import (
    MAX_SEED,
    AudioArray,
    AudioChunk,
    EncodedReference,
    EngineInfo,
    PreparedReference,
    RequestEnd,
    SampleFormat,
    Sampling,
    SpeechRequest,
    Timings,
    VoiceTraits,
)
from hocket.server.errors import ApiError
from hocket.worker.messages import (
    VERSION,
    Chunk,
    Encoded,
    EngineSpec,
    OutMessage,
    Prepare,
    Ready,
    Submit,
    WireError,
    chunk_message,
    decode_from_worker,
    decode_to_worker,
    encode,
    encoded_message,
    prepare_message,
    read_chunk,
    read_content,
    read_encoded,
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
    codes, voice = np.arange(24).reshape(2, 12), samples[0]
    sent = submit_message(
        "id", request, [EncodedReference(codes, voice)], priority=-3, streaming=False
    )
    header, *frames = wire(sent)
    submit = decode_to_worker(header)
    assert isinstance(submit, Submit)
    assert (submit.request_id, submit.priority, submit.streaming) == ("id", -3, False)
    got = read_request(submit, frames)
    assert got.model_dump(exclude={"reference"}) == request.model_dump(exclude={"reference"})
    (reference,) = got.references
    assert isinstance(reference, EncodedReference)
    assert reference.codes is not None
    assert np.array_equal(reference.codes, codes)
    assert reference.voice is not None
    assert reference.voice.tobytes() == voice.tobytes()


def test_a_recording_travels_exactly() -> None:
    samples = np.random.default_rng(0).normal(size=(3, 1000)).astype(np.float32)
    samples[0, :4] = [-0.0, math.inf, math.nan, 1e-45]
    header, *frames = wire(prepare_message("id", PreparedReference(samples.T[::2].T, 44100)))
    message = decode_to_worker(header)
    assert isinstance(message, Prepare)
    got = read_content(message, frames)
    assert isinstance(got, PreparedReference)
    assert (message.request_id, got.sample_rate) == ("id", 44100)
    assert got.samples.tobytes() == samples[:, ::2].tobytes()
    for encoded in (
        EncodedReference(np.arange(24).reshape(2, 12).T, samples[0]),
        EncodedReference(np.arange(2).reshape(2, 1)),
        EncodedReference(None, samples[1, ::2]),
    ):
        header, *frames = wire(encoded_message("id", encoded))
        answer = decode_from_worker(header)
        assert isinstance(answer, Encoded)
        again = read_encoded(answer, frames)
        for one, other in ((again.codes, encoded.codes), (again.voice, encoded.voice)):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())


def test_defaults_and_several_references() -> None:
    codes = np.arange(24, dtype=np.int64).reshape(2, 12).T  # not contiguous
    voice = np.arange(8, dtype=np.float32)
    references = [EncodedReference(codes), EncodedReference(None, voice), EncodedReference(codes)]
    request = SpeechRequest(text="x", reference=b"its own")
    header, *frames = wire(submit_message("i", request, references, priority=0, streaming=True))
    assert len(frames) == 3
    submit = decode_to_worker(header)
    assert isinstance(submit, Submit)
    got = read_request(submit, frames)
    assert got.sampling == Sampling()
    assert got.seed is None
    first, second, third = got.references
    for one in (first, third):
        assert isinstance(one, EncodedReference)
        assert one.codes is not None
        assert one.voice is None
        np.testing.assert_array_equal(one.codes, codes)
    assert isinstance(second, EncodedReference)
    assert second.codes is None
    assert second.voice is not None
    np.testing.assert_array_equal(second.voice, voice)
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


def subclasses(kind: type[errors.HocketError]) -> Iterator[type[errors.HocketError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from subclasses(subclass)


def test_every_error_travels() -> None:
    """Those that both ends know as themselves, others as the nearest of their bases."""
    for module in pkgutil.walk_packages(hocket.__path__, "hocket."):
        if not module.name.startswith(("hocket.kernels.gpu", "hocket.__main__")):
            importlib.import_module(module.name)

    class OfAPlugin(errors.CapacityError):
        pass

    found = set(subclasses(errors.HocketError))
    known = {VoiceNotFoundError, *ALL_ERRORS}
    assert {OfAPlugin, ApiError, *known} <= found
    for kind in found:
        error = kind.__new__(kind)
        errors.HocketError.__init__(error, "it is so; do that", param="text")
        for travelled in (
            WireError.of(error).error(),
            msgspec.msgpack.decode(
                msgspec.msgpack.encode(WireError.of(error)), type=WireError
            ).error(),
        ):
            assert issubclass(kind, type(travelled))
            assert type(travelled) is kind or kind not in known
            assert (str(travelled), travelled.param) == ("it is so; do that", "text")
    assert type(WireError.of(OfAPlugin("x")).error()) is errors.CapacityError


@pytest.mark.parametrize(
    "value", [2**80, np.float64(1.5), np.int64(3), True, None, "\ud800", math.nan, [1], b"x"]
)
def test_any_value_of_a_message_travels(value: Any) -> None:
    words = errors.Template("it is {asked}; {text} says more", asked=value)
    error = errors.InvalidRequestError(words, param="\ud800")
    sent = msgspec.msgpack.encode(WireError.of(error))
    got = msgspec.msgpack.decode(sent, type=WireError).error()
    assert isinstance(got, errors.InvalidRequestError)
    assert str(got) == str(error).encode(errors="backslashreplace").decode()
    number = errors.Template("it is {asked:g}", asked=np.float64(0.25))
    assert str(WireError.of(errors.HocketError(number)).error()) == "it is 0.25"


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
    assert VERSION == 10
    assert decode_from_worker(zmq.Frame(header)) == Ready(7, info)


def test_spec_travels() -> None:
    spec = EngineSpec(
        model="m", config=EngineConfig(rows=3, chunks=ChunkPolicy(ramp_frames=(3, 5)), strict=True)
    )
    assert EngineSpec.model_validate_json(spec.model_dump_json()) == spec
