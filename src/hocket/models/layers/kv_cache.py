"""Paged keys and values of a backbone, and the plain attention over them.

A sequence owns pages of `page_rows` rows; `page_table_BP` names them in order. Page 0 belongs to nobody: padding writes
there, and unused table entries point there. Nothing a sequence has not written is ever visible to it, so pages are
handed on as they are, without clearing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from hocket.kernels import ops
from hocket.kernels.reference.talker import gather_pages

#: What keys and values may be kept in instead of the model's dtype, and what their scales are.
FP8, SCALE_DTYPE = torch.float8_e4m3fn, torch.bfloat16
#: Where padding writes. No sequence may own it.
SCRATCH_PAGE = 0


class KVShape(Protocol):
    """The dimensions of a backbone that its keys and values have."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def kv_bytes_per_row(shape: KVShape, dtype: torch.dtype) -> int:
    """Bytes of the keys and values that one row takes in all layers, with the scales of float8."""
    scale_bytes = SCALE_DTYPE.itemsize if dtype == FP8 else 0
    return 2 * shape.layers * shape.kv_heads * (shape.head_dim * dtype.itemsize + scale_bytes)


@dataclass(frozen=True, slots=True)
class KVPages:
    """Keys and values of all layers: each [layers, pages, page_rows, kv_heads, head_dim]."""

    keys: Tensor
    values: Tensor
    #: Of float8 keys and values, bfloat16 [layers, pages, kv_heads, page_rows, 2]: a key's scale, then a value's.
    scales: Tensor | None = None

    @classmethod
    def allocate(
        cls,
        layers: int,
        pages: int,
        page_rows: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVPages:
        """Uninitialised pages, the scratch page (number 0) included in `pages`; with scales if `dtype` is float8."""
        shape = (layers, pages, page_rows, kv_heads, head_dim)
        keys, values = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        if dtype != FP8:
            return cls(keys, values)
        scales = torch.empty((layers, pages, kv_heads, page_rows, 2), dtype=SCALE_DTYPE, device=device)
        return cls(keys, values, scales)

    def scales_of(self, layer: int) -> Tensor | None:
        """[pages, kv_heads, page_rows, 2]"""
        return None if self.scales is None else self.scales[layer]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    @property
    def page_rows(self) -> int:
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """B sequences with up to T new rows each, right-padded, and where their cached rows are.

    Prefill is `starts = 0`; a later chunk, or a prompt whose head another request has cached, is `starts > 0`; decoding
    is T = 1; a padding sequence is `counts = 0`. `starts + counts` must fit the table: P * page_rows.
    """

    #: int64 [B, P]: the pages in order, SCRATCH_PAGE where there is none yet.
    page_table_BP: Tensor
    #: int64 [B]: rows already cached.
    starts_B: Tensor
    #: int64 [B]: new rows of each sequence, 0 .. T.
    counts_B: Tensor
    #: `starts + counts` as host numbers: attend sequence by sequence, each over exactly its own rows, so that its bits
    #: do not depend on how long its neighbours are. None: all at once, over as many rows as the table holds.
    lengths: tuple[int, ...] | None = None


@dataclass(frozen=True)
class PagedPlan:
    """What all layers share in one pass over a batch; L = P * page_rows. Made without a wait for the device."""

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


def paged_attention(q_BTHD: Tensor, kv: KVPages, layer: int, plan: PagedPlan) -> Tensor:
    """Attend causally over `layer`'s pages, which have the new rows already (G kv heads): [B, T, H, D].

    Outputs of padding rows are finite and mean nothing.
    """
    keys, values, batch = kv.keys[layer], kv.values[layer], plan.batch
    table_BP, scales = batch.page_table_BP, kv.scales_of(layer)
    if ops.column_of(q_BTHD.device) == "gpu":
        return ops.paged_attention(q_BTHD, keys, values, table_BP, batch.starts_B, batch.counts_B, scales)
    of_keys, of_values = (None, None) if scales is None else scales.unbind(-1)
    # Zero where nothing is written, because a mask alone would let NaN through (0 * NaN).
    k_BLGD, v_BLGD = (
        gather_pages(pages, of_pages, table_BP, q_BTHD.dtype).masked_fill_(plan.unwritten, 0.0)
        for pages, of_pages in ((keys, of_keys), (values, of_values))
    )
    if batch.lengths is None:
        return _grouped_attention(q_BTHD, k_BLGD, v_BLGD, plan.visible)
    out_BTHD = torch.zeros_like(q_BTHD)
    for b, length in enumerate(batch.lengths):
        if length:
            own = slice(b, b + 1)
            visible_B1TL = plan.visible[own, :, :, :length]
            out_BTHD[own] = _grouped_attention(q_BTHD[own], k_BLGD[own, :length], v_BLGD[own, :length], visible_B1TL)
    return out_BTHD


def causal_attention(q_BTHD: Tensor, k_BTGD: Tensor, v_BTGD: Tensor) -> Tensor:
    """[B, T, H, D] of T whole rows without a cache, differentiable. Causality hides right padding."""
    return _grouped_attention(q_BTHD, k_BTGD, v_BTGD, None, is_causal=True)


def _grouped_attention(
    q_BTHD: Tensor, k_BLGD: Tensor, v_BLGD: Tensor, visible_B1TL: Tensor | None, *, is_causal: bool = False
) -> Tensor:
    """Each of the G kv heads serves H / G query heads. Without a mask every row is visible, or with `is_causal`, where
    T = L, those up to its own.
    """
    out_BHTD = F.scaled_dot_product_attention(
        q_BTHD.transpose(1, 2),
        k_BLGD.transpose(1, 2),
        v_BLGD.transpose(1, 2),
        attn_mask=visible_B1TL,
        is_causal=is_causal,
        enable_gqa=True,
    )
    return out_BHTD.transpose(1, 2)
