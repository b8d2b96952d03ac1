"""Messages between front ends and a worker: one version, no pickle, large arrays in frames of their
own.

A message is a list of frames: a MessagePack header, then raw arrays. Samples keep the engine's
format, float32 or int16, bit for bit. A request carries no samples: a front end has a recording
encoded once (`Prepare`) and sends what the model reads from it (`EncodedReference`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, cast, get_type_hints

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from hocket import errors
from hocket.checkpoint.voices import BuiltinVoice, VoiceNotFoundError
from hocket.config import EngineConfig, NonNegativeFloat, PositiveInt
from hocket.core import (
    AudioChunk,
    EncodedReference,
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
VERSION = 10
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

#: Classes that both ends know; another one travels as the nearest of its bases.
_ERRORS: dict[str, type[errors.HocketError]] = {
    known.__name__: known
    for known in (
        errors.HocketError,
        errors.InvalidRequestError,
        errors.ReferenceAudioError,
        VoiceNotFoundError,
        errors.ConfigError,
        errors.CheckpointError,
        errors.AudioFileError,
        errors.CapacityError,
        errors.EngineStoppedError,
    )
}
_INTEGERS = range(-(2**63), 2**63)


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
        """The form of any error; it must not fail, because an error is all that is left to say."""
        kind = next(base.__name__ for base in type(error).__mro__ if base in _ERRORS.values())
        param = None if error.param is None else _encodable(error.param)
        message = error.message
        if isinstance(message, errors.Template):
            values = {name: _plain(value) for name, value in message.values.items()}
            plain = {name: value for name, value in values.items() if value is not None}
            if len(plain) == len(values):
                return cls(kind, WireTemplate(_encodable(message.text), plain), param)
        return cls(kind, _encodable(str(error)), param)

    def error(self) -> errors.HocketError:
        """The error again, of the same class."""
        kind, message = _ERRORS.get(self.kind, errors.HocketError), self.message
        if isinstance(message, WireTemplate):
            return kind(errors.Template(message.text, **message.values), param=self.param)
        return kind(message, param=self.param)


def _encodable(text: str) -> str:
    """`text` with lone surrogates written out: UTF-8 has none."""
    return text.encode(errors="backslashreplace").decode()


def _plain(value: object) -> str | int | float | None:
    """A value of a template as MessagePack has it, of the same kind because it may be formatted;
    None: it has no such value.
    """
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        # A range would look for a number of another type one by one.
        return int(value) if int(value) in _INTEGERS else None
    return None


# ---- from a front end to the worker


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message. `Ready` answers it, or `Stopped` when the versions differ."""

    version: int


class SentContent(msgspec.Struct, frozen=True, array_like=True):
    """Describes a frame: float32 samples of this shape at `sample_rate`, or int64 codes (rate
    None).
    """

    shape: tuple[int, ...]
    sample_rate: int | None


class SentReference(msgspec.Struct, frozen=True, array_like=True):
    """Describes the frames of an `EncodedReference`: int64 codes [F, N], then a float32 vector [D];
    None: there is no such frame.
    """

    codes: tuple[int, ...] | None
    voice: tuple[int, ...] | None


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """A request, made by `submit_message` and read by `read_request`. The frames of its references
    follow.
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
    content: SentContent
    #: Codebooks to encode with; None: all.
    n_codebooks: int | None


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """A recording of which the engine reads all that its model can read; made by `prepare_message`
    and read by `read_content`. `Encoded` or `Rejected` answers it.
    """

    #: Shares the ids of requests.
    request_id: str
    content: SentContent


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Cancel a request; its last chunk says so. A cancelled `Prepare` has no answer. No effect on
    a finished one.
    """

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


class Encoded(msgspec.Struct, frozen=True, array_like=True, tag="encoded"):
    """What was read from the recording of a `Prepare`; its frames follow. Made by
    `encoded_message`, read by `read_encoded`.
    """

    request_id: str
    reference: SentReference


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag="rejected"):
    """The request was refused; no chunk follows. Or a recording could not be encoded."""

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


ToWorker = Hello | Submit | Convert | Prepare | Cancel | AskStats
FromWorker = Ready | Chunk | Encoded | Rejected | Stats | Heartbeat | Stopped

_encoder = msgspec.msgpack.Encoder()
_report = msgspec.json.Decoder(
    Planned | Stopped, dec_hook=lambda _, codes: np.array(codes, np.int64)
)
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(
    _FlatReady | Chunk | Encoded | Rejected | Stats | Heartbeat | Stopped
)


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
    references: Sequence[EncodedReference],
    *,
    priority: int,
    streaming: bool,
) -> OutMessage:
    """`request` with `references` in place of its own."""
    header = Submit(
        request_id,
        priority,
        streaming,
        request.model_dump(exclude={"reference", "sampling"}, exclude_defaults=True),
        request.sampling.model_dump(exclude_defaults=True),
        [_sent_reference(reference) for reference in references],
    )
    return [encode(header), *(array for one in references for array in _arrays(one))]


def read_request(header: Submit, frames: Sequence[zmq.Frame]) -> SpeechRequest:
    """The request that `submit_message` was given; `frames` follow the header."""
    left = iter(frames)
    references = [_received_reference(sent, left) for sent in header.references]
    return SpeechRequest(
        **header.fields, sampling=Sampling(**header.sampling), reference=references or None
    )


def prepare_message(request_id: str, recording: PreparedReference) -> OutMessage:
    """The message for a recording to be read."""
    entry, array = _sent(recording)
    return [encode(Prepare(request_id, entry)), array]


def encoded_message(request_id: str, encoded: EncodedReference) -> OutMessage:
    """The answer to a `Prepare`."""
    return [encode(Encoded(request_id, _sent_reference(encoded))), *_arrays(encoded)]


def read_encoded(header: Encoded, frames: Sequence[zmq.Frame]) -> EncodedReference:
    """The reference that `encoded_message` was given; `frames` follow the header."""
    return _received_reference(header.reference, iter(frames))


def convert_message(
    request_id: str, content: PreparedReference | NDArray[np.int64], n_codebooks: int | None
) -> OutMessage:
    """The message for a recording to encode, or codes to decode."""
    entry, array = _sent(content)
    return [encode(Convert(request_id, entry, n_codebooks)), array]


def read_content(
    header: Convert | Prepare, frames: Sequence[zmq.Frame]
) -> PreparedReference | NDArray[np.int64]:
    """The content that the message was made of; `frames` follow the header."""
    (frame,) = frames
    return _received(header.content, frame)


def _sent_reference(encoded: EncodedReference) -> SentReference:
    codes, voice = encoded.codes, encoded.voice
    return SentReference(
        None if codes is None else codes.shape, None if voice is None else voice.shape
    )


def _arrays(encoded: EncodedReference) -> OutMessage:
    arrays: OutMessage = []
    if encoded.codes is not None:
        arrays.append(np.ascontiguousarray(encoded.codes, np.int64).data)
    if encoded.voice is not None:
        arrays.append(np.ascontiguousarray(encoded.voice, np.float32).data)
    return arrays


def _received_reference(sent: SentReference, frames: Iterator[zmq.Frame]) -> EncodedReference:
    codes = voice = None
    if sent.codes is not None:
        codes = np.frombuffer(next(frames).buffer, np.int64).reshape(sent.codes)
    if sent.voice is not None:
        voice = np.frombuffer(next(frames).buffer, np.float32).reshape(sent.voice)
    return EncodedReference(codes, voice)


def _sent(content: PreparedReference | NDArray[np.int64]) -> tuple[SentContent, memoryview]:
    if isinstance(content, PreparedReference):
        rate, array = content.sample_rate, content.samples
        return SentContent(array.shape, rate), np.ascontiguousarray(array).data
    return SentContent(content.shape, None), np.ascontiguousarray(content).data


def _received(sent: SentContent, frame: zmq.Frame) -> PreparedReference | NDArray[np.int64]:
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
