"""Cases of `benchmarks.gpu.kernels`: the kernels of codecs, at the sizes of a chunk of several streams."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

import torch

from benchmarks.gpu.case import BF16, F32, AnyOperation, Case, kernel, product, randn
from hocket.kernels import ops
from hocket.kernels.types.packed import Chunks
from hocket.kernels.types.packed_tail import PackedTail
from hocket.models.moss_codec.config import MossCodecConfig, TransformerSpec
from hocket.models.qwen3_codec.config import DecoderSpec, Qwen3CodecConfig
from hocket.models.qwen3_codec.decoder import DILATIONS, KERNEL


def codec_cases(
    codec: MossCodecConfig, second: Qwen3CodecConfig, arguments: Namespace, device: torch.device
) -> Iterator[Case]:
    for chunk in arguments.chunks.split(","):
        streams, frames = map(int, chunk.split("x"))
        for stage in codec.decoder:
            if isinstance(stage, TransformerSpec):
                yield from stage_cases(stage, streams, frames, device)
        yield from conv_cases(second, streams, frames, device)


def stage_cases(stage: TransformerSpec, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    heads, size, width, tokens = stage.heads, stage.head_dim, stage.width, frames * stage.tokens_per_frame
    rows = streams * tokens
    yield from ring_cases(stage, [frames] * streams, f"{streams} x {tokens} x {heads} x {size}", on)
    # Streams of 1, 2, .. `frames` frames, and again from 1 on.
    label = f"{streams} x {stage.tokens_per_frame} to {tokens} x {heads} x {size}"
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
            yield Case(f"{operation.name}{' fp8' * fp8} {rows} x {width}", nbytes, partial(norm, operation, fp8))


def ring_cases(stage: TransformerSpec, counts: Sequence[int], label: str, on: torch.device) -> Iterator[Case]:
    """Attention of streams that have `counts` new frames."""
    heads, size, width, unit = stage.heads, stage.head_dim, stage.width, stage.tokens_per_frame
    context, streams, tokens = stage.context_tokens, len(counts), sum(counts) * unit
    counts_S = torch.tensor(counts, device=on)
    starts_S, firsts_S = torch.full_like(counts_S, 1000), counts_S.cumsum(0) - counts_S
    chunks = Chunks(torch.randperm(streams, device=on), starts_S, counts_S, firsts_S, unit, max(counts))
    turns = kernel(ops.pair_turns)(chunks, tokens, size, stage.rope_base)

    def prepare(operation: AnyOperation, *rest: int) -> Callable[[], object]:
        shape = (streams, context + max(counts) * unit, heads, size)
        qkv, keys, values = randn(tokens, 3 * width, on=on), randn(*shape, on=on), randn(*shape, on=on)
        return lambda: kernel(operation)(qkv, turns, chunks, keys, values, *rest)

    def turn() -> Callable[[], object]:
        return lambda: kernel(ops.pair_turns)(chunks, tokens, size, stage.rope_base)

    def copy() -> Callable[[], object]:
        # As a kept stream goes to a request's row.
        shape = (2, stage.layers, 2, context + unit, heads, size)
        rings, target = randn(*shape, on=on), randn(*shape, on=on)
        move_3 = torch.tensor([0, 1, 1000], device=on)
        return lambda: kernel(ops.copy_rings)(rings, move_3, target, context, unit)

    yield Case(f"pair_turns {label}", 4 * tokens * size, turn)
    yield Case(f"copy_rings {stage.layers} x {context} x {width}", 8 * stage.layers * context * width, copy)
    yield Case(f"append_rotated {label}", tokens * (8 * width + 4 * size), partial(prepare, ops.append_rotated))
    nbytes = 4 * width * (2 * tokens + streams * (context - 1)) + 4 * tokens * size
    attend = partial(prepare, ops.ring_attention, context)
    flops = 4.0 * tokens * width * context
    yield Case(f"ring_attention {label}, {context} of context", nbytes, attend, flops)


def conv_cases(codec: Qwen3CodecConfig, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    """The residual units' convolutions, which are four fifths of a decoder's products, of streams that go on."""
    spec = codec.decoder
    unit = prod(spec.latent_strides)
    for i, stride in enumerate(spec.strides):
        channels, unit = spec.width // 2 ** (i + 1), unit * stride
        tokens = streams * frames * unit
        for taps, dilation in ((KERNEL, DILATIONS[-1]), (1, 1)):

            def convolve(
                channels: int = channels, tokens: int = tokens, unit: int = unit, taps: int = taps, by: int = dilation
            ) -> Callable[[], object]:
                x, weight = randn(tokens, channels, on=on), randn(taps, channels, channels, on=on)
                tail = some_tail(streams, frames, unit, (taps - 1) * by, channels, on) if taps > 1 else None
                snake = torch.rand(channels, device=on), torch.rand(channels, device=on)
                residual = None if taps > 1 else torch.zeros_like(x)
                fixed = (weight, randn(channels, on=on), by, residual, snake, taps == 1)
                return lambda: kernel(ops.causal_conv)(x, tail, *fixed)

            nbytes = tokens * channels * (4 if taps > 1 else 8) + 2 * taps * channels**2
            label = f"causal_conv {tokens} x {channels}, {taps} taps"
            yield Case(label, nbytes, convolve, 2.0 * tokens * taps * channels**2)

    def keep(channels: int = channels, unit: int = unit) -> Callable[[], object]:
        tail = some_tail(streams, frames, unit, (KERNEL - 1) * DILATIONS[-1], channels, on)
        x = randn(streams * frames * unit, channels, on=on)
        return lambda: kernel(ops.keep_tail)(x, tail)

    yield Case(f"keep_tail {streams} x {channels}", 4 * streams * (KERNEL - 1) * DILATIONS[-1] * channels, keep)
    yield from latent_cases(spec, streams, frames, on)


def latent_cases(spec: DecoderSpec, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    """What is between the products of the transformer and of the latents."""
    tokens, width, latent = streams * frames, spec.transformer.width, spec.latent_dim

    def filter_channels() -> Callable[[], object]:
        tail = some_tail(streams, frames, 1, KERNEL - 1, latent, on)
        fixed = randn(tokens, latent, on=on), tail, randn(KERNEL, latent, on=on), randn(latent, on=on)
        return lambda: kernel(ops.depthwise_conv)(*fixed)

    def join() -> Callable[[], object]:
        x, scale, weight = (torch.rand(*shape, device=on) for shape in ((tokens, width), (width,), (width,)))
        delta = randn(tokens, width, on=on)
        return lambda: kernel(ops.scaled_add_rms_norm)(x, delta, scale, weight, 1e-5, BF16)

    yield Case(f"depthwise_conv {tokens} x {latent}", 4 * tokens * latent, filter_channels)
    yield Case(f"scaled_add_rms_norm {tokens} x {width}", 12 * tokens * width, join)


def some_tail(streams: int, frames: int, unit: int, columns: int, channels: int, on: torch.device) -> PackedTail:
    """Of streams that have seen 200 frames, and are given `frames` more each."""
    rows_S, places_F = torch.arange(streams, device=on), torch.arange(frames, device=on).repeat(streams)
    counts = (rows_S, torch.full_like(rows_S, frames), rows_S * frames)
    tails_RPC = randn(streams, columns, channels, on=on)
    return PackedTail(tails_RPC, unit, *counts, rows_S.repeat_interleave(frames), places_F, places_F + 200)
