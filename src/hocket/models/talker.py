"""A talker as the engine sees it: text and frames in, the next frame out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor, nn

from hocket.core import VoiceTraits
from hocket.kernels.types import PagedBatch
from hocket.models.layers.kv_cache import KVPages, KVShape
from hocket.models.sampling import SamplingBatch


class TalkerConfig(KVShape, Protocol):
    """The properties of a talker that the engine reads."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def n_vq(self) -> int: ...
    @property
    def audio_codebook_sizes(self) -> tuple[int, ...]: ...
    @property
    def sampling_rate(self) -> int: ...
    @property
    def frame_text_id(self) -> int:
        """Text id of the frames that the prompt gives none (`PromptRows.frame_texts`)."""

    @property
    def voice_size(self) -> int:
        """Width of `PromptRows.voice`; 0 for a family that hears codes alone."""

    @property
    def speakers(self) -> Collection[str]:
        """Names of the voices that the model itself knows."""

    @property
    def voice_traits(self) -> VoiceTraits: ...


class Backbone(Protocol):
    """The layers with paged keys and values."""

    def __call__(
        self, x_BTD: Tensor, kv: KVPages | None = None, batch: PagedBatch | None = None
    ) -> Tensor:
        """Hidden states [B, T, D] of rows that continue cached ones; without `kv` and `batch`, of
        whole sequences.
        """

    def joined(
        self, x_BD: Tensor, frames: PagedBatch, x_PTD: Tensor, pages: PagedBatch, kv: KVPages
    ) -> tuple[Tensor, Tensor]:
        """Hidden states of one new row each of B sequences and of P pieces of prompts, in one
        pass.
        """


@dataclass(frozen=True, slots=True)
class FrameLayers:
    """The layers that draw a frame's codes, one position after another, as benchmarks measure
    them.
    """

    #: The part's name in reports.
    part: str
    layers: nn.Module
    #: Runs of `layers` for one frame.
    steps: int
    #: Weights of the heads of all codebooks; each is read once a frame.
    heads: Tensor
    #: Name of the operation in `kernels.ops` that attends, and its shape.
    attention: Literal["depth_attention", "frame_attention"]
    query_heads: int
    kv_heads: int
    head_dim: int
    positions: int
    rope_base: float


class Talker(nn.Module):
    """Base of all talkers. State (K/V pages, hidden rows, penalty history) is an argument.

    A prompt row and a generated frame are alike: a text id and N codes. `embed` of a frame's row
    and `embed_frame` agree to the bit. Call `finalize` once after the weights are in place.
    """

    config: TalkerConfig
    backbone: Backbone

    def finalize(self) -> None:
        """Compute what follows from the weights alone."""

    @abstractmethod
    def embed(self, rows_BTR: Tensor, voice_BD: Tensor) -> Tensor:
        """Backbone inputs [B, T, D] of prompt rows [B, T, 1 + N], and of each sequence's voice [B,
        voice_size].
        """

    @abstractmethod
    def embed_frame(self, codes_BN: Tensor, text_B: Tensor) -> Tensor:
        """Backbone inputs [B, D] of generated frames and the text ids beside them."""

    @abstractmethod
    def frame(
        self, hidden_BD: Tensor, sampling: SamplingBatch, frame_B: Tensor, seen_BNV: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Draw one frame from the backbone's newest hidden state: bool stop [B], int64 codes [B,
        N].

        `frame_B` (int64) counts each row's frames from 0: with the row's seed it fixes the noise.
        `seen_BNV` (bool, V the largest codebook) marks the codes drawn so far, for the repetition
        penalty; None when no row has one. It is read, never updated. A row that stops gets codes
        too, which mean nothing: the caller drops them, so that nothing here waits for the device.
        """

    @abstractmethod
    def forced_logits(self, hidden_MD: Tensor, codes_MN: Tensor) -> Tensor:
        """Logits [M, ...] of all codes that the frame's layers draw, from the hidden states before
        the frames, given the codes themselves (teacher forcing).
        """

    @property
    @abstractmethod
    def frame_layers(self) -> FrameLayers:
        """The layers behind `frame`."""
