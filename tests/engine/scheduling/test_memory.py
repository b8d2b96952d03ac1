"""Rows, pages and the prefix cache: directed cases, and a random walk against a plain model of the
owners.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from hocket.engine.scheduling.memory import (
    SCRATCH_PAGE,
    PagePool,
    PrefixCache,
    RowPool,
    check_pages,
)
from hocket.errors import CapacityError, HocketError

PAGE_ROWS = 4


def prompt(*values: int) -> NDArray[np.int64]:
    """Prompt rows [len(values), 3], one value each."""
    return np.repeat(np.array(values, dtype=np.int64)[:, None], 3, axis=1)


def computed(cache: PrefixCache, pool: PagePool, rows: NDArray[np.int64]) -> list[int]:
    """Pages of a request that has computed all of `rows` and shares them."""
    digests = cache.digests(rows)
    pages = pool.acquire(pool.pages_for(len(rows)))
    cache.insert(pages[: len(digests)], digests)
    return pages


class TestRowPool:
    def test_lowest_free_row_goes_first(self) -> None:
        pool = RowPool(4)
        assert [pool.acquire() for _ in range(3)] == [0, 1, 2]
        pool.release(1)
        pool.release(0)
        assert [pool.acquire() for _ in range(3)] == [0, 1, 3]
        assert pool.free == 0

    def test_empty_pool_is_a_capacity_error(self) -> None:
        pool = RowPool(1)
        pool.acquire()
        with pytest.raises(CapacityError, match="all 1 rows"):
            pool.acquire()

    @pytest.mark.parametrize("row", [0, 1, 2, -1])
    def test_releasing_what_is_not_held_is_an_error(self, row: int) -> None:
        pool = RowPool(2)
        pool.release(pool.acquire())
        with pytest.raises(HocketError, match=f"row {row} "):
            pool.release(row)

    @pytest.mark.parametrize("owned", [[], [0, 0], [0, 1], [1], [0, 7]])
    def test_check_names_the_row_that_is_off(self, owned: list[int]) -> None:
        pool = RowPool(2)
        pool.acquire()
        pool.check([0])
        with pytest.raises(HocketError, match=r"row \d "):
            pool.check(owned)


class TestPagePool:
    def test_scratch_page_is_never_handed_out(self) -> None:
        pool = PagePool(5, PAGE_ROWS)
        assert sorted(pool.acquire(4)) == [1, 2, 3, 4]
        assert pool.capacity == 4

    def test_acquire_is_all_or_nothing(self) -> None:
        pool = PagePool(4, PAGE_ROWS)
        pool.acquire(1)
        with pytest.raises(CapacityError, match="3 pages were asked for but only 2 of 3"):
            pool.acquire(3)
        assert pool.available == 2

    @pytest.mark.parametrize(("rows", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
    def test_pages_for(self, rows: int, pages: int) -> None:
        assert PagePool(2, PAGE_ROWS).pages_for(rows) == pages

    def test_page_is_free_after_its_last_owner_leaves(self) -> None:
        pool = PagePool(3, PAGE_ROWS)
        (page,) = pool.acquire(1)
        pool.share(page)
        pool.release([page])
        assert (pool.references(page), pool.free) == (1, 1)
        pool.release([page])
        assert (pool.references(page), pool.free) == (0, 2)

    def test_double_release_is_an_error(self) -> None:
        pool = PagePool(3, PAGE_ROWS)
        pages = pool.acquire(1)
        pool.release(pages)
        for wrong in (pages, [SCRATCH_PAGE]):
            with pytest.raises(HocketError, match="not held"):
                pool.release(wrong)

    def test_unknown_or_free_page_cannot_be_shared_or_published(self) -> None:
        pool = PagePool(3, PAGE_ROWS)
        with pytest.raises(HocketError, match="cannot be shared"):
            pool.share(1)
        with pytest.raises(HocketError, match="cannot be published"):
            pool.publish(1, b"x")
        (page,) = pool.acquire(1)
        pool.publish(page, b"x")
        with pytest.raises(HocketError, match="known already"):
            pool.publish(page, b"y")

    def test_kept_pages_are_evicted_only_when_free_ones_are_used_up_and_least_recently_used_first(
        self,
    ) -> None:
        pool = PagePool(4, PAGE_ROWS)
        a, b, c = pool.acquire(3)
        for page, digest in ((a, b"a"), (b, b"b")):
            pool.publish(page, digest)
        pool.release([a])
        pool.release([b])
        pool.release([c])
        assert (pool.free, pool.kept, pool.available) == (1, 2, 3)
        assert pool.acquire(1) == [c]
        assert pool.evictions == 0
        pool.share(a)  # used again: now b is the older one
        pool.release([a])
        assert pool.acquire(1) == [b]
        assert (pool.find(b"b"), pool.find(b"a"), pool.evictions) == (None, a, 1)

    def test_second_page_with_a_known_content_stays_private(self) -> None:
        pool = PagePool(3, PAGE_ROWS)
        first, second = pool.acquire(2)
        pool.publish(first, b"x")
        pool.publish(second, b"x")
        assert pool.find(b"x") == first
        pool.release([second])
        assert (pool.free, pool.kept) == (1, 0)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ({"references": [0, 2, 0, 0]}, "page 1 has 2 references and 1 claims"),
            ({"free": [3, 1]}, "page 1 .* is 1 times"),
            ({"free": [3, 3]}, "page 3 .* is 2 times"),
            ({"free": []}, "page 3 .* is 0 times"),
            ({"free": [3, SCRATCH_PAGE]}, "page 0 "),
            ({"free": [3, 9]}, "page 9 "),
            ({"kept": [2, 1]}, "page 1 .* and kept"),
            ({"kept": [2, 3]}, "page 3 .* and kept"),
            ({"page_of": {b"k": 2, b"z": 1}}, "index from digest to page disagree"),
            ({"page_of": {}}, "index from digest to page disagree"),
            ({"digest_of": [None] * 4, "page_of": {}}, "kept without one"),
        ],
    )
    def test_check_says_what_is_off(self, damage: dict[str, Any], message: str) -> None:
        """One of three pages is held, one is kept and one is free."""
        books: dict[str, Any] = {
            "references": [0, 1, 0, 0],
            "free": [3],
            "kept": [2],
            "digest_of": [None, None, b"k", None],
            "page_of": {b"k": 2},
        }
        check_pages([[1]], **books)
        with pytest.raises(HocketError, match=message):
            check_pages([[1]], **books | damage)

    def test_a_pool_keeps_its_books(self) -> None:
        pool = PagePool(4, PAGE_ROWS)
        held, kept = pool.acquire(2)
        pool.publish(kept, b"k")
        pool.release([kept])
        assert (held, kept, pool.free, pool.kept) == (1, 2, 1, 1)
        pool.check([[held]])

    @pytest.mark.parametrize("owned", [[], [[1], [1]], [[1, 2]], [[SCRATCH_PAGE, 1]], [[1], [8]]])
    def test_check_compares_with_the_owners(self, owned: list[list[int]]) -> None:
        pool = PagePool(4, PAGE_ROWS)
        pool.acquire(1)
        with pytest.raises(HocketError, match=r"page \d has"):
            pool.check(owned)


class TestPrefixCache:
    def setup_method(self) -> None:
        self.pool = PagePool(12, PAGE_ROWS)
        self.cache = PrefixCache(self.pool)

    def match(self, rows: NDArray[np.int64]) -> list[int]:
        return self.cache.match(self.cache.digests(rows), len(rows))

    def test_leading_pages_are_found_up_to_the_first_difference(self) -> None:
        pages = computed(self.cache, self.pool, prompt(*range(12)))
        assert self.match(prompt(*range(12), 99)) == pages
        assert self.match(prompt(*range(8), 99, 9, 10, 11, 12)) == pages[:2]
        assert self.match(prompt(99, *range(1, 13))) == []

    def test_same_page_behind_another_prefix_is_another_page(self) -> None:
        computed(self.cache, self.pool, prompt(1, 1, 1, 1, 5, 5, 5, 5))
        computed(self.cache, self.pool, prompt(2, 2, 2, 2, 6, 6, 6, 6))
        assert len(self.match(prompt(2, 2, 2, 2, 5, 5, 5, 5, 0))) == 1

    @pytest.mark.parametrize(("rows", "pages"), [(8, 1), (9, 2), (5, 1), (4, 0), (3, 0), (1, 0)])
    def test_last_prompt_row_is_never_matched(self, rows: int, pages: int) -> None:
        computed(self.cache, self.pool, prompt(*range(12)))
        assert len(self.match(prompt(*range(rows)))) == pages

    def test_partial_page_is_never_shared(self) -> None:
        computed(self.cache, self.pool, prompt(*range(6)))
        assert len(self.match(prompt(*range(6), 6, 7, 8))) == 1

    def test_every_code_and_the_salt_are_part_of_the_digest(self) -> None:
        rows = prompt(1, 2, 3, 4)
        other = rows.copy()
        other[3, 2] += 1
        digests = {
            self.cache.digests(rows),
            self.cache.digests(other),
            self.cache.digests(rows, b"speaker"),
        }
        assert len(digests) == 3
        assert self.cache.digests(rows) == self.cache.digests(np.asfortranarray(rows))

    def test_kept_pages_of_a_prompt_are_evicted_from_its_end(self) -> None:
        pages = computed(self.cache, self.pool, prompt(*range(12)))
        self.pool.release(pages)
        self.pool.acquire(self.pool.free + 1)
        assert self.match(prompt(*range(13))) == pages[:2]

    def test_chain_without_its_head_is_not_matched(self) -> None:
        head, *rest = computed(self.cache, self.pool, prompt(*range(12)))
        self.pool.release([head])
        self.pool.release(rest)
        self.pool.acquire(self.pool.free + 1)
        assert self.pool.find(self.cache.digests(prompt(*range(12)))[1]) == rest[0]
        assert self.match(prompt(*range(13))) == []

    def test_taken_pages_are_not_evicted(self) -> None:
        pages = computed(self.cache, self.pool, prompt(*range(12)))
        self.cache.take(pages[:1])
        self.pool.release(pages)
        assert self.pool.available == self.pool.capacity - 1
        self.pool.acquire(self.pool.available)
        assert self.match(prompt(*range(13))) == pages[:1]

    def test_rows_are_counted(self) -> None:
        pages = computed(self.cache, self.pool, prompt(*range(9)))
        self.cache.take(self.match(prompt(*range(9))))
        assert (self.cache.hit_rows, self.cache.miss_rows) == (8, 8)
        assert [self.pool.references(page) for page in pages] == [2, 2, 1]

    def test_disabled_cache_finds_and_keeps_nothing(self) -> None:
        cache = PrefixCache(self.pool, enabled=False)
        pages = computed(cache, self.pool, prompt(*range(12)))
        assert cache.match(cache.digests(prompt(*range(13))), 13) == []
        self.pool.release(pages)
        assert (self.pool.kept, cache.miss_rows) == (0, 0)


class MemoryMachine(RuleBasedStateMachine):
    """Owners come, share and go in random order. The model: a list of pages per owner, the content
    of every page.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(9, 2)
        self.cache = PrefixCache(self.pool)
        self.owners: list[list[int]] = []
        self.content: dict[int, bytes] = {}

    # Few distinct values and lengths, so that prompts often share a prefix.
    @rule(values=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def enter(self, values: list[int]) -> None:
        rows = prompt(*values)
        digests = self.cache.digests(rows)
        known = self.cache.match(digests, len(rows))
        for index, page in enumerate(known):
            assert self.content[page] == rows[: 2 * (index + 1)].tobytes()
        self.cache.take(known)
        wanted = self.pool.pages_for(len(rows)) - len(known)
        if wanted > self.pool.available:
            with pytest.raises(CapacityError):
                self.pool.acquire(wanted)
            self.pool.release(known)
            return
        own = self.pool.acquire(wanted)
        pages = known + own
        for page in own:
            self.content.pop(page, None)
        assert not set(own) & {page for owner in self.owners for page in owner}
        self.cache.insert(pages[len(known) : len(digests)], digests[len(known) :])
        for index in range(len(known), len(digests)):
            self.content[pages[index]] = rows[: 2 * (index + 1)].tobytes()
        self.owners.append(pages)

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.pool.release(self.owners.pop(data.draw(st.integers(0, len(self.owners) - 1))))

    @invariant()
    def every_page_is_somewhere(self) -> None:
        self.pool.check(self.owners)
        held = {page for owner in self.owners for page in owner}
        assert self.pool.available + len(held) == self.pool.capacity

    def teardown(self) -> None:
        for owner in self.owners:
            self.pool.release(owner)
        self.pool.check([])
        assert self.pool.available == self.pool.capacity


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(
    max_examples=60, stateful_step_count=40, derandomize=True, deadline=None
)
