"""Messages between front ends and a worker: one version, no pickle, large arrays in frames of their
own.

A message is a list of frames: a MessagePack header, then raw arrays. Samples keep the engine's
format, float32 or int16, bit for bit. Recordings are sent prepared: front ends read the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, cast, get_type_hints

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from hocket import errors
from hocket.checkpoint.voices import BuiltinVoice
from hocket.config import EngineConfig, NonNegativeFloat, PositiveInt
from hocket.core import (
    AudioChunk,
    EngineInfo,
    FinishReason,
    MemoryPlan,
    PreparedReference,
    RequestEnd,
    SampleFormat,
    Sampling,
    SpeechRequest,
    StrictModel,
    Timings,
)
from hocket.engine.stats import EngineStats

#: Protocol version, equal at both ends, which come from one installation; raised when the bytes of
#: what could be said before change.
VERSION = 9
#: Interval between a worker's heartbeats.
HEARTBEAT_SECONDS = 0.5
#: Messages that may queue at either end. 256 streams at full speed make about 1,500 a second.
QUEUE_MESSAGES = 2048

#: The frames of a message to send.
OutMessage = list[bytes | memoryview]


class EngineSpec(StrictModel):
    """A worker's arguments: those of `Engine.load`, its neighbours and how it exits."""

    model: str | None = None
    codec: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    config: EngineConfig = EngineConfig()
    #: GPUs that the machine's workers are spread over, from `cuda:0` on; None: all are on `device`.
    gpus: PositiveInt | None = None
    #: Workers on this machine, which share its processor cores.
    workers: PositiveInt = 1
    #: Time for open requests after SIGTERM.
    drain_seconds: NonNegativeFloat = 30.0


# ---- errors

_ERRORS: dict[str, type[errors.HocketError]] = {
    "HocketError": errors.HocketError,
    "InvalidRequestError": errors.InvalidRequestError,
    "ReferenceAudioError": errors.ReferenceAudioError,
    "ConfigError": errors.ConfigError,
    "CheckpointError": errors.CheckpointError,
    "AudioFileError": errors.AudioFileError,
    "CapacityError": errors.CapacityError,
    "EngineStoppedError": errors.EngineStoppedError,
}


class WireTemplate(msgspec.Struct, frozen=True, array_like=True):
    """`errors.Template`: front ends put their clients' names of fields into it."""

    text: str
    values: dict[str, str | int | float]


class WireError(msgspec.Struct, frozen=True, array_like=True):
    """A HocketError on the wire: class, message, parameter."""

    kind: str
    message: str | WireTemplate
    param: str | None

    @classmethod
    def of(cls, error: errors.HocketError) -> WireError:
        kind = type(error).__name__
        assert kind in _ERRORS, f"{kind} is missing from the table of errors that can travel"
        message = error.message
        if isinstance(message, errors.Template):
            return cls(kind, WireTemplate(message.text, dict(message.values)), error.param)
        return cls(kind, message, error.param)

    def error(self) -> errors.HocketError:
        """The error again, of the same class."""
        message = self.message
        if isinstance(message, WireTemplate):
            return _ERRORS[self.kind](
                errors.Template(message.text, **message.values), param=self.param
            )
        return _ERRORS[self.kind](message, param=self.param)


# ---- from a front end to the worker


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message. `Ready` answers it, or `Stopped` when the versions differ."""

    version: int


class SentReference(msgspec.Struct, frozen=True, array_like=True):
    """Describes a reference's frame: float32 samples of this shape at `sample_rate`, or int64 codes
    (rate None).
    """

    shape: tuple[int, ...]
    sample_rate: int | None


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """A request, made by `submit_message` and read by `read_request`. One frame per reference
    follows.
    """

    #: Unique among the open requests of its front end.
    request_id: str
    priority: int
    streaming: bool
    #: Arguments of `SpeechRequest` and of its `Sampling` that differ from the defaults.
    fields: dict[str, Any]
    sampling: dict[str, Any]
    references: list[SentReference]


class Convert(msgspec.Struct, frozen=True, array_like=True, tag="convert"):
    """Samples to codes, or codes to audio; made by `convert_message` and read by `read_content`."""

    #: Shares the ids of requests; its chunks arrive as those of speech do.
    request_id: str
    content: SentReference
    #: Codebooks to encode with; None: all.
    n_codebooks: int | None


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Cancel a request; its last chunk says so. No effect on a finished one."""

    request_id: str


class AskStats(msgspec.Struct, frozen=True, array_like=True, tag="stats?"):
    """`Stats` answers it."""


# ---- from the worker to a front end


class Planned(msgspec.Struct, frozen=True, array_like=True, tag="planned"):
    """The worker is about to load the engine: configurations, devices and memory have been
    checked.
    """

    memory: MemoryPlan
    voices: dict[str, BuiltinVoice]


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is loaded: its process and its info."""

    pid: int
    info: EngineInfo


#: `Ready` on the wire: the pid, then the fields of `EngineInfo` in their order.
_FlatReady = msgspec.defstruct(
    "_FlatReady",
    [("pid", int), *get_type_hints(EngineInfo).items()],
    frozen=True,
    array_like=True,
    tag="ready",
)
_info_values = attrgetter(*(field.name for field in fields(EngineInfo)))


class End(msgspec.Struct, frozen=True, array_like=True):
    """A `RequestEnd` on the wire."""

    finish_reason: FinishReason
    seed: int
    timings: Timings
    error: WireError | None
    prompt_rows: int

    @classmethod
    def of(cls, end: RequestEnd) -> End:
        error = None if end.error is None else WireError.of(end.error)
        return cls(end.finish_reason, end.seed, end.timings, error, end.prompt_rows)

    def request_end(self) -> RequestEnd:
        """The end again."""
        error = None if self.error is None else self.error.error()
        return RequestEnd(self.finish_reason, self.seed, self.timings, error, self.prompt_rows)


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag="chunk"):
    """An `AudioChunk`. Its samples [C, S] follow as a frame; its codes [F, N], 100 bytes a frame,
    are inline.
    """

    request_id: str
    sample_rate: int
    samples_shape: tuple[int, int]
    samples_format: SampleFormat
    codes_shape: tuple[int, int]
    codes: bytes
    end: End | None


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag="rejected"):
    """The request was refused; no chunk follows."""

    request_id: str
    error: WireError


class Stats(msgspec.Struct, frozen=True, array_like=True, tag="stats"):
    """Counters of the engine and of the worker."""

    engine: EngineStats
    #: Front ends connected, and requests open for them.
    front_ends: int
    open_requests: int


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """The worker's loop is alive."""

    #: It accepts no new requests and is about to exit.
    draining: bool
    #: Open requests of the other front ends, and how many others are connected.
    other_requests: int
    other_front_ends: int


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag="stopped"):
    """The worker has dropped this front end: all its open requests ended with `error`."""

    error: WireError


ToWorker = Hello | Submit | Convert | Cancel | AskStats
FromWorker = Ready | Chunk | Rejected | Stats | Heartbeat | Stopped

_encoder = msgspec.msgpack.Encoder()
_report = msgspec.json.Decoder(
    Planned | Stopped, dec_hook=lambda _, codes: np.array(codes, np.int64)
)
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(_FlatReady | Chunk | Rejected | Stats | Heartbeat | Stopped)


def encode_report(report: Planned | Stopped) -> bytes:
    """A line on a worker's standard output: its plan, or the error that ended it."""
    return msgspec.json.encode(report, enc_hook=np.ndarray.tolist) + b"\n"


def decode_report(line: bytes) -> Planned | Stopped:
    """Raises msgspec.MsgspecError."""
    return _report.decode(line)


def encode(message: ToWorker | FromWorker) -> bytes:
    """Encode the header frame."""
    if isinstance(message, Ready):
        return _encoder.encode(_FlatReady(message.pid, *_info_values(message.info)))
    return _encoder.encode(message)


def decode_to_worker(header: zmq.Frame) -> ToWorker:
    """Raises msgspec.MsgspecError."""
    return _to_worker.decode(header.buffer)


def decode_from_worker(header: zmq.Frame) -> FromWorker:
    """Raises msgspec.MsgspecError."""
    message = _from_worker.decode(header.buffer)
    if isinstance(message, _FlatReady):
        pid, *info = msgspec.structs.astuple(message)
        return Ready(pid, EngineInfo(*info))
    return message


# ---- requests


def submit_message(
    request_id: str,
    request: SpeechRequest,
    references: Sequence[PreparedReference | NDArray[np.int64]],
    *,
    priority: int,
    streaming: bool,
) -> OutMessage:
    """`request` with `references` (float32 samples, int64 codes) in place of its own."""
    sent: list[SentReference] = []
    arrays: OutMessage = []
    for reference in references:
        entry, array = _sent(reference)
        sent.append(entry)
        arrays.append(array)
    header = Submit(
        request_id,
        priority,
        streaming,
        request.model_dump(exclude={"reference", "sampling"}, exclude_defaults=True),
        request.sampling.model_dump(exclude_defaults=True),
        sent,
    )
    return [encode(header), *arrays]


def read_request(header: Submit, frames: Sequence[zmq.Frame]) -> SpeechRequest:
    """The request that `submit_message` was given; `frames` follow the header."""
    references = [
        _received(sent, frame) for sent, frame in zip(header.references, frames, strict=True)
    ]
    return SpeechRequest(
        **header.fields, sampling=Sampling(**header.sampling), reference=references or None
    )


def convert_message(
    request_id: str, content: PreparedReference | NDArray[np.int64], n_codebooks: int | None
) -> OutMessage:
    """The message for a recording to encode, or codes to decode."""
    entry, array = _sent(content)
    return [encode(Convert(request_id, entry, n_codebooks)), array]


def read_content(
    header: Convert, frames: Sequence[zmq.Frame]
) -> PreparedReference | NDArray[np.int64]:
    """The content that `convert_message` was given; `frames` follow the header."""
    (frame,) = frames
    return _received(header.content, frame)


def _sent(reference: PreparedReference | NDArray[np.int64]) -> tuple[SentReference, memoryview]:
    if isinstance(reference, PreparedReference):
        rate, array = reference.sample_rate, reference.samples
        return SentReference(array.shape, rate), np.ascontiguousarray(array).data
    return SentReference(reference.shape, None), np.ascontiguousarray(reference).data


def _received(sent: SentReference, frame: zmq.Frame) -> PreparedReference | NDArray[np.int64]:
    if sent.sample_rate is None:
        return np.frombuffer(frame.buffer, np.int64).reshape(sent.shape)
    return PreparedReference(
        np.frombuffer(frame.buffer, np.float32).reshape(sent.shape), sent.sample_rate
    )


# ---- audio


def chunk_message(request_id: str, chunk: AudioChunk) -> OutMessage:
    """The message for `chunk`, under the front end's own `request_id`."""
    end = chunk.end
    samples = np.ascontiguousarray(chunk.samples)
    header = Chunk(
        request_id,
        chunk.sample_rate,
        samples.shape,
        cast(SampleFormat, samples.dtype.name),
        chunk.codes.shape,
        chunk.codes.tobytes(),
        None if end is None else End.of(end),
    )
    return [encode(header), samples.data]


def read_chunk(header: Chunk, frames: Sequence[zmq.Frame]) -> AudioChunk:
    """The chunk that `chunk_message` was given; `frames` follow the header."""
    (frame,) = frames
    return AudioChunk(
        header.request_id,
        np.frombuffer(frame.buffer, header.samples_format).reshape(header.samples_shape),
        header.sample_rate,
        np.frombuffer(header.codes, np.int64).reshape(header.codes_shape),
        None if header.end is None else header.end.request_end(),
    )
