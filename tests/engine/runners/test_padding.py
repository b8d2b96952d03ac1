"""Integer arrays that are sent to the device."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.engine.runners.padding import (
    chunk_batch,
    frame_batch,
    packed_batch,
    prefill_batch,
    split_prefill,
)

SCRATCH = 99


def codes(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + 3 * count).reshape(count, 3)


@settings(deadline=None)
@given(st.integers(1, 70), st.integers(1, 33), st.integers(0, 40))
def test_pieces_are_the_rows_again(count: int, size: int, start: int) -> None:
    rows_TR = codes(count)
    pieces = split_prefill(4, rows_TR, start, size)
    assert np.array_equal(np.concatenate([piece.rows_TR for piece in pieces]), rows_TR)
    assert [piece.start for piece in pieces] == list(range(start, start + count, size))
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    rows_BTR, numbers = prefill_batch(pieces, len(pieces) + 2, size, SCRATCH)
    assert numbers[2].sum() == count
    assert (numbers[0] == [4] * len(pieces) + [SCRATCH] * 2).all()
    assert (numbers[3] == [SCRATCH] * (len(pieces) - 1) + [4] + [SCRATCH] * 2).all()
    kept = [rows_BTR[i, : numbers[2, i]] for i in range(len(pieces))]
    assert np.array_equal(np.concatenate(kept), rows_TR)


def test_frames() -> None:
    numbers = frame_batch(np.array([[3, 1], [7, 0], [20, 9]]), 3, SCRATCH)
    assert numbers.tolist() == [[3, 1, SCRATCH], [7, 0, 0], [20, 9, 0], [1, 1, 0]]
    assert frame_batch(np.zeros((3, 0), np.int64), 2, SCRATCH).tolist() == [
        [SCRATCH, SCRATCH],
        [0, 0],
        [0, 0],
        [0, 0],
    ]


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 3))
def test_chunks_padded_and_packed(counts: list[int], spare: int) -> None:
    streams, total = len(counts) + spare, sum(counts)
    all_rows = streams + 2
    rows = list(np.random.default_rng(total).permutation(all_rows)[: len(counts)])
    pieces = [codes(count, 100 * i) for i, count in enumerate(counts)]
    numbers, codes_BTN = chunk_batch(rows, pieces, streams, 7, all_rows)
    assert sorted(set(numbers[0])) == sorted(numbers[0])
    assert list(numbers[0, : len(rows)]) == rows
    assert list(numbers[1]) == counts + [0] * spare
    for i, piece in enumerate(pieces):
        assert np.array_equal(codes_BTN[i, : len(piece)], piece)
    packed, codes_FN = packed_batch(rows, pieces, total + 3, streams, all_rows)
    assert sorted(set(packed[0])) == sorted(packed[0])
    assert list(packed[1]) == counts + [0] * spare
    assert list(packed[2]) == list(packed[1].cumsum() - packed[1])
    for i, piece in enumerate(pieces):
        own = slice(packed[2, i], packed[2, i] + len(piece))
        assert np.array_equal(codes_FN[own], piece)
