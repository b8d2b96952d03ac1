"""Admission control: one request per engine row, a bounded queue behind them, and a limit for each
caller.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from hocket.server.errors import ApiError
from hocket.server.settings import ServerSettings

#: Weight of the newest request in the moving average of request times.
_NEWEST = 0.1
_MAX_RETRY_SECONDS = 60


class Admission:
    """Counts the open requests of this front end. The engine's queue has a bound of its own."""

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

    def check(self, caller: str, rows: int) -> None:
        """Refuse `caller` where `slot` would.

        Raises ApiError: 503 when the queue is full, 429 when `caller` has too many open requests.
        """
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

    @contextmanager
    def slot(self, caller: str, rows: int) -> Iterator[None]:
        """Hold a slot among the `rows` running requests and the waiting ones.

        Raises at once what `check` raises.
        """
        self.check(caller, rows)
        started = self._clock()
        self.open += 1
        self._callers[caller] += 1
        try:
            yield
        finally:
            self.open -= 1
            if self.draining and not self.open:
                self._idle.set()
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]
            self._mean_seconds += _NEWEST * (self._clock() - started - self._mean_seconds)

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
