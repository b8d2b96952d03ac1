"""Faults of an answer, by name."""

from __future__ import annotations

from dataclasses import dataclass

#: Meaning of each kind, in the order of reports.
FAULTS = {
    "connect": "no connection",
    "timeout": "not complete in time",
    "http": "not valid HTTP/1.1",
    "status": "an HTTP status other than 200",
    "too_big": "more bytes than any speech has",
    "incomplete": "the connection ended before the answer did",
    "error_event": "an error event inside the stream",
    "unfinished": "the events ended without a final one",
    "not_audio": "cannot be decoded",
    "wrong_format": "another format than the requested one",
    "headers_inside": "file headers in the middle of the audio, which play as clicks",
    "unknown_rate": "raw samples without a stated rate and channels",
    "wrong_rate": "the rate or the channels contradict the container, the probe or --expect",
    "wrong_length": "the length contradicts the one that the answer states",
    "no_audio": "a success without a single sample",
    "silent": "inaudible, or a silence longer than allowed",
    "clipped": "samples held at full scale",
    "too_short": "too short for the text",
    "too_long": "too long for the text",
    "stalled": "a player would have stalled for too long at a time",
    "same_audio": "identical to the audio of another text",
    "wrong_words": "the recogniser heard something else",
    "wrong_voice": "too unlike the reference speaker",
}


#: Faults of answers that are right but late. They fail, yet they count in every figure: without the
#: slowest answers the figures would flatter the server.
SLOW = frozenset({"stalled"})


def one_line(text: str, max_characters: int = 200) -> str:
    """A server's text, safe to print and to store: one line without control characters and lone
    surrogates.
    """
    line = " ".join(text[: 20 * max_characters].split())
    shown = "".join(character if character.isprintable() else "\ufffd" for character in line)
    return shown[:max_characters]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one answer."""

    kind: str
    detail: str = ""

    def __post_init__(self) -> None:
        assert self.kind in FAULTS or self.kind.startswith("status_"), self.kind
        object.__setattr__(self, "detail", one_line(self.detail))


class ResponseError(Exception):
    """The answer holds no audio."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(detail)
        self.fault = Fault(kind, detail)
