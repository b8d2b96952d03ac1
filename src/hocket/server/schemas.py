"""Request bodies: they are validated before anything else happens, and errors name fields as the
client does.
"""

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

#: Unicode categories that can be spoken: letters, digits, and signs such as + and $, but no emoji.
_SPOKEN_CATEGORIES = ("L", "N", "Sm", "Sc")

Line = Annotated[str, Field(max_length=256)]
Paragraph = Annotated[str, Field(max_length=4096)]
#: Over HTTP a nucleus mass of 0 is refused; elsewhere it means that the nucleus is off.
PositiveMass = Annotated[Mass, Field(gt=0.0)]


class Body(BaseModel):
    """Base of request bodies: strict JSON types ("7" is not a number), no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    #: The client's name of each field that it gave.
    _given: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def client_names(self) -> dict[str, str]:
        """The client's names of fields, by the engine's names and by ours."""
        return self._given | {
            name: self._given.get(ours, ours) for name, ours in _ENGINE_NAMES.items()
        }


class VoiceId(Body):
    """OpenAI's form of a custom voice."""

    id: Line


class VoiceFields(Body, SamplingFields):
    """Voice, sampling and length; the same for all segments of a text."""

    #: One of /v1/models; absent: the served model.
    model: Line | None = None
    #: One of /v1/audio/voices. An inline reference takes precedence.
    voice: Line | VoiceId | None = None
    response_format: ResponseFormat | None = None
    #: Speaking rate relative to the natural one, at the same pitch.
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] = 1.0
    instructions: Paragraph | None = None
    #: English name, such as "English". "Auto", in any case, means none: the model decides.
    language: Line | None = None
    #: data:, http(s): or file: URL of a recording, or the name of an uploaded voice.
    reference_audio: str | None = None
    #: Transcript of the reference; with it, the speech continues the recording.
    reference_text: Paragraph | None = None
    #: Use the sound of the recording only and ignore `reference_text`.
    x_vector_only_mode: bool | None = None
    #: Intended use of the checkpoint. It is checked and has no other effect.
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    top_p: PositiveMass | None = None
    predictor_top_p: PositiveMass | None = None
    #: Whether the model reads a text token per frame or the whole text up front; other models
    #: refuse it.
    streaming_text: bool | None = None
    #: Maximum number of frames (12.5 a second).
    max_new_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    #: Minimum number of frames before the model may stop.
    min_new_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    #: Target length in frames.
    tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    @property
    def sampling(self) -> Sampling:
        """The sampling fields as the engine takes them."""
        return Sampling(**self.model_dump(include=set(SamplingFields.model_fields)))

    @property
    def voice_name(self) -> str | None:
        """Name of the voice, from either form of `voice`."""
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
    def _min_is_not_above_max(self) -> VoiceFields:
        min_frames, max_frames = self.min_new_tokens, self.max_new_tokens
        if min_frames is not None and max_frames is not None and min_frames > max_frames:
            raise _conflict(
                "min_new_tokens",
                "{param}: {min_frames} is above {max_new_tokens}, which is {max_frames}; lower it",
                min_frames=min_frames,
                max_frames=max_frames,
            )
        return self

    @model_validator(mode="after")
    def _task_has_what_it_needs(self) -> VoiceFields:
        if self.task_type == "Base" and self.reference_audio is None and self.voice is None:
            raise _conflict(
                "task_type",
                "{param}: Base clones a voice; give {reference_audio}, or the name of an uploaded "
                "voice",
            )
        if self.task_type == "VoiceDesign" and self.instructions is None:
            raise _conflict(
                "task_type", "{param}: VoiceDesign needs {instructions} that describe the voice"
            )
        if self.task_type == "CustomVoice" and self.reference_audio is not None:
            raise _conflict(
                "task_type",
                "{param}: CustomVoice speaks with a named voice; leave out {reference_audio}",
            )
        return self


class SpeechBody(VoiceFields):
    """POST /v1/audio/speech."""

    input: str
    #: The same seed and request give the same speech; absent: one is drawn and reported in X-Seed.
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    #: "audio": encoded bytes as they are generated. "sse": OpenAI's speech.audio events.
    stream_format: Literal["audio", "sse"] | None = None
    #: false: one response with exact sizes. true without stream_format: sse, as in vLLM-Omni.
    stream: bool | None = None

    @field_validator("input")
    @classmethod
    def _speakable(cls, value: str) -> str:
        return check_text(value)

    @model_validator(mode="after")
    def _one_answer(self) -> SpeechBody:
        if self.stream is False and self.stream_format is not None:
            raise _conflict(
                "stream", "{param}: false asks for one whole answer; leave out {stream_format}"
            )
        return self

    @property
    def delivery(self) -> Literal["stream", "sse", "whole"]:
        """How the audio is sent."""
        if self.stream is False:
            return "whole"
        return (
            "sse"
            if self.stream_format == "sse" or (self.stream and self.stream_format is None)
            else "stream"
        )


class BatchBody(VoiceFields):
    """POST /v1/audio/speech/batch: `items` are speech requests, the other fields are defaults for
    them.

    Items are validated one by one, so that a bad one does not fail the others.
    """

    items: Annotated[list[dict[str, Any]], Field(min_length=1)]
    #: A JSON document with base64 audio, or a zip archive of audio files and that document.
    output: Literal["json", "zip"] = "json"

    @model_validator(mode="after")
    def _task_has_what_it_needs(self) -> BatchBody:
        return self  # an item may bring what the task needs, and is checked for it


AnyBody = TypeVar("AnyBody", bound=Body)


def check_text(text: str) -> str:
    """`text` if it can be spoken. Raises ValueError."""
    if not _without_nul(text):
        raise ValueError("is empty; give at least one word")
    if not any(
        unicodedata.category(character).startswith(_SPOKEN_CATEGORIES) for character in text
    ):
        raise ValueError(
            "has no letter or digit, so there is nothing to speak; give at least one word"
        )
    return text


async def json_document(request: Request) -> dict[str, Any]:
    """The JSON object in the body of `request`. Raises ApiError, InvalidRequestError."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        what = f"is {media_type[:100]!r}" if media_type else "is missing"
        raise ApiError(
            415,
            f"the header Content-Type {what}; send application/json",
            code="unsupported_media_type",
        )
    return read_json(await request.body())


def read_json(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`. Raises InvalidRequestError."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        where = (
            f" (line {error.lineno}, column {error.colno})"
            if isinstance(error, json.JSONDecodeError)
            else ""
        )
        raise InvalidRequestError(
            f"the body is not valid JSON{where}; send one JSON object"
        ) from None
    if not isinstance(document, dict):
        raise InvalidRequestError(f"the body is a JSON {_kind(document)}; send one JSON object")
    return document


def read_body(model: type[AnyBody], document: dict[str, Any], settings: ServerSettings) -> AnyBody:
    """`document` validated as a `model`.

    Raises InvalidRequestError with the client's name of the field at fault.
    """
    given: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for name, value in document.items():
        ours = ALIASES.get(name, name)
        if ours in fields:
            raise InvalidRequestError(
                f"{name} and {given[ours]} are the same; give one of them", param=name
            )
        fields[ours], given[ours] = value, name
    unknown = [name for name in fields if name not in model.model_fields]
    if unknown and settings.strict_fields:
        shown = [_printable(given[name]) for name in unknown]
        noun = "an unknown field" if len(unknown) == 1 else "unknown fields"
        raise InvalidRequestError(
            f"{', '.join(shown)[:200]}: {noun}; leave out or correct", param=shown[0]
        )
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
    """Error for fields that contradict each other; pydantic passes it through."""
    return InvalidRequestError(Template(message, **values), param=param)


def _refusal(problem: ErrorDetails, given: dict[str, str]) -> InvalidRequestError:
    field, *inside = problem["loc"]
    name, value = given.get(str(field), str(field)), problem["input"]
    place = "".join(f"[{index}]" for index in inside if isinstance(index, int))
    # Texts are not repeated: they are the user's.
    shown = (
        f" (got {value!r})"
        if isinstance(value, int | float) and problem["type"] != "value_error"
        else ""
    )
    return InvalidRequestError(f"{name}{place} {requirement(problem)}{shown}", param=name)


def _without_nul(text: str | None) -> str:
    if text is None:
        return ""
    if "\x00" in text:
        raise ValueError("contains a NUL character; remove it")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(
            "contains a lone surrogate, which is not a character; fix the text's encoding"
        )
    return text.strip()


def _printable(name: str) -> str:
    """The client's name of a field, without lone surrogates, which could not be sent back."""
    return name[:100].encode(errors="backslashreplace").decode()


def _kind(value: object) -> str:
    names = {
        str: "string",
        bool: "boolean",
        int: "number",
        float: "number",
        list: "array",
        type(None): "null",
    }
    return names[type(value)]
