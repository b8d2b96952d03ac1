"""A model family as the engine sees it: a talker, a codec, a prompt builder and the model's own recommendations.

The engine knows no model by name; `models/registry.py` does, and hands out these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hocket.checkpoint.extras import Extras
from hocket.checkpoint.weights import WeightEntry
from hocket.core import PromptRows, ReferenceNeeds, SpeechRequest, VoiceTraits
from hocket.models.layers.codec_state import CodecState, Direction, PackedStreams
from hocket.models.layers.kv_cache import KVPages, KVShape, PagedBatch
from hocket.models.sampling.batch import SamplingBatch
from hocket.models.sampling.params import ResolvedSampling


class PromptBuilder(Protocol):
    """Pure: the same request, codes and voices give the same rows.

    `needs` refuses, before anything is encoded, what the checkpoint cannot do; `build` gets what it asked for.
    """

    def needs(self, request: SpeechRequest) -> ReferenceNeeds: ...
    def build(
        self,
        request: SpeechRequest,
        references: Sequence[NDArray[np.int64]],
        voices: Sequence[NDArray[np.float32]] = (),
    ) -> PromptRows: ...


class TalkerConfig(KVShape, Protocol):
    """What the engine reads of a talker's configuration."""

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


class Talker(Protocol):
    """Text and frames in, the next frame out. State (K/V pages, hidden rows, penalty history) is an argument.

    A prompt row and a generated frame are alike: a text id, and codes. `embed` makes backbone inputs of prompt rows
    [B, T, R] and each sequence's voice [B, voice_size]; `embed_frame` of frames [B, N] and the text ids beside them.
    """

    @property
    def config(self) -> TalkerConfig: ...
    @property
    def backbone(self) -> Backbone: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def embed(self, rows_BTR: Tensor, voice_BD: Tensor) -> Tensor: ...
    def embed_frame(self, codes_BN: Tensor, text_B: Tensor) -> Tensor: ...
    def frame(
        self, hidden_BD: Tensor, sampling: SamplingBatch, frame_B: Tensor, seen_BNV: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...


class Backbone(Protocol):
    def __call__(self, x_BTD: Tensor, kv: KVPages, batch: PagedBatch) -> Tensor: ...
    def joined(
        self, x_BD: Tensor, frames: PagedBatch, x_PTD: Tensor, pages: PagedBatch, kv: KVPages
    ) -> tuple[Tensor, Tensor]: ...


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
    @property
    def max_recording_frames(self) -> int | None:
        """Longest recording that a stream of the encoder takes; None: any."""

    def reference_frames(self, samples: int) -> int:
        """Frames of a reference recording of so many samples."""

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
        lengths_B: Tensor | None = None,
        n_codebooks: int | None = None,
    ) -> Tensor: ...
    @property
    def packs(self) -> bool:
        """Whether it has `decode_packed`: chunks of any sizes in one batch, without padding."""

    def decode_packed(self, codes_FN: Tensor, state: CodecState, streams: PackedStreams) -> Tensor: ...
    def decode_whole(self, codes_TN: Tensor) -> Tensor: ...
    def encode_whole(self, samples_CS: Tensor, n_codebooks: int | None = None) -> Tensor: ...


class VoiceEncoder(Protocol):
    """A mono recording at the talker's rate to a vector that a prompt row carries."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def check_length(self, samples: int) -> None:
        """Raises ReferenceAudioError when a recording of so many samples is too short."""

    def embed(self, samples_S: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LoadedTalker:
    """A talker with its prompt builder, the sampling that its authors recommend, and what its folder adds to that."""

    talker: Talker
    prompt: PromptBuilder
    sampling: ResolvedSampling
    extras: Extras = field(default_factory=Extras)
    #: Of a family whose `voice_size` is not 0.
    voice_encoder: VoiceEncoder | None = None


@dataclass(frozen=True, slots=True)
class CodecPlan:
    """What a codec's config.json says, before anything is loaded."""

    config: CodecConfig
    weight_table: Sequence[WeightEntry]
    #: Bytes once it is loaded, in whatever form it keeps its weights.
    resident_bytes: int
    #: From a checkpoint's folder to the codec on a device. Raises CheckpointError.
    load: Callable[[Path, torch.device], Codec]
    #: What the first part of a parameter's path in the weight table is called in a report.
    parts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TalkerPlan:
    """What a talker's config.json says, before anything is loaded."""

    config: TalkerConfig
    weight_table: Sequence[WeightEntry]
    #: From a checkpoint's folder to the talker on a device. Raises CheckpointError.
    load: Callable[[Path, torch.device], LoadedTalker]
    #: What the first part of a parameter's path in the weight table is called in a report.
    parts: Mapping[str, str]
    #: More lines for a report.
    facts: Mapping[str, str | int]


class TalkerConfigFile(Protocol):
    """The module `config` of a talker family's package. Importing it must not import torch."""

    def read_config(self, raw: Mapping[str, Any], /) -> TalkerConfig:
        """Read and check a parsed config.json. Raises ConfigError."""


class TalkerFamily(Protocol):
    """The module `family` of a talker family's package."""

    def talker_plan(self, raw: Mapping[str, object], dtype: torch.dtype) -> TalkerPlan:
        """Plan the talker of a parsed config.json at `dtype`. Raises ConfigError."""


class CodecFamily(Protocol):
    """The module `family` of a codec family's package."""

    def codec_plan(self, raw: Mapping[str, object], dtype: torch.dtype) -> CodecPlan:
        """Plan the codec of a parsed config.json at `dtype`. Raises ConfigError."""
