"""A model family as the engine sees it: a talker, a codec, a prompt builder and the model's own
recommendations.

The engine knows no model by name; `models/registry.py` does, and hands out these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hocket.checkpoint.extras import Extras
from hocket.checkpoint.weights import WeightEntry, load_weights
from hocket.core import PromptRows, ReferenceNeeds, SpeechRequest
from hocket.errors import InvalidRequestError
from hocket.models.codec import Codec, CodecConfig
from hocket.models.sampling import ResolvedSampling
from hocket.models.talker import Talker, TalkerConfig

#: Fields of a request that are the same in every family. A builder declares which of the others it
#: takes.
COMMON_FIELDS = frozenset(
    {
        "text",
        "text_front",
        "voice",
        "reference",
        "reference_text",
        "sampling",
        "seed",
        "max_frames",
        "min_frames",
    }
)


#: Text ids of a workload are drawn from the first so many: ordinary words in every vocabulary.
_WORD_IDS = 1000


class PromptBuilder(Protocol):
    """Turns requests into prompts. It is pure: the same request, codes and voices give the same
    rows.

    `needs` refuses, before anything is encoded, what the checkpoint cannot do; `build` gets what it
    asked for.
    """

    @property
    def takes(self) -> frozenset[str]:
        """Fields of `SpeechRequest` beyond `COMMON_FIELDS` that the family reads; a request with
        others is refused.
        """

    def needs(self, request: SpeechRequest) -> ReferenceNeeds: ...
    def build(
        self,
        request: SpeechRequest,
        references: Sequence[NDArray[np.int64]],
        voices: Sequence[NDArray[np.float32]] = (),
    ) -> PromptRows: ...


class WorkloadPrompt(ABC):
    """A prompt builder for benchmarks: prompts of as many rows as a workload says, without a
    tokenizer.

    A request's text has a character for each row. Text ids are drawn by the request's seed, so that
    two texts share no more pages than two real ones would: those of the template.
    """

    #: Prompt rows that are no text and no recording.
    template_rows: ClassVar[int]
    #: Whether a request continues its voice's recording.
    continues: ClassVar[bool]
    takes: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def needs(self, request: SpeechRequest) -> ReferenceNeeds:
        """As `PromptBuilder.needs`."""

    @abstractmethod
    def build(
        self,
        request: SpeechRequest,
        references: Sequence[NDArray[np.int64]],
        voices: Sequence[NDArray[np.float32]] = (),
    ) -> PromptRows:
        """As `PromptBuilder.build`."""

    @staticmethod
    def words(seed: int | None, count: int, vocabulary: int) -> NDArray[np.int64]:
        """Text ids drawn from the first `_WORD_IDS`."""
        return np.random.default_rng(seed).integers(0, min(_WORD_IDS, vocabulary), count)


def checked_codes(
    codes: NDArray[np.int64], number: int, n_vq: int, codebook_sizes: Sequence[int]
) -> NDArray[np.int64]:
    """The first `n_vq` codebooks of reference `number`, [F, n_vq], with every code checked.

    Raises InvalidRequestError (`reference`).
    """
    if (
        not np.issubdtype(codes.dtype, np.integer)
        or codes.ndim != 2
        or codes.shape[0] == 0
        or codes.shape[1] < n_vq
    ):
        raise InvalidRequestError(
            f"reference {number}: {codes.dtype} codes of the shape {codes.shape}; "
            f"this model takes integers [at least 1 frame, at least {n_vq} codebooks]",
            param="reference",
        )
    codes_FN = codes[:, :n_vq]
    outside_FN = (codes_FN < 0) | (codes_FN >= np.array(codebook_sizes[:n_vq]))
    if outside_FN.any():
        frame, codebook = np.argwhere(outside_FN)[0]
        raise InvalidRequestError(
            f"reference {number}: code {codes_FN[frame, codebook]} in codebook {codebook} of "
            f"frame {frame}; this model's codes are 0 to {codebook_sizes[codebook] - 1}",
            param="reference",
        )
    return codes_FN.astype(np.int64)


def checked_voice(voice: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """The speaker vector [size] of a reference. Raises InvalidRequestError (`reference`)."""
    if voice.shape != (size,) or not np.isfinite(voice).all():
        raise InvalidRequestError(
            f"the reference's speaker vector has the shape {voice.shape} or is not finite; this "
            f"model's have {size} numbers, so give the recording",
            param="reference",
        )
    return voice


class VoiceEncoder(Protocol):
    """Turns a mono recording at the talker's rate into a vector that a prompt row carries."""

    def parameters(self) -> Iterator[nn.Parameter]: ...
    def check_length(self, samples: int) -> None:
        """Raise ReferenceAudioError when a recording of so many samples is too short."""

    def embed(self, samples_S: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LoadedTalker:
    """A talker with its prompt builder, the sampling that its authors recommend, and what its
    folder adds to that.
    """

    talker: Talker
    prompt: PromptBuilder
    sampling: ResolvedSampling
    extras: Extras = field(default_factory=Extras)
    #: Set by families whose `voice_size` is not 0.
    voice_encoder: VoiceEncoder | None = None


@dataclass(frozen=True, slots=True)
class CodecPlan:
    """A codec before anything is loaded: what its config.json says, and how it is built from
    that.
    """

    config: CodecConfig
    weight_table: Sequence[WeightEntry]
    #: Bytes of the loaded codec, in the form in which it keeps its weights.
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
    """A talker before anything is loaded: what its config.json says, and how it is built from
    that.
    """

    config: TalkerConfig
    weight_table: Sequence[WeightEntry]
    build: Callable[[], Talker]
    #: Loads a checkpoint's folder onto a device. Raises CheckpointError.
    load: Callable[[Path, torch.device], LoadedTalker]
    #: Recommended by the authors; a checkpoint's folder may override it.
    sampling: ResolvedSampling
    #: Prompts for benchmarks. Raises ConfigError for a checkpoint that cannot speak the workload.
    workload_prompt: Callable[[], WorkloadPrompt]
    #: Names in a report, by the first part of a parameter's path in the weight table.
    parts: Mapping[str, str]
    #: Further lines of a report.
    facts: Mapping[str, str | int]

    def empty(self) -> Talker:
        """The talker without weights, on the meta device."""
        return _on_meta(self.build, self.weight_table)


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
