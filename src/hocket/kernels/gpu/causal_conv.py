"""Causal convolutions of a codec's packed chunks, as matrix products whose rows are gathered as
they are loaded.

A program computes a tile of tokens times output channels, tap after tap. A token's input some steps
back is a row of the pack, or of its stream's tail where the chunk begins, so neither is copied or
unfolded. Bias, residual and the activation that follows are computed from the sums in registers: an
activation costs no pass over memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hocket.kernels.gpu.rows import rounded
from hocket.kernels.types import Packed

#: Programs that keep every processor busy.
_ENOUGH_PROGRAMS = 128


class _Tile(NamedTuple):
    """Tokens, output channels and input channels of a step; warps that share a program's sums;
    steps in flight.
    """

    tokens: int
    outputs: int
    inputs: int
    warps: int
    stages: int

    @classmethod
    def of(cls, tokens: int, outputs: int, inputs: int, max_size: int) -> _Tile:
        """The largest tile that there is work for, up to `max_size`; it depends on shapes alone.

        Dot products need at least 16 of each.
        """
        m = min(max_size, max(16, triton.next_power_of_2(tokens)))
        n = min(max_size, max(16, triton.next_power_of_2(outputs)))
        # 768 channels of 256 tokens take 38 us in 24 programs of 128 x 64, 48 us in 48 of 128 x 32
        # (H200).
        min_outputs = 64 if m == 128 else 32
        while (
            n > min_outputs and triton.cdiv(tokens, m) * triton.cdiv(outputs, n) < _ENOUGH_PROGRAMS
        ):
            n //= 2
        # 192 channels are three tiles of 64 rather than two of 128.
        if n == 128 and outputs % 128 and outputs % 64 == 0 and outputs < 512:
            n = 64
        # Four warps also for 128 x 128: 768 channels of 1,280 tokens take 80 us, with eight warps
        # 120 (H200).
        return cls(m, n, 64 if inputs % 64 == 0 else 32, 4, 3)


@triton.jit
def _sources(x_ptr, tails_ptr, m, row, place, seen, back, tails_stride, C, columns):
    """Pointers to the inputs `back` steps before tokens `m`, and whether they exist."""
    inside = x_ptr + (m - back).to(tl.int64) * C
    before = tails_ptr + row * tails_stride + (place - back + columns) * C
    return tl.where(place >= back, inside, before), (row >= 0) & (seen >= back)


@triton.jit
def _tokens(rows_ptr, places_ptr, positions_ptr, m, exists, per_frame, columns):
    """For tokens `m`: the row of their stream, their index in its chunk, and how many inputs exist
    before them.
    """
    frame = m // per_frame
    within = m % per_frame
    row = tl.load(rows_ptr + frame, mask=exists, other=-1)
    place = tl.load(places_ptr + frame, mask=exists, other=0).to(tl.int32) * per_frame + within
    position = tl.load(positions_ptr + frame, mask=exists, other=0)
    return row, place, tl.minimum(position * per_frame + within, columns).to(tl.int32)


@triton.jit
def _sine_squared(x):
    """sin(x)^2, to 2e-7 for |x| up to 10,000. A square has period pi, so that no quadrant or sign
    is needed.
    """
    turns = tl.floor(x * 0.3183098861837907 + 0.5)
    # Pi in three parts, the first two short enough for exact products.
    r = tl.fma(turns, -3.140625, x)
    r = tl.fma(turns, -9.670257568359375e-4, r)
    r = tl.fma(turns, -6.278329572264e-7, r)
    square = r * r
    series = tl.fma(square, 1.6059043836821613e-10, -2.505210838544172e-8)
    series = tl.fma(square, series, 2.755731922398589e-6)
    series = tl.fma(square, series, -1.984126984126984e-4)
    series = tl.fma(square, series, 8.333333333333333e-3)
    series = tl.fma(square, series, -1.6666666666666666e-1)
    sine = tl.fma(r * square, series, r)
    return sine * sine


# Sizes are arguments, so that a handful of compiled kernels serve all of a codec's convolutions.
@triton.jit(do_not_specialize=["taps", "dilation", "per_frame", "channels"])
def _causal_conv_kernel(
    out_ptr, bent_ptr, x_ptr, tails_ptr, weight_ptr, bias_ptr, residual_ptr, rate_ptr, gain_ptr,
    rows_ptr, places_ptr, positions_ptr, tokens, tails_stride, C, N, taps, dilation, per_frame,
    channels,
    WHOLE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    columns = (taps - 1) * dilation
    input_tiles = tl.cdiv(C, BK)
    output_tiles = tl.cdiv(N, BN)
    # Programs of the same tokens run side by side: they read the same inputs.
    m = tl.program_id(0) // output_tiles * BM + tl.arange(0, BM)
    n = tl.program_id(0) % output_tiles * BN + tl.arange(0, BN)
    exists = m < tokens
    is_output = n < N
    if tails_ptr is not None:
        row, place, seen = _tokens(
            rows_ptr, places_ptr, positions_ptr, m, exists, per_frame, columns
        )

    sums = tl.zeros((BM, BN), tl.float32)
    for step in range(taps * input_tiles):
        tap = step // input_tiles
        c = step % input_tiles * BK + tl.arange(0, BK)
        if tails_ptr is not None:
            back = (taps - 1 - tap) * dilation
            source, is_there = _sources(
                x_ptr, tails_ptr, m, row, place, seen, back, tails_stride, C, columns
            )
        else:
            source, is_there = x_ptr + m.to(tl.int64) * C, exists
        weights = weight_ptr + (tap * C + c)[:, None] * N + n[None, :]
        if WHOLE:
            x = tl.load(source[:, None] + c[None, :], mask=is_there[:, None], other=0.0)
            weight = tl.load(weights, mask=is_output[None, :], other=0.0)
        else:
            x = tl.load(
                source[:, None] + c[None, :], mask=is_there[:, None] & (c < C)[None, :], other=0.0
            )
            weight = tl.load(weights, mask=is_output[None, :] & (c < C)[:, None], other=0.0)
        sums = tl.dot(x, weight, sums, input_precision="ieee")

    bias = tl.load(bias_ptr + n % channels, mask=is_output, other=0.0).to(tl.float32)
    out = rounded(sums + bias[None, :], dtype)
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    mask = exists[:, None] & is_output[None, :]
    if residual_ptr is not None:
        out = rounded(tl.load(residual_ptr + at, mask=mask, other=0.0).to(tl.float32) + out, dtype)
    if out_ptr is not None:
        tl.store(out_ptr + at, out.to(dtype), mask=mask)
    if bent_ptr is not None:
        rate = tl.load(rate_ptr + n % channels, mask=is_output, other=0.0)[None, :]
        gain = tl.load(gain_ptr + n % channels, mask=is_output, other=0.0)[None, :]
        tl.store(bent_ptr + at, (out + _sine_squared(out * rate) * gain).to(dtype), mask=mask)


def causal_conv(
    x_MC: Tensor,
    pack: Packed,
    tails_RPC: Tensor | None,
    weight_PCO: Tensor,
    bias_D: Tensor,
    dilation: int,
    residual_MO: Tensor | None,
    snake_by: tuple[Tensor, Tensor] | None,
    keep: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """`reference.causal_conv`. All tensors but tails are contiguous."""
    (tokens, channels), (taps, _, outputs) = x_MC.shape, weight_PCO.shape
    if (tails_RPC is None) != (taps == 1):
        raise ValueError(
            f"a convolution of {taps} taps and its tail: one tap needs none, more need one"
        )
    if not all(x is None or x.is_contiguous() for x in (x_MC, weight_PCO, bias_D, residual_MO)):
        raise ValueError("inputs, weights and residuals of a convolution must be contiguous")
    shape = (tokens, outputs)
    out_MO = torch.empty(shape, dtype=x_MC.dtype, device=x_MC.device) if keep else None
    bent_MO = None if snake_by is None else torch.empty(shape, dtype=x_MC.dtype, device=x_MC.device)
    rate, gain = snake_by or (None, None)
    tile = _Tile.of(tokens, outputs, channels, 64 if x_MC.dtype == torch.float32 else 128)
    by_frame = (None, None, None) if tails_RPC is None else pack.by_frame
    grid = (triton.cdiv(tokens, tile.tokens) * triton.cdiv(outputs, tile.outputs),)
    _causal_conv_kernel[grid](
        out_MO, bent_MO, x_MC, tails_RPC, weight_PCO, bias_D, residual_MO, rate, gain, *by_frame,
        tokens,
        0 if tails_RPC is None else tails_RPC.stride(0), channels, outputs, taps, dilation,
        tokens // pack.frames, len(bias_D),
        WHOLE=channels % tile.inputs == 0, BM=tile.tokens, BN=tile.outputs, BK=tile.inputs,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out_MO, bent_MO


@triton.jit(do_not_specialize=["per_frame"])
def _depthwise_conv_kernel(
    out_ptr, x_ptr, tails_ptr, weight_ptr, bias_ptr, rows_ptr, places_ptr, positions_ptr, tokens,
    tails_stride,
    C, per_frame, TAPS: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    exists = m < tokens
    is_channel = c < C
    row, place, seen = _tokens(rows_ptr, places_ptr, positions_ptr, m, exists, per_frame, TAPS - 1)
    sums = tl.zeros((BM, BC), tl.float32)
    for tap in tl.static_range(TAPS):
        source, is_there = _sources(
            x_ptr, tails_ptr, m, row, place, seen, TAPS - 1 - tap, tails_stride, C, TAPS - 1
        )
        mask = is_there[:, None] & is_channel[None, :]
        x = tl.load(source[:, None] + c[None, :], mask=mask, other=0.0).to(tl.float32)
        sums += (
            x
            * tl.load(weight_ptr + tap * C + c, mask=is_channel, other=0.0).to(tl.float32)[None, :]
        )
    sums += tl.load(bias_ptr + c, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    at = m.to(tl.int64)[:, None] * C + c[None, :]
    tl.store(
        out_ptr + at, sums.to(out_ptr.dtype.element_ty), mask=exists[:, None] & is_channel[None, :]
    )


def depthwise_conv(
    x_MC: Tensor, pack: Packed, tails_RPC: Tensor, weight_PC: Tensor, bias_C: Tensor
) -> Tensor:
    """`reference.depthwise_conv`. All tensors but tails are contiguous."""
    (tokens, channels), taps = x_MC.shape, len(weight_PC)
    if not (x_MC.is_contiguous() and weight_PC.is_contiguous()):
        raise ValueError("inputs and weights of a convolution must be contiguous")
    out_MC = torch.empty_like(x_MC)
    block = min(triton.next_power_of_2(channels), 128)
    grid = (triton.cdiv(tokens, 8), triton.cdiv(channels, block))
    _depthwise_conv_kernel[grid](
        out_MC, x_MC, tails_RPC, weight_PC, bias_C, *pack.by_frame, tokens, tails_RPC.stride(0),
        channels, tokens // pack.frames, TAPS=taps, BM=8, BC=block, num_warps=4,
    )  # fmt: skip
    return out_MC


@triton.jit(do_not_specialize=["columns", "per_frame"])
def _keep_tail_kernel(
    x_ptr, tails_ptr, rows_ptr, counts_ptr, firsts_ptr, tails_stride, C, columns, per_frame,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0)
    row = tl.load(rows_ptr + stream)
    tokens = tl.load(counts_ptr + stream) * per_frame
    first = tl.load(firsts_ptr + stream) * per_frame
    p = tl.arange(0, BP)[:, None]
    c = tl.program_id(1) * BC + tl.arange(0, BC)[None, :]
    # The row of a stream without a chunk belongs to another batch: it is not even read.
    mask = (p < columns) & (c < C) & (tokens > 0)
    at = tokens - columns + p
    inside = tl.load(x_ptr + (first + at) * C + c, mask=mask & (at >= 0), other=0.0)
    tails = tails_ptr + row * tails_stride + c
    before = tl.load(tails + (at + columns) * C, mask=mask & (at < 0), other=0.0)
    # All threads must have read the inputs that move within the tail before any is overwritten.
    tl.debug_barrier()
    tl.store(tails + p * C, tl.where(at >= 0, inside, before), mask=mask)


def keep_tail(x_MC: Tensor, pack: Packed, tails_RPC: Tensor) -> None:
    """`reference.keep_tail`. All tensors but tails are contiguous."""
    _, columns, channels = tails_RPC.shape
    if not x_MC.is_contiguous():
        raise ValueError("inputs of a convolution must be contiguous")
    block_p = triton.next_power_of_2(columns)
    block_c = min(triton.next_power_of_2(channels), max(32, 4096 // block_p))
    _keep_tail_kernel[(len(pack.rows_S), triton.cdiv(channels, block_c))](
        x_MC, tails_RPC, pack.rows_S, pack.counts_S, pack.firsts_S, tails_RPC.stride(0),
        channels, columns, len(x_MC) // pack.frames, BP=block_p, BC=block_c, num_warps=4,
    )  # fmt: skip
