"""The one exception tree.

HocketError                  every error that Hocket raises on purpose
├── InvalidRequestError      the request cannot be served as it stands; the caller must change it
│   └── ReferenceAudioError  a reference recording is unreadable, too short, too long or silent
├── ConfigError              a setting, or a checkpoint's configuration, is wrong
├── CheckpointError          a checkpoint is not to be found, or its tensors do not fit its config
├── AudioFileError           an audio file cannot be read or written
├── CapacityError            no room now: rows, pages or the waiting queue are used up
└── EngineStoppedError       the engine, or the worker that owns it, has gone away

Each class has the HTTP status that a server answers with and the exit code of the command line.
Messages are written for users: one line that says what to do, without a traceback, and without text
or audio of the user's beyond the offending value. A message that names fields of the request is a
`Template`, because clients have names of their own for some fields: the edge that talks to a client
calls `renamed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Template:
    """A message that names fields of a request: `Template("{max_frames} is {asked}; lower it",
    asked=9)`.

    `text` has the form of `str.format`. A name in `values` stands for its value, `{param}` for the
    error's `param`, and any other for the field of that name.
    """

    __slots__ = ("text", "values")

    def __init__(self, text: str, /, **values: str | float) -> None:
        self.text, self.values = text, values

    def filled(self, param: str | None, names: Mapping[str, str]) -> str:
        """The message. Fields that have a name in `names` are called by it."""
        return self.text.format_map(_Names({**names, "param": param or "", **self.values}))


class _Names(dict[str, str | float]):
    """A field without another name is called by its own."""

    def __missing__(self, field: str) -> str:
        return field


class HocketError(Exception):
    """Base of every error that Hocket raises on purpose."""

    http_status = 500
    #: Process exit code of the command line.
    exit_code = 1

    def __init__(self, message: str | Template, *, param: str | None = None) -> None:
        super().__init__(message.filled(param, {}) if isinstance(message, Template) else message)
        self.message = message
        #: Name of the request field or setting at fault, when there is one.
        self.param = param


class InvalidRequestError(HocketError):
    """The request cannot be served as it stands; the caller must change it."""

    http_status = 400
    exit_code = 2

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The same error for a client that has `names` of its own for some fields."""
        param = None if self.param is None else names.get(self.param, self.param)
        message = (
            self.message.filled(param, names)
            if isinstance(self.message, Template)
            else self.message
        )
        return type(self)(message, param=param)


class ReferenceAudioError(InvalidRequestError):
    """A reference recording cannot be read, or is too short, too long, silent or not finite."""


class ConfigError(HocketError):
    """A setting, or a checkpoint's configuration, is unknown, missing or out of range."""

    exit_code = 2


class CheckpointError(HocketError):
    """A checkpoint cannot be found or fetched, or its tensors do not match its configuration."""

    exit_code = 2


class AudioFileError(HocketError):
    """An audio file cannot be read or written."""

    http_status = 400
    exit_code = 2


class CapacityError(HocketError):
    """There is no room now: rows, pages or the waiting queue are used up."""

    http_status = 503


class EngineStoppedError(HocketError):
    """The engine (or the worker that owns it) has gone away."""

    http_status = 503


def not_finite() -> HocketError:
    """The error for speech with samples that are not numbers."""
    return HocketError(
        "the speech contains NaN or infinity, which no format can hold; report it with the "
        "request's seed"
    )


# ---- pydantic's findings, in our words

_REQUIREMENTS = {
    "missing": "is missing; give it",
    "value_error": "{error}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of fewer digits",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "string_too_short": "must have at least {min_length} character{s}",
    "string_too_long": "must have at most {max_length} character{s}",
    "too_short": "must have at least {min_length} item{s}",
    "too_long": "must have at most {max_length} item{s}",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "literal_error": "must be {expected}",
    "extra_forbidden": "is an unknown field; leave it out",
}


def requirement(problem: ErrorDetails) -> str:
    """What `problem`, one of pydantic's, says of its field: "must be at least 1", to stand behind
    the field's name.
    """
    words = _REQUIREMENTS.get(problem["type"])
    if words is None:
        return f"is not valid: {problem['msg']}"
    context = {name: _without_fraction(value) for name, value in problem.get("ctx", {}).items()}
    bound = context.get("min_length", context.get("max_length"))
    return words.format(**context, s="" if bound == 1 else "s")


def _without_fraction(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value
