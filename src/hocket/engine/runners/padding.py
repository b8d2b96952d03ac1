"""Host arrays of the batches that runners send to the device, padded to the sizes in use.
No torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class PrefillSlice(NamedTuple):
    """Consecutive rows of one request's prompt; at most a page where prompts are computed page by
    page.
    """

    row: int
    rows_TR: Integers
    #: K/V row of the first row.
    start: int
    #: The last row of this slice gives the request's hidden state.
    is_last: bool


def split_prefill(row: int, rows_TR: Integers, start: int, size: int) -> list[PrefillSlice]:
    """Split a request's rows, which start at K/V row `start`, into slices of up to `size` rows."""
    count = len(rows_TR)
    return [
        PrefillSlice(row, rows_TR[i : i + size], start + i, i + size >= count)
        for i in range(0, count, size)
    ]


def prefill_batch(
    slices: Sequence[PrefillSlice], size: int, length: int, scratch_row: int
) -> tuple[Integers, Integers]:
    """Prompt rows [size, length, R] and an index [4, size]: request rows, K/V rows, counts and rows
    of hidden states.

    The hidden state of a slice that is not its request's last goes to the scratch row.
    """
    rows_BTR = np.zeros((size, length, slices[0].rows_TR.shape[1]), np.int64)
    numbers = np.zeros((4, size), np.int64)
    numbers[0], numbers[3] = scratch_row, scratch_row
    for i, slice_ in enumerate(slices):
        rows_BTR[i, : len(slice_.rows_TR)] = slice_.rows_TR
    numbers[:, : len(slices)] = np.array(
        [
            (row, start, len(rows_TR), row if is_last else scratch_row)
            for row, rows_TR, start, is_last in slices
        ]
    ).T
    return rows_BTR, numbers


def frame_batch(frame_index_3B: Integers, size: int, scratch_row: int) -> Integers:
    """[4, size]: request rows, frames and K/V rows (see `FrameBatch.frame_index_3B`), and 0 for
    padding.
    """
    count = frame_index_3B.shape[1]
    numbers = np.zeros((4, size), np.int64)
    numbers[0] = scratch_row
    numbers[:3, :count], numbers[3, :count] = frame_index_3B, 1
    return numbers


def chunk_batch(
    rows: Sequence[int], pieces: Sequence[Integers], size: int, frames: int, all_rows: int
) -> tuple[Integers, Integers]:
    """Rows and counts [2, size] and codes [size, frames, N] of pieces [F <= frames, N].

    Padding uses rows without a piece; its count of 0 leaves their state unchanged.
    """
    numbers = np.zeros((2, size), np.int64)
    numbers[0] = _distinct(rows, size, all_rows)
    codes_BTN = np.zeros((size, frames, pieces[0].shape[1]), np.int64)
    for i, piece in enumerate(pieces):
        numbers[1, i] = len(piece)
        codes_BTN[i, : len(piece)] = piece
    return numbers, codes_BTN


def packed_batch(
    rows: Sequence[int], pieces: Sequence[Integers], size: int, streams: int, all_rows: int
) -> tuple[Integers, Integers]:
    """Rows, counts and first frames [3, streams] and codes [size, N] of pieces [F, N] that are
    packed one behind the other.

    Streams without a piece are padding, behind the last one.
    """
    counts = np.array([len(piece) for piece in pieces])
    firsts, used = counts.cumsum() - counts, int(counts.sum())
    numbers = np.zeros((3, streams), np.int64)
    numbers[0] = _distinct(rows, streams, all_rows)
    numbers[1, : len(rows)], numbers[2, : len(rows)], numbers[2, len(rows) :] = counts, firsts, used
    codes_FN = np.zeros((size, pieces[0].shape[1]), np.int64)
    codes_FN[:used] = np.concatenate(pieces)
    return numbers, codes_FN


def _distinct(rows: Sequence[int], size: int, all_rows: int) -> list[int]:
    """Pad `rows` to `size` with distinct rows that are not in use."""
    taken = set(rows)
    return [
        *rows,
        *itertools.islice((row for row in range(all_rows) if row not in taken), size - len(rows)),
    ]
