"""The client's messages on the WebSocket (docs/websocket.md)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hocket.core import MAX_SEED
from hocket.errors import InvalidRequestError, Template
from hocket.server.schemas import Body, SpeechBody, VoiceFields, read_body
from hocket.server.settings import ResponseFormat, ServerSettings


class StartMessage(VoiceFields):
    """Sets how the following texts are spoken."""

    type: Literal["start"]
    response_format: ResponseFormat = "pcm"
    #: Audio as binary messages, or as base64 in JSON for clients that cannot handle both kinds.
    audio: Literal["binary", "base64"] = "binary"
    #: Seed of every utterance, so that a text sounds the same wherever it comes in the session.
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    text: str = ""

    @field_validator("text")
    @classmethod
    def _characters(cls, value: str) -> str:
        return _check_characters(value)

    def speech(self, text: str, seed: int) -> SpeechBody:
        """The request to speak `text`, with this message's names of fields for errors."""
        voice = {name: value for name, value in self if name in VoiceFields.model_fields}
        body = SpeechBody(input=text, seed=seed, **voice)
        body._given = self._given | {"input": "text"}
        return body


class ConfigMessage(StartMessage):
    """vLLM-Omni's form of `start`. Its clients get vLLM-Omni's events."""

    type: Literal["session.config"]  # type: ignore[assignment]
    response_format: ResponseFormat = "wav"
    audio: Literal["binary"] = "binary"
    #: Whether audio is sent as it is generated, in pcm only; otherwise every sentence comes as a
    #: file of its own.
    stream_audio: bool = False
    #: "none": the text is spoken as one sentence once it is complete, however long it is.
    split_granularity: Literal["none", "sentence"] = "sentence"
    #: The models report no times of words.
    word_timestamps: Literal[False] = False

    @model_validator(mode="after")
    def _streams_pcm(self) -> ConfigMessage:
        if self.stream_audio and self.response_format != "pcm":
            raise InvalidRequestError(
                Template("{param}: {stream_audio} needs pcm; leave one of them out"),
                param="response_format",
            )
        return self


class TextMessage(Body):
    """More text, split at any character."""

    type: Literal["text", "input.text"]
    text: str

    @field_validator("text")
    @classmethod
    def _characters(cls, value: str) -> str:
        return _check_characters(value)


class FlushMessage(Body):
    """Ends the utterance: the remaining text is spoken, then `done` is sent."""

    type: Literal["flush", "input.done"]


class CancelMessage(Body):
    """Stops speech at once and drops the waiting text."""

    type: Literal["cancel"]


class CloseMessage(Body):
    """Closes the socket once the remaining text is spoken."""

    type: Literal["close", "session.close"]


Message = StartMessage | TextMessage | FlushMessage | CancelMessage | CloseMessage

_MODELS: dict[str, type[Message]] = {
    "start": StartMessage,
    "text": TextMessage,
    "flush": FlushMessage,
    "cancel": CancelMessage,
    "close": CloseMessage,
}
#: Messages of vLLM-Omni's clients.
OMNI_MODELS: dict[str, type[Message]] = {
    "session.config": ConfigMessage,
    "input.text": TextMessage,
    "input.done": FlushMessage,
    "session.close": CloseMessage,
}


def kind_of(document: dict[str, Any]) -> str:
    """The message's type, which may be unknown. Raises InvalidRequestError."""
    kind = document.get("type")
    if isinstance(kind, str):
        return kind
    raise _wrong_kind("the message has no type" if kind is None else "type must be a string")


def read_message(kind: str, document: dict[str, Any], settings: ServerSettings) -> Message:
    """`document`, of type `kind`, as a message.

    Raises InvalidRequestError, naming the field at fault.
    """
    model = (_MODELS | OMNI_MODELS).get(kind)
    if model is None:
        raise _wrong_kind(f"the type {kind[:40]!r} is unknown")
    return read_body(model, document, settings)


def _wrong_kind(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{what}; use one of {', '.join(_MODELS)}", param="type")


def _check_characters(text: str) -> str:
    if "\x00" in text:
        raise ValueError("contains a NUL character; remove it")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("contains half a surrogate pair; split text between characters")
    return text
