"""Codec streams that have heard a recording and nothing else, kept for the next request that continues it.

Hearing five seconds costs the codec as much as speaking five; a copy of what it remembers costs a thousandth.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class PrimedStreams:
    """Which of the codec's `rows` holds which recording's stream, by the `digest` of its codes."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._free = list(rows)
        #: Least recently used first.
        self._rows: OrderedDict[bytes, int] = OrderedDict()

    def find(self, key: bytes) -> int | None:
        """The row that has heard this recording."""
        if key not in self._rows:
            return None
        self._rows.move_to_end(key)
        return self._rows[key]

    def place(self, key: bytes) -> int | None:
        """The row to keep the stream in that has just heard this; None where there is no room, or no need."""
        if key in self._rows or not (self._free or self._rows):
            return None
        row = self._free.pop() if self._free else self._rows.popitem(last=False)[1]
        self._rows[key] = row
        return row


def digest(codes_FN: NDArray[np.int64]) -> bytes:
    """Names a recording by its codes."""
    return hashlib.blake2b(repr(codes_FN.shape).encode() + codes_FN.tobytes(), digest_size=16).digest()
