"""What an HTTP process asks of its parent: slots, which the parent counts for all processes, and
what others have read from recordings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from hocket.audio.reference_cache import Key
from hocket.core import EncodedReference
from hocket.server.admission import SlotCounts
from hocket.server.processes.channel import (
    Answer,
    AskCounts,
    Check,
    Counts,
    GiveBack,
    Recall,
    Recalled,
    Remember,
    SharedReference,
    Take,
    ToParent,
)

_Reply = Answer | Counts | Recalled


class Parent:
    """The parent: `Slots` and `SharedReferences`. `send` reaches it, its answers come to
    `on_answer`.

    Nothing is answered after the parent has ended: this process ends with it.
    """

    def __init__(self, send: Callable[[ToParent], None]) -> None:
        self._send = send
        self._answers: dict[int, asyncio.Future[_Reply]] = {}
        self._last_id = 0
        #: Whether new requests are refused; the parent says so.
        self.draining = False

    def on_answer(self, answer: _Reply) -> None:
        """An answer of the parent has arrived."""
        waiting = self._answers.pop(answer.question_id)
        if not waiting.done():  # its request may have been cancelled
            waiting.set_result(answer)

    # ---- Slots

    async def check(self, caller: str, rows: int) -> None:
        await self._permission(Check(self._next_id(), caller, rows))

    @asynccontextmanager
    async def slot(self, caller: str, rows: int) -> AsyncIterator[None]:
        slot_id = self._next_id()
        try:
            await self._permission(Take(slot_id, caller, rows))
            yield
        finally:
            # Also after a cancelled question, which the parent may have answered with a slot.
            self._send(GiveBack(slot_id))

    async def counts(self) -> SlotCounts:
        answer = await self._ask(AskCounts(self._next_id()))
        assert isinstance(answer, Counts)
        return SlotCounts(answer.open, answer.refused)

    # ---- SharedReferences

    async def get(self, key: Key) -> EncodedReference | None:
        answer = await self._ask(Recall(self._next_id(), key))
        assert isinstance(answer, Recalled)
        return None if answer.reference is None else answer.reference.encoded()

    async def put(self, key: Key, encoded: EncodedReference) -> None:
        self._send(Remember(key, SharedReference.of(encoded)))

    # ----

    async def _permission(self, question: Check | Take) -> None:
        answer = await self._ask(question)
        assert isinstance(answer, Answer)
        if answer.refusal is not None:
            raise answer.refusal.error()

    async def _ask(self, question: Check | Take | AskCounts | Recall) -> _Reply:
        waiting = asyncio.get_running_loop().create_future()
        self._answers[question.question_id] = waiting
        self._send(question)
        return await waiting

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id
