"""What a checkpoint is, from its configuration and weight table alone: no weights are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import torch

from hocket.config import EngineConfig
from hocket.engine.plan import MemoryPlan, plan_memory
from hocket.errors import CheckpointError, ConfigError
from hocket.models.checkpoint import read_config, resolve_checkpoint
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_codec.weights import codec_weight_table, resident_bytes
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.weights import talker_weight_table
from hocket.models.registry import builtin_model, checkpoint_kind, codec_folder
from hocket.models.weights import WeightEntry

Fact = str | int | float

#: What the first part of a parameter's path is called in the report.
TALKER_PARTS = {
    "text_embedding": "text_embedding",
    "audio_embedding": "audio_embeddings",
    "backbone": "backbone",
    "depth": "depth_transformer",
    "stop_head": "stop_head",
}
CODEC_PARTS = {"encoder": "encoder", "decoder": "decoder", "quantizer": "quantizer"}


def describe(model: str | None, dtype: torch.dtype, rows: int | None = None) -> dict[str, Fact]:
    """Facts about the checkpoint `model` (folder or hub id; the built-in one when None), in the order to print them.

    `parameters_*` are counts, tied copies not counted; `weight_bytes` is what they take in memory at `dtype` (a codec
    keeps norms and quantizer in float32). A talker is followed by its codec as `codec_*`, and by `total_*` of both; a
    codec that is named but cannot be fetched is a line that says so. With `rows`, `memory_*` is the plan that an engine
    of so many rows follows. Raises CheckpointError, ConfigError.
    """
    folder = builtin_model() if model is None else resolve_checkpoint(model)
    kind, raw = checkpoint_kind(folder)
    head: dict[str, Fact] = {"checkpoint": str(folder), "kind": kind, "family": str(raw.get("model_type"))}
    if kind == "codec":
        return {**head, **_codec(raw, dtype)}
    talker = _talker(raw, dtype)
    try:
        belonging = codec_folder(folder, None)
    except CheckpointError as error:
        return {**head, **talker, "codec": str(error)}
    codec = _codec(read_config(belonging), dtype)
    totals = {f"total_{name}": int(talker[name]) + int(codec[name]) for name in ("parameters", "weight_bytes")}
    return {
        **head,
        **talker,
        "codec_checkpoint": str(belonging),
        **{f"codec_{name}": value for name, value in codec.items()},
        **totals,
        **({} if rows is None else _memory(engine_memory(model, None, dtype, EngineConfig(rows=rows)))),
    }


def engine_memory(model: str | None, codec: str | None, dtype: torch.dtype, config: EngineConfig) -> MemoryPlan:
    """The plan that `Engine.load` follows with these arguments. Raises CheckpointError, ConfigError."""
    folder = builtin_model() if model is None else resolve_checkpoint(model)
    kind, raw = checkpoint_kind(folder)
    if kind != "talker":
        raise ConfigError(f"{folder} is a codec and cannot speak; name a talker", param="model")
    talker = MossLocalConfig.from_dict(raw)
    weights = sum(prod(entry.shape) * entry.dtype.itemsize for entry in talker_weight_table(talker, dtype))
    if codec == "none":
        return plan_memory(config, talker, None, dtype=dtype, weight_bytes=weights)
    shape = replace(MossCodecConfig.from_dict(read_config(codec_folder(folder, codec))), compute_dtype=dtype)
    return plan_memory(config, talker, shape, dtype=dtype, weight_bytes=weights + resident_bytes(shape))


def _talker(raw: Mapping[str, object], dtype: torch.dtype) -> dict[str, Fact]:
    config = MossLocalConfig.from_dict(raw)
    backbone, depth = config.backbone, config.depth
    return {
        "sample_rate_hz": config.sampling_rate,
        "codebooks": config.n_vq,
        "codebook_size": max(config.audio_codebook_sizes),
        "text_vocabulary": config.vocab_size,
        "max_context_rows": config.max_positions,
        "backbone_shape": f"{backbone.layers} layers, width {backbone.hidden_size}, FFN {backbone.intermediate_size}, "
        f"{backbone.heads}/{backbone.kv_heads} heads x {backbone.head_dim}, RoPE base {backbone.rope_theta:g}",
        "depth_shape": f"{depth.layers} layers, width {depth.hidden_size}, FFN {depth.intermediate_size}, "
        f"{depth.heads} heads x {depth.head_dim}, RoPE base {depth.rope_base:g}",
        **_parameters(talker_weight_table(config, dtype), TALKER_PARTS),
        "kv_bytes_per_row": config.kv_bytes_per_row(dtype),
    }


def _codec(raw: Mapping[str, object], dtype: torch.dtype) -> dict[str, Fact]:
    config = replace(MossCodecConfig.from_dict(raw), compute_dtype=dtype)
    return {
        "sample_rate_hz": config.sample_rate,
        "channels": config.channels,
        "frame_rate_hz": config.frame_rate_hz,
        "frame_samples_per_channel": config.frame_samples,
        "codebooks": config.n_codebooks,
        "codebook_size": config.codebook_size,
        **_parameters(codec_weight_table(config), CODEC_PARTS),
    }


def _memory(plan: MemoryPlan) -> dict[str, Fact]:
    return {
        "memory_rows": plan.rows,
        "memory_context_rows": plan.context_rows,
        "memory_weight_bytes": plan.weight_bytes,
        "memory_kv_bytes": plan.kv_bytes,
        "memory_ring_bytes": plan.ring_bytes,
        "memory_row_bytes": plan.row_bytes,
        "memory_workspace_bytes": plan.workspace_bytes,
        "memory_total_bytes": plan.total_bytes,
    }


def _parameters(table: Sequence[WeightEntry], parts: Mapping[str, str]) -> dict[str, Fact]:
    counts = dict.fromkeys(parts.values(), 0)
    for entry in table:
        counts[parts[entry.parameter.split(".", 1)[0]]] += prod(entry.shape)
    return {
        **{f"parameters_{part}": count for part, count in counts.items()},
        "parameters": sum(counts.values()),
        "weight_bytes": sum(prod(entry.shape) * entry.dtype.itemsize for entry in table),
    }
