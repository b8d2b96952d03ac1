"""The memory plan: `hocket info --rows`, the engine and the tensors agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hocket import Engine
from hocket.config import ChunkPolicy, EngineConfig
from hocket.core import MemoryPlan
from hocket.engine.build import EngineParts, assemble, load_parts
from hocket.engine.runners.codec import CodecRunner
from hocket.engine.runners.talker import TalkerRunner
from hocket.errors import ConfigError
from hocket.info import describe
from hocket.models.registry import codec_folder, load_codec, load_talker

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def parts_of(golden: Path, config: EngineConfig, dtype: str = "float32") -> EngineParts:
    return load_parts(
        golden / "local_tiny", golden / "codec2_tiny", device="cpu", dtype=dtype, config=config
    )


def plan_of(parts: EngineParts) -> MemoryPlan:
    assert parts.memory is not None
    return parts.memory


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("pair", [("local_tiny", "codec2_tiny"), ("qwen3_tts/base_1b7", None)])
def test_the_plan_is_what_the_tensors_take(
    golden: Path,
    pair: tuple[str, str | None],
    dtype: str,
    strict: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hocket.engine.build.check_fp8_device", lambda *_: None)
    config = EngineConfig(
        rows=3,
        max_context_rows=320,
        strict=strict,
        chunks=ChunkPolicy(steady_chunk_frames=9),
        kv_dtype="fp8" if strict else "auto",
    )
    cpu, precision = torch.device("cpu"), DTYPES[dtype]
    model = load_talker(golden / pair[0], device=cpu, dtype=precision)
    own_codec = None if pair[1] is None else golden / pair[1]
    codec = load_codec(codec_folder(golden / pair[0], own_codec), device=cpu, dtype=precision)
    parts = assemble(model, codec, config)
    plan, talker = plan_of(parts), model.talker.config
    assert isinstance(parts.talker, TalkerRunner)
    assert isinstance(parts.codec, CodecRunner)
    assert parts.references is not None
    assert parts.conversions is not None
    numbers = 2 * talker.layers * plan.pages * config.page_rows * talker.kv_heads
    bytes_each = (
        talker.head_dim + 2 if strict else talker.head_dim * precision.itemsize
    )  # FP8 has a scale of bfloat16
    assert plan.kv_bytes == parts.talker.kv_bytes == numbers * bytes_each
    assert plan.row_bytes == parts.talker.row_bytes
    assert (
        plan.ring_bytes == parts.codec.nbytes + parts.references.nbytes + parts.conversions.nbytes
    )
    weights = [*model.talker.parameters(), *codec.parameters(), *codec.buffers()]
    if model.voice_encoder is not None:
        weights += model.voice_encoder.parameters()
    assert plan.weight_bytes == sum(tensor.nbytes for tensor in weights)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_info_and_the_engine_agree(dtype: str) -> None:
    facts = describe(None, DTYPES[dtype], rows=5)
    plan = plan_of(load_parts(None, None, device="cpu", dtype=dtype, config=EngineConfig(rows=5)))
    assert facts["memory_total_bytes"] == plan.total_bytes
    for part in ("weight_bytes", "kv_bytes", "ring_bytes", "row_bytes", "workspace_bytes"):
        assert facts[f"memory_{part}"] == getattr(plan, part), part


def test_a_budget_bounds_the_pages(golden: Path) -> None:
    free = plan_of(parts_of(golden, EngineConfig(rows=4, max_context_rows=512)))
    budget = free.total_bytes - free.kv_bytes // 2
    bounded = plan_of(
        parts_of(golden, EngineConfig(rows=4, max_context_rows=512, memory_bytes=budget))
    )
    assert bounded.total_bytes <= budget
    assert free.pages / 3 < bounded.pages < free.pages
    a_page = free.kv_bytes // free.pages
    assert budget - bounded.total_bytes < a_page


def test_a_budget_that_holds_no_request_is_refused(golden: Path) -> None:
    with pytest.raises(ConfigError, match="memory_bytes is 3,000,000"):
        Engine.load(
            golden / "local_tiny",
            golden / "codec2_tiny",
            config=EngineConfig(rows=2, memory_bytes=3_000_000),
        )
