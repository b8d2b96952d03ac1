"""From checkpoints to what an engine drives: models, their runners, and sizes that all of them agree on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.config import EngineConfig
from hocket.core import ResolvedSampling
from hocket.engine.codec_runner import STRICT_BATCH_STREAMS, CodecRunner, DecodedChunk, SamplesInFlight
from hocket.engine.conversions import Conversions
from hocket.engine.plan import MemoryPlan, plan_memory
from hocket.engine.references import ReferenceEncoder
from hocket.engine.request import DecodeBatch, FrameBatch, PrefillItem
from hocket.engine.scheduler import Scheduler, SchedulerConfig
from hocket.engine.talker_runner import FramesInFlight, PageTable, TalkerRunner
from hocket.errors import ConfigError
from hocket.models.checkpoint import resolve_checkpoint
from hocket.models.family import Codec, LoadedTalker, PromptBuilder
from hocket.models.registry import builtin_model, codec_folder, load_codec, load_talker

#: Weights up to this many bytes are run on one CPU thread (`EngineConfig.cpu_threads`).
_SMALL_WEIGHT_BYTES = 256 * 2**20

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class FrameRunner(Protocol):
    """What the engine asks of a talker runner; `TalkerRunner` says what each call does."""

    @property
    def codes_RFN(self) -> Tensor: ...  # noqa: N802
    def start(self, row: int, sampling: ResolvedSampling, seed: int) -> None: ...
    def prefill(self, items: list[PrefillItem], page_table: PageTable) -> None: ...
    def launch(self, batch: FrameBatch, page_table: PageTable) -> FramesInFlight: ...
    def collect(self, flight: FramesInFlight) -> tuple[list[bool], NDArray[np.int64]]: ...


class ChunkRunner(Protocol):
    """What the engine asks of a codec runner; `CodecRunner` says what each call does."""

    @property
    def max_chunk_frames(self) -> int: ...
    def start(self, row: int) -> None: ...
    def prime(self, rows: list[int], pieces: list[NDArray[np.int64]]) -> None: ...
    def launch(self, batch: DecodeBatch, codes_RFN: Tensor) -> SamplesInFlight: ...
    def collect(self, flight: SamplesInFlight) -> list[DecodedChunk]: ...


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """Of the audio that the codec makes, and the talker's frames stand for."""

    sample_rate: int
    channels: int
    frame_seconds: float


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Everything that an engine drives. `assemble` makes one from models, a test from runners of its own."""

    config: EngineConfig
    prompt: PromptBuilder
    sampling: ResolvedSampling
    audio: AudioFormat
    n_vq: int
    #: Longest prompt and speech together, in K/V rows.
    context_rows: int
    #: K/V pages, the scratch page included.
    pages: int
    talker: FrameRunner
    #: None: the engine makes codes only.
    codec: ChunkRunner | None
    references: ReferenceEncoder | None
    #: Launch a frame before the stop flags of the one before were read.
    lookahead: bool
    #: None: the runners are somebody else's.
    memory: MemoryPlan | None = None
    conversions: Conversions | None = None


def load_parts(
    model: str | Path | None, codec: str | Path | None, *, device: str, dtype: str, config: EngineConfig
) -> EngineParts:
    """Load the checkpoints that `Engine.load` names. Raises ConfigError, CheckpointError."""
    on, precision = parse_device(device), parse_dtype(dtype)
    folder = builtin_model() if model is None else resolve_checkpoint(model)
    talker = load_talker(folder, device=on, dtype=precision)
    loaded_codec = None
    if codec != "none":
        loaded_codec = load_codec(codec_folder(folder, codec), device=on, dtype=precision)
    return assemble(talker, loaded_codec, config)


def assemble(model: LoadedTalker, codec: Codec | None, config: EngineConfig) -> EngineParts:
    """Runners for loaded models. Raises ConfigError when the two do not belong together."""
    talker = model.talker.config
    if codec is not None:
        _check_pair(model, codec)
    device = next(model.talker.parameters()).device
    weights = [*model.talker.parameters(), *(codec.parameters() if codec else ()), *(codec.buffers() if codec else ())]
    weight_bytes = sum(tensor.nbytes for tensor in weights)
    if device.type == "cpu" and not config.strict:
        threads = config.cpu_threads or (1 if weight_bytes < _SMALL_WEIGHT_BYTES else torch.get_num_threads())
        torch.set_num_threads(threads)
    elif device.type == "cpu":
        # With more threads a row's bits depend on which thread computed it (seen in matrix products of 7 rows and in
        # attention of one query, PyTorch 2.13), so on its place in the batch.
        torch.set_num_threads(1)
    plan = plan_memory(
        config,
        talker,
        None if codec is None else codec.config,
        dtype=next(model.talker.parameters()).dtype,
        weight_bytes=weight_bytes,
    )
    codec_runner = references = conversions = None
    audio = AudioFormat(talker.sampling_rate, 1, 0.08)
    if codec is not None:
        shape = codec.config
        audio = AudioFormat(shape.sample_rate, shape.channels, shape.frame_samples / shape.sample_rate)
        codec_runner = CodecRunner(
            codec, rows=config.rows, max_chunk_frames=max(config.chunks.sizes), strict=config.strict
        )
        references = ReferenceEncoder(
            codec, n_codebooks=talker.n_vq, config=config.reference_cache, fixed_batch=config.strict
        )
        conversions = Conversions(codec)
    return EngineParts(
        config=config,
        prompt=model.prompt,
        sampling=model.sampling,
        audio=audio,
        n_vq=talker.n_vq,
        context_rows=plan.context_rows,
        pages=plan.pages,
        memory=plan,
        talker=TalkerRunner(
            model.talker,
            rows=config.rows,
            pages=plan.pages,
            page_rows=config.page_rows,
            max_frames=plan.context_rows,
            strict=config.strict,
        ),
        codec=codec_runner,
        references=references,
        conversions=conversions,
        lookahead=device.type == "cuda" if config.lookahead is None else config.lookahead,
    )


def new_scheduler(parts: EngineParts) -> Scheduler:
    """The scheduler of these parts."""
    config, chunks = parts.config, parts.config.chunks
    if config.strict:
        most = min(chunks.max_batch, STRICT_BATCH_STREAMS)
        chunks = chunks.model_copy(update={"max_batch": most, "min_batch": min(chunks.min_batch, most)})
    return Scheduler(
        SchedulerConfig(
            rows=config.rows,
            pages=parts.pages,
            page_rows=config.page_rows,
            max_context_rows=parts.context_rows,
            prefill_rows_per_step=max(config.prefill_rows_per_step, config.page_rows),
            max_waiting=config.max_waiting,
            prefix_cache=config.prefix_cache,
        ),
        None if parts.codec is None else chunks,
        frame_seconds=parts.audio.frame_seconds,
        fixed_chunks=config.strict,
    )


def parse_dtype(name: str) -> torch.dtype:
    """ "float32" or "bfloat16"; raises ConfigError."""
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; use one of {', '.join(DTYPES)}", param="dtype")
    return DTYPES[name]


def parse_device(name: str) -> torch.device:
    """ "cpu", "cuda" or "cuda:N"; raises ConfigError when it is another or not there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}; use cpu, cuda or cuda:N", param="device") from None
    if device.type not in {"cpu", "cuda"}:
        raise ConfigError(f"device is {name!r}; use cpu, cuda or cuda:N", param="device")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no CUDA device is available here; use --device cpu", param="device")
    return device


def _check_pair(model: LoadedTalker, codec: Codec) -> None:
    talker, audio = model.talker.config, codec.config
    if talker.sampling_rate != audio.sample_rate:
        raise ConfigError(
            f"the talker was made for {talker.sampling_rate} Hz and the codec makes {audio.sample_rate} Hz; "
            "give the codec that belongs to the model",
            param="codec",
        )
    entries = max(talker.audio_codebook_sizes)
    if talker.n_vq > audio.n_codebooks or entries > audio.codebook_size:
        raise ConfigError(
            f"the talker makes {talker.n_vq} codes a frame out of {entries}, the codec knows {audio.n_codebooks} "
            f"out of {audio.codebook_size}; give the codec that belongs to the model",
            param="codec",
        )
