"""What `gpu_kernels.py` measures: each kernel's inputs at a model's sizes, and what it cannot avoid doing.

Bytes count every input and every output once. Sizes come from the dimensions that ship with Hocket, or a folder's.
"""

from __future__ import annotations

import itertools
import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from gpu_tools import floor_us
from torch import Tensor

from hocket.bench.random_model import plans
from hocket.kernels import reference, reference_conv, reference_rings
from hocket.kernels.chunks import Chunks
from hocket.kernels.packed_tail import PackedTail
from hocket.kernels.scaled import Scaled
from hocket.models.layers import half_rope_tables, pair_rope_tables
from hocket.models.moss_codec.config import MossCodecConfig, TransformerSpec
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.qwen3_codec.config import DecoderSpec, Qwen3CodecConfig
from hocket.models.qwen3_codec.decoder import DILATIONS, KERNEL
from hocket.models.qwen3_tts.config import Qwen3TtsConfig

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
PAGE_ROWS = 32
#: Positions that a page table names: what an engine for the benchmark's workload is given.
TABLE_ROWS = 1024


#: Of a product: bf16; FP8 with one scale for each whole matrix, as Hocket's layers have it; FP8 with a scale for each
#: row and column, which the library does not have for all shapes.
Kind = Literal["bf16", "fp8", "fp8 rows"]


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: `prepare` makes new inputs, and a call on them."""

    name: str
    nbytes: float
    prepare: Callable[[], Callable[[], object]]
    flops: float = 0.0
    dtype: torch.dtype = BF16

    @property
    def floor_us(self) -> float:
        return floor_us(self.nbytes, self.flops, self.dtype)


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product [M, K] x [K, N], `times` of which a run of its part has."""

    part: str
    label: str
    m: int
    k: int
    n: int
    times: int
    bias: bool = False

    @property
    def name(self) -> str:
        return f"{self.part} {self.label} {self.k}x{self.n} M={self.m}"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.k * self.n

    def case(self, device: torch.device, kind: Kind) -> Case:
        def plain() -> Callable[[], object]:
            x_MK, w_NK = randn(self.m, self.k, on=device), randn(self.n, self.k, on=device)
            bias_N = randn(self.n, on=device) if self.bias else None
            return lambda: F.linear(x_MK, w_NK, bias_N)

        def scaled() -> Callable[[], object]:
            x_MK, w_NK = (randn(rows, self.k, on=device).to(FP8) for rows in (self.m, self.n))
            if kind == "fp8":
                scales = (torch.ones((), device=device),) * 2
            else:
                scales = torch.rand(self.m, 1, device=device) + 0.5, torch.rand(1, self.n, device=device) + 0.5
            return lambda: torch._scaled_mm(x_MK, w_NK.t(), *scales, out_dtype=BF16, use_fast_accum=True)

        size = 2 if kind == "bf16" else 1
        nbytes = (self.m * self.k + self.k * self.n) * size + 2 * self.m * self.n
        if kind == "bf16":
            return Case(self.name, nbytes, plain, self.flops)
        return Case(self.name, nbytes, scaled, self.flops, FP8)


def randn(*shape: int, on: torch.device, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, device=on, dtype=dtype)


def product(*shape: int, on: torch.device) -> Scaled:
    """Of 8 bits, without a bias."""
    rows, columns = torch.rand(*shape[:-1], 1, device=on), torch.rand(shape[-1], device=on)
    return Scaled(randn(*shape, on=on), rows, columns, None)


def kernel(twin: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel that stands for `twin` on a GPU and in Triton's interpreter; elsewhere `twin` itself."""
    if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
        return twin
    from hocket.kernels.compiled import KERNELS

    return KERNELS[twin]


def kernel_cases(arguments: Namespace, device: torch.device) -> Iterator[Case]:
    of_talker, of_codec = plans(arguments.model, arguments.codec, BF16)
    second_talker, second_codec = plans(arguments.second, arguments.second_codec, BF16)
    talker, codec = of_talker.config, of_codec.config
    assert isinstance(talker, MossLocalConfig), "--model takes a MOSS-TTS-Local model"
    assert isinstance(codec, MossCodecConfig)
    assert isinstance(second_talker.config, Qwen3TtsConfig), "--second takes a Qwen3-TTS model"
    assert isinstance(second_codec.config, Qwen3CodecConfig)
    for rows in arguments.rows:
        yield from backbone_cases(talker, rows, device)
        yield from decode_cases(talker, rows, arguments.contexts, device)
        yield from depth_cases(talker, rows, device)
        yield from predictor_cases(second_talker.config, rows, device)
    for pages in arguments.pages:
        yield from (prefill_case(talker, pages, is_fp8, device) for is_fp8 in (False, True))
    for chunk in arguments.chunks.split(","):
        streams, frames = map(int, chunk.split("x"))
        for stage in codec.decoder:
            if isinstance(stage, TransformerSpec):
                yield from codec_cases(stage, streams, frames, device)
        yield from conv_cases(second_codec.config, streams, frames, device)


# ---- rows of a backbone, [M, ...]


def backbone_cases(talker: MossLocalConfig, rows: int, on: torch.device) -> Iterator[Case]:
    shape = talker.backbone
    size, ffn, q = shape.hidden_size, shape.intermediate_size, shape.heads * shape.head_dim
    weight = torch.ones(size, dtype=BF16, device=on)

    def on_rows(twin: Callable[..., Any], kind: str, widths: Sequence[int], nbytes: float, *rest: object) -> Case:
        """`nbytes` for each element of the first width. With 8 bits out, the last input is a product of 8 bits."""

        def prepare() -> Callable[[], object]:
            inputs: list[Tensor | Scaled] = [randn(rows, width, on=on) for width in widths]
            if kind and (len(widths) > 1 or rest == (True,)):
                inputs[-1] = product(rows, widths[-1], on=on)
            return lambda: kernel(twin)(*inputs, *rest)

        added = "" if len(widths) == 1 else " + delta"
        return Case(f"{twin.__name__}{kind} {rows} x {widths[0]}{added}", rows * widths[0] * nbytes, prepare)

    zeros = torch.zeros_like(weight)
    norm, layer_norm = (weight, 1e-6), (weight, zeros, 1e-6)
    for twin, rest in ((reference.add_rms_norm, norm), (reference.add_layer_norm, layer_norm)):
        yield on_rows(twin, "", [size], 4, None, *rest)
        yield on_rows(twin, "", [size, size], 8, *rest)
        yield on_rows(twin, " fp8", [size], 3, None, *rest, True)
        yield on_rows(twin, " fp8", [size, size], 7, *rest, True)
    yield on_rows(reference.silu_mul, "", [2 * ffn], 3)
    yield on_rows(reference.silu_mul, " fp8", [2 * ffn], 2.5, True)
    yield on_rows(reference.silu, "", [ffn], 4)
    yield on_rows(reference.silu, " fp8", [ffn], 3, True)
    yield on_rows(reference.quantize_rows, "", [q], 3)
    texts_VD = randn(min(talker.vocab_size, 20_000), size, on=on)
    codes_WD = randn(sum(talker.audio_codebook_sizes), size, on=on)

    def embed() -> Callable[[], object]:
        text_M = torch.randint(len(texts_VD), (rows,), device=on)
        ids_MN = torch.randint(len(codes_WD), (rows, talker.n_vq), device=on)
        return lambda: kernel(reference.embed_sum)(texts_VD, codes_WD, text_M, ids_MN)

    yield Case(f"embed_sum {rows} x {1 + talker.n_vq} x {size}", rows * (2 + talker.n_vq) * size * 2, embed)


def decode_cases(talker: MossLocalConfig, rows: int, contexts: Sequence[int], on: torch.device) -> Iterator[Case]:
    shape = talker.backbone
    heads, groups, size = shape.heads, shape.kv_heads, shape.head_dim
    weight_K = torch.ones(size, dtype=BF16, device=on)

    def append(is_fp8: bool) -> Callable[[], object]:
        width = (heads + 2 * groups) * size
        qkv_ME = product(rows, width, on=on) if is_fp8 else randn(rows, width, on=on)
        rope = half_rope_tables(torch.arange(rows, device=on), size, 1e6, BF16)
        keys, values, scales = kv_pages(rows, groups, size, is_fp8, on)
        slots = torch.arange(rows, device=on) * PAGE_ROWS
        fixed = (weight_K, weight_K, 1e-6, rope.cos, rope.sin, slots, keys.flatten(0, 1), values.flatten(0, 1), scales)
        return lambda: kernel(reference.norm_rotate_append)(qkv_ME, *fixed)

    for is_fp8 in (False, True):
        nbytes = rows * size * (4 * heads + 4 * groups + 4 + (2 if is_fp8 else 4) * groups)
        name = f"norm_rotate_append{' fp8' * is_fp8} {rows} x {heads}/{groups} x {size}"
        yield Case(name, nbytes, partial(append, is_fp8))
    for context, is_fp8 in itertools.product(contexts, (False, True)):
        pages = -(-context // PAGE_ROWS)

        def attend(context: int = context, pages: int = pages, is_fp8: bool = is_fp8) -> Callable[[], object]:
            q = randn(rows, 1, heads, size, on=on)
            keys, values, scales = kv_pages(rows * pages + 1, groups, size, is_fp8, on)
            table = torch.zeros(rows, max(pages, TABLE_ROWS // PAGE_ROWS), dtype=torch.int32, device=on)
            table[:, :pages] = 1 + torch.randperm(rows * pages, device=on).view(rows, pages)
            starts, counts = (torch.full((rows,), number, device=on) for number in (context - 1, 1))
            return lambda: kernel(reference.paged_attention)(q, keys, values, table, starts, counts, scales)

        nbytes = rows * (context * groups * (2 * size + 4 if is_fp8 else 4 * size) + 4 * heads * size)
        flops = 4.0 * rows * heads * size * context
        name = f"paged_attention{' fp8' * is_fp8} {rows} x {heads}/{groups} x {size} at {context}"
        yield Case(name, nbytes, attend, flops)


def kv_pages(
    pages: int, groups: int, size: int, is_fp8: bool, on: torch.device
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values, and the scales of float8 ones."""
    keys, values = (randn(pages, PAGE_ROWS, groups, size, on=on) for _ in range(2))
    if not is_fp8:
        return keys, values, None
    scales = torch.full((pages, groups, PAGE_ROWS, 2), 0.5, dtype=BF16, device=on)
    return keys.to(FP8), values.to(FP8), scales


def prefill_case(talker: MossLocalConfig, pages: int, is_fp8: bool, on: torch.device) -> Case:
    """Pages of prompts of five pages each, which is what a cloned voice takes."""
    shape, prompt = talker.backbone, 5
    heads, groups, size = shape.heads, shape.kv_heads, shape.head_dim

    def prepare() -> Callable[[], object]:
        q = randn(pages, PAGE_ROWS, heads, size, on=on)
        keys, values, scales = kv_pages(pages + prompt, groups, size, is_fp8, on)
        page = torch.arange(pages, device=on)
        table = torch.zeros(pages, TABLE_ROWS // PAGE_ROWS, dtype=torch.int32, device=on)
        table[:, :prompt] = (page // prompt * prompt)[:, None] + torch.arange(prompt, device=on)
        starts, counts = page % prompt * PAGE_ROWS, torch.full((pages,), PAGE_ROWS, device=on)
        return lambda: kernel(reference.paged_attention)(q, keys, values, table, starts, counts, scales)

    seen = sum(i % prompt * PAGE_ROWS + (PAGE_ROWS + 1) / 2 for i in range(pages)) * PAGE_ROWS
    nbytes = pages * PAGE_ROWS * (4 * heads * size + groups * (2 * size + 4 if is_fp8 else 4 * size))
    name = f"paged_attention prefill{' fp8' * is_fp8}, {pages} pages x {heads}/{groups} x {size}"
    return Case(name, nbytes, prepare, 4.0 * seen * heads * size)


# ---- positions of a frame


def depth_cases(talker: MossLocalConfig, rows: int, on: torch.device) -> Iterator[Case]:
    depth, codes = talker.depth, max(talker.audio_codebook_sizes)
    heads, size, positions, width = depth.heads, depth.head_dim, depth.positions, depth.hidden_size
    rope = pair_rope_tables(torch.arange(positions, device=on), size, depth.rope_base, BF16)
    for position in sorted({0, positions // 2, positions - 1}):

        def attend(position: int = position) -> Callable[[], object]:
            qkv = randn(rows, 3 * width, on=on)
            keys, values = (randn(rows, heads, positions, size, on=on) for _ in range(2))
            fixed = (rope.cos[position], rope.sin[position], keys, values, position)
            return lambda: kernel(reference.depth_attention)(qkv, *fixed)

        nbytes = rows * 2 * width * (6 + 2 * position)
        yield Case(f"depth_attention {rows} x {heads} x {size} at {position}", nbytes, attend)
    temperature, top_p, penalty = (torch.full((rows,), x, device=on) for x in (1.7, 0.8, 1.2))
    top_k, frame = (torch.full((rows,), x, device=on) for x in (25, 7))
    seed = torch.arange(rows, device=on)
    table = randn(codes, width, on=on)

    def draw(has_penalty: bool) -> Callable[[], object]:
        logits = randn(rows, codes, on=on)
        seen = torch.rand(rows, codes, device=on) < 0.1
        rest = (penalty, seen) if has_penalty else (None, None)
        return lambda: kernel(reference.draw_and_embed)(logits, temperature, top_p, top_k, *rest, seed, frame, 3, table)

    def stop() -> Callable[[], object]:
        logits = randn(rows, 2, on=on)
        off = (torch.ones_like(top_p), torch.zeros_like(top_k), None, None)
        return lambda: kernel(reference.draw)(logits, torch.ones_like(temperature), *off, seed, frame, talker.n_vq)

    yield Case(f"draw_and_embed {rows} of {codes}", rows * (2 * codes + 4 * width), partial(draw, False))
    yield Case(f"draw_and_embed {rows} of {codes}, penalty", rows * (3 * codes + 4 * width), partial(draw, True))
    yield Case(f"draw {rows} of 2", rows * 40, stop)


def predictor_cases(talker: Qwen3TtsConfig, rows: int, on: torch.device) -> Iterator[Case]:
    shape, positions = talker.predictor, talker.n_vq
    heads, groups, size = shape.heads, shape.kv_heads, shape.head_dim
    rope = half_rope_tables(torch.arange(positions, device=on), size, shape.rope_theta, BF16)
    weight = torch.ones(size, dtype=BF16, device=on)
    for start, tokens in ((0, 2), (positions // 2, 1), (positions - 1, 1)):

        def attend(start: int = start, tokens: int = tokens) -> Callable[[], object]:
            qkv = randn(rows, tokens, (heads + 2 * groups) * size, on=on)
            keys, values = (randn(rows, positions, groups, size, on=on) for _ in range(2))
            fixed = (weight, weight, shape.norm_eps, rope.cos, rope.sin, keys, values, start)
            return lambda: kernel(reference.frame_attention)(qkv, *fixed)

        nbytes = rows * 4 * size * (tokens * (heads + 2 * groups) + start * groups)
        yield Case(f"frame_attention {rows} x {tokens} x {heads}/{groups} x {size} at {start}", nbytes, attend)


# ---- chunks of a codec


def codec_cases(stage: TransformerSpec, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    heads, size, width, tokens = stage.heads, stage.head_dim, stage.width, frames * stage.tokens_per_frame
    rows = streams * tokens
    yield from ring_cases(stage, [frames] * streams, f"{streams} x {tokens} x {heads} x {size}", on)
    # Streams of 1, 2, .. `frames` frames, and again from 1 on.
    label = f"{streams} x {stage.tokens_per_frame} to {tokens} x {heads} x {size}"
    yield from ring_cases(stage, [1 + stream % frames for stream in range(streams)], label, on)
    ffn = stage.ffn_dim

    def activate(fp8: bool) -> Callable[[], object]:
        x = (product if fp8 else randn)(streams, tokens, ffn, on=on)
        return lambda: kernel(reference.gelu)(x, fp8)

    yield Case(f"gelu {rows} x {ffn}", 4 * rows * ffn, partial(activate, False))
    yield Case(f"gelu fp8 {rows} x {ffn}", 3 * rows * ffn, partial(activate, True))
    weight = torch.ones(width, device=on)
    bias = torch.zeros_like(weight)

    def norm(twin: Callable[..., Any], fp8: bool) -> Callable[[], object]:
        x = randn(streams, tokens, width, on=on, dtype=F32)
        if twin is reference.layer_norm_to:
            return lambda: kernel(twin)(x, weight, bias, 1e-5, BF16, fp8)
        delta = (product if fp8 else randn)(streams, tokens, width, on=on)
        rest = () if twin is reference.scaled_add else (weight, bias, 1e-5, fp8)
        return lambda: kernel(twin)(x, delta, weight, *rest)

    for twin, moved, written in (
        (reference.layer_norm_to, 4, 2),
        (reference.scaled_add, 10, 0),
        (reference.scaled_add_layer_norm, 10, 2),
    ):
        for fp8 in (False, True):
            nbytes = rows * width * (moved + (written // 2 if fp8 else written))
            yield Case(f"{twin.__name__}{' fp8' * fp8} {rows} x {width}", nbytes, partial(norm, twin, fp8))


def ring_cases(stage: TransformerSpec, counts: Sequence[int], label: str, on: torch.device) -> Iterator[Case]:
    """Attention of streams that have `counts` new frames."""
    heads, size, width, unit = stage.heads, stage.head_dim, stage.width, stage.tokens_per_frame
    context, streams, tokens = stage.context_tokens, len(counts), sum(counts) * unit
    counts_S = torch.tensor(counts, device=on)
    starts_S, firsts_S = torch.full_like(counts_S, 1000), counts_S.cumsum(0) - counts_S
    chunks = Chunks(torch.randperm(streams, device=on), starts_S, counts_S, firsts_S, unit, max(counts))
    turns = kernel(reference_rings.pair_turns)(chunks, tokens, size, stage.rope_base)

    def prepare(twin: Callable[..., Any], *rest: int) -> Callable[[], object]:
        shape = (streams, context + max(counts) * unit, heads, size)
        qkv, keys, values = randn(tokens, 3 * width, on=on), randn(*shape, on=on), randn(*shape, on=on)
        return lambda: kernel(twin)(qkv, turns, chunks, keys, values, *rest)

    def turn() -> Callable[[], object]:
        return lambda: kernel(reference_rings.pair_turns)(chunks, tokens, size, stage.rope_base)

    yield Case(f"pair_turns {label}", 4 * tokens * size, turn)
    yield Case(
        f"append_rotated {label}", tokens * (8 * width + 4 * size), partial(prepare, reference_rings.append_rotated)
    )
    nbytes = 4 * width * (2 * tokens + streams * (context - 1)) + 4 * tokens * size
    attend = partial(prepare, reference_rings.ring_attention, context)
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
                return lambda: kernel(reference_conv.causal_conv)(x, tail, *fixed)

            nbytes = tokens * channels * (4 if taps > 1 else 8) + 2 * taps * channels**2
            label = f"causal_conv {tokens} x {channels}, {taps} taps"
            yield Case(label, nbytes, convolve, 2.0 * tokens * taps * channels**2)

    def keep(channels: int = channels, unit: int = unit) -> Callable[[], object]:
        tail = some_tail(streams, frames, unit, (KERNEL - 1) * DILATIONS[-1], channels, on)
        x = randn(streams * frames * unit, channels, on=on)
        return lambda: kernel(reference_conv.keep_tail)(x, tail)

    yield Case(f"keep_tail {streams} x {channels}", 4 * streams * (KERNEL - 1) * DILATIONS[-1] * channels, keep)
    yield from latent_cases(spec, streams, frames, on)


def latent_cases(spec: DecoderSpec, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    """What is between the products of the transformer and of the latents."""
    tokens, width, latent = streams * frames, spec.transformer.width, spec.latent_dim

    def filter_channels() -> Callable[[], object]:
        tail = some_tail(streams, frames, 1, KERNEL - 1, latent, on)
        fixed = randn(tokens, latent, on=on), tail, randn(KERNEL, latent, on=on), randn(latent, on=on)
        return lambda: kernel(reference_conv.depthwise_conv)(*fixed)

    def join() -> Callable[[], object]:
        x, scale, weight = (torch.rand(*shape, device=on) for shape in ((tokens, width), (width,), (width,)))
        delta = randn(tokens, width, on=on)
        return lambda: kernel(reference.scaled_add_rms_norm)(x, delta, scale, weight, 1e-5, BF16)

    yield Case(f"depthwise_conv {tokens} x {latent}", 4 * tokens * latent, filter_channels)
    yield Case(f"scaled_add_rms_norm {tokens} x {width}", 12 * tokens * width, join)


def some_tail(streams: int, frames: int, unit: int, columns: int, channels: int, on: torch.device) -> PackedTail:
    """Of streams that have seen 200 frames, and are given `frames` more each."""
    rows_S, places_F = torch.arange(streams, device=on), torch.arange(frames, device=on).repeat(streams)
    counts = (rows_S, torch.full_like(rows_S, frames), rows_S * frames)
    tails_RPC = randn(streams, columns, channels, on=on)
    return PackedTail(tails_RPC, unit, *counts, rows_S.repeat_interleave(frames), places_F, places_F + 200)


# ---- matrix products


def product_cases(arguments: Namespace) -> list[Product]:
    of_talker, of_codec = plans(arguments.model, arguments.codec, BF16)
    talker, codec = of_talker.config, of_codec.config
    assert isinstance(talker, MossLocalConfig)
    assert isinstance(codec, MossCodecConfig)
    shape, depth = talker.backbone, talker.depth
    size, ffn, width = shape.hidden_size, shape.intermediate_size, depth.hidden_size
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    made = []
    for m in arguments.rows:
        for label, k, n in (("qkv", size, q + 2 * kv), ("o", q, size), ("gate_up", size, 2 * ffn), ("down", ffn, size)):
            made.append(Product("backbone", label, m, k, n, shape.layers))
        times, inner = depth.layers * depth.positions, depth.intermediate_size
        for label, k, n in (
            ("qkv", width, 3 * width),
            ("o", width, width),
            ("up", width, inner),
            ("down", inner, width),
        ):
            made.append(Product("depth", label, m, k, n, times, bias=True))
        made.append(Product("depth", "head", m, width, max(talker.audio_codebook_sizes), depth.positions))
    for chunk in arguments.chunks.split(","):
        streams, frames = map(int, chunk.split("x"))
        for stage in codec.decoder:
            if isinstance(stage, TransformerSpec):
                made += codec_products(f"codec {chunk}", stage, streams * frames * stage.tokens_per_frame)
    return made


def codec_products(part: str, stage: TransformerSpec, m: int) -> Iterator[Product]:
    width, ffn = stage.width, stage.ffn_dim
    for label, k, n in (
        ("in", width, 3 * width),
        ("out", width, width),
        ("ffn_in", width, ffn),
        ("ffn_out", ffn, width),
    ):
        yield Product(part, label, m, k, n, stage.layers)
    for label, k, n, exists in (
        ("stage in", stage.input_dim, width, stage.has_input_proj),
        ("stage out", width, stage.output_dim, stage.has_output_proj),
    ):
        if exists:
            yield Product(part, label, m, k, n, 1)


def sums(products: Sequence[Product], us: dict[str, float]) -> dict[str, float]:
    """Milliseconds of all products of a part whose every product was measured, by part and rows."""
    parts: dict[str, list[Product]] = {}
    for product in products:
        is_codec = product.part.startswith("codec")
        parts.setdefault(product.part if is_codec else f"{product.part} M={product.m}", []).append(product)
    return {
        part: round(sum(one.times * us[one.name] for one in members) / 1e3, 4)
        for part, members in parts.items()
        if all(one.name in us for one in members)
    }
