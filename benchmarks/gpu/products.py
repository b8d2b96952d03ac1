"""Matrix products of a model, as `benchmarks.gpu.kernels` measures them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from benchmarks.gpu.case import BF16, FP8, Case, randn
from hocket.bench.engine.random_model import plans
from hocket.models.moss_codec.config import MossCodecConfig, TransformerSpec
from hocket.models.moss_local.config import MossLocalConfig

#: Of a product: bf16; FP8 with one scale for each whole matrix, as Hocket's layers have it; FP8 with a scale for each
#: row and column, which the library does not have for all shapes.
Kind = Literal["bf16", "fp8", "fp8 rows"]


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
