"""Cases of `benchmarks.gpu.kernels`: each kernel's inputs at a model's sizes, and its minimum work.

Sizes come from the dimensions that ship with Hocket, or from a folder.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.case import BF16, FP8, AnyOperation, Case, kernel, product, randn
from benchmarks.gpu.codec_cases import codec_cases
from hocket.bench.engine.random_model import plans
from hocket.kernels import ops
from hocket.kernels.reference.philox import FrameNoise
from hocket.kernels.types import DrawArgs, PagedBatch, PagedPlan, Scaled
from hocket.models.layers.basic import half_rope_tables, pair_rope_tables
from hocket.models.layers.qwen3 import Qwen3Backbone
from hocket.models.layers.qwen3_config import Qwen3BackboneConfig
from hocket.models.talker import FrameLayers, Talker, TalkerConfig

PAGE_ROWS = 32
#: Positions in a page table, as in an engine for the benchmark's workload.
TABLE_ROWS = 1024


def kernel_cases(arguments: Namespace, device: torch.device) -> Iterator[Case]:
    """Cases at the sizes of one model, and those of a second for the kernels that the first does
    not run.
    """
    of_talker, of_codec = plans(arguments.model, arguments.codec, BF16)
    of_second, of_second_codec = plans(arguments.second, arguments.second_codec, BF16)
    talker, second = of_talker.empty(), of_second.empty()
    backbone = talker.backbone
    assert isinstance(backbone, Qwen3Backbone)
    for rows in arguments.rows:
        yield from backbone_cases(backbone.config, talker.config, rows, device)
        yield from decode_cases(backbone.config, rows, arguments.contexts, device)
        yield from frame_cases(talker, rows, device)
        yield from attention_cases(second.frame_layers, rows, device)
    for pages in arguments.pages:
        yield from (
            prefill_case(backbone.config, pages, is_fp8, device) for is_fp8 in (False, True)
        )
    yield from codec_cases(of_codec.empty(), of_second_codec.empty(), arguments, device)


# ---- rows of a backbone, [M, ...]


def backbone_cases(
    shape: Qwen3BackboneConfig, talker: TalkerConfig, rows: int, on: torch.device
) -> Iterator[Case]:
    size, ffn, q = shape.hidden_size, shape.intermediate_size, shape.heads * shape.head_dim
    weight = torch.ones(size, dtype=BF16, device=on)

    def on_rows(
        operation: AnyOperation, kind: str, widths: Sequence[int], nbytes: float, *rest: object
    ) -> Case:
        """`nbytes` for each element of the first width. With 8 bits out, the last input is a
        product of 8 bits.
        """

        def prepare() -> Callable[[], object]:
            inputs: list[Tensor | Scaled] = [randn(rows, width, on=on) for width in widths]
            if kind and (len(widths) > 1 or rest == (True,)):
                inputs[-1] = product(rows, widths[-1], on=on)
            return lambda: kernel(operation)(*inputs, *rest)

        added = "" if len(widths) == 1 else " + delta"
        return Case(
            f"{operation.name}{kind} {rows} x {widths[0]}{added}",
            rows * widths[0] * nbytes,
            prepare,
        )

    zeros = torch.zeros_like(weight)
    norm, layer_norm = (weight, 1e-6), (weight, zeros, 1e-6)
    for operation, rest in ((ops.add_rms_norm, norm), (ops.add_layer_norm, layer_norm)):
        yield on_rows(operation, "", [size], 4, None, *rest)
        yield on_rows(operation, "", [size, size], 8, *rest)
        yield on_rows(operation, " fp8", [size], 3, None, *rest, True)
        yield on_rows(operation, " fp8", [size, size], 7, *rest, True)
    yield on_rows(ops.silu_mul, "", [2 * ffn], 3)
    yield on_rows(ops.silu_mul, " fp8", [2 * ffn], 2.5, True)
    yield on_rows(ops.silu, "", [ffn], 4)
    yield on_rows(ops.silu, " fp8", [ffn], 3, True)
    yield on_rows(ops.quantize_rows, "", [q], 3)
    texts_VD = randn(20_000, size, on=on)
    codes_WD = randn(sum(talker.audio_codebook_sizes), size, on=on)

    def embed() -> Callable[[], object]:
        text_M = torch.randint(len(texts_VD), (rows,), device=on)
        ids_MN = torch.randint(len(codes_WD), (rows, talker.n_vq), device=on)
        return lambda: kernel(ops.embed_sum)(texts_VD, codes_WD, text_M, ids_MN)

    yield Case(
        f"embed_sum {rows} x {1 + talker.n_vq} x {size}", rows * (2 + talker.n_vq) * size * 2, embed
    )


def decode_cases(
    shape: Qwen3BackboneConfig, rows: int, contexts: Sequence[int], on: torch.device
) -> Iterator[Case]:
    heads, groups, size = shape.heads, shape.kv_heads, shape.head_dim
    weight_K = torch.ones(size, dtype=BF16, device=on)

    def append(is_fp8: bool) -> Callable[[], object]:
        width = (heads + 2 * groups) * size
        qkv_ME = product(rows, width, on=on) if is_fp8 else randn(rows, width, on=on)
        rope = half_rope_tables(torch.arange(rows, device=on), size, 1e6, BF16)
        keys, values, scales = kv_pages(rows, groups, size, is_fp8, on)
        slots = torch.arange(rows, device=on) * PAGE_ROWS
        fixed = (
            weight_K,
            weight_K,
            1e-6,
            rope.cos,
            rope.sin,
            slots,
            keys.flatten(0, 1),
            values.flatten(0, 1),
            scales,
        )
        return lambda: kernel(ops.norm_rotate_append)(qkv_ME, *fixed)

    for is_fp8 in (False, True):
        nbytes = rows * size * (4 * heads + 4 * groups + 4 + (2 if is_fp8 else 4) * groups)
        name = f"norm_rotate_append{' fp8' * is_fp8} {rows} x {heads}/{groups} x {size}"
        yield Case(name, nbytes, partial(append, is_fp8))
    for context, is_fp8 in itertools.product(contexts, (False, True)):
        pages = -(-context // PAGE_ROWS)

        def attend(
            context: int = context, pages: int = pages, is_fp8: bool = is_fp8
        ) -> Callable[[], object]:
            q = randn(rows, 1, heads, size, on=on)
            keys, values, scales = kv_pages(rows * pages + 1, groups, size, is_fp8, on)
            table = torch.zeros(
                rows, max(pages, TABLE_ROWS // PAGE_ROWS), dtype=torch.int32, device=on
            )
            table[:, :pages] = 1 + torch.randperm(rows * pages, device=on).view(rows, pages)
            starts, counts = (torch.full((rows,), number, device=on) for number in (context - 1, 1))
            plan = PagedPlan.of(PagedBatch(table, starts, counts), 1, PAGE_ROWS)
            return lambda: kernel(ops.paged_attention)(q, keys, values, plan, scales)

        nbytes = rows * (
            context * groups * (2 * size + 4 if is_fp8 else 4 * size) + 4 * heads * size
        )
        flops = 4.0 * rows * heads * size * context
        name = f"paged_attention{' fp8' * is_fp8} {rows} x {heads}/{groups} x {size} at {context}"
        yield Case(name, nbytes, attend, flops)


def kv_pages(
    pages: int, groups: int, size: int, is_fp8: bool, on: torch.device
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys, values, and the scales of float8 ones."""
    keys, values = (randn(pages, PAGE_ROWS, groups, size, on=on) for _ in range(2))
    if not is_fp8:
        return keys, values, None
    scales = torch.full((pages, groups, PAGE_ROWS, 2), 0.5, dtype=BF16, device=on)
    return keys.to(FP8), values.to(FP8), scales


def prefill_case(shape: Qwen3BackboneConfig, pages: int, is_fp8: bool, on: torch.device) -> Case:
    """Prefill of prompts of five pages each, the length of a cloned voice."""
    prompt = 5
    heads, groups, size = shape.heads, shape.kv_heads, shape.head_dim

    def prepare() -> Callable[[], object]:
        q = randn(pages, PAGE_ROWS, heads, size, on=on)
        keys, values, scales = kv_pages(pages + prompt, groups, size, is_fp8, on)
        page = torch.arange(pages, device=on)
        table = torch.zeros(pages, TABLE_ROWS // PAGE_ROWS, dtype=torch.int32, device=on)
        table[:, :prompt] = (page // prompt * prompt)[:, None] + torch.arange(prompt, device=on)
        starts, counts = page % prompt * PAGE_ROWS, torch.full((pages,), PAGE_ROWS, device=on)
        plan = PagedPlan.of(PagedBatch(table, starts, counts), PAGE_ROWS, PAGE_ROWS)
        return lambda: kernel(ops.paged_attention)(q, keys, values, plan, scales)

    seen = sum(i % prompt * PAGE_ROWS + (PAGE_ROWS + 1) / 2 for i in range(pages)) * PAGE_ROWS
    nbytes = (
        pages * PAGE_ROWS * (4 * heads * size + groups * (2 * size + 4 if is_fp8 else 4 * size))
    )
    name = f"paged_attention prefill{' fp8' * is_fp8}, {pages} pages x {heads}/{groups} x {size}"
    return Case(name, nbytes, prepare, 4.0 * seen * heads * size)


# ---- positions of a frame


def attention_cases(frame: FrameLayers, rows: int, on: torch.device) -> Iterator[Case]:
    """The attention of the layers that draw a frame's codes."""
    return {"depth_attention": depth_cases, "frame_attention": predictor_cases}[frame.attention](
        frame, rows, on
    )


def depth_cases(depth: FrameLayers, rows: int, on: torch.device) -> Iterator[Case]:
    heads, size, positions = depth.query_heads, depth.head_dim, depth.positions
    width = heads * size
    rope = pair_rope_tables(torch.arange(positions, device=on), size, depth.rope_base, BF16)
    for position in sorted({0, positions // 2, positions - 1}):

        def attend(position: int = position) -> Callable[[], object]:
            qkv = randn(rows, 3 * width, on=on)
            keys, values = (randn(rows, heads, positions, size, on=on) for _ in range(2))
            fixed = (rope.cos[position], rope.sin[position], keys, values, position)
            return lambda: kernel(ops.depth_attention)(qkv, *fixed)

        nbytes = rows * 2 * width * (6 + 2 * position)
        yield Case(f"depth_attention {rows} x {heads} x {size} at {position}", nbytes, attend)


def frame_cases(talker: Talker, rows: int, on: torch.device) -> Iterator[Case]:
    """Attention and draws of a frame."""
    layers, codes, n_vq = (
        talker.frame_layers,
        max(talker.config.audio_codebook_sizes),
        talker.config.n_vq,
    )
    width = layers.heads.shape[1]
    yield from attention_cases(layers, rows, on)
    frame = torch.full((rows,), 7, device=on)
    noise = FrameNoise(torch.arange(rows, device=on), frame, n_vq + 1)
    table = randn(codes, width, on=on)

    def args(*floats: float, top_k: int = 0) -> DrawArgs:
        temperature, top_p, penalty = (torch.full((rows,), x, device=on) for x in floats)
        return DrawArgs(temperature, top_p, torch.full((rows,), top_k, device=on), penalty)

    def draw(has_penalty: bool) -> Callable[[], object]:
        logits = randn(rows, codes, on=on)
        seen = torch.rand(rows, codes, device=on) < 0.1 if has_penalty else None
        of_codes = args(1.7, 0.8, 1.2, top_k=25)
        return lambda: kernel(ops.draw_and_embed)(logits, of_codes, noise, 3, table, seen)

    def stop() -> Callable[[], object]:
        logits, of_stop = randn(rows, 2, on=on), args(1.0, 1.0, 1.0)
        return lambda: kernel(ops.draw)(logits, of_stop, noise, n_vq)

    yield Case(
        f"draw_and_embed {rows} of {codes}", rows * (2 * codes + 4 * width), partial(draw, False)
    )
    yield Case(
        f"draw_and_embed {rows} of {codes}, penalty",
        rows * (3 * codes + 4 * width),
        partial(draw, True),
    )
    yield Case(f"draw {rows} of 2", rows * 40, stop)


def predictor_cases(shape: FrameLayers, rows: int, on: torch.device) -> Iterator[Case]:
    heads, groups, size, positions = (
        shape.query_heads,
        shape.kv_heads,
        shape.head_dim,
        shape.positions,
    )
    rope = half_rope_tables(torch.arange(positions, device=on), size, shape.rope_base, BF16)
    weight = torch.ones(size, dtype=BF16, device=on)
    for start, tokens in ((0, 2), (positions // 2, 1), (positions - 1, 1)):

        def attend(start: int = start, tokens: int = tokens) -> Callable[[], object]:
            qkv = randn(rows, tokens, (heads + 2 * groups) * size, on=on)
            keys, values = (randn(rows, positions, groups, size, on=on) for _ in range(2))
            fixed = (weight, weight, 1e-6, rope.cos, rope.sin, keys, values, start)
            return lambda: kernel(ops.frame_attention)(qkv, *fixed)

        nbytes = rows * 4 * size * (tokens * (heads + 2 * groups) + start * groups)
        yield Case(
            f"frame_attention {rows} x {tokens} x {heads}/{groups} x {size} at {start}",
            nbytes,
            attend,
        )
