"""The matrix products of a model, which `benchmarks.gpu.kernels` measures."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.gpu.case import BF16, FP8, Case, randn
from hocket.bench.engine.random_model import plans

#: Kinds of products: bf16; FP8 with one scale for each whole matrix, as in Hocket's layers; FP8
#: with a scale for each row and column, which the library does not have for all shapes.
Kind = Literal["bf16", "fp8", "fp8 rows"]


#: Labels of the projections around a stage's layers.
_LABELS = {"input_proj": "stage in", "output_proj": "stage out"}


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product [M, K] x [K, N] that occurs `times` times in its part."""

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
                scales = (
                    torch.rand(self.m, 1, device=device) + 0.5,
                    torch.rand(1, self.n, device=device) + 0.5,
                )
            return lambda: torch._scaled_mm(
                x_MK, w_NK.t(), *scales, out_dtype=BF16, use_fast_accum=True
            )

        size = 2 if kind == "bf16" else 1
        nbytes = (self.m * self.k + self.k * self.n) * size + 2 * self.m * self.n
        if kind == "bf16":
            return Case(self.name, nbytes, plain, self.flops)
        return Case(self.name, nbytes, scaled, self.flops, FP8)


def product_cases(arguments: Namespace) -> list[Product]:
    """The products of a model's linear layers, each shape once."""
    of_talker, of_codec = plans(arguments.model, arguments.codec, BF16)
    talker, codec = of_talker.empty(), of_codec.empty()
    frame, sizes = talker.frame_layers, talker.config.audio_codebook_sizes
    width = frame.heads.shape[1]
    backbone = talker.backbone
    assert isinstance(backbone, nn.Module)
    made = []
    for m in arguments.rows:
        made += linear_products("backbone", backbone, m)
        made += linear_products(frame.part, frame.layers, m, frame.steps)
        made.append(Product(frame.part, "head", m, width, max(sizes), frame.steps))
    for chunk in arguments.chunks.split(","):
        streams, frames = map(int, chunk.split("x"))
        for stage in codec.ring_stages:
            made += linear_products(
                f"codec {chunk}", stage.module, streams * frames * stage.ring.tokens_per_frame
            )
    return made


def linear_products(part: str, module: nn.Module, m: int, runs: int = 1) -> list[Product]:
    """The products of the linear layers in `module`, of which a run of the part has `runs` times as
    many.
    """
    counts: dict[Product, int] = {}
    for path, linear in module.named_modules():
        if isinstance(linear, nn.Linear):
            label = _LABELS.get(path, path.rpartition(".")[2].removesuffix("_proj"))
            k, n, has_bias = linear.in_features, linear.out_features, linear.bias is not None
            one = Product(part, label, m, k, n, runs, has_bias)
            counts[one] = counts.get(one, 0) + 1
    return [replace(one, times=runs * count) for one, count in counts.items()]


def sums(products: Sequence[Product], us: dict[str, float]) -> dict[str, float]:
    """Milliseconds of all products of each part, by part and rows, where every product was
    measured.
    """
    parts: dict[str, list[Product]] = {}
    for product in products:
        is_codec = product.part.startswith("codec")
        parts.setdefault(product.part if is_codec else f"{product.part} M={product.m}", []).append(
            product
        )
    return {
        part: round(sum(one.times * us[one.name] for one in members) / 1e3, 4)
        for part, members in parts.items()
        if all(one.name in us for one in members)
    }
