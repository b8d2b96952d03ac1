"""The RMS norm of a float32 residual stream, with the scaled addition before it and the rounding after it.

A program holds whole rows in registers, so each element is read once and written once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.gpu.rows import as_rows


@triton.jit
def _scaled_add_rms_norm_kernel(
    x_ptr, delta_ptr, scale_ptr, weight_ptr, total_ptr, out_ptr, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    exists = columns < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + columns
    x = tl.load(x_ptr + at, mask=exists, other=0.0)
    weight = tl.load(weight_ptr + columns, mask=exists, other=0.0)
    if delta_ptr is not None:
        scale = tl.load(scale_ptr + columns, mask=exists, other=0.0)
        x += scale * tl.load(delta_ptr + at, mask=exists, other=0.0).to(tl.float32)
        tl.store(total_ptr + at, x, mask=exists)
    normed = x * tl.rsqrt(tl.sum(x * x) / WIDTH + eps) * weight
    tl.store(out_ptr + at, normed.to(out_ptr.dtype.element_ty), mask=exists)


def scaled_add_rms_norm(
    x: Tensor, delta: Tensor | None, scale_D: Tensor | None, weight_D: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`reference.scaled_add_rms_norm`; rows lie one behind the other."""
    if not all(part is None or part.is_contiguous() for part in (x, delta)):
        raise ValueError("the rows of a residual stream and of what joins it must be contiguous")
    width = x.shape[-1]
    total = x if delta is None else torch.empty_like(x)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    block = triton.next_power_of_2(width)
    _scaled_add_rms_norm_kernel[(len(as_rows(x)),)](
        x, delta, scale_D, weight_D, total, out, eps, WIDTH=width, BLOCK=block,
        num_warps=min(16, max(1, block // 256)), enable_fp_fusion=False,
    )  # fmt: skip
    return total, out
