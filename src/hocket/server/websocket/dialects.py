"""Names and fields of the WebSocket's events: Hocket's own, or vLLM-Omni's for clients that start
in its form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Event = dict[str, object]


class Dialect(Protocol):
    """Makes the message of an event, or None where the client gets none.

    The kinds are those of docs/websocket.md, and `sentence_end`, which our own clients do not need:
    in a stream, the next thing that is heard says the same.
    """

    def __call__(self, kind: str, fields: Mapping[str, object]) -> Event | None: ...


def hocket_events(kind: str, fields: Mapping[str, object]) -> Event | None:
    """The events of docs/websocket.md."""
    return None if kind == "sentence_end" else {"type": kind, **fields}


class VllmOmniEvents:
    """The events of vLLM-Omni's `/v1/audio/speech/stream`, which repeats format and rate with every
    sentence.
    """

    def __init__(self) -> None:
        self._format: Event = {}

    def __call__(self, kind: str, fields: Mapping[str, object]) -> Event | None:
        if kind == "started":
            self._format = {
                "format": fields["response_format"],
                "sample_rate": fields["sample_rate"],
                "channels": fields["channels"],
            }
            return None
        if kind == "error":
            error = fields["error"]
            assert isinstance(error, Mapping)
            return {"type": "error", "message": error["message"], **fields}
        place = {"utterance_index": fields["utterance"]}
        if kind == "done":
            return {
                "type": "session.done",
                **place,
                "total_sentences": fields["sentences"],
                "finish_reason": fields["finish_reason"],
                "seed": fields["seed"],
            }
        place["sentence_index"] = fields["index"]
        if kind == "sentence":
            return {"type": "audio.start", **place, "sentence_text": fields["text"], **self._format}
        assert kind == "sentence_end", kind
        return {
            "type": "audio.done",
            **place,
            "total_bytes": fields["bytes"],
            "error": fields["failed"],
        }
