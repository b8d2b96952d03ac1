"""The `config.json` of a `speech_tokenizer` folder, read and checked once (sources: Qwen3 9-11).

Every width, rate and window comes from the file; a value that is not implemented is an error that
names the key. The encoder is Mimi, whose keys have the defaults of its official class. The
decoder's class has defaults that no released model uses, so its keys are required.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import torch
from pydantic import Field, model_validator

from hocket.checkpoint.config_file import (
    Layers,
    PositiveFloat,
    RopeSection,
    Section,
    Size,
    read_file,
)
from hocket.errors import ConfigError
from hocket.models.layers.codec_state import RingSpec

MODEL_TYPE = "qwen3_tts_tokenizer_12hz"
#: Longest recording that is encoded as a stream. The encoder attends to all of it (sources: Qwen3
#: 10), so this sets the size of its rings; whole files have no such limit.
MAX_STREAM_SECONDS = 120.0
#: Default of Mimi's class for an encoder's file without a base.
MIMI_ROPE_BASE = 10_000.0


class _Attention(Section):
    num_hidden_layers: Layers = 8
    num_attention_heads: Size = 8
    num_key_value_heads: Size = 8
    attention_bias: Literal[False] = False
    rope_theta: PositiveFloat | None = None
    rope_parameters: RopeSection | None = None
    rope_scaling: RopeSection | None = None
    hidden_size: Size = 512
    intermediate_size: Size = 2048
    codebook_size: Size = 2048

    @property
    def rope_bases(self) -> list[float]:
        """RoPE bases under all names that a file may use."""
        nested = [
            rope.rope_theta
            for rope in (self.rope_parameters, self.rope_scaling)
            if rope is not None
        ]
        return [base for base in (self.rope_theta, *nested) if base is not None]

    @model_validator(mode="after")
    def _heads(self) -> _Attention:
        if len(set(self.rope_bases)) > 1:
            raise ValueError(
                f"rope_theta is given as {' and '.join(map(str, self.rope_bases))}; keep one value"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} heads do not share {self.num_key_value_heads} kv "
                "heads evenly"
            )
        return self


class _Decoder(_Attention):
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    hidden_size: Size
    intermediate_size: Size
    rms_norm_eps: PositiveFloat
    hidden_act: Literal["silu"] = "silu"
    sliding_window: Size
    latent_dim: Size
    codebook_dim: Size
    codebook_size: Size
    decoder_dim: Size
    num_quantizers: Layers
    #: The official decoder gives its first projection to one codebook, whatever the value here.
    num_semantic_quantizers: Literal[1] = 1
    upsample_rates: list[Size]
    upsampling_ratios: list[Size]

    @model_validator(mode="after")
    def _widths(self) -> _Decoder:
        if not self.rope_bases:
            raise ValueError("rope_theta is missing")
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd, but rotary positions need pairs")
        if self.codebook_dim % 2:
            raise ValueError(
                f"codebook_dim {self.codebook_dim} is odd, but entries are half as wide"
            )
        if self.decoder_dim % 2 ** len(self.upsample_rates):
            raise ValueError(
                f"decoder_dim {self.decoder_dim} cannot be halved {len(self.upsample_rates)} times"
            )
        return self


class _Encoder(_Attention):
    model_type: Literal["mimi"] = "mimi"
    sampling_rate: Size = 24000
    audio_channels: Literal[1] = 1
    head_dim: Size | None = None
    hidden_act: Literal["gelu"] = "gelu"
    norm_eps: PositiveFloat = 1e-5
    num_filters: Size = 64
    num_residual_layers: Layers = 1
    #: In the order of Mimi's decoder; the encoder uses them in reverse.
    upsampling_ratios: list[Size] = Field(default_factory=lambda: [8, 6, 5, 4])
    kernel_size: Size = 7
    last_kernel_size: Size = 3
    residual_kernel_size: Size = 3
    dilation_growth_rate: Size = 2
    compress: Size = 2
    use_causal_conv: Literal[True] = True
    use_conv_shortcut: Literal[False] = False
    pad_mode: Literal["constant"] = "constant"
    num_quantizers: Layers = 32
    num_semantic_quantizers: Layers = 1
    codebook_dim: Size = 256
    vector_quantization_hidden_dimension: Size = 256

    @model_validator(mode="after")
    def _widths(self) -> _Encoder:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide into {self.num_attention_heads} "
                "heads"
            )
        if (self.head_dim or self.hidden_size // self.num_attention_heads) % 2:
            raise ValueError("head_dim is odd, but rotary positions need pairs")
        if self.codebook_dim != self.vector_quantization_hidden_dimension:
            raise ValueError(
                f"codebook_dim {self.codebook_dim} differs from "
                "vector_quantization_hidden_dimension "
                f"{self.vector_quantization_hidden_dimension}"
            )
        if self.num_filters % self.compress:
            raise ValueError(
                f"compress {self.compress} does not divide num_filters {self.num_filters}"
            )
        return self


class _TopLevel(Section):
    input_sample_rate: Size
    output_sample_rate: Size
    encode_downsample_rate: Size
    decode_upsample_rate: Size
    encoder_valid_num_quantizers: Layers
    encoder_config: _Encoder
    decoder_config: _Decoder

    @model_validator(mode="after")
    def _halves_agree(self) -> _TopLevel:
        encoder, decoder = self.encoder_config, self.decoder_config
        for name, one, other in (
            (
                "input_sample_rate and output_sample_rate",
                self.input_sample_rate,
                self.output_sample_rate,
            ),
            (
                "input_sample_rate and encoder_config.sampling_rate",
                self.input_sample_rate,
                encoder.sampling_rate,
            ),
            (
                "encode_downsample_rate and decode_upsample_rate",
                self.encode_downsample_rate,
                self.decode_upsample_rate,
            ),
            (
                "encode_downsample_rate and twice the encoder's upsampling_ratios",
                self.encode_downsample_rate,
                2 * prod(encoder.upsampling_ratios),
            ),
            (
                "decode_upsample_rate and the decoder's rates",
                self.decode_upsample_rate,
                prod(decoder.upsample_rates) * prod(decoder.upsampling_ratios),
            ),
            (
                "encoder_valid_num_quantizers and decoder_config.num_quantizers",
                self.encoder_valid_num_quantizers,
                decoder.num_quantizers,
            ),
            (
                "the codebook_size of encoder and decoder",
                encoder.codebook_size,
                decoder.codebook_size,
            ),
        ):
            if one != other:
                raise ValueError(f"{name} must be equal, got {one} and {other}")
        if not encoder.num_semantic_quantizers <= decoder.num_quantizers <= encoder.num_quantizers:
            raise ValueError(
                f"encoder_valid_num_quantizers is {decoder.num_quantizers}, but the encoder has "
                f"{encoder.num_semantic_quantizers} .. {encoder.num_quantizers}"
            )
        return self


@dataclass(frozen=True, slots=True)
class TransformerSpec:
    """A causal transformer with rotary positions."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int
    norm_eps: float
    rope_base: float
    #: A query attends to this many keys, itself included; None: to all before it.
    context_tokens: int | None
    tokens_per_frame: int

    def ring(self, max_tokens: int) -> RingSpec:
        """Rings of streams; without a bounded context a query attends to at most `max_tokens`
        tokens.
        """
        context = max_tokens if self.context_tokens is None else self.context_tokens
        return RingSpec(self.layers, self.kv_heads, self.head_dim, context, self.tokens_per_frame)


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Dimensions of the decoder, codes to samples (sources: Qwen3 9)."""

    n_codebooks: int
    codebook_size: int
    #: Width of the dequantised sum; an entry of a codebook is half as wide.
    quantizer_dim: int
    latent_dim: int
    transformer: TransformerSpec
    #: Strides between the transformer and the convolutions that make samples.
    latent_strides: tuple[int, ...]
    #: Width before the first of `strides`, each of which halves it.
    width: int
    strides: tuple[int, ...]

    @property
    def ring(self) -> RingSpec:
        """Rings in which heads that share keys and values have their own copies."""
        return replace(self.transformer.ring(0), kv_heads=self.transformer.heads)


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Dimensions of the encoder, samples to codes: Mimi (sources: Qwen3 10)."""

    #: Width after the first convolution; each of `strides` doubles it.
    width: int
    strides: tuple[int, ...]
    kernel: int
    last_kernel: int
    residual_kernel: int
    residual_layers: int
    dilation_growth: int
    compress: int
    transformer: TransformerSpec
    #: Stride of the convolution between transformer and quantizer.
    last_stride: int
    n_codebooks: int
    n_semantic: int
    #: Codebooks of the checkpoint, of which the first `n_codebooks` are used.
    stored_codebooks: int
    codebook_size: int
    entry_dim: int


@dataclass(frozen=True, slots=True)
class Qwen3CodecConfig:
    """The 12 Hz codec of Qwen3-TTS."""

    sample_rate: int
    channels: int
    #: Samples in one frame.
    frame_samples: int
    decoder: DecoderSpec
    encoder: EncoderSpec
    #: Dtype of the decoder's convolutions, linear layers, attention, K/V and tails. Norms, scales
    #: and activations are computed in float32, and so is the whole encoder: codes do not depend on
    #: this.
    compute_dtype: torch.dtype = torch.float32

    @property
    def frame_rate_hz(self) -> float:
        return self.sample_rate / self.frame_samples

    @property
    def n_codebooks(self) -> int:
        return self.decoder.n_codebooks

    @property
    def codebook_size(self) -> int:
        return self.decoder.codebook_size

    @property
    def max_recording_frames(self) -> int:
        """Longest recording that a stream of `new_encoder_state` takes."""
        return int(MAX_STREAM_SECONDS * self.frame_rate_hz)

    def reference_frames(self, samples: int) -> int:
        """Frames of an encoded recording; an incomplete last one counts (sources: Qwen3 10)."""
        return -(-samples // self.frame_samples)

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> Qwen3CodecConfig:
        """Read a checkpoint's `config.json`. Raises ConfigError naming the key at fault."""
        if raw.get("model_type") != MODEL_TYPE:
            raise ConfigError(
                f"codec config.json: model_type is {raw.get('model_type')!r}, not {MODEL_TYPE!r}; "
                "give the speech_tokenizer folder of a Qwen3-TTS checkpoint"
            )
        top = read_file(_TopLevel, raw)
        return cls(
            sample_rate=top.output_sample_rate,
            channels=1,
            frame_samples=top.decode_upsample_rate,
            decoder=_decoder(top.decoder_config),
            encoder=_encoder(top.encoder_config, top.encoder_valid_num_quantizers),
        )


def _decoder(section: _Decoder) -> DecoderSpec:
    return DecoderSpec(
        n_codebooks=section.num_quantizers,
        codebook_size=section.codebook_size,
        quantizer_dim=section.codebook_dim,
        latent_dim=section.latent_dim,
        transformer=_transformer(
            section, section.head_dim, section.rms_norm_eps, section.sliding_window, 1
        ),
        latent_strides=tuple(section.upsampling_ratios),
        width=section.decoder_dim,
        strides=tuple(section.upsample_rates),
    )


def _encoder(section: _Encoder, n_codebooks: int) -> EncoderSpec:
    head_dim = section.head_dim or section.hidden_size // section.num_attention_heads
    last_stride = 2
    return EncoderSpec(
        width=section.num_filters,
        strides=tuple(reversed(section.upsampling_ratios)),
        kernel=section.kernel_size,
        last_kernel=section.last_kernel_size,
        residual_kernel=section.residual_kernel_size,
        residual_layers=section.num_residual_layers,
        dilation_growth=section.dilation_growth_rate,
        compress=section.compress,
        # The file's sliding_window is not applied: the official package's mask is plain causal
        # (sources: Qwen3 10).
        transformer=_transformer(section, head_dim, section.norm_eps, None, last_stride),
        last_stride=last_stride,
        n_codebooks=n_codebooks,
        n_semantic=section.num_semantic_quantizers,
        stored_codebooks=section.num_quantizers,
        codebook_size=section.codebook_size,
        entry_dim=section.codebook_dim,
    )


def _transformer(
    section: _Attention,
    head_dim: int,
    norm_eps: float,
    context_tokens: int | None,
    tokens_per_frame: int,
) -> TransformerSpec:
    return TransformerSpec(
        layers=section.num_hidden_layers,
        width=section.hidden_size,
        heads=section.num_attention_heads,
        kv_heads=section.num_key_value_heads,
        head_dim=head_dim,
        ffn_dim=section.intermediate_size,
        norm_eps=norm_eps,
        rope_base=section.rope_bases[0] if section.rope_bases else MIMI_ROPE_BASE,
        context_tokens=context_tokens,
        tokens_per_frame=tokens_per_frame,
    )
