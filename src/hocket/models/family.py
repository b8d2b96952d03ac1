"""A model family as the engine sees it: a talker, a codec, a prompt builder and the model's own recommendations.

The engine knows no model by name; `models/registry.py` does, and hands out these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from hocket.core import PromptRows, ResolvedSampling, SpeechRequest
from hocket.models.kv_cache import KVPages, PagedBatch
from hocket.models.moss_codec.state import CodecState, Direction
from hocket.models.sampling import SamplingBatch


class PromptBuilder(Protocol):
    """Pure: the same request and codes give the same rows."""

    def build(self, request: SpeechRequest, references: Sequence[NDArray[np.int64]]) -> PromptRows: ...


class TalkerConfig(Protocol):
    """What the engine reads of a talker's configuration."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...
    @property
    def n_vq(self) -> int: ...
    @property
    def audio_codebook_sizes(self) -> tuple[int, ...]: ...
    @property
    def audio_pad_code(self) -> int: ...
    @property
    def pad_token_id(self) -> int: ...
    @property
    def sampling_rate(self) -> int: ...


class Talker(Protocol):
    """Text and frames in, the next frame out. State (K/V pages, hidden rows, penalty history) is an argument."""

    @property
    def config(self) -> TalkerConfig: ...
    @property
    def backbone(self) -> Backbone: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def embed(self, rows_BTR: Tensor) -> Tensor: ...
    def embed_frame(self, codes_BN: Tensor) -> Tensor: ...
    def frame(
        self, hidden_BD: Tensor, sampling: SamplingBatch, frame_B: Tensor, seen_BNV: Tensor
    ) -> tuple[Tensor, Tensor]: ...


class Backbone(Protocol):
    def __call__(self, x_BTD: Tensor, kv: KVPages, batch: PagedBatch) -> Tensor: ...


class CodecConfig(Protocol):
    """What the engine reads of a codec's configuration."""

    @property
    def sample_rate(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def frame_samples(self) -> int: ...
    @property
    def n_codebooks(self) -> int: ...
    @property
    def codebook_size(self) -> int: ...
    def state_bytes(self, direction: Direction, rows: int, max_chunk_frames: int) -> int: ...


class Codec(Protocol):
    """Codes ↔ samples."""

    @property
    def config(self) -> CodecConfig: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def new_decoder_state(self, rows: int, max_chunk_frames: int) -> CodecState: ...
    def new_encoder_state(self, rows: int, max_chunk_frames: int) -> CodecState: ...
    def decode(
        self, codes_BTN: Tensor, state: CodecState, rows_B: Tensor, counts_B: Tensor | None = None
    ) -> Tensor: ...
    def encode(
        self,
        samples_BCS: Tensor,
        state: CodecState,
        rows_B: Tensor,
        counts_B: Tensor | None = None,
        n_codebooks: int | None = None,
    ) -> Tensor: ...
    def decode_whole(self, codes_TN: Tensor) -> Tensor: ...
    def encode_whole(self, samples_CS: Tensor, n_codebooks: int | None = None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LoadedTalker:
    """A talker with its prompt builder and the sampling that its authors recommend."""

    talker: Talker
    prompt: PromptBuilder
    sampling: ResolvedSampling
