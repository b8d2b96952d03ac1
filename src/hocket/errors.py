"""The one exception tree. Each class knows the HTTP status a server answers with; every message says what to do.

Messages are written for users: one line, no traceback, no text or audio of the user's beyond the offending value.
"""

from __future__ import annotations


class HocketError(Exception):
    """Base of every error that Hocket raises on purpose."""

    http_status = 500
    #: Process exit code of the command line.
    exit_code = 1

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        #: Name of the request field or setting at fault, when there is one.
        self.param = param


class InvalidRequestError(HocketError):
    """The request cannot be served as it stands; the caller must change it."""

    http_status = 400
    exit_code = 2


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
    """What becomes of speech with samples that are not numbers."""
    return HocketError("the speech holds NaN or infinity, which no format can; report it with the request's seed")
