"""What comes after an FP8 product: scales of rows and channels, and the bias, in one pass.

A program has one row and up to 1,024 columns (4 warps, 8 elements a thread). The product was just written, so it is
read from the L2 cache: 128 rows of 19,456 are 5 MB.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024


@triton.jit
def _scale_product_kernel(
    product_ptr, row_scale_ptr, column_scale_ptr, bias_ptr, out_ptr, product_stride,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    x = tl.load(product_ptr + row * product_stride + columns, mask=mask, other=0.0).to(tl.float32)
    x = x * tl.load(row_scale_ptr + row) * tl.load(column_scale_ptr + columns, mask=mask, other=0.0)
    if bias_ptr is not None:
        x = x + tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + columns, x.to(out_ptr.dtype.element_ty), mask=mask)


def scale_product(product_MN: Tensor, scale_M1: Tensor, scale_N: Tensor, bias_N: Tensor | None) -> Tensor:
    """`reference.scale_product`."""
    count, width = product_MN.shape
    out_MN = torch.empty((count, width), dtype=product_MN.dtype, device=product_MN.device)
    block = min(triton.next_power_of_2(width), _COLUMNS)
    _scale_product_kernel[(count, triton.cdiv(width, block))](
        product_MN, scale_M1, scale_N, bias_N, out_MN, product_MN.stride(0),
        WIDTH=width, BLOCK=block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out_MN
