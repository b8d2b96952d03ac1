"""`hocket bench engine` on tiny dimensions, on the CPU: forced lengths, both loops, and honest sums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hocket.bench.engine import EngineWishes, bench_engine, engine_config
from hocket.bench.random_model import NAMED, _dimensions, random_models
from hocket.bench.workload import TEMPLATE_ROWS, WorkloadPrompt, read_workload
from hocket.config import EngineConfig
from hocket.errors import ConfigError
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_local.config import MossLocalConfig

GOLDEN = Path(__file__).parent.parent / "golden"
TALKER, CODEC = str(GOLDEN / "local_tiny"), str(GOLDEN / "codec2_tiny")
FRAME_SECONDS = 24 / 300


def wishes(**more: Any) -> EngineWishes:
    fields: dict[str, Any] = {
        "model": TALKER,
        "codec": CODEC,
        "random_weights": True,
        "device": "cpu",
        "dtype": "float32",
        "profile": "default",
        "config": engine_config(EngineConfig(page_rows=16), rows=3, context_rows=512, strict=False),
        "clients": 3,
        "rate": None,
        "requests": 8,
        "ignore_stop": True,
        "seed": 0,
    }
    return EngineWishes(**(fields | more))


@pytest.fixture(scope="module")
def closed() -> dict[str, Any]:
    return bench_engine(wishes())


def test_lengths_are_forced_and_audio_is_what_they_come_to(closed: dict[str, Any]) -> None:
    frames = sum(one.frames for one in read_workload(12, [64] * 12, 0)[:8])
    assert closed["frames"] == frames
    assert closed["audio_s"] == pytest.approx(frames * FRAME_SECONDS, abs=0.01)
    assert closed["audio_s_per_s_full"] == pytest.approx(closed["audio_s"] / closed["seconds"], rel=0.01)
    assert closed["most_open"] == 3


def test_every_field_of_the_line_is_there(closed: dict[str, Any]) -> None:
    assert {
        *("gpu", "model", "clients", "profile", "quantize", "strict", "audio_s_per_s", "audio_s_per_s_full", "ttfa_ms"),
        *("e2e_ms", "underrun_free", "parts_ms", "gpu_memory_gb", "start_s", "torch", "triton", "command", "date"),
    } <= set(closed)
    assert set(closed["ttfa_ms"]) == set(closed["e2e_ms"]) == {"mean", "p50", "p95", "p99"}
    assert 0 < closed["ttfa_ms"]["p50"] <= closed["e2e_ms"]["p50"]
    json.dumps(closed)


def test_the_parts_of_a_step_add_up_to_the_steps(closed: dict[str, Any]) -> None:
    parts = dict(closed["parts_ms"])
    step = parts.pop("step")
    assert sum(parts.values()) == pytest.approx(step, rel=0.01)
    assert min(parts["prefill"], parts["frames"], parts["codec"], parts["cpu"]) > 0
    assert parts["references"] < 0.1 * step  # codes are given, so nothing is encoded


def test_an_open_loop_ends_with_everything_said() -> None:
    figures = bench_engine(wishes(rate=40.0, requests=6))
    assert figures["frames"] == sum(one.frames for one in read_workload(12, [64] * 12, 0)[:6])
    assert (figures["clients"], figures["rate"]) == (None, 40.0)


def test_a_context_that_is_too_small_is_told_beforehand() -> None:
    small = engine_config(EngineConfig(), rows=2, context_rows=64, strict=False)
    with pytest.raises(ConfigError, match="max_context_rows="):
        bench_engine(wishes(config=small))


def test_strict_and_checkpoints_run_the_same_way() -> None:
    config = engine_config(EngineConfig(page_rows=16), rows=2, context_rows=512, strict=True)
    figures = bench_engine(wishes(config=config, random_weights=False, requests=2, clients=2))
    assert figures["strict"] is True
    assert figures["frames"] == sum(one.frames for one in read_workload(12, [64] * 12, 0)[:2])


def test_random_weights_are_those_of_the_seed() -> None:
    device, dtype = torch.device("cpu"), torch.float32
    (one, codec), (again, _), (other, _) = (
        random_models(TALKER, CODEC, device=device, dtype=dtype, seed=seed) for seed in (1, 1, 2)
    )
    weights = [next(model.talker.parameters()) for model in (one, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    codes = torch.randint(0, 64, (5, 12))
    samples = codec.decode_whole(codes)
    assert torch.isfinite(samples).all()
    assert samples.abs().max() > 0


def test_the_named_dimensions_are_the_real_ones() -> None:
    talker, codec = _dimensions(NAMED[0], None)
    config, shape = MossLocalConfig.from_dict(dict(talker)), MossCodecConfig.from_dict(dict(codec))
    assert (config.layers, config.hidden_size, config.n_vq, config.sampling_rate) == (36, 2560, 12, 48_000)
    assert (shape.sample_rate, shape.channels, shape.n_codebooks, shape.frame_samples) == (48_000, 2, 32, 3840)
    with torch.device("meta"):
        from hocket.models.moss_codec.codec import MossCodec
        from hocket.models.moss_local.talker import MossLocalTalker

        parameters = [sum(p.numel() for p in m.parameters()) for m in (MossLocalTalker(config), MossCodec(shape))]
    assert parameters == [4_129_990_144, 2_123_701_248]


def test_prompts_have_the_rows_that_the_workload_says() -> None:
    talker, _ = _dimensions(NAMED[0], None)
    config = MossLocalConfig.from_dict(dict(talker))
    prompt, workload = WorkloadPrompt(config), read_workload(config.n_vq, config.audio_codebook_sizes, 0)
    assert len(workload) == 1088
    built = [prompt.build(one.request(i, ignore_stop=True), [one.codes]) for i, one in enumerate(workload[:3])]
    for one, rows in zip(workload, built, strict=False):
        assert len(rows.rows) == TEMPLATE_ROWS + one.text_rows + len(one.codes)
        assert np.array_equal(rows.prefix_codes, one.codes)
    # The template is shared, the texts are not.
    assert np.array_equal(built[0].rows[:TEMPLATE_ROWS], built[1].rows[:TEMPLATE_ROWS])
    assert not np.array_equal(
        built[0].rows[TEMPLATE_ROWS : TEMPLATE_ROWS + 15], built[1].rows[TEMPLATE_ROWS : TEMPLATE_ROWS + 15]
    )


def test_what_is_no_model() -> None:
    with pytest.raises(ConfigError, match=r"moss-tts-local-v1\.5"):
        bench_engine(wishes(model="nobody/knows-this"))
