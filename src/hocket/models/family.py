"""A model family as the engine sees it: a talker, a codec, a prompt builder and the model's own recommendations.

The engine knows no model by name; `models/registry.py` does, and hands out these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hocket.checkpoint.extras import Extras
from hocket.checkpoint.weights import WeightEntry, load_weights
from hocket.core import PromptRows, ReferenceNeeds, SpeechRequest, VoiceTraits
from hocket.kernels.types.paged import PagedBatch
from hocket.models.codec import Codec, CodecConfig
from hocket.models.layers.kv_cache import KVPages, KVShape
from hocket.models.sampling.batch import SamplingBatch
from hocket.models.sampling.params import ResolvedSampling

#: Fields of a request that are the same in every family. A builder declares which of the others it takes.
COMMON_FIELDS = frozenset(
    {"text", "text_front", "voice", "reference", "reference_text", "sampling", "seed", "max_frames", "min_frames"}
)


class PromptBuilder(Protocol):
    """Turns requests into prompts. It is pure: the same request, codes and voices give the same rows.

    `needs` refuses, before anything is encoded, what the checkpoint cannot do; `build` gets what it asked for.
    """

    @property
    def takes(self) -> frozenset[str]:
        """Fields of `SpeechRequest` beyond `COMMON_FIELDS` that the family reads; a request with others is refused."""

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
    """A codec before anything is loaded: what its config.json says, and how it is built from that."""

    config: CodecConfig
    weight_table: Sequence[WeightEntry]
    #: Bytes once it is loaded, in whatever form it keeps its weights.
    resident_bytes: int
    build: Callable[[], Codec]
    #: Names in a report, by the first part of a parameter's path in the weight table.
    parts: Mapping[str, str]
    #: Stored tensors that are not read.
    unread: Collection[str] = ()

    def empty(self) -> Codec:
        """The codec without weights, on the meta device."""
        return _on_meta(self.build, self.weight_table)

    def load(self, folder: Path, device: torch.device) -> Codec:
        """The codec with the weights of a checkpoint's folder. Raises CheckpointError."""
        codec = self.empty()
        load_weights(codec, folder, self.weight_table, tied=self.unread, device=device)
        codec.finalize()
        return codec.eval()


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


ModuleT = TypeVar("ModuleT", bound=nn.Module)


def _on_meta(build: Callable[[], ModuleT], table: Sequence[WeightEntry]) -> ModuleT:
    """A module without weights, its parameters in the dtypes of the weight table."""
    dtypes = {entry.parameter: entry.dtype for entry in table}
    with torch.device("meta"):
        module = build()
    for name, weight in module.state_dict(keep_vars=True).items():
        weight.data = weight.data.to(dtypes[name])
    return module.requires_grad_(False)
