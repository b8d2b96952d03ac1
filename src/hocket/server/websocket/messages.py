"""What a client says on the WebSocket (docs/websocket.md)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hocket.core import MAX_SEED
from hocket.errors import InvalidRequestError, Template
from hocket.server.schemas import Body, SpeechBody, VoiceFields, read_body
from hocket.server.settings import ResponseFormat, ServerSettings


class StartMessage(VoiceFields):
    """How to speak from now on."""

    type: Literal["start"]
    response_format: ResponseFormat = "pcm"
    #: Audio as binary messages, or as base64 in JSON, for clients that cannot tell the two kinds apart.
    audio: Literal["binary", "base64"] = "binary"
    #: For every utterance: the same text then sounds the same, wherever it comes in the session.
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    text: str = ""

    @field_validator("text")
    @classmethod
    def _characters(cls, value: str) -> str:
        return _check_characters(value)

    def speech(self, text: str, seed: int) -> SpeechBody:
        """The request to speak `text` in this way, with this message's names of the fields."""
        voice = {name: value for name, value in self if name in VoiceFields.model_fields}
        body = SpeechBody(input=text, seed=seed, **voice)
        body._given = self._given | {"input": "text"}
        return body


class ConfigMessage(StartMessage):
    """`start` of vLLM-Omni's clients, which are answered in vLLM-Omni's words."""

    type: Literal["session.config"]  # type: ignore[assignment]
    response_format: ResponseFormat = "wav"
    audio: Literal["binary"] = "binary"
    #: Audio as it is made, which only pcm can be here; otherwise every sentence comes whole, as a file of its own.
    stream_audio: bool = False
    #: "none": nothing is spoken before the text is complete, which is then spoken as one sentence, however long.
    split_granularity: Literal["none", "sentence"] = "sentence"
    #: The models here do not say when they say what.
    word_timestamps: Literal[False] = False

    @model_validator(mode="after")
    def _streams_pcm(self) -> ConfigMessage:
        if self.stream_audio and self.response_format != "pcm":
            raise InvalidRequestError(
                Template("{param}: {stream_audio} needs pcm; leave one of them out"), param="response_format"
            )
        return self


class TextMessage(Body):
    """More text, cut anywhere."""

    type: Literal["text", "input.text"]
    text: str

    @field_validator("text")
    @classmethod
    def _characters(cls, value: str) -> str:
        return _check_characters(value)


class FlushMessage(Body):
    """The utterance is complete: speak what is left of it, and say `done`."""

    type: Literal["flush", "input.done"]


class CancelMessage(Body):
    """Fall silent now and forget the text that waits."""

    type: Literal["cancel"]


class CloseMessage(Body):
    """Speak what is left, then close."""

    type: Literal["close", "session.close"]


Message = StartMessage | TextMessage | FlushMessage | CancelMessage | CloseMessage

_MODELS: dict[str, type[Message]] = {
    "start": StartMessage,
    "text": TextMessage,
    "flush": FlushMessage,
    "cancel": CancelMessage,
    "close": CloseMessage,
}
#: What vLLM-Omni's clients say.
OMNI_MODELS: dict[str, type[Message]] = {
    "session.config": ConfigMessage,
    "input.text": TextMessage,
    "input.done": FlushMessage,
    "session.close": CloseMessage,
}


def kind_of(document: dict[str, Any]) -> str:
    """The message's type, known or not. Raises InvalidRequestError."""
    kind = document.get("type")
    if isinstance(kind, str):
        return kind
    raise _wrong_kind("the message has no type" if kind is None else "type must be a string")


def read_message(kind: str, document: dict[str, Any], settings: ServerSettings) -> Message:
    """`document`, whose type is `kind`. Raises InvalidRequestError, which names the field at fault."""
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
        raise ValueError("contains half a surrogate pair; cut text between characters")
    return text
