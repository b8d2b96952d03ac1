"""Attention over pages with the masks of a `PagedPlan`, which all layers share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hocket.kernels.reference.talker import gather_pages
from hocket.kernels.types.paged import PagedPlan


def paged_attention(
    q_BTHK: Tensor,
    keys_NRGK: Tensor,
    values_NRGK: Tensor,
    plan: PagedPlan,
    scales_NGR2: Tensor | None = None,
) -> Tensor:
    """`reference.talker.paged_attention`; with `lengths`, one sequence after another over exactly its own rows."""
    batch = plan.batch
    key_scales, value_scales = (None, None) if scales_NGR2 is None else scales_NGR2.unbind(-1)
    # Zero where nothing is written, because a mask alone would let NaN through (0 * NaN).
    k_BLGK, v_BLGK = (
        gather_pages(pages, scales, batch.page_table_BP, q_BTHK.dtype).masked_fill_(plan.unwritten, 0.0)
        for pages, scales in ((keys_NRGK, key_scales), (values_NRGK, value_scales))
    )
    if batch.lengths is None:
        return _attend(q_BTHK, k_BLGK, v_BLGK, plan.visible)
    out_BTHK = torch.zeros_like(q_BTHK)
    for b, length in enumerate(batch.lengths):
        if length:
            own = slice(b, b + 1)
            visible_B1TL = plan.visible[own, :, :, :length]
            out_BTHK[own] = _attend(q_BTHK[own], k_BLGK[own, :length], v_BLGK[own, :length], visible_B1TL)
    return out_BTHK


def _attend(q_BTHK: Tensor, k_BLGK: Tensor, v_BLGK: Tensor, visible_B1TL: Tensor) -> Tensor:
    """Each of the G key heads serves H / G query heads."""
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BLGK.transpose(1, 2),
        v_BLGK.transpose(1, 2),
        attn_mask=visible_B1TL,
        enable_gqa=True,
    )
    return out_BHTK.transpose(1, 2)
