"""Snake, the periodic activation between the convolutions of a codec: one read and one write instead of seven passes.

A program has a tile of channels and tokens of one row, 2,048 elements (4 warps, 16 elements a thread): wide in tokens
where there are many of them, and in channels before a codec has made many tokens out of a frame.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 2048
_MOST_TOKENS = 1024


@triton.jit
def _snake_kernel(
    out_ptr, x_ptr, rate_ptr, gain_ptr, tokens, stride_b, stride_c, stride_t,
    C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[None, :]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[:, None]
    b = tl.program_id(2).to(tl.int64)
    mask = (c < C) & (t < tokens)
    x = tl.load(x_ptr + b * stride_b + c.to(tl.int64) * stride_c + t * stride_t, mask=mask, other=0.0).to(tl.float32)
    rate = tl.load(rate_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    gain = tl.load(gain_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    sine = tl.sin(x * rate)
    out = x + sine * sine * gain
    tl.store(out_ptr + (b * C + c) * tokens + t, out.to(out_ptr.dtype.element_ty), mask=mask)


def snake(x_BCT: Tensor, rate_C1: Tensor, gain_C1: Tensor) -> Tensor:
    """See `reference.snake`. `x_BCT` may be a slice or a transpose; the result is contiguous."""
    batch, channels, tokens = x_BCT.shape
    out_BCT = torch.empty((batch, channels, tokens), dtype=x_BCT.dtype, device=x_BCT.device)
    block_t = min(triton.next_power_of_2(tokens), _MOST_TOKENS)
    block_c = min(triton.next_power_of_2(channels), _ELEMENTS // block_t)
    grid = (triton.cdiv(tokens, block_t), triton.cdiv(channels, block_c), batch)
    _snake_kernel[grid](
        out_BCT, x_BCT, rate_C1, gain_C1, tokens, *x_BCT.stride(), C=channels, BLOCK_C=block_c, BLOCK_T=block_t
    )
    return out_BCT
