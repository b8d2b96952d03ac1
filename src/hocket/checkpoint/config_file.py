"""What the families' `config.json` readers share: checked sections, and errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hocket.core import StrictModel
from hocket.errors import ConfigError
from hocket.models.layers.kv_cache import FP8, SCALE_DTYPE
from hocket.models.layers.qwen3 import Qwen3BackboneConfig

#: Bounds far beyond any model, so that a damaged file is refused and not built.
Size = Annotated[int, Field(ge=1, le=2**24)]
Layers = Annotated[int, Field(ge=1, le=1024)]
Id = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Section(BaseModel):
    """A part of the file. Keys that change nothing here (dropout, labels, ...) are ignored; the rest is checked.

    A field has a default only where the released models rely on the official class's.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class RopeSection(Section):
    """Rotary positions, under either of their two names in a file."""

    rope_theta: PositiveFloat | None = None
    rope_type: Literal["default"] = "default"
    #: The older name of `rope_type`.
    type: Literal["default"] = "default"


class Qwen3Section(Section):
    """The layers of a dense Qwen3 decoder."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size = 32
    num_key_value_heads: Size
    head_dim: Size = 128
    max_position_embeddings: Size = 32768
    hidden_act: Literal["silu"] = "silu"
    rms_norm_eps: PositiveFloat = 1e-6
    attention_bias: Literal[False] = False
    use_sliding_window: Literal[False] = False
    #: What it would be if it were used.
    sliding_window: Size | None = None
    layer_types: list[Literal["full_attention"]] | None = None
    rope_parameters: RopeSection | None = None
    rope_scaling: RopeSection | None = None
    rope_theta: PositiveFloat | None = None

    @model_validator(mode="after")
    def _heads_and_rope(self) -> Qwen3Section:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} heads do not share {self.num_key_value_heads} kv heads evenly"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd, but rotary positions need pairs")
        if len(set(self._thetas)) > 1:
            raise ValueError(f"rope_theta is given as {' and '.join(map(str, self._thetas))}; keep one value")
        return self

    @property
    def _thetas(self) -> list[float]:
        nested = [rope.rope_theta for rope in (self.rope_parameters, self.rope_scaling) if rope is not None]
        return [theta for theta in (self.rope_theta, *nested) if theta is not None]

    @property
    def dimensions(self) -> Qwen3BackboneConfig:
        """What the layers are built from."""
        return Qwen3BackboneConfig(
            hidden_size=self.hidden_size,
            layers=self.num_hidden_layers,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            norm_eps=self.rms_norm_eps,
            rope_theta=self._thetas[0] if self._thetas else 1e6,
        )


class Qwen3TalkerConfig(StrictModel):
    """What every talker around a Qwen3 backbone says of itself."""

    backbone: Qwen3BackboneConfig
    #: Rows a sequence may have.
    max_positions: Size
    #: Codes of each codebook.
    audio_codebook_sizes: tuple[Size, ...]

    @property
    def n_vq(self) -> int:
        return len(self.audio_codebook_sizes)

    @property
    def hidden_size(self) -> int:
        return self.backbone.hidden_size

    @property
    def layers(self) -> int:
        """Backbone layers: those with paged keys and values."""
        return self.backbone.layers

    @property
    def kv_heads(self) -> int:
        return self.backbone.kv_heads

    @property
    def head_dim(self) -> int:
        return self.backbone.head_dim

    def kv_bytes_per_row(self, dtype: torch.dtype) -> int:
        """Bytes of the keys and values that one row takes in all layers, with the scales of float8."""
        scale_bytes = SCALE_DTYPE.itemsize if dtype == FP8 else 0
        return 2 * self.layers * self.kv_heads * (self.head_dim * dtype.itemsize + scale_bytes)


ModelT = TypeVar("ModelT", bound=BaseModel)


def read_file(model: type[ModelT], raw: Mapping[str, Any]) -> ModelT:
    """The parsed `config.json` as `model`. Raises ConfigError naming the first key that is wrong."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise config_error(error) from None


def config_error(error: ValidationError, file: str = "config.json") -> ConfigError:
    """The first mistake that pydantic found, in one line."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    # A missing key, or a section that contradicts itself, has the whole section as its input.
    given = "" if isinstance(first["input"], Mapping) else f", got {first['input']!r}"
    return ConfigError(f"{file}: {key + ': ' if key else ''}{message}{given}", param=key or None)


def same(names: str, one: object, other: object) -> None:
    """Raise ValueError when both values are given and differ."""
    if one is not None and other is not None and one != other:
        raise ValueError(f"{names} contradict each other")
