"""The nouns of the operations: batches, sampling parameters of a batch, and scaled matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# ---- packed streams
#
# Varlen batches: chunks of several streams one behind the other, and their view of rings of keys
# and values.


@dataclass(frozen=True)
class Packed:
    """Chunks of S streams one behind the other in F frames; the field calls such a batch varlen.

    All counts are frames. Other rates follow from the length of a tensor: M tokens are M / F for
    each frame. Frames between the end of one stream and the beginning of the next, or the end of
    the pack, belong to no stream. A stream without frames is padding: its row is another's, and
    nothing of that row is written.
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
    #: Whether stream s has the frames from s * `max_frames` on, and nothing is behind the last: a
    #: padded batch.
    is_padded: bool = field(default=False, kw_only=True)

    @classmethod
    def padded(
        cls, rows_S: Tensor, starts_S: Tensor, counts_S: Tensor | None, frames: int
    ) -> Packed:
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
        """int64 [F] each: the row of the frame's stream (-1: padding), its place in the chunk, and
        in the stream.
        """
        frame_F = torch.arange(self.frames, device=self.device)
        # The last stream that begins at or before the frame; one without frames begins where the
        # next one does.
        stream_F = torch.searchsorted(self.firsts_S, frame_F, right=True) - 1
        numbers_4S = torch.stack((self.rows_S, self.starts_S, self.counts_S, self.firsts_S))
        row_F, start_F, count_F, first_F = numbers_4S[:, stream_F].unbind(0)
        place_F = frame_F - first_F
        return torch.where(place_F < count_F, row_F, -1), place_F, start_F + place_F


@dataclass(frozen=True)
class RingWindow:
    """One pack's view of one stage's rings: where each stream writes and reads, the same for all
    layers.

    A ring has `capacity` slots, and position p lies in slot p mod `capacity`. A query sees
    `context` keys, its own included.

    What follows `device` is there for padded packs alone, whose streams all have the same number T
    of tokens.
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

    # Four cases of a stream's keys and slots, with a context of 3, chunks of T = 2 tokens and rings
    # of 5 slots. A window has L = 3 - 1 + 2 = 4 keys; "-" is a key that does not exist, "*" one
    # that this chunk writes.
    #
    #   start  keys          slots         case
    #   0      -2 -1  0  1   0  0  0* 1*   The stream begins. Keys before it are read from the
    #                                      first token's slot, just written and so finite; masked.
    #   2       0  1  2  3   0  1  2* 3*   The context is full, and the ring has not wrapped.
    #   4       2  3  4  5   2  3  4* 0*   The chunk passes the ring's end: its second token takes
    #                                      slot 0, whose old position 0 no query of it sees.
    #   6       4  5  6  7   4  0  1* 2*   The context passes the ring's end.

    @cached_property
    def _keys(self) -> Tensor:
        """int64 [S, L]: positions of the L = context - 1 + T keys, oldest first; negative where
        there is none.
        """
        return self._starts + torch.arange(1 - self.context, self.max_tokens, device=self.device)

    @cached_property
    def _slots(self) -> Tensor:
        """int64 [S, L]: row * capacity + slot of each key."""
        # A key that does not exist is read from the slot of the chunk's first token: just written,
        # hence finite, so that masking it leaves exactly nothing. Stale slots (they may be NaN) are
        # never loaded.
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
        ones_TL = torch.ones(
            self.max_tokens, past + self.max_tokens, dtype=torch.bool, device=self.device
        )
        return (ones_TL.triu_().tril_(past) & (self._keys >= 0)[:, None])[:, None]

    def write(self, ring_RCHD: Tensor, new_STHD: Tensor) -> None:
        """Stores a chunk's keys or values.

        Padding writes, too: a ring has room for a whole chunk beside the context, so that what it
        overwrites is out of sight of the stream's next token, and what it leaves is overwritten
        before it could be read.
        """
        ring_RCHD.flatten(0, 1).index_copy_(0, self._write_slots, new_STHD.flatten(0, 1))

    def read(self, ring_RCHD: Tensor) -> Tensor:
        """[S, L, H, D]: the keys or values that the chunk's queries may need."""
        kept = ring_RCHD.flatten(0, 1).index_select(0, self._read_slots)
        return kept.view(len(self.pack.rows_S), -1, *ring_RCHD.shape[2:])


# ---- paged sequences
#
# Batches of sequences over pages of keys and values.
#
# A sequence owns pages of `page_rows` rows; `page_table_BP` names them in order. Page 0 belongs to
# no sequence: padding writes there, and unused table entries point there. A sequence never sees a
# row that it has not written, so pages are handed on as they are, without clearing.

#: The dtype that keys and values may have instead of the model's, and the dtype of their scales
#: then.
FP8, SCALE_DTYPE = torch.float8_e4m3fn, torch.bfloat16
#: Padding writes to this page, and no sequence may own it.
SCRATCH_PAGE = 0


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """B sequences with up to T new rows each, right-padded, and the pages of their cached rows.

    Prefill is `starts = 0`; a later slice, or a prompt whose head another request has cached, is
    `starts > 0`; decoding is T = 1; a padding sequence is `counts = 0`. `starts + counts` must fit
    the table: P * page_rows.
    """

    #: int64 [B, P]: the pages in order, SCRATCH_PAGE where there is none yet.
    page_table_BP: Tensor
    #: int64 [B]: rows already cached.
    starts_B: Tensor
    #: int64 [B]: new rows of each sequence, 0 .. T.
    counts_B: Tensor
    #: `starts + counts` as host numbers: a CPU attends sequence by sequence then, each over exactly
    #: its own rows, so that its bits do not depend on how long its neighbours are. None: all at
    #: once, over the rows of the whole table.
    lengths: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PagedPlan:
    """The indices and masks that all layers share in one pass over a batch; L = P * page_rows.

    Making and using it never waits for the device.
    """

    batch: PagedBatch
    #: int64 [B, T]: position of each new row in its sequence.
    positions_BT: Tensor
    #: int64 [B * T]: row of the flattened pages that each new row is written to.
    slots: Tensor
    page_rows: int

    @classmethod
    def of(cls, batch: PagedBatch, rows: int, page_rows: int) -> PagedPlan:
        """The plan for `rows` = T new rows on pages of `page_rows`."""
        table_BP, starts_B1 = batch.page_table_BP, batch.starts_B[:, None]
        rows_T = torch.arange(rows, device=table_BP.device)
        positions_BT = starts_B1 + rows_T
        # Padding may lie past the table's end; clamped so that the look-up stays inside, then sent
        # to scratch.
        pages_BT = table_BP.gather(1, (positions_BT // page_rows).clamp(max=table_BP.shape[1] - 1))
        is_row_BT = rows_T < batch.counts_B[:, None]
        slots_BT = torch.where(
            is_row_BT, pages_BT * page_rows + positions_BT % page_rows, SCRATCH_PAGE * page_rows
        )
        return cls(batch, positions_BT, slots_BT.flatten(), page_rows)

    @cached_property
    def _cached(self) -> Tensor:
        table_BP = self.batch.page_table_BP
        return torch.arange(table_BP.shape[1] * self.page_rows, device=table_BP.device)

    @cached_property
    def visible(self) -> Tensor:
        """Bool [B, 1, T, L]: cached row l is at or before new row t."""
        return (self._cached <= self.positions_BT[..., None])[:, None]

    @cached_property
    def unwritten(self) -> Tensor:
        """Bool [B, L, 1, 1]: row l is not written by this sequence; its memory may hold anything,
        NaN included.
        """
        return (self._cached >= (self.batch.starts_B + self.batch.counts_B)[:, None])[
            ..., None, None
        ]


# ---- draws
#
# How codes are drawn: the parameters of one row, and those of a batch as the operations take them.
#
# A new parameter is a field of `DrawParams`, with the default that switches it off, and a field of
# `DrawArgs` in the same place; `HostArgs` is the batch as NumPy takes it. The engine packs, stores
# and gathers whatever fields there are.

#: A top-k that keeps all codes of any vocabulary.
_NO_TOP_K = 2**62


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How one row draws a code. The defaults draw from the model's own distribution."""

    #: 0 is greedy.
    temperature: float = 1.0
    #: Nucleus mass; <= 0 or >= 1 disables.
    top_p: float = 1.0
    #: Codes kept; <= 0 or >= V disables.
    top_k: int = 0
    #: Applies to codes that the row has drawn before; 1 disables.
    repetition_penalty: float = 1.0


@dataclass(frozen=True, eq=False)
class DrawArgs:
    """How each of B rows draws a code: `DrawParams` of all rows, a contiguous tensor [B] a
    field.
    """

    #: float32
    temperature_B: Tensor
    #: float32
    top_p_B: Tensor
    #: int64
    top_k_B: Tensor
    #: float32
    repetition_penalty_B: Tensor

    @cached_property
    def effective(self) -> DrawArgs:
        """The same draws without special values, so that code needs no branches.

        Greedy is the nucleus of mass 0, of one code: the first code always stays and its mass drops
        all others.
        """
        is_sampled_B = self.temperature_B > 0
        top_p_B = torch.where((self.top_p_B > 0) & (self.top_p_B < 1), self.top_p_B, math.inf)
        top_k_B = torch.where(self.top_k_B > 0, self.top_k_B, _NO_TOP_K)
        return DrawArgs(
            temperature_B=torch.where(is_sampled_B, self.temperature_B, 1.0),
            top_p_B=torch.where(is_sampled_B, top_p_B, 0.0),
            top_k_B=torch.where(is_sampled_B, top_k_B, 1),
            repetition_penalty_B=self.repetition_penalty_B,
        )

    @cached_property
    def host(self) -> HostArgs:
        """`effective` in NumPy, converted once per batch and used for every code of every frame."""
        args = self.effective
        return HostArgs(
            temperature_B1=args.temperature_B.double()[:, None].numpy(),
            top_p_B1=args.top_p_B.double()[:, None].numpy(),
            top_k_B=args.top_k_B.numpy(),
            repetition_penalty_B1=args.repetition_penalty_B[:, None].numpy(),
            rows_B1=np.arange(len(args.top_k_B))[:, None],
            max_top_k=int(args.top_k_B.max()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class HostArgs:
    """`DrawArgs.effective` in the shapes and dtypes of the NumPy sampler."""

    temperature_B1: NDArray[np.float64]
    top_p_B1: NDArray[np.float64]
    top_k_B: NDArray[np.int64]
    repetition_penalty_B1: NDArray[np.float32]
    #: 0 .. B - 1
    rows_B1: NDArray[np.int64]
    max_top_k: int


# ---- FP8
#
# The inputs and the outputs of 8-bit matrix products. Neither is scaled in a pass of its own,
# because such passes cost as much as FP8 gains: the producer of rows rounds them to 8 bits as it
# stores them, and the consumer of a product scales it as it loads it.


@dataclass(frozen=True, slots=True)
class Rows8:
    """8-bit rows; they dequantise to `values * scales`."""

    #: [..., K], float8 e4m3.
    values: Tensor
    #: float32 [..., 1]
    scales: Tensor


@dataclass(frozen=True, slots=True)
class Scaled:
    """The product of 8-bit rows and weights, not scaled yet.

    Dequantises to `product * rows * columns + bias`, in float32, rounded once to its dtype.
    """

    #: [..., N]; rows are contiguous.
    product: Tensor
    #: float32 [..., 1]
    rows: Tensor
    #: float32 [N]
    columns: Tensor
    #: [N]
    bias: Tensor | None

    @property
    def device(self) -> torch.device:
        return self.product.device

    @property
    def dtype(self) -> torch.dtype:
        return self.product.dtype

    @property
    def shape(self) -> torch.Size:
        return self.product.shape

    def flatten(self, start_dim: int, end_dim: int) -> Scaled:
        """The same with row dimensions flattened, as a tensor's; the last dimension stays."""
        product, rows = (x.flatten(start_dim, end_dim) for x in (self.product, self.rows))
        return Scaled(product, rows, self.columns, self.bias)

    def wide(self) -> Tensor:
        """Dequantised in float32, not rounded."""
        scaled = self.product.float() * self.rows * self.columns
        return scaled if self.bias is None else scaled + self.bias.float()

    def plain(self) -> Tensor:
        """Dequantised, in its dtype."""
        return self.wide().to(self.product.dtype)


def plain(x: Tensor | Scaled) -> Tensor:
    """`x` dequantised, if it is a product of 8 bits."""
    return x.plain() if isinstance(x, Scaled) else x


def operands(x: Tensor | Scaled) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The product, its scales and its bias, as kernels take them; None for those of a tensor."""
    return (
        (x.product, x.rows, x.columns, x.bias) if isinstance(x, Scaled) else (x, None, None, None)
    )
