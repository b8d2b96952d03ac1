"""The codec's `config.json`, read and checked once (sources: MOSS 2.1, 2.2, 2.9).

No part of the architecture is hard-coded: every width, context and rate comes from the file. A
value that is not implemented is an error that names the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError

from hocket.core import StrictModel
from hocket.errors import ConfigError
from hocket.models.layers.codec_state import RingSpec

MODEL_TYPE = "moss-audio-tokenizer"
#: Some official checkpoints carry an older `model_type`; the class name identifies them.
ARCHITECTURE = "MossAudioTokenizerModel"

_DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}

#: Bounds far beyond any model, so that a damaged file is refused.
PositiveInt = Annotated[int, Field(ge=1, le=2**24)]
Layers = Annotated[int, Field(ge=1, le=1024)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
ModelT = TypeVar("ModelT", bound=BaseModel)


class _PatchKwargs(StrictModel):
    module_type: Literal["PatchedPretransform"]
    patch_size: PositiveInt


class _TransformerKwargs(StrictModel):
    module_type: Literal["Transformer"]
    input_dimension: PositiveInt
    output_dimension: PositiveInt
    d_model: PositiveInt
    num_heads: PositiveInt
    num_layers: Layers
    dim_feedforward: PositiveInt
    causal: Literal[True]
    norm: Literal["layer_norm"]
    positional_embedding: Literal["rope"]
    max_period: PositiveFloat
    gating: Literal["none"]
    #: The initial value of training; the learned scales are in the checkpoint.
    layer_scale: PositiveFloat
    conv_layout: Literal[True]
    context_duration: PositiveFloat | None = None


class QuantizerSpec(StrictModel):
    """Residual LFQ: widths and table sizes (spec 2.4)."""

    input_dim: PositiveInt
    rvq_dim: PositiveInt
    output_dim: PositiveInt
    num_quantizers: Layers
    codebook_size: PositiveInt
    codebook_dim: PositiveInt
    quantizer_type: Literal["rlfq"] = "rlfq"


class _TopLevel(BaseModel):
    """The keys that matter; a Hugging Face `config.json` has others that do not concern the
    codec.
    """

    model_config = {"strict": True, "frozen": True, "extra": "ignore"}

    sampling_rate: PositiveInt
    downsample_rate: PositiveInt
    causal_transformer_context_duration: PositiveFloat | None = None
    number_channels: PositiveInt | None = None
    enable_channel_interleave: bool | None = None
    compute_dtype: str | None = None
    codec_weight_dtype: str | None = None
    quantizer_type: Literal["rlfq"] = "rlfq"
    encoder_kwargs: list[dict[str, object]]
    decoder_kwargs: list[dict[str, object]]
    quantizer_kwargs: dict[str, object]


@dataclass(frozen=True, slots=True)
class PatchSpec:
    """Merges `size` neighbouring positions (encoder) or splits one into `size` (decoder)."""

    size: int


@dataclass(frozen=True, slots=True)
class TransformerSpec:
    """One causal transformer of the chain."""

    input_dim: int
    width: int
    output_dim: int
    heads: int
    layers: int
    ffn_dim: int
    #: A query sees this many keys, itself included.
    context_tokens: int
    tokens_per_frame: int
    rope_base: float
    has_input_proj: bool
    has_output_proj: bool

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def ring(self) -> RingSpec:
        return RingSpec(
            self.layers, self.heads, self.head_dim, self.context_tokens, self.tokens_per_frame
        )


StageSpec = PatchSpec | TransformerSpec


@dataclass(frozen=True, slots=True)
class MossCodecConfig:
    """MOSS-Audio-Tokenizer, v1 or v2."""

    sample_rate: int
    channels: int
    #: Samples per channel in one frame.
    frame_samples: int
    encoder: tuple[StageSpec, ...]
    decoder: tuple[StageSpec, ...]
    quantizer: QuantizerSpec
    #: Dtype of linear layers, attention and K/V. Norms, scales, the residual stream and the
    #: quantizer are always float32.
    compute_dtype: torch.dtype
    #: Dtype in which the official code stores weights; here they are cast to `compute_dtype`.
    codec_weight_dtype: torch.dtype

    @property
    def frame_rate_hz(self) -> float:
        return self.sample_rate / self.frame_samples

    @property
    def n_codebooks(self) -> int:
        return self.quantizer.num_quantizers

    @property
    def codebook_size(self) -> int:
        return self.quantizer.codebook_size

    @property
    def max_recording_frames(self) -> int | None:
        """None: streams are endless, since the encoder looks back over its contexts only."""
        return None

    def reference_frames(self, samples: int) -> int:
        """Whole frames of a reference; a remainder of samples is dropped (sources: MOSS 2.5)."""
        return samples // self.frame_samples

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> MossCodecConfig:
        """Read a checkpoint's `config.json`. Raises ConfigError naming the key at fault."""
        _check_model_type(raw)
        aliased = (
            {"sampling_rate": raw["sample_rate"], **raw} if "sample_rate" in raw else dict(raw)
        )
        top = _parse(_TopLevel, aliased, "")
        encoder = [
            _parse_stage(stage, f"encoder_kwargs[{i}]")
            for i, stage in enumerate(top.encoder_kwargs)
        ]
        decoder = [
            _parse_stage(stage, f"decoder_kwargs[{i}]")
            for i, stage in enumerate(top.decoder_kwargs)
        ]
        quantizer = _parse(QuantizerSpec, top.quantizer_kwargs, "quantizer_kwargs")

        channels = top.number_channels or 1
        if channels > 1 and not top.enable_channel_interleave:
            raise ConfigError(
                f"codec config.json: number_channels is {channels} but enable_channel_interleave "
                "is not true; only interleaved channels are supported"
            )
        second_version = (
            top.number_channels is not None
            or top.enable_channel_interleave is not None
            or any(
                isinstance(s, _TransformerKwargs) and s.context_duration is not None
                for s in encoder + decoder
            )
        )
        stream_samples = top.downsample_rate * channels
        _check_patches(encoder, stream_samples, "encoder_kwargs")
        _check_patches(decoder, stream_samples, "decoder_kwargs")
        resolver = _Resolver(
            frame_rate_hz=Fraction(top.sampling_rate, top.downsample_rate),
            context_seconds=top.causal_transformer_context_duration,
            always_projects=second_version,
        )
        return cls(
            sample_rate=top.sampling_rate,
            channels=channels,
            frame_samples=top.downsample_rate,
            encoder=resolver.encoder(encoder, stream_samples, quantizer.input_dim),
            decoder=resolver.decoder(decoder, quantizer.output_dim),
            quantizer=quantizer,
            # The official v2 computes in bf16 by default; v1 has no such setting.
            compute_dtype=_dtype(
                top.compute_dtype, "compute_dtype", "bf16" if second_version else "fp32"
            ),
            codec_weight_dtype=_dtype(top.codec_weight_dtype, "codec_weight_dtype", "fp32"),
        )


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Turns parsed stages into specs, walking the chain of widths and rates."""

    frame_rate_hz: Fraction
    context_seconds: float | None
    always_projects: bool

    def encoder(
        self,
        stages: Sequence[_PatchKwargs | _TransformerKwargs],
        tokens_per_frame: int,
        output_dim: int,
    ) -> tuple[StageSpec, ...]:
        width, specs = 1, list[StageSpec]()
        for i, stage in enumerate(stages):
            if isinstance(stage, _PatchKwargs):
                width *= stage.patch_size
                tokens_per_frame //= stage.patch_size
                specs.append(PatchSpec(stage.patch_size))
            else:
                specs.append(
                    self._transformer(stage, width, tokens_per_frame, f"encoder_kwargs[{i}]")
                )
                width = stage.output_dimension
        if width != output_dim:
            raise ConfigError(
                f"codec config.json: encoder_kwargs end {width} wide but "
                f"quantizer_kwargs.input_dim is {output_dim}"
            )
        return tuple(specs)

    def decoder(
        self, stages: Sequence[_PatchKwargs | _TransformerKwargs], width: int
    ) -> tuple[StageSpec, ...]:
        tokens_per_frame, specs = 1, list[StageSpec]()
        for i, stage in enumerate(stages):
            if isinstance(stage, _PatchKwargs):
                if width % stage.patch_size:
                    raise ConfigError(
                        f"codec config.json: decoder_kwargs[{i}].patch_size {stage.patch_size} "
                        f"does not divide its input width {width}"
                    )
                width //= stage.patch_size
                tokens_per_frame *= stage.patch_size
                specs.append(PatchSpec(stage.patch_size))
            else:
                specs.append(
                    self._transformer(stage, width, tokens_per_frame, f"decoder_kwargs[{i}]")
                )
                width = stage.output_dimension
        if width != 1:
            raise ConfigError(
                f"codec config.json: decoder_kwargs end {width} wide; one sample stream is 1 wide"
            )
        return tuple(specs)

    def _transformer(
        self, stage: _TransformerKwargs, width: int, tokens_per_frame: int, where: str
    ) -> TransformerSpec:
        if stage.input_dimension != width:
            raise ConfigError(
                f"codec config.json: {where}.input_dimension is {stage.input_dimension}, "
                f"but the stage before it is {width} wide"
            )
        if stage.d_model % (2 * stage.num_heads):
            raise ConfigError(
                f"codec config.json: {where}.num_heads {stage.num_heads} must divide d_model "
                f"{stage.d_model} into heads of even width"
            )
        seconds = (
            stage.context_duration if stage.context_duration is not None else self.context_seconds
        )
        if seconds is None:
            raise ConfigError(
                f"codec config.json: {where}.context_duration is missing, and so is "
                "causal_transformer_context_duration"
            )
        context_tokens = round(float(self.frame_rate_hz * tokens_per_frame) * seconds)
        if context_tokens < 1:
            raise ConfigError(
                f"codec config.json: {where}.context_duration {seconds} s is shorter than one token"
            )
        return TransformerSpec(
            input_dim=stage.input_dimension,
            width=stage.d_model,
            output_dim=stage.output_dimension,
            heads=stage.num_heads,
            layers=stage.num_layers,
            ffn_dim=stage.dim_feedforward,
            context_tokens=context_tokens,
            tokens_per_frame=tokens_per_frame,
            rope_base=stage.max_period,
            has_input_proj=self.always_projects or stage.input_dimension != stage.d_model,
            has_output_proj=self.always_projects or stage.output_dimension != stage.d_model,
        )


def is_codec_config(raw: Mapping[str, object]) -> bool:
    """Whether a checkpoint's config.json belongs to this codec."""
    architectures = raw.get("architectures")
    return raw.get("model_type") == MODEL_TYPE or (
        isinstance(architectures, list) and ARCHITECTURE in architectures
    )


def _check_model_type(raw: Mapping[str, object]) -> None:
    if is_codec_config(raw):
        return
    raise ConfigError(
        f"codec config.json: model_type is {raw.get('model_type')!r}, not {MODEL_TYPE!r}; "
        "give the folder of a MOSS-Audio-Tokenizer checkpoint"
    )


def _check_patches(
    stages: Sequence[_PatchKwargs | _TransformerKwargs], stream_samples: int, where: str
) -> None:
    product = math.prod(stage.patch_size for stage in stages if isinstance(stage, _PatchKwargs))
    if product != stream_samples:
        raise ConfigError(
            f"codec config.json: the patch sizes of {where} multiply to {product}, "
            f"but downsample_rate x number_channels is {stream_samples}"
        )


def _parse_stage(raw: Mapping[str, object], where: str) -> _PatchKwargs | _TransformerKwargs:
    match raw.get("module_type"):
        case "PatchedPretransform":
            return _parse(_PatchKwargs, raw, where)
        case "Transformer":
            return _parse(_TransformerKwargs, raw, where)
        case other:
            raise ConfigError(
                f"codec config.json: {where}.module_type is {other!r}; it must be "
                "PatchedPretransform or Transformer"
            )


def _parse(model: type[ModelT], raw: Mapping[str, object], where: str) -> ModelT:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(part for part in (where, *map(str, first["loc"])) if part)
        raise ConfigError(f"codec config.json: {key}: {first['msg']}") from None


def _dtype(name: str | None, key: str, default: str) -> torch.dtype:
    name = name or default
    if name not in _DTYPES:
        raise ConfigError(
            f"codec config.json: {key} is {name!r}; it must be one of {', '.join(_DTYPES)}"
        )
    return _DTYPES[name]
