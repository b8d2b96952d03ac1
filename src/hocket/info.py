"""Describes a checkpoint from its configuration and weight table, without reading weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from hocket.checkpoint.hub import resolve_checkpoint
from hocket.checkpoint.weights import WeightEntry
from hocket.config import EngineConfig
from hocket.core import MemoryPlan
from hocket.engine.build import engine_memory
from hocket.errors import CheckpointError
from hocket.models.family import CodecPlan, TalkerPlan
from hocket.models.layers.kv_cache import kv_bytes_per_row
from hocket.models.registry import (
    builtin_model,
    checkpoint_kind,
    codec_folder,
    codec_plan,
    talker_extras,
    talker_plan,
)

Fact = str | int | float


def describe(model: str | None, dtype: torch.dtype, rows: int | None = None) -> dict[str, Fact]:
    """Facts about the checkpoint `model` (folder or hub id; the built-in one when None), in the
    order to print them.

    `parameters_*` are counts, tied copies not counted; `weight_bytes` is what they take in memory
    at `dtype` (a codec keeps norms and quantizer in float32). A talker is followed by its codec as
    `codec_*`, and by `total_*` of both; a codec that is named but cannot be fetched is a line that
    says so. With `rows`, `memory_*` is the plan that an engine of so many rows follows. Raises
    CheckpointError, ConfigError.
    """
    folder = builtin_model() if model is None else resolve_checkpoint(model)
    kind, raw = checkpoint_kind(folder)
    head: dict[str, Fact] = {
        "checkpoint": str(folder),
        "kind": kind,
        "family": str(raw.get("model_type")),
    }
    if kind == "codec":
        return {**head, **_codec(codec_plan(folder, dtype))}
    extras = talker_extras(folder)
    talker = _talker(talker_plan(folder, dtype), dtype) | {
        "voices": len(extras.voices),
        "text_front": extras.text_front or "none",
    }
    try:
        belonging = codec_folder(folder, None)
    except CheckpointError as error:
        return {**head, **talker, "codec": str(error)}
    codec = _codec(codec_plan(belonging, dtype))
    totals = {
        f"total_{name}": int(talker[name]) + int(codec[name])
        for name in ("parameters", "weight_bytes")
    }
    return {
        **head,
        **talker,
        "codec_checkpoint": str(belonging),
        **{f"codec_{name}": value for name, value in codec.items()},
        **totals,
        **(
            {}
            if rows is None
            else _memory(engine_memory(model, None, dtype, EngineConfig(rows=rows)))
        ),
    }


def _talker(plan: TalkerPlan, dtype: torch.dtype) -> dict[str, Fact]:
    config = plan.config
    return {
        "sample_rate_hz": config.sampling_rate,
        "codebooks": config.n_vq,
        "codebook_size": max(config.audio_codebook_sizes),
        "max_context_rows": config.max_positions,
        **plan.facts,
        **_parameters(plan.weight_table, plan.parts),
        "kv_bytes_per_row": kv_bytes_per_row(config, dtype),
    }


def _codec(plan: CodecPlan) -> dict[str, Fact]:
    config = plan.config
    return {
        "sample_rate_hz": config.sample_rate,
        "channels": config.channels,
        "frame_rate_hz": config.sample_rate / config.frame_samples,
        "frame_samples_per_channel": config.frame_samples,
        "codebooks": config.n_codebooks,
        "codebook_size": config.codebook_size,
        **_parameters(plan.weight_table, plan.parts),
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
