"""The pages of each request, and the page table that runners read. No other code changes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hocket.engine.scheduling.config import SchedulerConfig
from hocket.engine.scheduling.memory import SCRATCH_PAGE, PagePool, PrefixCache
from hocket.engine.scheduling.request import NO_ROW, Request
from hocket.errors import HocketError


class RequestPages:
    """Writes `pages`, `capacity_rows` and, for pages from the prefix cache, `computed_rows` of
    requests.

    `table` int32 [rows, pages of max_context_rows]: the pages of the request in that row, in order,
    then the scratch page.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.pool = PagePool(config.pages, config.page_rows)
        self.prefixes = PrefixCache(self.pool, enabled=config.prefix_cache)
        self._page_rows = config.page_rows
        width = self.pool.pages_for(config.max_context_rows)
        self.table: NDArray[np.int32] = np.full((config.rows, width), SCRATCH_PAGE, dtype=np.int32)

    def reserve(self, request: Request, active: Sequence[Request]) -> bool:
        """Give a waiting request pages for all rows that it must compute. Returns False, and gives
        none, unless a page to grow remains for it and for each `active` request that still grows: a
        request that only just fits would soon be preempted and computed twice.
        """
        pool = self.pool
        wanted = pool.pages_for(request.prompt_rows + request.launched)
        known = self.prefixes.match(request.digests, request.prompt_rows)
        woken = sum(pool.references(page) == 0 for page in known)
        left = (
            pool.available
            - woken
            - (wanted - len(known))
            - (wanted < pool.pages_for(request.max_rows))
        )
        # With a page for every active request there is no need to count those that still grow.
        if left < len(active) and left < sum(
            other.capacity_rows < other.max_rows for other in active
        ):
            return False
        self.prefixes.take(known)
        request.pages = known + pool.acquire(wanted - len(known))
        request.capacity_rows = wanted * self._page_rows
        request.computed_rows = len(known) * self._page_rows
        return True

    def enter(self, request: Request) -> None:
        """Write the table for a request with reserved pages and a row."""
        self.table[request.row, : len(request.pages)] = request.pages

    def take_computed(self, request: Request) -> None:
        """Replace pages that are about to be computed by pages with the same rows that another
        request has computed meanwhile.
        """
        page_rows = self._page_rows
        if request.computed_rows % page_rows:
            return
        first = request.computed_rows // page_rows
        known = self.prefixes.match(request.digests, request.prompt_rows, first=first)
        if not known:
            return
        last = first + len(known)
        self.prefixes.take(known)
        self.pool.release(request.pages[first:last])
        request.pages[first:last] = known
        self.table[request.row, first:last] = known
        request.computed_rows = last * page_rows

    def publish(self, request: Request, start: int) -> None:
        """Share the full prompt pages that `request` has computed since row `start`."""
        first = start // self._page_rows
        last = min(request.computed_rows // self._page_rows, len(request.digests))
        if first < last:
            self.prefixes.insert(request.pages[first:last], request.digests[first:last])

    def grow(self, request: Request) -> None:
        """Add one page, which must be available."""
        page = self.pool.acquire(1)[0]
        self.table[request.row, len(request.pages)] = page
        request.pages.append(page)
        request.capacity_rows += self._page_rows

    def give_back(self, request: Request) -> None:
        """Release all pages of a request, so that none of its rows is computed any more. Frames in
        flight may still write to the pages of a preempted request. That is harmless, because later
        launches on the same CUDA stream serve their next owner.
        """
        self.pool.release(request.pages)
        if request.row != NO_ROW:
            self.table[request.row, : len(request.pages)] = SCRATCH_PAGE
        request.pages = []
        request.capacity_rows = request.computed_rows = 0

    def check(self, live: Sequence[Request]) -> None:
        """Raise `HocketError` with the first disagreement between pages, table and `live`
        requests.
        """
        self.pool.check(request.pages for request in live)
        expected = np.full_like(self.table, SCRATCH_PAGE)
        for request in live:
            if request.row != NO_ROW:
                expected[request.row, : len(request.pages)] = request.pages
            if request.capacity_rows != len(request.pages) * self._page_rows:
                raise HocketError(
                    f"request {request.id} has {len(request.pages)} pages for "
                    f"{request.capacity_rows} rows"
                )
            if request.computed_rows > request.capacity_rows:
                raise HocketError(
                    f"request {request.id} has {request.computed_rows} rows in "
                    f"{len(request.pages)} pages"
                )
        if not np.array_equal(expected, self.table):
            raise HocketError("the page table and the requests' pages disagree")
