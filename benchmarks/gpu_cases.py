"""What `gpu_kernels.py` measures: each kernel's inputs at a model's sizes, and what it cannot avoid doing.

Bytes count every input and every output once. Sizes come from the dimensions that ship with Hocket, or a folder's.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from gpu_tools import floor_us
from torch import Tensor

from hocket.bench.random_model import plans
from hocket.kernels import reference
from hocket.models.layers import half_rope_tables, pair_rope_tables
from hocket.models.moss_codec.config import MossCodecConfig, TransformerSpec
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
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
        yield prefill_case(talker, pages, device)
    for chunk in arguments.chunks.split(","):
        streams, frames = map(int, chunk.split("x"))
        for stage in codec.decoder:
            if isinstance(stage, TransformerSpec):
                yield from codec_cases(stage, streams, frames, device)
        yield from snake_cases(second_codec.config, streams, frames, device)


# ---- rows of a backbone, [M, ...]


def backbone_cases(talker: MossLocalConfig, rows: int, on: torch.device) -> Iterator[Case]:
    shape = talker.backbone
    size, ffn, q = shape.hidden_size, shape.intermediate_size, shape.heads * shape.head_dim
    weight = torch.ones(size, dtype=BF16, device=on)

    def on_rows(twin: Callable[..., Any], widths: Sequence[int], nbytes: int, *rest: object) -> Case:
        def prepare() -> Callable[[], object]:
            inputs = [randn(rows, width, on=on) for width in widths]
            return lambda: kernel(twin)(*inputs, *rest)

        return Case(f"{twin.__name__} {rows} x {widths[0]}", rows * nbytes, prepare)

    yield on_rows(reference.rms_norm, [size], 4 * size, weight, 1e-6)
    yield on_rows(reference.add_rms_norm, [size, size], 8 * size, weight, 1e-6)
    yield on_rows(reference.rms_norm_fp8, [size], 3 * size, weight, 1e-6)
    yield on_rows(reference.add_rms_norm_fp8, [size, size], 7 * size, weight, 1e-6)
    yield on_rows(reference.silu_mul, [2 * ffn], 6 * ffn)
    yield on_rows(reference.silu_mul_fp8, [2 * ffn], 5 * ffn)
    yield on_rows(reference.quantize_rows, [q], 3 * q)
    scales = torch.rand(rows, 1, device=on), torch.rand(2 * ffn, device=on)
    yield on_rows(reference.scale_product, [2 * ffn], 8 * ffn, *scales, None)
    yield on_rows(reference.layer_norm, [size], 4 * size, weight, torch.zeros_like(weight), 1e-6)
    yield on_rows(reference.add_layer_norm, [size, size], 8 * size, weight, torch.zeros_like(weight), 1e-6)
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

    def append() -> Callable[[], object]:
        qkv_ME = randn(rows, (heads + 2 * groups) * size, on=on)
        rope = half_rope_tables(torch.arange(rows, device=on), size, 1e6, BF16)
        keys, values = (randn(rows * PAGE_ROWS, groups, size, on=on) for _ in range(2))
        slots = torch.arange(rows, device=on) * PAGE_ROWS
        fixed = (weight_K, weight_K, 1e-6, rope.cos, rope.sin, slots, keys, values)
        return lambda: kernel(reference.norm_rotate_append)(qkv_ME, *fixed)

    nbytes = rows * 2 * ((2 * heads + 4 * groups) * size + 2 * size)
    yield Case(f"norm_rotate_append {rows} x {heads}/{groups} x {size}", nbytes, append)
    for context in contexts:
        pages = -(-context // PAGE_ROWS)

        def attend(context: int = context, pages: int = pages) -> Callable[[], object]:
            q = randn(rows, 1, heads, size, on=on)
            keys, values = (randn(rows * pages + 1, PAGE_ROWS, groups, size, on=on) for _ in range(2))
            table = torch.zeros(rows, max(pages, TABLE_ROWS // PAGE_ROWS), dtype=torch.int32, device=on)
            table[:, :pages] = 1 + torch.randperm(rows * pages, device=on).view(rows, pages)
            starts, counts = (torch.full((rows,), number, device=on) for number in (context - 1, 1))
            return lambda: kernel(reference.paged_attention)(q, keys, values, table, starts, counts)

        nbytes = rows * 4 * (context * groups + heads) * size
        flops = 4.0 * rows * heads * size * context
        yield Case(f"paged_attention {rows} x {heads}/{groups} x {size} at {context}", nbytes, attend, flops)


def prefill_case(talker: MossLocalConfig, pages: int, on: torch.device) -> Case:
    """Pages of prompts of five pages each, which is what a cloned voice takes."""
    shape, prompt = talker.backbone, 5
    heads, groups, size = shape.heads, shape.kv_heads, shape.head_dim

    def prepare() -> Callable[[], object]:
        q = randn(pages, PAGE_ROWS, heads, size, on=on)
        keys, values = (randn(pages + prompt, PAGE_ROWS, groups, size, on=on) for _ in range(2))
        page = torch.arange(pages, device=on)
        table = torch.zeros(pages, TABLE_ROWS // PAGE_ROWS, dtype=torch.int32, device=on)
        table[:, :prompt] = (page // prompt * prompt)[:, None] + torch.arange(prompt, device=on)
        starts, counts = page % prompt * PAGE_ROWS, torch.full((pages,), PAGE_ROWS, device=on)
        return lambda: kernel(reference.paged_attention)(q, keys, values, table, starts, counts)

    seen = sum(i % prompt * PAGE_ROWS + (PAGE_ROWS + 1) / 2 for i in range(pages)) * PAGE_ROWS
    nbytes = pages * PAGE_ROWS * 4 * (groups + heads) * size
    name = f"paged_attention prefill, {pages} pages x {heads}/{groups} x {size}"
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
    for start, tokens in ((0, 2), (positions // 2, 1), (positions - 1, 1)):

        def attend(start: int = start, tokens: int = tokens) -> Callable[[], object]:
            q = randn(rows, tokens, heads, size, on=on)
            keys, values = (randn(rows, positions, groups, size, on=on) for _ in range(2))
            return lambda: kernel(reference.frame_attention)(q, keys, values, start)

        nbytes = rows * 4 * size * (tokens * heads + (start + tokens) * groups)
        yield Case(f"frame_attention {rows} x {tokens} x {heads}/{groups} x {size} at {start}", nbytes, attend)


# ---- chunks of a codec


def codec_cases(stage: TransformerSpec, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    heads, size, width = stage.heads, stage.head_dim, stage.width
    tokens, context = frames * stage.tokens_per_frame, stage.context_tokens
    capacity, rows = context + tokens, streams * tokens
    label = f"{streams} x {tokens} x {heads} x {size}"
    begin = 3 * capacity + 7
    angles = torch.randn(streams, tokens, size // 2, device=on)
    cos, sin = angles.cos(), angles.sin()
    streams_B = torch.randperm(streams, device=on)
    starts_B = torch.full((streams,), begin, device=on)

    def rings() -> tuple[Tensor, Tensor]:
        keys, values = (randn(streams, capacity, heads, size, on=on) for _ in range(2))
        return keys, values

    def append() -> Callable[[], object]:
        qkv, (keys, values) = randn(streams, tokens, 3 * width, on=on), rings()
        return lambda: kernel(reference.rotate_append)(qkv, cos, sin, streams_B, starts_B, keys, values)

    def attend() -> Callable[[], object]:
        q, (keys, values) = randn(streams, tokens, heads, size, on=on), rings()
        return lambda: kernel(reference.ring_attention)(q, keys, values, streams_B, starts_B, context)

    yield Case(f"rotate_append {label}", rows * (12 * width + 4 * size), append)
    nbytes = 4 * streams * width * (tokens + context - 1 + tokens)
    yield Case(f"ring_attention {label}, {context} of context", nbytes, attend, 4.0 * rows * width * context)
    yield from packed_cases(stage, streams, frames, on)
    ffn = stage.ffn_dim

    def activate() -> Callable[[], object]:
        x = randn(streams, tokens, ffn, on=on)
        return lambda: kernel(reference.gelu)(x)

    yield Case(f"gelu {rows} x {ffn}", 4 * rows * ffn, activate)
    weight = torch.ones(width, device=on)
    bias = torch.zeros_like(weight)

    def norm(twin: Callable[..., Any]) -> Callable[[], object]:
        x, delta = randn(streams, tokens, width, on=on, dtype=F32), randn(streams, tokens, width, on=on)
        if twin is reference.layer_norm_to:
            return lambda: kernel(twin)(x, weight, bias, 1e-5, BF16)
        rest = () if twin is reference.scaled_add else (weight, bias, 1e-5)
        return lambda: kernel(twin)(x, delta, weight, *rest)

    for twin, moved in (
        (reference.layer_norm_to, 6),
        (reference.scaled_add, 10),
        (reference.scaled_add_layer_norm, 12),
    ):
        yield Case(f"{twin.__name__} {rows} x {width}", rows * width * moved, partial(norm, twin))


def packed_cases(stage: TransformerSpec, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    """Streams of 1, 2, .. `frames` frames, and again from 1 on."""
    heads, size, width, unit = stage.heads, stage.head_dim, stage.width, stage.tokens_per_frame
    context, start = stage.context_tokens, 1000
    capacity = context + frames * unit
    counts = [1 + stream % frames for stream in range(streams)]
    tokens = sum(counts) * unit
    counts_S = torch.tensor(counts, device=on)
    rows_S, firsts_S = torch.randperm(streams, device=on), counts_S.cumsum(0) - counts_S
    rows_F = rows_S.repeat_interleave(counts_S)
    positions_F = start + torch.arange(len(rows_F), device=on) - firsts_S.repeat_interleave(counts_S)
    angles = torch.randn(tokens, size // 2, device=on)
    cos, sin = angles.cos(), angles.sin()

    def rings() -> tuple[Tensor, Tensor]:
        keys, values = (randn(streams, capacity, heads, size, on=on) for _ in range(2))
        return keys, values

    def append() -> Callable[[], object]:
        qkv, (keys, values) = randn(tokens, 3 * width, on=on), rings()
        return lambda: kernel(reference.rotate_append_packed)(qkv, cos, sin, rows_F, positions_F, keys, values)

    def attend() -> Callable[[], object]:
        q, (keys, values) = randn(tokens, heads, size, on=on), rings()
        packed = (rows_S, torch.full_like(rows_S, start), counts_S, firsts_S, unit, frames, context)
        return lambda: kernel(reference.ring_attention_packed)(q, keys, values, *packed)

    label = f"{streams} x {unit} to {frames * unit} x {heads} x {size}"
    yield Case(f"rotate_append_packed {label}", tokens * (12 * width + 4 * size), append)
    nbytes = 4 * width * (2 * tokens + streams * (context - 1))
    yield Case(f"ring_attention_packed {label}, {context} of context", nbytes, attend, 4.0 * tokens * width * context)


def snake_cases(codec: Qwen3CodecConfig, streams: int, frames: int, on: torch.device) -> Iterator[Case]:
    spec = codec.decoder
    tokens = frames
    for stride in spec.latent_strides:
        tokens *= stride
    for i, stride in enumerate((1, *spec.strides)):
        channels, tokens = spec.width // 2**i, tokens * stride

        def bend(channels: int = channels, tokens: int = tokens) -> Callable[[], object]:
            x = randn(streams, channels, tokens, on=on)
            rate, gain = (torch.rand(channels, 1, device=on) + 0.5 for _ in range(2))
            return lambda: kernel(reference.snake)(x, rate, gain)

        yield Case(f"snake {streams} x {channels} x {tokens}", 4 * streams * channels * tokens, bend)


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
