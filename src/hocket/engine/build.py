"""Builds the parts of an engine from checkpoints: models, runners, and the sizes that all of them
share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from torch import nn

from hocket.audio.reference import RecordingForm, preparation_id
from hocket.checkpoint.extras import Extras
from hocket.checkpoint.hub import resolve_checkpoint
from hocket.checkpoint.voices import ONLY_DEFAULT, Voices
from hocket.config import EngineConfig, Environment
from hocket.core import EngineInfo, MemoryPlan, TextNormalizer
from hocket.engine.memory_plan import kv_dtype, plan_memory
from hocket.engine.references.conversions import Conversions
from hocket.engine.references.encoder import ReferenceEncoder
from hocket.engine.runners.codec import STRICT_STREAMS, CodecRunner
from hocket.engine.runners.protocols import ChunkRunner, FrameRunner
from hocket.engine.runners.talker import TalkerRunner
from hocket.engine.scheduling.config import SchedulerConfig
from hocket.engine.scheduling.scheduler import Scheduler
from hocket.errors import ConfigError
from hocket.models.codec import Codec, CodecConfig
from hocket.models.family import LoadedTalker, PromptBuilder
from hocket.models.layers.basic import lay_out_for_cpu
from hocket.models.layers.fp8 import check_fp8_device, quantize_models
from hocket.models.registry import (
    builtin_model,
    codec_folder,
    codec_plan,
    load_codec,
    load_talker,
    talker_plan,
)
from hocket.models.sampling import ResolvedSampling

#: Models with fewer bytes of weights run on one CPU thread where idle threads spin
#: (`EngineConfig.cpu_threads`).
_SMALL_WEIGHT_BYTES = 256 * 2**20

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts that an engine drives. `assemble` makes them from models; tests inject runners of
    their own.
    """

    config: EngineConfig
    prompt: PromptBuilder
    sampling: ResolvedSampling
    info: EngineInfo
    n_vq: int
    #: K/V pages, the scratch page included.
    pages: int
    talker: FrameRunner
    #: None: the engine makes codes only.
    codec: ChunkRunner | None
    #: None: the engine reads no recordings.
    references: ReferenceEncoder | None
    #: Maximum streams of a codec batch in strict mode.
    strict_streams: int = STRICT_STREAMS["cpu"]
    #: None when the runners were injected.
    memory: MemoryPlan | None = None
    conversions: Conversions | None = None
    voices: Voices = field(default_factory=lambda: ONLY_DEFAULT)


def load_parts(
    model: str | Path | None,
    codec: str | Path | None,
    *,
    device: str,
    dtype: str,
    config: EngineConfig,
) -> EngineParts:
    """Load the checkpoints that `Engine.load` names. Raises ConfigError, CheckpointError."""
    has_codec, precision = codec != "none", parse_dtype(dtype)
    on, codec_on = engine_devices(device, config, has_codec=has_codec)
    folder = builtin_model() if model is None else resolve_checkpoint(model)
    talker = load_talker(folder, device=on, dtype=precision)
    loaded_codec = None
    if has_codec:
        loaded_codec = load_codec(codec_folder(folder, codec), device=codec_on, dtype=precision)
    return assemble(talker, loaded_codec, config, name=None if model is None else str(model))


def assemble(
    model: LoadedTalker, codec: Codec | None, config: EngineConfig, *, name: str | None = None
) -> EngineParts:
    """Make runners for loaded models; `name` becomes `EngineInfo.model`.

    Raises ConfigError when talker and codec do not belong together.
    """
    talker = model.talker.config
    if codec is not None:
        _check_pair(model, codec)
        _check_reference_length(config, codec)
    weight_bytes = _prepare_weights(model, codec, config)
    parameter = next(model.talker.parameters())
    device, dtype, voice = parameter.device, parameter.dtype, model.voice_encoder
    audio = None if codec is None else codec.config
    plan = plan_memory(
        config, talker, codec, dtype=dtype, weight_bytes=weight_bytes, device=device.type
    )
    codec_runner = references = None
    if codec is not None:
        codec_runner = _codec_runner(codec, config)
    if codec is not None or voice is not None:
        references = ReferenceEncoder(
            codec, voice, n_codebooks=talker.n_vq, fixed_batch=config.strict
        )
    talker_runner = TalkerRunner(
        model.talker,
        rows=config.rows,
        pages=plan.pages,
        page_rows=config.page_rows,
        max_frames=plan.context_rows,
        kv_dtype=kv_dtype(config, dtype),
        strict=config.strict,
    )
    talker_runner.prepare()
    if codec_runner is not None:
        codec_runner.prepare(talker.n_vq)
    conversions = None if codec is None else Conversions(codec)
    return EngineParts(
        config=config,
        prompt=model.prompt,
        sampling=model.sampling,
        info=_info(
            name,
            model,
            audio,
            plan,
            config,
            codec_id="" if conversions is None else conversions.codec_id,
            encoder_id="" if references is None else references.identity,
        ),
        n_vq=talker.n_vq,
        pages=plan.pages,
        memory=plan,
        strict_streams=STRICT_STREAMS[device.type],
        talker=talker_runner,
        codec=codec_runner,
        references=references,
        conversions=conversions,
        voices=model.extras.voices,
    )


def _info(
    name: str | None,
    model: LoadedTalker,
    codec: CodecConfig | None,
    plan: MemoryPlan,
    config: EngineConfig,
    *,
    codec_id: str,
    encoder_id: str,
) -> EngineInfo:
    talker, limits = model.talker.config, config.reference
    form = RecordingForm(
        sample_rate=talker.sampling_rate if codec is None else codec.sample_rate,
        channels=1 if codec is None else codec.channels,
        limits=limits,
        level=talker.voice_traits.levels_references,
    )
    return EngineInfo(
        model=name,
        sample_rate=form.sample_rate,
        channels=form.channels,
        frame_seconds=0.08 if codec is None else codec.frame_samples / codec.sample_rate,
        rows=config.rows,
        max_waiting=config.max_waiting,
        context_rows=plan.context_rows,
        codec_id=codec_id,
        reference_id=preparation_id(encoder_id, form),
        reference_min_seconds=limits.min_seconds,
        reference_max_seconds=limits.max_seconds,
        reference_min_rms=limits.min_rms,
        reference_max_file_bytes=limits.max_file_bytes,
        text_front=text_normalizer_of(model.extras, config),
        segment_characters=model.extras.segment_characters,
        voice_traits=talker.voice_traits,
        samples=config.samples,
    )


def engine_memory(
    model: str | None, codec: str | None, dtype: torch.dtype, config: EngineConfig
) -> MemoryPlan:
    """The plan that `load_parts` follows with these arguments. Raises CheckpointError,
    ConfigError.
    """
    folder = builtin_model() if model is None else resolve_checkpoint(model)
    talker = talker_plan(folder, dtype)
    weights = sum(prod(entry.shape) * entry.dtype.itemsize for entry in talker.weight_table)
    if codec == "none":
        return plan_memory(config, talker.config, None, dtype=dtype, weight_bytes=weights)
    plan = codec_plan(codec_folder(folder, codec), dtype)
    return plan_memory(
        config, talker.config, plan.empty(), dtype=dtype, weight_bytes=weights + plan.resident_bytes
    )


def _check_fp8(
    config: EngineConfig, talker_device: torch.device, codec_device: torch.device
) -> None:
    if config.kv_dtype == "fp8":
        check_fp8_device(talker_device, "kv_dtype")
    if config.quantize == "fp8":
        check_fp8_device(talker_device)
        check_fp8_device(codec_device)


def _prepare_weights(model: LoadedTalker, codec: Codec | None, config: EngineConfig) -> int:
    """Quantise the weights and lay them out for the device; returns their bytes. Raises
    ConfigError.
    """
    device = next(model.talker.parameters()).device
    _check_fp8(config, device, device if codec is None else next(codec.parameters()).device)
    if config.quantize == "fp8":
        quantize_models(model.talker, codec)
        # The memory of the old weights becomes available to K/V.
        torch.cuda.empty_cache()
    voice = model.voice_encoder
    weights = [
        *(*model.talker.parameters(), *(voice.parameters() if voice else ())),
        *(*(codec.parameters() if codec else ()), *(codec.buffers() if codec else ())),
    ]
    weight_bytes = sum(tensor.nbytes for tensor in weights)
    if device.type == "cpu":
        _prepare_weights_on_cpu(model, codec, config, weight_bytes)
    else:
        # By default PyTorch rounds float32 convolutions to 10 bits of mantissa.
        torch.backends.cudnn.allow_tf32 = False
    return weight_bytes


def _codec_runner(codec: Codec, config: EngineConfig) -> CodecRunner:
    return CodecRunner(
        codec,
        rows=config.rows,
        chunk_sizes=config.chunks.sizes,
        max_batch=config.chunks.max_batch,
        first_frames=config.chunks.first_batch_frames,
        kept=config.kept_streams,
        strict=config.strict,
        samples=config.samples,
    )


def _prepare_weights_on_cpu(
    model: LoadedTalker, codec: Codec | None, config: EngineConfig, weight_bytes: int
) -> None:
    """Lay the weights out in the order in which a CPU reads them, and set the number of threads."""
    for module in (model.talker, codec):
        if isinstance(module, nn.Module):
            lay_out_for_cpu(module)
    if config.strict:
        # With more threads the bits of a row depend on the thread that computed it, so on its index
        # in the batch (seen in matrix products of 7 rows and in attention of one query, PyTorch
        # 2.13).
        torch.set_num_threads(1)
        return
    stalls = weight_bytes < _SMALL_WEIGHT_BYTES and not Environment.read().openmp_sleeps
    torch.set_num_threads(config.cpu_threads or (1 if stalls else torch.get_num_threads()))


def text_normalizer_of(extras: Extras, config: EngineConfig) -> TextNormalizer | None:
    """The text normalizer of an engine: the configured one, else the checkpoint's."""
    if config.text_front is None:
        return extras.text_front
    return "en" if config.text_front else None


def new_scheduler(parts: EngineParts) -> Scheduler:
    """Make the scheduler for `parts`."""
    config, chunks = parts.config, parts.config.chunks
    max_batch = min(chunks.max_batch, parts.strict_streams) if config.strict else chunks.max_batch
    # A batch cannot have more streams than there are rows.
    min_batch = min(chunks.min_batch, max_batch, config.rows)
    chunks = chunks.model_copy(update={"max_batch": max_batch, "min_batch": min_batch})
    return Scheduler(
        SchedulerConfig(
            rows=config.rows,
            pages=parts.pages,
            page_rows=config.page_rows,
            max_context_rows=parts.info.context_rows,
            prefill_rows_per_step=max(config.prefill_rows_per_step, config.page_rows),
            max_waiting=config.max_waiting,
            prefix_cache=config.prefix_cache,
        ),
        None if parts.codec is None else chunks,
        frame_seconds=parts.info.frame_seconds,
        fixed_chunks=config.strict,
        pack_frames=0 if parts.codec is None else parts.codec.pack_frames,
    )


def parse_dtype(name: str) -> torch.dtype:
    """The dtype named "float32" or "bfloat16". Raises ConfigError."""
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; use one of {', '.join(DTYPES)}", param="dtype")
    return DTYPES[name]


def parse_device(name: str, param: str = "device") -> torch.device:
    """The device named "cpu", "cuda" or "cuda:N". Raises ConfigError about `param` if it is unknown
    or missing.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"{param} is {name!r}; use cpu, cuda or cuda:N", param=param) from None
    if device.type not in {"cpu", "cuda"}:
        raise ConfigError(f"{param} is {name!r}; use cpu, cuda or cuda:N", param=param)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"{param} is {name!r}, but no CUDA device is available here; use cpu", param=param
        )
    if (
        device.type == "cuda"
        and device.index is not None
        and device.index >= torch.cuda.device_count()
    ):
        count = torch.cuda.device_count()
        raise ConfigError(
            f"{param} is {name!r}, but this machine has {count} GPU(s), from cuda:0 on", param=param
        )
    return device


def engine_devices(
    name: str, config: EngineConfig, *, has_codec: bool = True
) -> tuple[torch.device, torch.device]:
    """The devices of talker and codec. Raises ConfigError if one is missing or does not support
    `config`.
    """
    talker = parse_device(name)
    codec = _codec_device(config, talker) if has_codec else talker
    _check_fp8(config, talker, codec)
    return talker, codec


def _codec_device(config: EngineConfig, talker: torch.device) -> torch.device:
    if config.codec_device is None:
        return talker
    device = parse_device(config.codec_device, "codec_device")
    if device.type != talker.type:
        raise ConfigError(
            f"codec_device is {config.codec_device!r} and the talker's device {str(talker)!r}; two "
            "GPUs can share the work, a GPU and a CPU cannot",
            param="codec_device",
        )
    return device


def _check_reference_length(config: EngineConfig, codec: Codec) -> None:
    audio, allowed = codec.config, config.reference.max_seconds
    if audio.max_recording_frames is None:
        return
    longest = audio.max_recording_frames * audio.frame_samples / audio.sample_rate
    if allowed > longest:
        raise ConfigError(
            f"reference.max_seconds is {allowed:g}; this model's codec encodes {longest:g} s at "
            "most, lower it",
            param="reference.max_seconds",
        )


def _check_pair(model: LoadedTalker, codec: Codec) -> None:
    talker, audio = model.talker.config, codec.config
    if talker.sampling_rate != audio.sample_rate:
        raise ConfigError(
            f"the talker was made for {talker.sampling_rate} Hz and the codec makes "
            f"{audio.sample_rate} Hz; give the codec that belongs to the model",
            param="codec",
        )
    entries = max(talker.audio_codebook_sizes)
    if talker.n_vq > audio.n_codebooks or entries > audio.codebook_size:
        raise ConfigError(
            f"the talker makes {talker.n_vq} codes a frame out of {entries}, the codec knows "
            f"{audio.n_codebooks} out of {audio.codebook_size}; give the codec that belongs to the "
            "model",
            param="codec",
        )
