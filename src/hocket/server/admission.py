"""Admission control: one request per engine row, a bounded queue behind them, and a limit for each
caller.

Routes see `Slots`. `Admission` counts the slots in its own process; where several HTTP processes
serve, each asks the one `Admission` of their parent (`processes/remote.py`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from hocket.server.errors import ApiError
from hocket.server.settings import ServerSettings

#: Weight of the newest request in the moving average of request times.
_NEWEST = 0.1
_MAX_RETRY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """How many slots of a server are held, and how many requests were refused so far."""

    open: int
    refused: int


class Slots(Protocol):
    """A server's slots, as its routes see them."""

    @property
    def draining(self) -> bool:
        """Whether new requests are refused."""
        ...

    async def check(self, caller: str, rows: int) -> None:
        """Refuse `caller` where `slot` would.

        Raises ApiError: 503 when the queue is full, 429 when `caller` has too many open requests.
        """
        ...

    def slot(self, caller: str, rows: int) -> AbstractAsyncContextManager[None]:
        """Hold a slot among the `rows` running requests and the waiting ones.

        Raises at once what `check` raises.
        """
        ...

    async def counts(self) -> SlotCounts:
        """The counts of all processes of the server."""
        ...


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A slot: its caller, and when it was taken."""

    caller: str
    taken_at: float


class Admission:
    """Counts the open requests of a server. The engine's queue has a bound of its own."""

    def __init__(
        self, settings: ServerSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._clock = settings, clock
        self._callers: Counter[str] = Counter()
        self._mean_seconds = 1.0
        self.open = 0
        self.refused = 0
        #: Whether new requests are refused; set by `drain`.
        self.draining = False
        self._idle = asyncio.Event()

    def refuse(self, caller: str, rows: int) -> None:
        """Raise what `Slots.check` raises."""
        if self.draining:
            self.refused += 1
            raise ApiError(
                503,
                "the server is about to stop; try again later",
                code="engine_unavailable",
                retry_after_seconds=1,
            )
        max_open = self._settings.max_open_per_key
        if max_open is not None and self._callers[caller] >= max_open:
            self.refused += 1
            raise ApiError(
                429,
                f"{max_open} requests of yours are open already; wait for one to end",
                code="rate_limit_exceeded",
                retry_after_seconds=self._retry_after(1),
            )
        if self.open >= rows + self._settings.max_queue:
            self.refused += 1
            raise ApiError(
                503,
                f"all {rows} voices are speaking and {self._settings.max_queue} requests wait; try "
                "again later",
                code="overloaded",
                retry_after_seconds=self._retry_after(rows),
            )

    def take(self, caller: str, rows: int) -> HeldSlot:
        """Take a slot, which `give_back` ends. Raises what `Slots.slot` raises."""
        self.refuse(caller, rows)
        self.open += 1
        self._callers[caller] += 1
        return HeldSlot(caller, self._clock())

    def give_back(self, slot: HeldSlot) -> None:
        """Free a slot, once."""
        self.open -= 1
        if self.draining and not self.open:
            self._idle.set()
        self._callers[slot.caller] -= 1
        if not self._callers[slot.caller]:
            del self._callers[slot.caller]
        self._mean_seconds += _NEWEST * (self._clock() - slot.taken_at - self._mean_seconds)

    # ---- Slots; nothing waits here, so a refusal comes before any other task runs

    async def check(self, caller: str, rows: int) -> None:
        self.refuse(caller, rows)

    @asynccontextmanager
    async def slot(self, caller: str, rows: int) -> AsyncIterator[None]:
        held = self.take(caller, rows)
        try:
            yield
        finally:
            self.give_back(held)

    async def counts(self) -> SlotCounts:
        return SlotCounts(self.open, self.refused)

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and wait for the open ones, with all their segments; False after
        `seconds`.
        """
        self.draining = True
        if not self.open:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        return self.open == 0

    def _retry_after(self, slots: int) -> int:
        """Whole seconds until one of `slots` is likely to be free for a new request."""
        waiting = max(0, self.open - slots) + 1
        return min(_MAX_RETRY_SECONDS, max(1, math.ceil(self._mean_seconds * waiting / slots)))
