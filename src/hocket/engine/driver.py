"""Requests in one call: `generate_many` and `stream` drive an engine for callers in its own
process.

Each request has an outbox of its own, so calls may run inside one another and beside callers of
`Engine.step`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import Protocol

import numpy as np

from hocket.core import AudioChunk, RequestEnd, Speech, SpeechRequest
from hocket.progress import progress_bar

#: Chunks of one request, in order.
Outbox = deque[AudioChunk]


class DrivenEngine(Protocol):
    """The calls of an `Engine` that this module makes."""

    @property
    def has_room(self) -> bool: ...
    def add(self, request: SpeechRequest, *, streaming: bool, outbox: Outbox) -> str: ...
    def cancel(self, request_id: str) -> None: ...
    def advance(self) -> bool: ...


def generate_many(engine: DrivenEngine, requests: Iterable[SpeechRequest]) -> list[Speech]:
    """Speak all `requests`; results in the order given. See `Engine.generate_many`."""
    waiting = deque(requests)
    outboxes: list[Outbox] = []
    speaking: dict[str, Outbox] = {}
    try:
        with progress_bar(len(waiting)) as show:
            while waiting or speaking:
                while waiting and engine.has_room:
                    outboxes.append(deque())
                    request_id = engine.add(waiting.popleft(), streaming=False, outbox=outboxes[-1])
                    speaking[request_id] = outboxes[-1]
                engine.advance()
                for outbox in speaking.values():
                    _raise_error(_end(outbox))
                speaking = {
                    name: outbox for name, outbox in speaking.items() if _end(outbox) is None
                }
                show(len(outboxes) - len(speaking))
    finally:
        _close(engine, speaking)
    return [_speech(outbox) for outbox in outboxes]


def stream(engine: DrivenEngine, request: SpeechRequest) -> Generator[AudioChunk, None, None]:
    """Yield the chunks of `request` as they are made. See `Engine.stream`."""
    outbox: Outbox = deque()
    request_id = engine.add(request, streaming=True, outbox=outbox)
    end: RequestEnd | None = None
    try:
        while end is None:
            while not outbox:
                engine.advance()
            chunk = outbox.popleft()
            end = chunk.end
            _raise_error(end)
            yield chunk
    finally:
        if end is None:
            _close(engine, {request_id: outbox})


def _close(engine: DrivenEngine, speaking: dict[str, Outbox]) -> None:
    """Cancel the requests that are still open and wait until they hold nothing."""
    for request_id, outbox in speaking.items():
        if _end(outbox) is None:
            engine.cancel(request_id)
    # Inside a step it is the garbage collector that closes an iterator; the engine's next step ends
    # the request.
    while any(_end(outbox) is None for outbox in speaking.values()) and engine.advance():
        pass


def _end(outbox: Outbox) -> RequestEnd | None:
    """How a request ended; None while it is open."""
    return outbox[-1].end if outbox else None


def _raise_error(end: RequestEnd | None) -> None:
    if end is not None and end.error is not None:
        raise end.error


def _speech(outbox: Outbox) -> Speech:
    """All chunks of a finished request in one."""
    end = outbox[-1].end
    assert end is not None
    return Speech(
        samples=np.concatenate([chunk.samples for chunk in outbox], axis=1),
        sample_rate=outbox[-1].sample_rate,
        codes=np.concatenate([chunk.codes for chunk in outbox]),
        finish_reason=end.finish_reason,
        seed=end.seed,
        timings=end.timings,
    )
