"""Copies what a stream's next chunk can look back over from one row of rings to another, of other sizes perhaps.

With PyTorch's copies the host had a launch for every run of slots that neither ring has a seam in, a dozen for a codec
and every request. A program copies some 4,096 elements of one layer's keys or values.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

#: Four vectors of 16 bytes a thread of bfloat16.
ELEMENTS = 4096


@triton.jit(do_not_specialize=["context", "unit", "capacity", "target_capacity", "ring_stride", "target_ring_stride"])
def _copy_rings_kernel(
    rings_ptr, target_ptr, move_ptr, context, unit, capacity, target_capacity, ring_stride, target_ring_stride,
    WIDTH: tl.constexpr, ELEMENTS: tl.constexpr,
):  # fmt: skip
    row, target_row = tl.load(move_ptr), tl.load(move_ptr + 1)
    end = tl.load(move_ptr + 2) * unit
    begin = tl.maximum(end - context, 0)
    element = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    position = begin + element // WIDTH
    exists = position < end
    layer, channel = tl.program_id(1).to(tl.int64), element % WIDTH
    here = (layer * ring_stride + row) * capacity + position % capacity
    there = (layer * target_ring_stride + target_row) * target_capacity + position % target_capacity
    values = tl.load(rings_ptr + here * WIDTH + channel, mask=exists)
    tl.store(target_ptr + there * WIDTH + channel, values, mask=exists)


def copy_rings(
    rings_2LRCHK: Tensor, move_3: Tensor, target_2LRCHK: Tensor, context: int, tokens_per_frame: int
) -> None:
    """`reference_rings.copy_rings`. Rings are contiguous."""
    _, layers, rows, capacity, heads, size = rings_2LRCHK.shape
    target_rows, target_capacity = target_2LRCHK.shape[2:4]
    if not (rings_2LRCHK.is_contiguous() and target_2LRCHK.is_contiguous()):
        raise ValueError("rings must be contiguous")
    width = heads * size
    _copy_rings_kernel[(triton.cdiv(context * width, ELEMENTS), 2 * layers)](
        rings_2LRCHK, target_2LRCHK, move_3, context, tokens_per_frame, capacity, target_capacity, rows, target_rows,
        WIDTH=width, ELEMENTS=ELEMENTS, num_warps=4,
    )  # fmt: skip
