"""Owners of rows and of pages of the talker's K/V cache. Integers only: the tensors live in the
runners.

A page is in exactly one of three states: free; held by `references > 0` owners; or kept. A kept
page has no owner, but its content is known by a digest, so that a later prompt with the same rows
can reuse it.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hocket.errors import CapacityError, HocketError

#: Batch padding reads and writes this page; no request holds it.
SCRATCH_PAGE = 0


class RowPool:
    """The engine's rows, 0 .. rows-1, each held by at most one request.

    The lowest free row is acquired first. So the row of a request depends on the free set alone,
    and at low load the live rows stay together at the start of every row-indexed tensor.
    """

    __slots__ = ("_free", "_held", "rows")

    def __init__(self, rows: int) -> None:
        if rows < 1:
            raise HocketError(f"a row pool needs at least 1 row, got {rows}")
        self.rows = rows
        self._free = list(range(rows))  # ascending, so already a heap
        self._held = [False] * rows

    @property
    def free(self) -> int:
        """Rows that can be acquired now."""
        return len(self._free)

    def acquire(self) -> int:
        """Take the lowest free row. Raises `CapacityError` when there is none."""
        if not self._free:
            raise CapacityError(f"all {self.rows} rows are in use; check `free` before acquiring")
        row = heapq.heappop(self._free)
        self._held[row] = True
        return row

    def release(self, row: int) -> None:
        """Give `row` back. Raises `HocketError` when it is not held, which means that it had two
        owners.
        """
        if not 0 <= row < self.rows or not self._held[row]:
            raise HocketError(f"row {row} was released but is not held")
        self._held[row] = False
        heapq.heappush(self._free, row)

    def check(self, owned: Iterable[int]) -> None:
        """Raise `HocketError` unless the rows in `owned` (one entry per owner) are exactly the held
        ones.
        """
        claims = Counter(owned)
        free = Counter(self._free)
        for row in claims.keys() | free.keys() | set(range(self.rows)):
            held = 0 <= row < self.rows and self._held[row]
            if claims[row] != held or free[row] != (not held):
                raise HocketError(
                    f"row {row} is {'held' if held else 'not held'}, claimed by {claims[row]} "
                    f"owners and {free[row]} times in the free list"
                )


class PagePool:
    """Reference-counted pages of `page_rows` K/V rows. `pages` counts page 0, the scratch page,
    which is never acquired.
    """

    __slots__ = (
        "_digest_of",
        "_free",
        "_kept",
        "_page_of",
        "_references",
        "evictions",
        "page_rows",
        "pages",
    )

    def __init__(self, pages: int, page_rows: int) -> None:
        if pages < 2 or page_rows < 1:
            raise HocketError(
                f"a page pool needs at least 2 pages of 1 row, got {pages} of {page_rows}"
            )
        self.pages = pages
        self.page_rows = page_rows
        #: Kept pages that were reused for other content.
        self.evictions = 0
        self._free = list(range(pages - 1, SCRATCH_PAGE, -1))
        self._references = [0] * pages
        self._digest_of: list[bytes | None] = [None] * pages
        self._page_of: dict[bytes, int] = {}
        #: Pages without owners whose content is known, least recently used first. (The first entry
        #: of a plain dict is slow to find after many deletions.)
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def capacity(self) -> int:
        """Maximum pages of one request."""
        return self.pages - 1

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def kept(self) -> int:
        return len(self._kept)

    @property
    def available(self) -> int:
        """Pages that `acquire` can hand out now: free ones, then kept ones, which lose their
        content.
        """
        return len(self._free) + len(self._kept)

    def pages_for(self, rows: int) -> int:
        """Pages that `rows` K/V rows take."""
        return -(-rows // self.page_rows)

    def references(self, page: int) -> int:
        return self._references[page]

    def acquire(self, count: int) -> list[int]:
        """Take `count` pages with unknown content and one reference each. Raises `CapacityError`,
        and takes none, if there are too few.
        """
        if count > self.available:
            raise CapacityError(
                f"{count} pages were asked for but only {self.available} of {self.capacity} are "
                "available"
            )
        while len(self._free) < count:
            self._evict()
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._references[page] = 1
        return taken

    def share(self, page: int) -> None:
        """Add an owner to a page that is held or kept."""
        if self._references[page] == 0:
            if page not in self._kept:
                raise HocketError(
                    f"page {page} cannot be shared: it has no owner and its content is not kept"
                )
            del self._kept[page]
        self._references[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Remove one owner from each page. Without owners a page becomes kept if its content is
        known, and free otherwise.

        Goes backwards, so that the last kept page of a prompt is evicted first: a chain without its
        head is useless.
        """
        for page in reversed(pages):
            if page == SCRATCH_PAGE or self._references[page] == 0:
                raise HocketError(f"page {page} was released but is not held")
            self._references[page] -= 1
            if self._references[page] == 0:
                if self._digest_of[page] is None:
                    self._free.append(page)
                else:
                    self._kept[page] = None

    def publish(self, page: int, digest: bytes) -> None:
        """Declare the content of `page` as `digest`. The page must be held and is not written
        again.

        If another page has this content already, that page stays the known one.
        """
        if self._references[page] == 0 or self._digest_of[page] is not None:
            raise HocketError(
                f"page {page} cannot be published: it is not held, or its content is known already"
            )
        if digest not in self._page_of:
            self._page_of[digest] = page
            self._digest_of[page] = digest

    def find(self, digest: bytes) -> int | None:
        """The held or kept page with the content `digest`."""
        return self._page_of.get(digest)

    def _evict(self) -> None:
        page, _ = self._kept.popitem(last=False)
        digest = self._digest_of[page]
        assert digest is not None  # only pages with a digest are ever kept
        del self._page_of[digest]
        self._digest_of[page] = None
        self._free.append(page)
        self.evictions += 1

    def check(self, owned: Iterable[Sequence[int]]) -> None:
        """Raise `HocketError` unless every page is free, kept, or held as often as `owned` says,
        which has a list per owner.
        """
        check_pages(
            owned,
            references=self._references,
            free=self._free,
            kept=self._kept,
            digest_of=self._digest_of,
            page_of=self._page_of,
        )


def check_pages(
    owned: Iterable[Sequence[int]],
    *,
    references: Sequence[int],
    free: Sequence[int],
    kept: Collection[int],
    digest_of: Sequence[bytes | None],
    page_of: Mapping[bytes, int],
) -> None:
    """Raise `HocketError`, saying what is off, unless the books of a `PagePool` and its owners
    agree.

    `references` and `digest_of` have an entry for each page, the scratch page included.
    """
    pages = len(references)
    claims = Counter(page for pages_of_owner in owned for page in pages_of_owner)
    free_times = Counter(free)
    for page in claims.keys() | free_times.keys() | set(kept) | set(range(pages)):
        if page == SCRATCH_PAGE:
            expected = claims[page] == free_times[page] == 0 and page not in kept
        elif not 0 < page < pages:
            expected = False
        elif claims[page]:
            expected = (
                references[page] == claims[page] and not free_times[page] and page not in kept
            )
        else:
            expected = references[page] == 0 and free_times[page] + (page in kept) == 1
        if not expected:
            count = references[page] if 0 <= page < pages else 0
            raise HocketError(
                f"page {page} has {count} references and {claims[page]} claims by owners, is "
                f"{free_times[page]} times in the free list and "
                f"{'' if page in kept else 'not '}kept"
            )
    named = {page: digest for page, digest in enumerate(digest_of) if digest is not None}
    if named != {page: digest for digest, page in page_of.items()}:
        raise HocketError("the digests of the pages and the index from digest to page disagree")
    for page in {*kept, *free}:
        if (page in named) != (page in kept):
            raise HocketError(f"page {page} is free with a digest, or kept without one")


class PrefixCache:
    """Finds pages that hold the same leading prompt rows, so that the head of a template or a voice
    is computed once.

    The digest of a page covers its own rows and, through its parent's digest, every row before it:
    equal digests mean equal prefixes (256-bit BLAKE2b, so collisions do not occur). Only full pages
    of prompt rows take part. So a shared page is never written: generated frames go to private
    pages behind it.
    """

    __slots__ = ("_pool", "enabled", "hit_rows", "miss_rows")

    def __init__(self, pool: PagePool, *, enabled: bool = True) -> None:
        self._pool = pool
        self.enabled = enabled
        #: Prompt rows taken from the cache, and rows of full prompt pages that had to be computed.
        self.hit_rows = 0
        self.miss_rows = 0

    def digests(self, prompt: NDArray[np.int64], salt: bytes = b"") -> tuple[bytes, ...]:
        """One digest per full page of `prompt` int64 [rows, 1 + n_vq]; none when the cache is off.

        `salt` stands for inputs of the K/V that the rows do not show, such as a speaker embedding.
        """
        if not self.enabled:
            return ()
        page_rows = self._pool.page_rows
        prompt = np.ascontiguousarray(prompt, dtype=np.int64)
        digest = hashlib.blake2b(
            repr((page_rows, prompt.shape[1:])).encode() + salt, digest_size=32
        ).digest()
        chain = []
        for start in range(0, len(prompt) - page_rows + 1, page_rows):
            digest = hashlib.blake2b(
                digest + prompt[start : start + page_rows].tobytes(), digest_size=32
            ).digest()
            chain.append(digest)
        return tuple(chain)

    def match(self, digests: Sequence[bytes], prompt_rows: int, *, first: int = 0) -> list[int]:
        """Known pages for page `first` of a prompt and those after it, without a gap; adds no owner
        (see `take`).

        Never reaches the last prompt row, which must be computed so that its hidden state exists.
        """
        pages: list[int] = []
        for digest in digests[first : (prompt_rows - 1) // self._pool.page_rows]:
            page = self._pool.find(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def take(self, pages: Sequence[int]) -> None:
        """Add an owner to matched `pages`."""
        for page in pages:
            self._pool.share(page)
        self.hit_rows += len(pages) * self._pool.page_rows

    def insert(self, pages: Sequence[int], digests: Sequence[bytes]) -> None:
        """Let later prompts share `pages`, which their owner has just computed; `digests` are in
        the same order.
        """
        for page, digest in zip(pages, digests, strict=True):
            self._pool.publish(page, digest)
        self.miss_rows += len(pages) * self._pool.page_rows
