"""Lower bounds of a part of a model, in bytes through memory and in operations, and measured times
for comparison.

A weight is read once in a batch, a key or value once by each row that sees it. The depth
transformer's and predictor's weights are read in every position of a frame: they do not fit the
cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.gpu.tools import floor_us
from hocket.models.codec import Codec
from hocket.models.layers.fp8 import Fp8Linear, compute_dtype
from hocket.models.layers.kv_cache import kv_bytes_per_row
from hocket.models.layers.qwen3 import Qwen3Backbone
from hocket.models.talker import Talker

#: The model of the two tables below.
MEASURED_MODEL = "moss-tts-local-v1.5"
#: The shortest plain PyTorch program for the same arithmetic in a CUDA graph, on one H200 in bf16
#: at 320 positions.
PLAIN_MS = {
    "advance/128": 5.58,
    "advance/256": 8.72,
    "draw/1": 1.77,
    "draw/128": 2.42,
    "draw/256": 3.33,
    "decode/8x1": 7.68,
    "decode/8x15": 11.4,
    "decode/32x15": 31.0,
}
#: Targets in the same setting: 2,400 audio seconds a second are 16 ms for 32 x 15 frames.
TARGET_MS = {"advance/128": 4.2, "draw/128": 1.2, "decode/32x15": 16.0}


@dataclass(frozen=True, slots=True)
class Work:
    nbytes: float
    flops: float
    #: dtype of the products.
    dtype: torch.dtype

    @property
    def floor_ms(self) -> float:
        return floor_us(self.nbytes, self.flops, self.dtype) / 1e3


@dataclass(frozen=True, slots=True)
class _Matrices:
    """The weights of all linear layers: each element is two operations a row."""

    elements: int
    nbytes: int
    #: Bytes of an output element, and so of keys and values.
    out_bytes: int
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module) -> _Matrices:
        linears = [part for part in module.modules() if isinstance(part, nn.Linear | Fp8Linear)]
        weights = [part.weight8 if isinstance(part, Fp8Linear) else part.weight for part in linears]
        elements, nbytes = (
            sum(weight.numel() for weight in weights),
            sum(weight.nbytes for weight in weights),
        )
        # A few projections of a codec are not quantised.
        eighth = next(
            (weight.dtype for weight in weights if weight.itemsize == 1), weights[0].dtype
        )
        return cls(elements, nbytes, compute_dtype(linears[0]).itemsize, eighth)


def _backbone(talker: Talker) -> Qwen3Backbone:
    backbone = talker.backbone
    assert isinstance(backbone, Qwen3Backbone)
    return backbone


def advance_work(talker: Talker, kv_dtype: torch.dtype, rows: int, context: int) -> Work:
    """Work of a backbone step at `context` positions."""
    backbone = _backbone(talker)
    shape = backbone.config
    weights = _Matrices.of(backbone)
    kv_bytes = kv_bytes_per_row(talker.config, kv_dtype) * rows * context
    attention = 4.0 * shape.layers * shape.heads * shape.head_dim * rows * context
    return Work(weights.nbytes + kv_bytes, 2.0 * weights.elements * rows + attention, weights.dtype)


def pages_work(talker: Talker, pages: int, page_rows: int) -> Work:
    """Work of prefilling `pages` whole pages, without attention, which is a hundredth of it."""
    weights = _Matrices.of(_backbone(talker))
    return Work(weights.nbytes, 2.0 * weights.elements * pages * page_rows, weights.dtype)


def draw_work(talker: Talker, rows: int) -> Work:
    """All codes of a frame that its layers draw."""
    frame = talker.frame_layers
    weights = _Matrices.of(frame.layers)
    flops = 2.0 * rows * (weights.elements * frame.steps + frame.heads.numel())
    return Work(weights.nbytes * frame.steps + frame.heads.nbytes, flops, weights.dtype)


def decode_work(codec: Codec, streams: int, frames: int) -> Work | None:
    """Work of decoding a chunk of every stream with full rings; None for a codec of
    convolutions.
    """
    if codec.convolutions:
        return None
    nbytes, flops = 0.0, 0.0
    for stage in codec.ring_stages:
        weights, ring = _Matrices.of(stage.module), stage.ring
        tokens = streams * frames * ring.tokens_per_frame
        seen = streams * (ring.context_tokens - 1 + frames * ring.tokens_per_frame)
        nbytes += weights.nbytes + 2 * ring.layers * seen * stage.width * weights.out_bytes
        flops += (
            2.0 * weights.elements * tokens
            + 4.0 * ring.layers * tokens * ring.context_tokens * stage.width
        )
    return Work(nbytes, flops, weights.dtype)
