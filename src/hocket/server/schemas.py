"""What clients send, checked before anything else happens. Every refusal names the field as the client wrote it."""

from __future__ import annotations

import json
import unicodedata
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from starlette.requests import Request

from hocket.core import MAX_SEED, Mass, Sampling, SamplingFields
from hocket.errors import InvalidRequestError, Template, requirement
from hocket.server.errors import ApiError
from hocket.server.settings import ResponseFormat, ServerSettings

#: Other names of fields, as in vLLM-Omni's speech API and in Qwen3-TTS, and ours.
ALIASES = {
    "ref_audio": "reference_audio",
    "ref_text": "reference_text",
    "speaker": "voice",
    "subtalker_temperature": "predictor_temperature",
    "subtalker_top_p": "predictor_top_p",
    "subtalker_top_k": "predictor_top_k",
}
#: The engine's names of fields, and ours, which are OpenAI's where it has one.
_ENGINE_NAMES = {
    "text": "input",
    "reference": "reference_audio",
    "instruction": "instructions",
    "max_frames": "max_new_tokens",
    "min_frames": "min_new_tokens",
}

#: Letters, digits, and signs with a name that is read aloud, such as + and $. Emoji are not among them.
_SPOKEN_CATEGORIES = ("L", "N", "Sm", "Sc")

Line = Annotated[str, Field(max_length=256)]
Paragraph = Annotated[str, Field(max_length=4096)]
#: Over HTTP a nucleus mass of 0 is refused; elsewhere it means that the nucleus is off.
PositiveMass = Annotated[Mass, Field(gt=0.0)]


class Body(BaseModel):
    """Base of request bodies: JSON types as they are ("7" is no number), unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    #: The client's name of each field that it gave.
    _given: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def client_names(self) -> dict[str, str]:
        """The client's names of fields, by the engine's names and by ours; for `InvalidRequestError.renamed`."""
        return self._given | {name: self._given.get(ours, ours) for name, ours in _ENGINE_NAMES.items()}


class VoiceId(Body):
    """How OpenAI's clients name a voice of their own."""

    id: Line


class VoiceFields(Body, SamplingFields):
    """Who speaks, and how; the same for every piece of a text."""

    #: One of /v1/models; absent: the one that is served.
    model: Line | None = None
    #: One of /v1/audio/voices. An inline reference goes before it.
    voice: Line | VoiceId | None = None
    response_format: ResponseFormat | None = None
    #: Times the natural pace, at the same pitch.
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] = 1.0
    instructions: Paragraph | None = None
    #: English name, such as "English". "Auto", however it is spelt, is read as none: that leaves it to the model.
    language: Line | None = None
    #: data: or http(s): or file: address of a recording, or the name of an uploaded voice.
    reference_audio: str | None = None
    #: Its words: the speech then continues the recording.
    reference_text: Paragraph | None = None
    #: Use the recording's sound alone, whatever `reference_text` says.
    x_vector_only_mode: bool | None = None
    #: What the request is meant to be; checked, it changes nothing.
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    top_p: PositiveMass | None = None
    predictor_top_p: PositiveMass | None = None
    #: Whether the model reads a token of the text per frame, or all of it up front; refused where it has no choice.
    streaming_text: bool | None = None
    #: Most frames of speech (12.5 a second).
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    #: Frames before which the model may not stop.
    min_new_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    #: Wanted length in frames.
    tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    @property
    def sampling(self) -> Sampling:
        """The sampling fields, for the engine."""
        return Sampling(**self.model_dump(include=set(SamplingFields.model_fields)))

    @property
    def voice_name(self) -> str | None:
        """`voice`, in whichever form it came."""
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice

    @field_validator("instructions", "language", "reference_text", "reference_audio")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        return _without_nul(value) or None

    @field_validator("language")
    @classmethod
    def _auto_is_none(cls, value: str | None) -> str | None:
        return None if value is not None and value.lower() == "auto" else value

    @model_validator(mode="after")
    def _least_is_not_above_most(self) -> VoiceFields:
        least, most = self.min_new_tokens, self.max_new_tokens
        if least is not None and most is not None and least > most:
            raise _conflict(
                "min_new_tokens",
                "{param}: {least} is above {max_new_tokens}, which is {most}; lower it",
                least=least,
                most=most,
            )
        return self

    @model_validator(mode="after")
    def _task_has_what_it_needs(self) -> VoiceFields:
        if self.task_type == "Base" and self.reference_audio is None and self.voice is None:
            raise _conflict(
                "task_type", "{param}: Base clones a voice; give {reference_audio}, or the name of an uploaded voice"
            )
        if self.task_type == "VoiceDesign" and self.instructions is None:
            raise _conflict("task_type", "{param}: VoiceDesign needs {instructions} that describe the voice")
        if self.task_type == "CustomVoice" and self.reference_audio is not None:
            raise _conflict("task_type", "{param}: CustomVoice speaks with a named voice; leave out {reference_audio}")
        return self


class SpeechBody(VoiceFields):
    """POST /v1/audio/speech."""

    input: str
    #: The same seed and request give the same speech; absent: drawn, and reported in X-Seed.
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    #: "audio": encoded bytes as they are made. "sse": OpenAI's speech.audio events.
    stream_format: Literal["audio", "sse"] | None = None
    #: false: one answer with exact sizes. true without stream_format: sse, as vLLM-Omni has it.
    stream: bool | None = None

    @field_validator("input")
    @classmethod
    def _speakable(cls, value: str) -> str:
        return check_text(value)

    @model_validator(mode="after")
    def _one_answer(self) -> SpeechBody:
        if self.stream is False and self.stream_format is not None:
            raise _conflict("stream", "{param}: false asks for one whole answer; leave out {stream_format}")
        return self

    @property
    def delivery(self) -> Literal["stream", "sse", "whole"]:
        """How the audio is sent."""
        if self.stream is False:
            return "whole"
        return "sse" if self.stream_format == "sse" or (self.stream and self.stream_format is None) else "stream"


class BatchBody(VoiceFields):
    """POST /v1/audio/speech/batch: `items` are speech requests; the other fields are what they take where theirs is
    absent. Items are checked one by one, so that a bad one does not spoil the rest.
    """

    items: Annotated[list[dict[str, Any]], Field(min_length=1)]
    #: A JSON document with base64 audio, or a zip archive of audio files and that document.
    output: Literal["json", "zip"] = "json"

    @model_validator(mode="after")
    def _task_has_what_it_needs(self) -> BatchBody:
        return self  # an item may bring what the task needs, and is checked for it


AnyBody = TypeVar("AnyBody", bound=Body)


def check_text(text: str) -> str:
    """`text`, if it can be spoken; ValueError says what is wrong with it."""
    if not _without_nul(text):
        raise ValueError("is empty; give at least one word")
    if not any(unicodedata.category(character).startswith(_SPOKEN_CATEGORIES) for character in text):
        raise ValueError("has no letter or digit, so there is nothing to speak; give at least one word")
    return text


async def json_document(request: Request) -> dict[str, Any]:
    """The object that a client sent. Raises ApiError, InvalidRequestError."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        what = f"is {media_type[:100]!r}" if media_type else "is missing"
        raise ApiError(415, f"the header Content-Type {what}; send application/json", code="unsupported_media_type")
    return read_json(await request.body())


def read_json(raw: bytes) -> dict[str, Any]:
    """The object in a request's body. Raises InvalidRequestError."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequestError(f"the body is not valid JSON{where}; send one JSON object") from None
    if not isinstance(document, dict):
        raise InvalidRequestError(f"the body is a JSON {_kind(document)}; send one JSON object")
    return document


def read_body(model: type[AnyBody], document: dict[str, Any], settings: ServerSettings) -> AnyBody:
    """`document` as a `model`. Raises InvalidRequestError that names the field at fault."""
    given: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for name, value in document.items():
        ours = ALIASES.get(name, name)
        if ours in fields:
            raise InvalidRequestError(f"{name} and {given[ours]} are the same; give one of them", param=name)
        fields[ours], given[ours] = value, name
    unknown = [name for name in fields if name not in model.model_fields]
    if unknown and settings.strict_fields:
        shown = [_printable(given[name]) for name in unknown]
        noun = "an unknown field" if len(unknown) == 1 else "unknown fields"
        raise InvalidRequestError(f"{', '.join(shown)[:200]}: {noun}; leave out or correct", param=shown[0])
    for name in unknown:
        del fields[name], given[name]
    try:
        body = model.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error.errors()[0], given) from None
    except InvalidRequestError as error:
        raise error.renamed(given) from None
    body._given = given
    return body


def _conflict(param: str, message: str, **values: int) -> InvalidRequestError:
    """A rule between fields is broken; pydantic lets the error through."""
    return InvalidRequestError(Template(message, **values), param=param)


def _refusal(problem: ErrorDetails, given: dict[str, str]) -> InvalidRequestError:
    field, *inside = problem["loc"]
    name, value = given.get(str(field), str(field)), problem["input"]
    place = "".join(f"[{index}]" for index in inside if isinstance(index, int))
    # Texts are not repeated: they are the user's.
    shown = f" (got {value!r})" if isinstance(value, int | float) and problem["type"] != "value_error" else ""
    return InvalidRequestError(f"{name}{place} {requirement(problem)}{shown}", param=name)


def _without_nul(text: str | None) -> str:
    if text is None:
        return ""
    if "\x00" in text:
        raise ValueError("contains a NUL character; remove it")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("contains a lone surrogate, which is not a character; fix the text's encoding")
    return text.strip()


def _printable(name: str) -> str:
    """The client's own name for a field: half a surrogate pair could not be sent back."""
    return name[:100].encode(errors="backslashreplace").decode()


def _kind(value: object) -> str:
    names = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", type(None): "null"}
    return names[type(value)]
