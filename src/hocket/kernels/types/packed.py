"""Varlen batches: chunks of several streams one behind the other, and their view of rings of keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """Chunks of S streams one behind the other in F frames; the field calls such a batch varlen.

    All counts are frames. Other rates follow from the length of a tensor: M tokens are M / F for each frame. Frames
    between the end of one stream and the beginning of the next, or the end of the pack, belong to no stream. A stream
    without frames is padding: its row is another's, and nothing of that row is written.
    """

    #: int64 [S]: the row of each stream's state; rows are distinct.
    rows_S: Tensor
    #: int64 [S]: frames that the stream had before.
    starts_S: Tensor
    #: int64 [S]: frames that it has now.
    counts_S: Tensor
    #: int64 [S], ascending: where in the pack they begin.
    firsts_S: Tensor
    #: F, padding included.
    frames: int
    #: The largest count that `counts_S` may have.
    max_frames: int
    #: Whether stream s has the frames from s * `max_frames` on, and nothing is behind the last: a padded batch.
    is_padded: bool = field(default=False, kw_only=True)

    @classmethod
    def padded(cls, rows_S: Tensor, starts_S: Tensor, counts_S: Tensor | None, frames: int) -> Packed:
        """S chunks of `counts_S` frames, by default `frames`, each padded to `frames`."""
        pack_frames = frames * len(rows_S)
        counts_S = torch.full_like(rows_S, frames) if counts_S is None else counts_S
        firsts_S = torch.arange(0, pack_frames, frames, device=rows_S.device)
        return cls(rows_S, starts_S, counts_S, firsts_S, pack_frames, frames, is_padded=True)

    @property
    def device(self) -> torch.device:
        return self.rows_S.device

    @cached_property
    def by_frame(self) -> tuple[Tensor, Tensor, Tensor]:
        """int64 [F] each: the row of the frame's stream (-1: padding), its place in the chunk, and in the stream."""
        frame_F = torch.arange(self.frames, device=self.device)
        # The last stream that begins at or before the frame; one without frames begins where the next one does.
        stream_F = torch.searchsorted(self.firsts_S, frame_F, right=True) - 1
        numbers_4S = torch.stack((self.rows_S, self.starts_S, self.counts_S, self.firsts_S))
        row_F, start_F, count_F, first_F = numbers_4S[:, stream_F].unbind(0)
        place_F = frame_F - first_F
        return torch.where(place_F < count_F, row_F, -1), place_F, start_F + place_F


@dataclass(frozen=True)
class RingWindow:
    """One pack's view of one stage's rings: where each stream writes and reads, the same for all layers.

    A ring has `capacity` slots, and position p lies in slot p mod `capacity`. A query sees `context` keys, its own
    included.

    What follows `device` is there for padded packs alone, whose streams all have the same number T of tokens.
    """

    pack: Packed
    tokens_per_frame: int
    context: int
    capacity: int

    @property
    def device(self) -> torch.device:
        return self.pack.device

    @property
    def tokens(self) -> int:
        """M, the pack's tokens."""
        return self.pack.frames * self.tokens_per_frame

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens that a stream of the pack may have."""
        return min(self.pack.max_frames * self.tokens_per_frame, self.tokens)

    @cached_property
    def _starts(self) -> Tensor:
        """int64 [S, 1]: position of each stream's first token."""
        return (self.pack.starts_S * self.tokens_per_frame)[:, None]

    @cached_property
    def positions(self) -> Tensor:
        """int64 [S, T] since the start of each stream."""
        return self._starts + torch.arange(self.max_tokens, device=self.device)

    # Four cases of a stream's keys and slots, with a context of 3, chunks of T = 2 tokens and rings of 5 slots. A
    # window has L = 3 - 1 + 2 = 4 keys; "-" is a key that does not exist, "*" one that this chunk writes.
    #
    #   start  keys          slots           case
    #   0      -2 -1  0  1   0  0  0* 1*     The stream begins: keys before it are read from the first token's slot,
    #                                        which has just been written and so is finite, and are masked.
    #   2       0  1  2  3   0  1  2* 3*     The context is full, and the ring has not wrapped.
    #   4       2  3  4  5   2  3  4* 0*     The chunk passes the ring's end: its second token takes slot 0, whose old
    #                                        position 0 no query of the chunk sees.
    #   6       4  5  6  7   4  0  1* 2*     The context passes the ring's end.

    @cached_property
    def _keys(self) -> Tensor:
        """int64 [S, L]: positions of the L = context - 1 + T keys, oldest first; negative where there is none."""
        return self._starts + torch.arange(1 - self.context, self.max_tokens, device=self.device)

    @cached_property
    def _slots(self) -> Tensor:
        """int64 [S, L]: row * capacity + slot of each key."""
        # A key that does not exist is read from the slot of the chunk's first token: just written, hence finite, so
        # that masking it leaves exactly nothing. Stale slots (they may be NaN) are never loaded.
        keys_SL = torch.where(self._keys >= 0, self._keys, self._starts)
        return self.pack.rows_S[:, None] * self.capacity + keys_SL % self.capacity

    @cached_property
    def _write_slots(self) -> Tensor:
        """int64 [S * T]: flat slots of the chunk's own tokens."""
        return self._slots[:, self.context - 1 :].flatten()

    @cached_property
    def _read_slots(self) -> Tensor:
        """int64 [S * L]: flat slots of the keys."""
        return self._slots.flatten()

    @cached_property
    def visible(self) -> Tensor:
        """Bool [S, 1, T, L]: true where the query may look."""
        past = self.context - 1
        ones_TL = torch.ones(self.max_tokens, past + self.max_tokens, dtype=torch.bool, device=self.device)
        return (ones_TL.triu_().tril_(past) & (self._keys >= 0)[:, None])[:, None]

    def write(self, ring_RCHD: Tensor, new_STHD: Tensor) -> None:
        """Stores a chunk's keys or values.

        Padding writes, too: a ring has room for a whole chunk beside the context, so that what it overwrites is out of
        sight of the stream's next token, and what it leaves is overwritten before it could be read.
        """
        ring_RCHD.flatten(0, 1).index_copy_(0, self._write_slots, new_STHD.flatten(0, 1))

    def read(self, ring_RCHD: Tensor) -> Tensor:
        """[S, L, H, D]: the keys or values that the chunk's queries may need."""
        kept = ring_RCHD.flatten(0, 1).index_select(0, self._read_slots)
        return kept.view(len(self.pack.rows_S), -1, *ring_RCHD.shape[2:])
