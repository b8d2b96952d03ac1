"""A pack's frames, and a window's slots at a ring's end, both worked out by hand and against a
plain loop.
"""

from __future__ import annotations

import pytest
import torch

from hocket.kernels.types import Packed, RingWindow


def packed(
    rows: list[int], starts: list[int], counts: list[int], firsts: list[int], frames: int
) -> Packed:
    rows_S, starts_S, counts_S, firsts_S = (torch.tensor(x) for x in (rows, starts, counts, firsts))
    return Packed(rows_S, starts_S, counts_S, firsts_S, frames, max(counts))


@pytest.mark.parametrize(
    ("rows", "starts", "counts", "firsts", "frames"),
    [
        ([4, 0, 2], [5, 0, 9], [3, 1, 2], [0, 3, 4], 6),
        (
            [4, 0, 2, 1],
            [5, 0, 9, 7],
            [3, 0, 2, 0],
            [0, 3, 3, 5],
            5,
        ),  # no frames: in the middle, and at a full end
        ([3, 1], [0, 2], [1, 2], [0, 4], 9),  # gaps
        ([3, 1], [0, 2], [0, 0], [0, 0], 2),
    ],
)
def test_frames_of_a_pack(
    rows: list[int], starts: list[int], counts: list[int], firsts: list[int], frames: int
) -> None:
    pack = packed(rows, starts, counts, firsts, frames)
    row_F, place_F, position_F = (x.tolist() for x in pack.by_frame)
    owned = set()
    for row, start, count, first in zip(rows, starts, counts, firsts, strict=True):
        for place in range(count):
            frame = first + place
            owned.add(frame)
            assert (row_F[frame], place_F[frame], position_F[frame]) == (row, place, start + place)
    assert all(row_F[frame] == -1 for frame in range(frames) if frame not in owned)


@pytest.mark.parametrize("counts", [None, [2, 0]])
def test_a_padded_batch_is_a_pack_with_gaps(counts: list[int] | None) -> None:
    counts_S = None if counts is None else torch.tensor(counts)
    pack = Packed.padded(torch.tensor([5, 1]), torch.tensor([0, 7]), counts_S, 3)
    assert pack.is_padded
    assert pack.firsts_S.tolist() == [0, 3]
    assert pack.by_frame[0].tolist() == (
        [5, 5, 5, 1, 1, 1] if counts is None else [5, 5, -1, -1, -1, -1]
    )


@pytest.mark.parametrize(
    ("start", "slots", "visible"),
    [
        (0, [0, 0, 0, 1], [[0, 0, 1, 0], [0, 0, 1, 1]]),
        (2, [0, 1, 2, 3], [[1, 1, 1, 0], [0, 1, 1, 1]]),
        (4, [2, 3, 4, 0], [[1, 1, 1, 0], [0, 1, 1, 1]]),
        (6, [4, 0, 1, 2], [[1, 1, 1, 0], [0, 1, 1, 1]]),
    ],
)
def test_a_window_at_the_beginning_and_at_the_end_of_a_ring(
    start: int, slots: list[int], visible: list[list[int]]
) -> None:
    """The four cases written above `RingWindow`, with rings that hold the numbers of their
    slots.
    """
    window = RingWindow(Packed.padded(torch.tensor([1]), torch.tensor([start]), None, 2), 1, 3, 5)
    ring = torch.arange(10.0).view(2, 5, 1, 1)
    assert window.read(ring).flatten().tolist() == [5 + slot for slot in slots]
    assert window.visible[0, 0].int().tolist() == visible
    window.write(ring, torch.tensor([-1.0, -2.0]).view(1, 2, 1, 1))
    assert ring[1].flatten()[slots[-2:]].tolist() == [-1.0, -2.0]
    assert int((ring < 0).sum()) == 2
