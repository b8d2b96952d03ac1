"""Cases of `benchmarks.gpu.kernels`: codec kernels at the sizes of a chunk of several streams."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from benchmarks.gpu.case import BF16, F32, AnyOperation, Case, kernel, product, randn
from hocket.kernels import ops
from hocket.kernels.types import Packed, RingWindow
from hocket.models.codec import Codec, ConvShape, RingStage


def codec_cases(
    codec: Codec, second: Codec, arguments: Namespace, device: torch.device
) -> Iterator[Case]:
    """The transformers of one codec, the convolutions of another."""
    for chunk in arguments.chunks.split(","):
        streams, frames = map(int, chunk.split("x"))
        for stage in codec.ring_stages:
            yield from stage_cases(stage, streams, frames, device)
        yield from conv_cases(second, streams, frames, device)


def stage_cases(stage: RingStage, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    unit, width = stage.ring.tokens_per_frame, stage.width
    heads, size, tokens = stage.ring.kv_heads, stage.ring.head_dim, frames * unit
    rows = streams * tokens
    yield from ring_cases(stage, [frames] * streams, f"{streams} x {tokens} x {heads} x {size}", on)
    # Streams have 1, 2, .. `frames` frames, repeated.
    label = f"{streams} x {unit} to {tokens} x {heads} x {size}"
    yield from ring_cases(stage, [1 + stream % frames for stream in range(streams)], label, on)
    ffn = stage.ffn_dim

    def activate(fp8: bool) -> Callable[[], object]:
        x = (product if fp8 else randn)(streams, tokens, ffn, on=on)
        return lambda: kernel(ops.gelu)(x, fp8)

    yield Case(f"gelu {rows} x {ffn}", 4 * rows * ffn, partial(activate, False))
    yield Case(f"gelu fp8 {rows} x {ffn}", 3 * rows * ffn, partial(activate, True))
    weight = torch.ones(width, device=on)
    bias = torch.zeros_like(weight)

    def norm(operation: AnyOperation, fp8: bool) -> Callable[[], object]:
        x = randn(streams, tokens, width, on=on, dtype=F32)
        if operation is ops.layer_norm_to:
            return lambda: kernel(operation)(x, weight, bias, 1e-5, BF16, fp8)
        delta = (product if fp8 else randn)(streams, tokens, width, on=on)
        rest = () if operation is ops.scaled_add else (weight, bias, 1e-5, fp8)
        return lambda: kernel(operation)(x, delta, weight, *rest)

    for operation, moved, written in (
        (ops.layer_norm_to, 4, 2),
        (ops.scaled_add, 10, 0),
        (ops.scaled_add_layer_norm, 10, 2),
    ):
        for fp8 in (False, True):
            nbytes = rows * width * (moved + (written // 2 if fp8 else written))
            yield Case(
                f"{operation.name}{' fp8' * fp8} {rows} x {width}",
                nbytes,
                partial(norm, operation, fp8),
            )


def ring_cases(
    stage: RingStage, counts: Sequence[int], label: str, on: torch.device
) -> Iterator[Case]:
    """Attention of streams with `counts` new frames."""
    ring, width = stage.ring, stage.width
    heads, size, unit, context = (
        ring.kv_heads,
        ring.head_dim,
        ring.tokens_per_frame,
        ring.context_tokens,
    )
    streams, tokens = len(counts), sum(counts) * unit
    counts_S = torch.tensor(counts, device=on)
    starts_S, firsts_S = torch.full_like(counts_S, 1000), counts_S.cumsum(0) - counts_S
    pack = Packed(
        torch.randperm(streams, device=on), starts_S, counts_S, firsts_S, sum(counts), max(counts)
    )
    window = RingWindow(pack, unit, context, context + max(counts) * unit)
    turns = kernel(ops.pair_turns)(window, size, stage.rope_base)

    def prepare(operation: AnyOperation) -> Callable[[], object]:
        shape = (streams, window.capacity, heads, size)
        qkv, keys, values = (
            randn(tokens, 3 * width, on=on),
            randn(*shape, on=on),
            randn(*shape, on=on),
        )
        return lambda: kernel(operation)(qkv, turns, window, keys, values)

    def turn() -> Callable[[], object]:
        return lambda: kernel(ops.pair_turns)(window, size, stage.rope_base)

    def copy() -> Callable[[], object]:
        # A kept stream is copied to a request's row like this.
        shape = (2, ring.layers, 2, context + unit, heads, size)
        rings, target = randn(*shape, on=on), randn(*shape, on=on)
        move_3 = torch.tensor([0, 1, 1000], device=on)
        return lambda: kernel(ops.copy_rings)(rings, move_3, target, context, unit)

    yield Case(f"pair_turns {label}", 4 * tokens * size, turn)
    yield Case(
        f"copy_rings {ring.layers} x {context} x {width}", 8 * ring.layers * context * width, copy
    )
    yield Case(
        f"append_rotated {label}",
        tokens * (8 * width + 4 * size),
        partial(prepare, ops.append_rotated),
    )
    nbytes = 4 * width * (2 * tokens + streams * (context - 1)) + 4 * tokens * size
    attend = partial(prepare, ops.ring_attention)
    flops = 4.0 * tokens * width * context
    yield Case(f"ring_attention {label}, {context} of context", nbytes, attend, flops)


def conv_cases(codec: Codec, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    """The convolutions that take most of a decoder's time, in the middle of streams."""
    dense = [conv for conv in codec.convolutions if not conv.is_depthwise]
    for conv in dense:
        yield causal_conv_case(conv, streams, frames, on)
    last = [conv for conv in dense if conv.taps > 1][-1]
    columns = (last.taps - 1) * last.dilation

    def keep() -> Callable[[], object]:
        pack, tails = some_pack(streams, frames, on), some_tails(last, streams, on)
        x = randn(streams * frames * last.positions_per_frame, last.channels, on=on)
        return lambda: kernel(ops.keep_tail)(x, pack, tails)

    yield Case(
        f"keep_tail {streams} x {last.channels}", 4 * streams * columns * last.channels, keep
    )
    for conv in codec.convolutions:
        if conv.is_depthwise:
            yield depthwise_case(conv, streams, frames, on)
    yield join_case(codec.ring_stages[-1].width, streams * frames, on)


def causal_conv_case(conv: ConvShape, streams: int, frames: int, on: torch.device) -> Case:
    channels, taps, tokens = conv.channels, conv.taps, streams * frames * conv.positions_per_frame

    def convolve() -> Callable[[], object]:
        x, weight = randn(tokens, channels, on=on), randn(taps, channels, channels, on=on)
        pack, tails = (
            some_pack(streams, frames, on),
            some_tails(conv, streams, on) if taps > 1 else None,
        )
        snake = torch.rand(channels, device=on), torch.rand(channels, device=on)
        residual = None if taps > 1 else torch.zeros_like(x)
        fixed = (weight, randn(channels, on=on), conv.dilation, residual, snake, taps == 1)
        return lambda: kernel(ops.causal_conv)(x, pack, tails, *fixed)

    nbytes = tokens * channels * (4 if taps > 1 else 8) + 2 * taps * channels**2
    label = f"causal_conv {tokens} x {channels}, {taps} taps"
    return Case(label, nbytes, convolve, 2.0 * tokens * taps * channels**2)


def depthwise_case(conv: ConvShape, streams: int, frames: int, on: torch.device) -> Case:
    channels, tokens = conv.channels, streams * frames * conv.positions_per_frame

    def filter_channels() -> Callable[[], object]:
        pack, tails = some_pack(streams, frames, on), some_tails(conv, streams, on)
        fixed = (
            randn(tokens, channels, on=on),
            pack,
            tails,
            randn(conv.taps, channels, on=on),
            randn(channels, on=on),
        )
        return lambda: kernel(ops.depthwise_conv)(*fixed)

    return Case(f"depthwise_conv {tokens} x {channels}", 4 * tokens * channels, filter_channels)


def join_case(width: int, tokens: int, on: torch.device) -> Case:
    """A residual sum of the decoder's transformer and the norm after it."""

    def join() -> Callable[[], object]:
        x, scale, weight = (
            torch.rand(*shape, device=on) for shape in ((tokens, width), (width,), (width,))
        )
        delta = randn(tokens, width, on=on)
        return lambda: kernel(ops.scaled_add_rms_norm)(x, delta, scale, weight, 1e-5, BF16)

    return Case(f"scaled_add_rms_norm {tokens} x {width}", 12 * tokens * width, join)


def some_pack(streams: int, frames: int, on: torch.device) -> Packed:
    """Streams at frame 200 that get `frames` more each."""
    rows_S = torch.arange(streams, device=on)
    starts_S, counts_S = torch.full_like(rows_S, 200), torch.full_like(rows_S, frames)
    pack = Packed(rows_S, starts_S, counts_S, rows_S * frames, streams * frames, frames)
    assert pack.by_frame  # made once for all convolutions, so not measured
    return pack


def some_tails(conv: ConvShape, streams: int, on: torch.device) -> torch.Tensor:
    return randn(streams, (conv.taps - 1) * conv.dilation, conv.channels, on=on)
