"""The weight table of `MossCodec` (sources: MOSS 2.7, 2.9)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch

from hocket.checkpoint.weights import WeightEntry
from hocket.models.moss_codec.config import MossCodecConfig, TransformerSpec
from hocket.models.moss_codec.quantizer import ResidualLFQ


def codec_weight_table(config: MossCodecConfig) -> list[WeightEntry]:
    """The whole table. Official v2 names come first, then those of v1 and of older exports.

    Linear weights have `config.compute_dtype`; norms, scales and the quantizer are float32.
    """
    table: list[WeightEntry] = []
    for chain, stages in (("encoder", config.encoder), ("decoder", config.decoder)):
        for i, spec in enumerate(stages):
            if isinstance(spec, TransformerSpec):
                table.extend(_stage(f"{chain}.{i}", spec, config.compute_dtype))
    table.extend(_quantizer(config))
    return table


def resident_bytes(config: MossCodecConfig) -> int:
    """Bytes of a finalized codec: folded weight normalisation, and the quantizer's tables."""
    with torch.device("meta"):
        quantizer = ResidualLFQ(config.quantizer)
        quantizer.finalize()
    folded = sum(tensor.nbytes for tensor in (*quantizer.parameters(), *quantizer.buffers()))
    chains = (
        entry
        for entry in codec_weight_table(config)
        if not entry.parameter.startswith("quantizer.")
    )
    return folded + sum(prod(entry.shape) * entry.dtype.itemsize for entry in chains)


def _stage(prefix: str, spec: TransformerSpec, dtype: torch.dtype) -> Iterator[WeightEntry]:
    if spec.has_input_proj:
        name = f"{prefix}.input_proj.weight"
        yield WeightEntry(name, (name,), (spec.width, spec.input_dim), dtype)
    for layer in range(spec.layers):
        yield from _layer(
            f"{prefix}.layers.{layer}", f"{prefix}.transformer.layers.{layer}", spec, dtype
        )
    if spec.has_output_proj:
        name = f"{prefix}.output_proj.weight"
        yield WeightEntry(name, (name,), (spec.output_dim, spec.width), dtype)


def _layer(
    parameter: str, stored: str, spec: TransformerSpec, dtype: torch.dtype
) -> Iterator[WeightEntry]:
    width = spec.width
    linears = (
        (
            "in_proj",
            ("self_attn.in_proj.weight", "self_attn.in_projs.0.weight", "self_attn.in_proj_weight"),
            3 * width,
            width,
        ),
        ("out_proj", ("self_attn.out_proj.weight", "self_attn.out_projs.0.weight"), width, width),
        ("ffn_in", ("ffn.0.weight", "linear1.weight"), spec.ffn_dim, width),
        ("ffn_out", ("ffn.2.weight", "linear2.weight"), width, spec.ffn_dim),
    )
    for name, aliases, rows, columns in linears:
        names = tuple(f"{stored}.{alias}" for alias in aliases)
        yield WeightEntry(f"{parameter}.{name}.weight", names, (rows, columns), dtype)
    for i in (1, 2):
        for kind in ("weight", "bias"):
            name = f"norm{i}.{kind}"
            yield WeightEntry(f"{parameter}.{name}", (f"{stored}.{name}",), (width,), torch.float32)
        yield WeightEntry(
            f"{parameter}.scale{i}", (f"{stored}.layer_scale_{i}.scale",), (width,), torch.float32
        )


def _quantizer(config: MossCodecConfig) -> Iterator[WeightEntry]:
    spec = config.quantizer
    yield from _projection(
        "quantizer.input_proj", "quantizer.input_proj", spec.input_dim, spec.rvq_dim
    )
    yield from _projection(
        "quantizer.output_proj", "quantizer.output_proj", spec.rvq_dim, spec.output_dim
    )
    for i in range(spec.num_quantizers):
        level, stored = f"quantizer.levels.{i}", f"quantizer.quantizers.{i}"
        yield from _projection(
            f"{level}.in_proj", f"{stored}.in_proj", spec.rvq_dim, spec.codebook_dim
        )
        yield from _projection(
            f"{level}.out_proj", f"{stored}.out_proj", spec.codebook_dim, spec.rvq_dim
        )
        yield WeightEntry(
            f"{level}.codebook",
            (f"{stored}.codebook.weight",),
            (spec.codebook_size, spec.codebook_dim),
            torch.float32,
        )


def _projection(parameter: str, stored: str, in_dim: int, out_dim: int) -> Iterator[WeightEntry]:
    def normed(kind: str, original: int, alias: str, shape: tuple[int, ...]) -> WeightEntry:
        names = (f"{stored}.parametrizations.weight.original{original}", f"{stored}.{alias}")
        return WeightEntry(f"{parameter}.{kind}", names, shape, torch.float32, squeeze=True)

    yield normed("gain", 0, "weight_g", (out_dim, 1, 1))
    yield normed("direction", 1, "weight_v", (out_dim, in_dim, 1))
    yield WeightEntry(f"{parameter}.bias", (f"{stored}.bias",), (out_dim,), torch.float32)
