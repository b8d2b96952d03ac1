"""The weight table of `Qwen3Codec` (sources: Qwen3 11)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import torch

from hocket.checkpoint.weights import WeightEntry
from hocket.models.qwen3_codec.config import (
    DecoderSpec,
    EncoderSpec,
    Qwen3CodecConfig,
    TransformerSpec,
)
from hocket.models.qwen3_codec.decoder import DILATIONS, KERNEL, LATENT_KERNEL

_FLOAT = torch.float32


def codec_weight_table(config: Qwen3CodecConfig) -> list[WeightEntry]:
    """The whole table.

    Convolutions and linear layers of the decoder have `config.compute_dtype`; norms, scales,
    codebooks and the whole encoder are float32.
    """
    return [*_decoder(config.decoder, config.compute_dtype), *_encoder(config.encoder)]


def unread_tensors(config: Qwen3CodecConfig) -> list[str]:
    """Stored tensors that neither direction needs: the halves of the quantizers that only training
    uses, and the encoder's codebooks that the decoder does not have.
    """
    spec = config.encoder
    names = [f"decoder.quantizer.{group}.input_proj.weight" for group in ("rvq_first", "rvq_rest")]
    names += [f"{_encoder_group(group)}.output_proj.weight" for group in ("semantic", "acoustic")]
    for index in range(spec.stored_codebooks):
        codebook = _encoder_codebook(spec, index)
        names.append(f"{codebook}.initialized")
        if index >= spec.n_codebooks:
            names += [f"{codebook}.cluster_usage", f"{codebook}.embed_sum"]
    return names


def resident_bytes(config: Qwen3CodecConfig) -> int:
    """Bytes of a loaded codec, whose stored codebooks have become tables."""
    decoder, encoder = config.decoder, config.encoder
    table = [entry for entry in codec_weight_table(config) if ".quantizer." not in entry.parameter]
    lookup = decoder.n_codebooks * decoder.codebook_size * decoder.quantizer_dim
    entries = encoder.n_codebooks * encoder.codebook_size * (encoder.entry_dim + 1)
    width = encoder.transformer.width
    projections = 2 * encoder.entry_dim * width if width != encoder.entry_dim else 0
    in_float = (lookup + entries + projections) * _FLOAT.itemsize
    # Keys and values that heads share are repeated for each of them.
    spec = decoder.transformer
    repeated = spec.layers * 2 * (spec.heads - spec.kv_heads) * spec.head_dim * spec.width
    return (
        in_float
        + repeated * config.compute_dtype.itemsize
        + sum(prod(entry.shape) * entry.dtype.itemsize for entry in table)
    )


def _one(
    parameter: str, stored: str, shape: Sequence[int], dtype: torch.dtype = _FLOAT
) -> WeightEntry:
    return WeightEntry(parameter, (stored,), tuple(shape), dtype)


def _conv(
    parameter: str, stored: str, shape: Sequence[int], dtype: torch.dtype, *, bias: int | None
) -> Iterator[WeightEntry]:
    yield _one(f"{parameter}.weight", f"{stored}.weight", shape, dtype)
    if bias is not None:
        yield _one(f"{parameter}.bias", f"{stored}.bias", (bias,), dtype)


def _linear(
    parameter: str,
    stored: str,
    out_dim: int,
    in_dim: int,
    dtype: torch.dtype,
    *,
    bias: bool = False,
) -> Iterator[WeightEntry]:
    yield from _conv(parameter, stored, (out_dim, in_dim), dtype, bias=out_dim if bias else None)


def _vectors(parameter: str, stored: str, size: int, names: Iterable[str]) -> Iterator[WeightEntry]:
    for name in names:
        yield _one(f"{parameter}.{name}", f"{stored}.{name}", (size,))


def _projection(parameter: str, stored: str, out_dim: int, in_dim: int) -> WeightEntry:
    """A 1x1 convolution held as a matrix."""
    return WeightEntry(parameter, (f"{stored}.weight",), (out_dim, in_dim, 1), _FLOAT, squeeze=True)


# The decoder


def _decoder(spec: DecoderSpec, dtype: torch.dtype) -> Iterator[WeightEntry]:
    latent, width = spec.latent_dim, spec.transformer.width
    yield from _dequantizer(spec)
    yield from _conv(
        "decoder.latent_conv",
        "decoder.pre_conv.conv",
        (latent, spec.quantizer_dim, LATENT_KERNEL),
        dtype,
        bias=latent,
    )
    yield from _linear(
        "decoder.input_proj", "decoder.pre_transformer.input_proj", width, latent, dtype, bias=True
    )
    yield from _transformer(
        "decoder.transformer", "decoder.pre_transformer", spec.transformer, dtype, gated=True
    )
    yield from _vectors("decoder.norm", "decoder.pre_transformer.norm", width, ("weight",))
    yield from _linear(
        "decoder.output_proj",
        "decoder.pre_transformer.output_proj",
        latent,
        width,
        dtype,
        bias=True,
    )
    for i, stride in enumerate(spec.latent_strides):
        yield from _latent_upsampling(
            f"decoder.upsampling.{i}", f"decoder.upsample.{i}", latent, stride, dtype
        )
    # The list `decoder.decoder`: the first convolution, a block per stride, Snake, the last
    # convolution.
    chain, blocks = "decoder.decoder", len(spec.strides)
    yield from _conv(
        "decoder.wave_conv", f"{chain}.0.conv", (spec.width, latent, KERNEL), dtype, bias=spec.width
    )
    for i, stride in enumerate(spec.strides):
        yield from _upsampling_block(
            f"decoder.blocks.{i}", f"{chain}.{i + 1}.block", spec.width // 2**i, stride, dtype
        )
    last = spec.width // 2**blocks
    yield from _vectors("decoder.snake", f"{chain}.{blocks + 1}", last, ("alpha", "beta"))
    yield from _conv(
        "decoder.sample_conv", f"{chain}.{blocks + 2}.conv", (1, last, KERNEL), dtype, bias=1
    )


def _dequantizer(spec: DecoderSpec) -> Iterator[WeightEntry]:
    stored, entry_dim = "decoder.quantizer", spec.quantizer_dim // 2
    levels = [f"{stored}.rvq_first.vq.layers.0"]
    levels += [f"{stored}.rvq_rest.vq.layers.{i}" for i in range(spec.n_codebooks - 1)]
    for level in levels:
        yield _one(
            f"{stored}.codebooks.sums",
            f"{level}._codebook.embedding_sum",
            (spec.codebook_size, entry_dim),
        )
        yield _one(
            f"{stored}.codebooks.usage", f"{level}._codebook.cluster_usage", (spec.codebook_size,)
        )
    for name, group in (("first_proj", "rvq_first"), ("rest_proj", "rvq_rest")):
        yield _projection(
            f"{stored}.{name}", f"{stored}.{group}.output_proj", spec.quantizer_dim, entry_dim
        )


def _latent_upsampling(
    parameter: str, stored: str, channels: int, stride: int, dtype: torch.dtype
) -> Iterator[WeightEntry]:
    yield from _conv(
        f"{parameter}.conv", f"{stored}.0.conv", (channels, channels, stride), dtype, bias=channels
    )
    block, source = f"{parameter}.block", f"{stored}.1"
    yield from _conv(
        f"{block}.conv", f"{source}.dwconv.conv", (channels, 1, KERNEL), dtype, bias=channels
    )
    yield from _vectors(f"{block}.norm", f"{source}.norm", channels, ("weight", "bias"))
    yield from _linear(f"{block}.up", f"{source}.pwconv1", 4 * channels, channels, dtype, bias=True)
    yield from _linear(
        f"{block}.down", f"{source}.pwconv2", channels, 4 * channels, dtype, bias=True
    )
    yield _one(f"{block}.scale", f"{source}.gamma", (channels,))


def _upsampling_block(
    parameter: str, stored: str, channels: int, stride: int, dtype: torch.dtype
) -> Iterator[WeightEntry]:
    out = channels // 2
    yield from _vectors(f"{parameter}.snake", f"{stored}.0", channels, ("alpha", "beta"))
    yield from _conv(
        f"{parameter}.conv", f"{stored}.1.conv", (channels, out, 2 * stride), dtype, bias=out
    )
    for i in range(len(DILATIONS)):
        unit, source = f"{parameter}.units.{i}", f"{stored}.{i + 2}"
        for j, kernel in ((1, KERNEL), (2, 1)):
            yield from _vectors(f"{unit}.snake{j}", f"{source}.act{j}", out, ("alpha", "beta"))
            yield from _conv(
                f"{unit}.conv{j}", f"{source}.conv{j}.conv", (out, out, kernel), dtype, bias=out
            )


def _transformer(
    parameter: str, stored: str, spec: TransformerSpec, dtype: torch.dtype, *, gated: bool
) -> Iterator[WeightEntry]:
    width, queries, keys = spec.width, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    for i in range(spec.layers):
        layer, source = f"{parameter}.layers.{i}", f"{stored}.layers.{i}"
        for j, norm in ((1, "input_layernorm"), (2, "post_attention_layernorm")):
            parts = ("weight",) if gated else ("weight", "bias")
            yield from _vectors(f"{layer}.norm{j}", f"{source}.{norm}", width, parts)
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield from _linear(
                f"{layer}.qkv_proj", f"{source}.self_attn.{name}", rows, width, dtype
            )
        yield from _linear(f"{layer}.out_proj", f"{source}.self_attn.o_proj", width, queries, dtype)
        ups, down = (("gate_proj", "up_proj"), "down_proj") if gated else (("fc1",), "fc2")
        for name in ups:
            into = f"{layer}.mlp.gate_up" if gated else f"{layer}.mlp.up"
            yield from _linear(into, f"{source}.mlp.{name}", spec.ffn_dim, width, dtype)
        yield from _linear(f"{layer}.mlp.down", f"{source}.mlp.{down}", width, spec.ffn_dim, dtype)
        for j, scale in ((1, "self_attn_layer_scale"), (2, "mlp_layer_scale")):
            yield _one(f"{layer}.scale{j}", f"{source}.{scale}.scale", (width,))


# The encoder


def _encoder(spec: EncoderSpec) -> Iterator[WeightEntry]:
    # The list `encoder.encoder.layers` counts the activations, which have no tensors, as well.
    chain, channels, position = "encoder.encoder.layers", spec.width, 1
    yield from _conv(
        "encoder.wave_conv", f"{chain}.0.conv", (channels, 1, spec.kernel), _FLOAT, bias=channels
    )
    for i, stride in enumerate(spec.strides):
        hidden = channels // spec.compress
        for j in range(spec.residual_layers):
            unit, source = f"encoder.blocks.{i}.units.{j}", f"{chain}.{position}.block"
            inner = (hidden, channels, spec.residual_kernel)
            yield from _conv(f"{unit}.conv1", f"{source}.1.conv", inner, _FLOAT, bias=hidden)
            yield from _conv(
                f"{unit}.conv2", f"{source}.3.conv", (channels, hidden, 1), _FLOAT, bias=channels
            )
            position += 1
        yield from _conv(
            f"encoder.blocks.{i}.conv",
            f"{chain}.{position + 1}.conv",
            (2 * channels, channels, 2 * stride),
            _FLOAT,
            bias=2 * channels,
        )
        channels, position = 2 * channels, position + 2
    width = spec.transformer.width
    last = (width, channels, spec.last_kernel)
    yield from _conv(
        "encoder.latent_conv", f"{chain}.{position + 1}.conv", last, _FLOAT, bias=width
    )
    yield from _transformer(
        "encoder.transformer", "encoder.encoder_transformer", spec.transformer, _FLOAT, gated=False
    )
    frame = (width, width, 2 * spec.last_stride)
    yield from _conv("encoder.frame_conv", "encoder.downsample.conv", frame, _FLOAT, bias=None)
    for index in range(spec.n_codebooks):
        codebook, parameter = _encoder_codebook(spec, index), "encoder.quantizer.codebooks"
        yield _one(
            f"{parameter}.sums", f"{codebook}.embed_sum", (spec.codebook_size, spec.entry_dim)
        )
        yield _one(f"{parameter}.usage", f"{codebook}.cluster_usage", (spec.codebook_size,))
    if width != spec.entry_dim:
        for group in ("semantic", "acoustic"):
            stored = f"{_encoder_group(group)}.input_proj"
            yield _projection(f"encoder.quantizer.{group}_proj", stored, spec.entry_dim, width)


def _encoder_group(group: str) -> str:
    return f"encoder.quantizer.{group}_residual_vector_quantizer"


def _encoder_codebook(spec: EncoderSpec, index: int) -> str:
    if index < spec.n_semantic:
        return f"{_encoder_group('semantic')}.layers.{index}.codebook"
    return f"{_encoder_group('acoustic')}.layers.{index - spec.n_semantic}.codebook"
