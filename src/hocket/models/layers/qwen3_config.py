"""Dimensions of Qwen3 layers, and the section of a `config.json` that gives them. Importing this
imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import model_validator

from hocket.checkpoint.config_file import Layers, PositiveFloat, RopeSection, Section, Size
from hocket.core import StrictModel


@dataclass(frozen=True, slots=True)
class Qwen3BackboneConfig:
    """Dimensions of a backbone; `head_dim` is free of `hidden_size / heads`."""

    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float

    @property
    def description(self) -> str:
        """A summary in one line."""
        return (
            f"{self.layers} layers, width {self.hidden_size}, FFN {self.intermediate_size}, "
            f"{self.heads}/{self.kv_heads} heads x {self.head_dim}, RoPE base {self.rope_theta:g}"
        )


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
    #: The width it would have; `use_sliding_window` must be false.
    sliding_window: Size | None = None
    layer_types: list[Literal["full_attention"]] | None = None
    rope_parameters: RopeSection | None = None
    rope_scaling: RopeSection | None = None
    rope_theta: PositiveFloat | None = None

    @model_validator(mode="after")
    def _heads_and_rope(self) -> Qwen3Section:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} heads do not share {self.num_key_value_heads} kv "
                "heads evenly"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd, but rotary positions need pairs")
        if len(set(self._thetas)) > 1:
            raise ValueError(
                f"rope_theta is given as {' and '.join(map(str, self._thetas))}; keep one value"
            )
        return self

    @property
    def _thetas(self) -> list[float]:
        nested = [
            rope.rope_theta
            for rope in (self.rope_parameters, self.rope_scaling)
            if rope is not None
        ]
        return [theta for theta in (self.rope_theta, *nested) if theta is not None]

    @property
    def dimensions(self) -> Qwen3BackboneConfig:
        """Dimensions of the layers."""
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
    """Properties of every talker around a Qwen3 backbone."""

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
