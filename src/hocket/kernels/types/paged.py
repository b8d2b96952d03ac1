"""Batches of sequences over pages of keys and values.

A sequence owns pages of `page_rows` rows; `page_table_BP` names them in order. Page 0 belongs to no sequence: padding
writes there, and unused table entries point there. A sequence never sees a row that it has not written, so pages are
handed on as they are, without clearing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

#: The dtype that keys and values may have instead of the model's, and the dtype of their scales then.
FP8, SCALE_DTYPE = torch.float8_e4m3fn, torch.bfloat16
#: Padding writes to this page, and no sequence may own it.
SCRATCH_PAGE = 0


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """B sequences with up to T new rows each, right-padded, and the pages of their cached rows.

    Prefill is `starts = 0`; a later slice, or a prompt whose head another request has cached, is `starts > 0`; decoding
    is T = 1; a padding sequence is `counts = 0`. `starts + counts` must fit the table: P * page_rows.
    """

    #: int64 [B, P]: the pages in order, SCRATCH_PAGE where there is none yet.
    page_table_BP: Tensor
    #: int64 [B]: rows already cached.
    starts_B: Tensor
    #: int64 [B]: new rows of each sequence, 0 .. T.
    counts_B: Tensor
    #: `starts + counts` as host numbers: a CPU attends sequence by sequence then, each over exactly its own rows, so
    #: that its bits do not depend on how long its neighbours are. None: all at once, over the rows of the whole table.
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
        # Padding may lie past the table's end; clamped so that the look-up stays inside, then sent to scratch.
        pages_BT = table_BP.gather(1, (positions_BT // page_rows).clamp(max=table_BP.shape[1] - 1))
        is_row_BT = rows_T < batch.counts_B[:, None]
        slots_BT = torch.where(is_row_BT, pages_BT * page_rows + positions_BT % page_rows, SCRATCH_PAGE * page_rows)
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
        """Bool [B, L, 1, 1]: row l is not written by this sequence; its memory may hold anything, NaN included."""
        return (self._cached >= (self.batch.starts_B + self.batch.counts_B)[:, None])[..., None, None]
