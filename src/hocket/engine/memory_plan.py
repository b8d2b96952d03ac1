"""Device memory of an engine, from shapes alone: one plan for `hocket info`, for budgets and for
the engine.
"""

from __future__ import annotations

import torch

from hocket.config import EngineConfig
from hocket.core import MemoryPlan
from hocket.engine.references.codes import ENCODER_CHUNK_FRAMES, ENCODER_ROWS
from hocket.engine.references.conversions import PIECE_FRAMES
from hocket.engine.runners.codec import PRIMING_SLOTS, STRICT_STREAMS, priming_sizes
from hocket.engine.runners.sampling_state import ROW_BYTES as SAMPLING_BYTES
from hocket.errors import ConfigError
from hocket.kernels.types import FP8
from hocket.models.codec import Codec
from hocket.models.layers.kv_cache import kv_bytes_per_row
from hocket.models.talker import TalkerConfig


def kv_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """The dtype of keys and values for a talker of `dtype`."""
    return FP8 if config.kv_dtype == "fp8" else dtype


def plan_memory(
    config: EngineConfig,
    talker: TalkerConfig,
    codec: Codec | None,
    *,
    dtype: torch.dtype,
    weight_bytes: int,
    device: str = "cpu",
) -> MemoryPlan:
    """The plan for an engine with these models on a `device` type.

    With `config.memory_bytes`, K/V gets the rest of the budget. Raises ConfigError when that is too
    little for one request of full length.
    """
    kv_row_bytes = kv_bytes_per_row(talker, kv_dtype(config, dtype))
    context_rows = min(
        config.max_context_rows, talker.max_positions, config.kv_rows or talker.max_positions
    )
    ring_bytes = 0
    if codec is not None:
        rows = max(config.rows, STRICT_STREAMS[device]) if config.strict else config.rows
        longest = max(config.chunks.sizes)
        decoder, encoder = codec.state_spec("decoder"), codec.state_spec("encoder")
        ring_bytes = decoder.nbytes(rows, longest)
        ring_bytes += decoder.nbytes(PRIMING_SLOTS[device], priming_sizes(device, longest)[-1])
        ring_bytes += decoder.nbytes(config.kept_streams, 1)
        ring_bytes += encoder.nbytes(ENCODER_ROWS, ENCODER_CHUNK_FRAMES)
        ring_bytes += decoder.nbytes(1, PIECE_FRAMES) + encoder.nbytes(1, PIECE_FRAMES)
    row_bytes = (config.rows + 1) * (
        talker.hidden_size * dtype.itemsize
        + talker.n_vq * max(talker.audio_codebook_sizes)
        + SAMPLING_BYTES
        + talker.voice_size * dtype.itemsize
        # Codes and text ids.
        + context_rows * (talker.n_vq + 1) * torch.int32.itemsize
    )
    workspace_bytes = config.rows * context_rows * kv_bytes_per_row(talker, dtype) // talker.layers
    kv_rows = config.kv_rows or config.rows * context_rows
    if config.memory_bytes is not None:
        left = config.memory_bytes - weight_bytes - ring_bytes - row_bytes - workspace_bytes
        # One page less than fits, because the scratch page takes one.
        kv_rows = min(kv_rows, (left // (kv_row_bytes * config.page_rows) - 1) * config.page_rows)
        if kv_rows < context_rows:
            raise ConfigError(
                f"memory_bytes is {config.memory_bytes:,}; weights, rings and rows leave "
                f"{max(0, left):,} of it, and one request of {context_rows} K/V rows takes "
                f"{context_rows * kv_row_bytes:,}; raise it, or lower rows or max_context_rows",
                param="memory_bytes",
            )
    pages = 1 + -(-kv_rows // config.page_rows)
    return MemoryPlan(
        rows=config.rows,
        context_rows=context_rows,
        pages=pages,
        weight_bytes=weight_bytes,
        kv_bytes=pages * config.page_rows * kv_row_bytes,
        ring_bytes=ring_bytes,
        row_bytes=row_bytes,
        workspace_bytes=workspace_bytes,
    )
