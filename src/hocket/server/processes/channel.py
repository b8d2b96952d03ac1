"""Messages between an HTTP process and its parent, over a pair of sockets that nothing else can
open.

A message is its length (4 bytes, big endian) and MessagePack. The end of either process closes the
pair, which the other hears at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec
import numpy as np

from hocket.audio.reference_cache import Key
from hocket.checkpoint.voices import BuiltinVoice
from hocket.core import EncodedReference
from hocket.server.errors import ApiError
from hocket.worker.messages import WireError

_LENGTH_BYTES = 4

# ---- from the parent


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """The first message: all that an HTTP process has to know."""

    #: `ServerSettings` as JSON. API keys are in it, so it is no command line argument.
    settings: str
    model_name: str
    voices_folder: str
    voices: dict[str, BuiltinVoice]
    #: Of the engines' workers.
    endpoints: list[str]
    #: `ReferenceCacheConfig` as JSON, of the process' own cache.
    reference_cache: str
    #: Where all HTTP processes count (`Metrics`).
    metrics_folder: str
    #: Of this process, from 0 on.
    number: int


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """Answers `Check` and `Take`: None is yes."""

    question_id: int
    refusal: Refusal | None


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """An `ApiError` of admission."""

    status: int
    message: str
    code: str
    retry_after_seconds: int | None

    @classmethod
    def of(cls, error: ApiError) -> Refusal:
        return cls(error.http_status, str(error), error.code, error.retry_after_seconds)

    def error(self) -> ApiError:
        """The error again."""
        return ApiError(
            self.status,
            self.message,
            code=self.code,
            retry_after_seconds=self.retry_after_seconds,
        )


class Counts(msgspec.Struct, frozen=True, array_like=True, tag="counts"):
    """Answers `AskCounts` with the fields of `SlotCounts`."""

    question_id: int
    open: int
    refused: int


class SharedReference(msgspec.Struct, frozen=True, array_like=True):
    """An `EncodedReference`: int64 codes of this shape, a float32 vector."""

    shape: tuple[int, ...]
    codes: bytes | None
    voice: bytes | None

    @classmethod
    def of(cls, encoded: EncodedReference) -> SharedReference:
        codes, voice = encoded.codes, encoded.voice
        return cls(
            () if codes is None else codes.shape,
            None if codes is None else codes.astype(np.int64, copy=False).tobytes(),
            None if voice is None else voice.astype(np.float32, copy=False).tobytes(),
        )

    def encoded(self) -> EncodedReference:
        """The reference again."""
        codes, voice = self.codes, self.voice
        return EncodedReference(
            None if codes is None else np.frombuffer(codes, np.int64).reshape(self.shape),
            None if voice is None else np.frombuffer(voice, np.float32),
        )


class Recalled(msgspec.Struct, frozen=True, array_like=True, tag="recalled"):
    """Answers `Recall`; None: no process has prepared that recording, or it is forgotten."""

    question_id: int
    reference: SharedReference | None


class Drain(msgspec.Struct, frozen=True, array_like=True, tag="drain"):
    """New requests are refused from now on."""


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """Close the connections and exit."""


# ---- from an HTTP process


class Check(msgspec.Struct, frozen=True, array_like=True, tag="check"):
    """Would `Take` be refused?"""

    question_id: int
    caller: str
    rows: int


class Take(msgspec.Struct, frozen=True, array_like=True, tag="take"):
    """Take a slot, whose id is the question's."""

    question_id: int
    caller: str
    rows: int


class GiveBack(msgspec.Struct, frozen=True, array_like=True, tag="give back"):
    """Free a slot; no effect if it was refused."""

    slot_id: int


class AskCounts(msgspec.Struct, frozen=True, array_like=True, tag="counts?"):
    """`Counts` answers it."""

    question_id: int


class Recall(msgspec.Struct, frozen=True, array_like=True, tag="recall"):
    """What is known of the recording with this key? `Recalled` answers it."""

    question_id: int
    key: Key


class Remember(msgspec.Struct, frozen=True, array_like=True, tag="remember"):
    """A recording has been prepared."""

    key: Key
    reference: SharedReference


class Serving(msgspec.Struct, frozen=True, array_like=True, tag="serving"):
    """This process takes connections."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """This process reaches its engines."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """This process could not start and is about to exit."""

    error: WireError


FromParent = Start | Answer | Counts | Recalled | Drain | Close
ToParent = Check | Take | GiveBack | AskCounts | Recall | Remember | Serving | Ready | Failed

_encoder = msgspec.msgpack.Encoder(enc_hook=np.ndarray.tolist)
_from_parent = msgspec.msgpack.Decoder(
    FromParent, dec_hook=lambda _, codes: np.array(codes, np.int64)
)
_to_parent = msgspec.msgpack.Decoder(ToParent)


Received = TypeVar("Received")


class Channel(asyncio.Protocol, Generic[Received]):
    """One end of the pair, on the running event loop."""

    def __init__(
        self,
        decode: Callable[[bytes], Received],
        on_message: Callable[[Received], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._decode, self._on_message, self._on_lost = decode, on_message, on_lost
        self._unread = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, message: FromParent | ToParent) -> None:
        """Send; no effect once the other process has ended."""
        assert self._transport is not None
        if not self._transport.is_closing():
            content = _encoder.encode(message)
            self._transport.write(len(content).to_bytes(_LENGTH_BYTES, "big") + content)

    def close(self) -> None:
        """Close this end; `on_lost` follows."""
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has another class.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._unread[:_LENGTH_BYTES], "big")
            if len(self._unread) < end:
                return
            message = self._decode(bytes(self._unread[_LENGTH_BYTES:end]))
            del self._unread[:end]
            self._on_message(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost()


async def channel_to_process(
    end: socket.socket, on_message: Callable[[ToParent], None], on_lost: Callable[[], None]
) -> Channel[ToParent]:
    """The parent's end."""
    channel = Channel(_to_parent.decode, on_message, on_lost)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)
    return channel


async def channel_to_parent(
    end: socket.socket, on_message: Callable[[FromParent], None], on_lost: Callable[[], None]
) -> Channel[FromParent]:
    """The HTTP process' end."""
    channel = Channel(_from_parent.decode, on_message, on_lost)
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=end)
    return channel
