"""The memory plan: what `hocket info --rows` says, what the engine says, and what the tensors take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hocket import Engine
from hocket.config import ChunkPolicy, EngineConfig
from hocket.core import MemoryPlan
from hocket.engine.build import EngineParts, load_parts
from hocket.engine.runners.codec import CodecRunner
from hocket.engine.runners.talker import TalkerRunner
from hocket.errors import ConfigError
from hocket.info import describe

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def parts_of(golden: Path, config: EngineConfig, dtype: str = "float32") -> EngineParts:
    return load_parts(golden / "local_tiny", golden / "codec2_tiny", device="cpu", dtype=dtype, config=config)


def plan_of(parts: EngineParts) -> MemoryPlan:
    assert parts.memory is not None
    return parts.memory


def tensors_of(thing: object) -> Iterator[Tensor]:
    """The tensors that an object holds itself."""
    yield from (value for value in vars(thing).values() if isinstance(value, Tensor))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("pair", [("local_tiny", "codec2_tiny"), ("qwen3_tts/base_1b7", None)])
def test_the_plan_is_what_the_tensors_take(
    golden: Path, pair: tuple[str, str | None], dtype: str, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hocket.engine.build.check_fp8_device", lambda *_: None)
    config = EngineConfig(
        rows=3,
        max_context_rows=320,
        strict=strict,
        chunks=ChunkPolicy(steady_chunk_frames=9),
        kv_dtype="fp8" if strict else "auto",
    )
    model, own_codec = golden / pair[0], None if pair[1] is None else golden / pair[1]
    parts = load_parts(model, own_codec, device="cpu", dtype=dtype, config=config)
    plan, talker, codec, references = plan_of(parts), parts.talker, parts.codec, parts.references
    assert isinstance(talker, TalkerRunner)
    assert isinstance(codec, CodecRunner)
    assert references is not None
    kv = talker._kv
    assert plan.kv_bytes == kv.nbytes == sum(x.nbytes for x in (kv.keys, kv.values, kv.scales) if x is not None)
    assert kv.keys.itemsize == (1 if strict else DTYPES[dtype].itemsize)
    assert (kv.scales is not None) == strict
    conversions = parts.conversions
    assert conversions is not None
    states = [*codec._states.values(), references._state, conversions._encoder, conversions._decoder]
    assert plan.ring_bytes == sum(state.nbytes for state in states)
    constants = talker._codebooks_N.nbytes + talker._true.nbytes
    own = [*tensors_of(talker), *tensors_of(talker._sampling)]
    assert plan.row_bytes == sum(tensor.nbytes for tensor in own) - constants
    weights = [*talker.talker.parameters(), *codec.codec.parameters(), *codec.codec.buffers()]
    if parts.voice_vectors is not None:
        weights += parts.voice_vectors._encoder.parameters()
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
    bounded = plan_of(parts_of(golden, EngineConfig(rows=4, max_context_rows=512, memory_bytes=budget)))
    assert bounded.total_bytes <= budget
    assert free.pages / 3 < bounded.pages < free.pages
    a_page = free.kv_bytes // free.pages
    assert budget - bounded.total_bytes < a_page


def test_a_budget_that_holds_no_request_is_refused(golden: Path) -> None:
    with pytest.raises(ConfigError, match="memory_bytes is 3,000,000"):
        Engine.load(golden / "local_tiny", golden / "codec2_tiny", config=EngineConfig(rows=2, memory_bytes=3_000_000))
