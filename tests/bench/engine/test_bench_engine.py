"""`hocket bench engine` on tiny dimensions, on the CPU: forced lengths, both loops, and sums."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hocket.bench.engine.bench import EngineRunConfig, bench_engine, engine_config, engine_table
from hocket.bench.engine.random_model import plans, random_models
from hocket.bench.engine.workload import WorkloadRequest, read_workload
from hocket.checkpoint.hub import read_config
from hocket.config import EngineConfig
from hocket.core import SpeechRequest
from hocket.engine.engine import Engine
from hocket.errors import ConfigError
from hocket.models.family import CodecPlan, TalkerPlan
from hocket.models.layers.kv_cache import kv_bytes_per_row
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_codec.weights import unread_tensors
from hocket.models.qwen3_tts.config import Qwen3TtsConfig
from hocket.models.qwen3_tts.prompt import Qwen3TtsPrompt
from hocket.text.tokenizer import TextTokenizer
from tests.support.paths import GOLDEN

TALKER, CODEC = str(GOLDEN / "local_tiny"), str(GOLDEN / "codec2_tiny")
FRAME_SECONDS = 24 / 300
QWEN3 = GOLDEN / "qwen3_tts"
SPEAKERS, CODEC_12HZ = str(QWEN3 / "custom_1b7"), str(QWEN3 / "base_1b7")
FLOAT = torch.float32


def run_config(**more: Any) -> EngineRunConfig:
    fields: dict[str, Any] = {
        "model": TALKER,
        "codec": CODEC,
        "random_weights": True,
        "device": "cpu",
        "dtype": "float32",
        "profile": "default",
        "engine": engine_config(EngineConfig(page_rows=16), rows=3, context_rows=512, strict=False),
        "clients": 3,
        "rate": None,
        "requests": 8,
        "ignore_stop": True,
        "seed": 0,
    }
    return EngineRunConfig(**(fields | more))


def lengths(requests: int) -> list[int]:
    """Frames of the workload's first requests; the same in every family."""
    talker, _ = plans(TALKER, CODEC, FLOAT)
    return [
        one.frames for one in read_workload(talker.config, talker.workload_prompt(), 0)[:requests]
    ]


@pytest.fixture(scope="module")
def closed() -> dict[str, Any]:
    return bench_engine(run_config())


def test_lengths_are_forced_and_audio_is_what_they_come_to(closed: dict[str, Any]) -> None:
    frames = sum(lengths(8))
    assert closed["frames"] == frames
    assert closed["audio_s"] == pytest.approx(frames * FRAME_SECONDS, abs=0.01)
    assert closed["audio_s_per_s_full"] == pytest.approx(
        closed["audio_s"] / closed["seconds"], rel=0.01
    )
    assert closed["most_open"] == 3
    assert closed["audio_s_per_s"] > 0


def test_every_field_of_the_line_is_there(closed: dict[str, Any]) -> None:
    assert {
        *(
            "gpu",
            "model",
            "clients",
            "profile",
            "quantize",
            "kv_dtype",
            "samples",
            "strict",
            "seeded",
        ),
        *(
            "audio_s_per_s",
            "audio_s_per_s_full",
            "ttfa_ms",
            "e2e_ms",
            "underrun_free",
            "parts_ms",
            "gpu_memory_gb",
            "start_s",
            "torch",
            "triton",
            "command",
            "date",
        ),
    } <= set(closed)
    assert set(closed["ttfa_ms"]) == set(closed["e2e_ms"]) == {"mean", "p50", "p95", "p99"}
    assert 0 < closed["ttfa_ms"]["p50"] <= closed["e2e_ms"]["p50"]
    json.dumps(closed)


def test_the_parts_of_a_frame_add_up(closed: dict[str, Any]) -> None:
    parts = dict(closed["parts_ms"])
    frame = parts.pop("frame")
    assert sum(parts.values()) == pytest.approx(frame, rel=0.01)
    assert min(parts["prefill"], parts["frames"], parts["codec"], parts["cpu"]) > 0
    assert parts["references"] < 0.1 * frame  # codes are given, so nothing is encoded


@pytest.mark.parametrize("seeded", [False, True])
def test_seeds_are_said_or_left_out(monkeypatch: pytest.MonkeyPatch, seeded: bool) -> None:
    seeds: list[int | None] = []
    add = Engine.add

    def noting(self: Engine, request: SpeechRequest) -> str:
        seeds.append(request.seed)
        return add(self, request)

    monkeypatch.setattr(Engine, "add", noting)
    figures = bench_engine(run_config(requests=4, seeded=seeded))
    assert figures["seeded"] == seeded
    # They follow those of the warm-up.
    assert seeds[3:] == ([0, 1, 2, 3] if seeded else [None] * 4)


def test_an_open_loop_ends_with_everything_said() -> None:
    figures = bench_engine(run_config(clients=None, rate=40.0, requests=6))
    assert figures["frames"] == sum(lengths(6))
    assert (figures["clients"], figures["rate"]) == (None, 40.0)


@pytest.mark.parametrize(
    ("load", "warm", "max_open"), [({"clients": 2}, 2, 2), ({"clients": None, "rate": 1e6}, 3, 4)]
)
def test_every_row_is_warm_before_the_clock_starts(
    monkeypatch: pytest.MonkeyPatch, load: dict[str, Any], warm: int, max_open: int
) -> None:
    sent: list[int | None] = []
    seeds: set[int | None] = set()
    add = Engine.add

    def noting(engine: Engine, request: SpeechRequest) -> str:
        sent.append(request.max_frames)
        seeds.add(request.seed)
        return add(engine, request)

    monkeypatch.setattr(Engine, "add", noting)
    figures = bench_engine(run_config(requests=4, **load))
    assert sent == [min(24, frames) for frames in lengths(warm)] + lengths(4)
    assert figures["most_open"] == max_open
    assert len(seeds) == warm + 4  # no prompt is in the prefix cache when the clock starts


def test_what_all_began_at_once_has_no_steady_rate() -> None:
    figures = bench_engine(run_config(requests=2, clients=2))
    assert figures["audio_s_per_s"] is None
    assert figures["audio_s_per_s_full"] > 0
    assert "no steady state" in "".join(
        str(cell) for cell in engine_table(figures).columns[1].cells
    )


def test_a_context_that_is_too_small_is_told_beforehand() -> None:
    small = engine_config(EngineConfig(), rows=2, context_rows=64, strict=False)
    with pytest.raises(ConfigError, match="max_context_rows="):
        bench_engine(run_config(engine=small))


def test_strict_and_checkpoints_run_the_same_way() -> None:
    config = engine_config(EngineConfig(page_rows=16), rows=2, context_rows=512, strict=True)
    figures = bench_engine(run_config(engine=config, random_weights=False, requests=2, clients=2))
    assert figures["strict"] is True
    assert figures["frames"] == sum(lengths(2))


@pytest.mark.parametrize(("talker", "codec"), [(TALKER, CODEC), (SPEAKERS, CODEC_12HZ)])
def test_random_weights_are_those_of_the_seed(talker: str, codec: str) -> None:
    (one, decoder), (again, _), (other, _) = (
        random_models(talker, codec, device=torch.device("cpu"), dtype=FLOAT, seed=seed)
        for seed in (1, 1, 2)
    )
    weights = [next(model.talker.parameters()) for model in (one, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    codes = torch.randint(0, 64, (5, 12), generator=torch.Generator().manual_seed(0))
    samples = decoder.decode_whole(codes)
    assert torch.isfinite(samples).all()
    assert 0 < samples.std() < 1
    assert samples.abs().max() > 0


#: Tensors and numbers of the published files. The MOSS ones hold copies of tied weights; the 12 Hz
#: codec has 63 tensors that neither direction reads.
PUBLISHED = {
    "moss-tts-local-v1.5": (None, 4_129_990_144, None, 2_123_701_248),
    "qwen3-tts-1.7b": (404, 1_916_676_352, 496, 170_557_441),
    "qwen3-tts-0.6b": (402, 905_788_672, 496, 170_557_441),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_named_dimensions_are_the_real_ones(name: str) -> None:
    tensors, numbers, codec_tensors, codec_numbers = PUBLISHED[name]
    talker, codec = plans(name, None, torch.bfloat16)
    empty, decoder = talker.empty(), codec.empty()
    for plan, module in ((talker, empty), (codec, decoder)):
        # Every parameter is filled by the table that loads the published names, and the numbers are
        # as many.
        filled: dict[str, int] = {}
        for entry in plan.weight_table:
            filled[entry.parameter] = filled.get(entry.parameter, 0) + math.prod(entry.shape)
        assert filled == {name: parameter.numel() for name, parameter in module.named_parameters()}
    assert sum(parameter.numel() for parameter in empty.parameters()) == numbers
    in_codec = sum(parameter.numel() for parameter in decoder.parameters())
    assert tensors in (None, len(talker.weight_table))
    if codec_tensors is None:
        assert in_codec == codec_numbers
    else:
        assert isinstance(codec.config, Qwen3CodecConfig)
        unread = unread_tensors(codec.config)
        assert len(codec.weight_table) + len(unread) == codec_tensors
        # 15 of the 31 stored levels behind the first are read: entries, usage; then two
        # projections in and two out.
        assert in_codec + 16 * 2048 * (256 + 1) + 32 + 4 * 256 * 512 == codec_numbers


def test_the_named_dimensions_belong_together() -> None:
    shapes = {name: (talker.config, codec.config) for name, (talker, codec) in all_plans().items()}
    moss, moss_codec = shapes["moss-tts-local-v1.5"]
    assert (moss.layers, moss.hidden_size, moss.n_vq, moss.sampling_rate) == (36, 2560, 12, 48_000)
    assert (moss_codec.sample_rate, moss_codec.channels, moss_codec.n_codebooks) == (48_000, 2, 32)
    assert moss_codec.frame_samples == 3840
    for name, size, projects in (("qwen3-tts-1.7b", 2048, True), ("qwen3-tts-0.6b", 1024, False)):
        talker, codec = shapes[name]
        assert isinstance(talker, Qwen3TtsConfig)
        assert (talker.layers, talker.hidden_size, talker.n_vq, talker.sampling_rate) == (
            28,
            size,
            16,
            24_000,
        )
        assert kv_bytes_per_row(talker, torch.bfloat16) == 114_688
        assert talker.projects_to_predictor == projects
        assert (codec.sample_rate, codec.channels, codec.n_codebooks, codec.frame_samples) == (
            24_000,
            1,
            16,
            1920,
        )
    assert shapes["qwen3-tts-1.7b"][1] == shapes["qwen3-tts-0.6b"][1]


def all_plans() -> dict[str, tuple[TalkerPlan, CodecPlan]]:
    return {name: plans(name, None, torch.bfloat16) for name in PUBLISHED}


def test_continuations_have_the_rows_that_the_workload_says() -> None:
    plan = plans("moss-tts-local-v1.5", None, FLOAT)[0]
    prompt = plan.workload_prompt()
    workload = read_workload(plan.config, prompt, 0)
    assert len(workload) == 1088
    built = [
        prompt.build(one.request(i, ignore_stop=True), [codes_of(one)])
        for i, one in enumerate(workload[:3])
    ]
    for one, rows in zip(workload, built, strict=False):
        assert len(rows.rows) == one.prompt_rows == 58 + one.text_rows + len(codes_of(one))
        assert np.array_equal(rows.prefix_codes, codes_of(one))
    # The template is shared, the texts are not.
    assert np.array_equal(built[0].rows[:58], built[1].rows[:58])
    assert not np.array_equal(built[0].rows[58:73], built[1].rows[58:73])


def codes_of(one: WorkloadRequest) -> NDArray[np.int64]:
    assert one.codes is not None
    return one.codes


def test_prompts_of_speakers_are_those_of_the_family_but_for_the_words() -> None:
    config = Qwen3TtsConfig.from_dict(read_config(Path(SPEAKERS)))
    prompt = plans(SPEAKERS, CODEC_12HZ, FLOAT)[0].workload_prompt()
    workload = read_workload(config, prompt, 0)
    assert [one.frames for one in workload[:8]] == lengths(8)
    official = Qwen3TtsPrompt(config, TextTokenizer.load(Path(SPEAKERS)))

    def spoken_by_the_family(digits: int) -> NDArray[np.int64]:
        request = SpeechRequest(text="7" * digits, voice=next(iter(config.speakers)))
        return official.build(request, []).rows

    # A digit is one id; ids of the role's name beyond the first count as text in the tiny
    # tokenizer.
    more = len(spoken_by_the_family(1)) - 11
    for i, one in enumerate([one for one in workload if one.text_rows > more][:5]):
        built = prompt.build(one.request(i, ignore_stop=True), [])
        rows, same = built.rows, spoken_by_the_family(one.text_rows - more)
        assert len(rows) == len(same) == one.prompt_rows == 10 + one.text_rows
        assert np.array_equal(rows[:, 1:], same[:, 1:])
        is_word = np.zeros(len(rows), bool)
        is_word[1:3] = is_word[8:-2] = True
        assert np.array_equal(rows[~is_word, 0], same[~is_word, 0])
        assert len(built.frame_texts) == len(built.prefix_codes) == 0
    first, second = (
        prompt.build(workload[0].request(seed, ignore_stop=True), []).rows for seed in (1, 2)
    )
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("random_weights", [True, False])
def test_speakers_of_qwen3_tts_speak_the_workload(random_weights: bool) -> None:
    figures = bench_engine(
        run_config(
            model=SPEAKERS, codec=CODEC_12HZ, random_weights=random_weights, requests=3, clients=2
        )
    )
    assert figures["frames"] == sum(lengths(3))
    assert figures["audio_s"] == pytest.approx(figures["frames"] * 0.08, abs=0.01)
    assert figures["most_open"] == 2


@pytest.mark.parametrize("kind", ["base_1b7", "design_1b7"])
@pytest.mark.parametrize("random_weights", [True, False])
def test_a_checkpoint_without_speakers_is_told_beforehand(kind: str, random_weights: bool) -> None:
    with pytest.raises(ConfigError, match="give a CustomVoice checkpoint"):
        bench_engine(
            run_config(model=str(QWEN3 / kind), codec=CODEC_12HZ, random_weights=random_weights)
        )


def test_what_is_no_model() -> None:
    with pytest.raises(ConfigError, match=r"moss-tts-local-v1\.5"):
        bench_engine(run_config(model="nobody/knows-this"))


def test_dimensions_that_ship_bring_their_codec() -> None:
    with pytest.raises(ConfigError, match="leave --codec out"):
        bench_engine(run_config(model="qwen3-tts-1.7b"))


def test_what_the_device_cannot_do_is_refused_before_models_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(*_: object, **__: object) -> None:
        pytest.fail("models were made")

    monkeypatch.setattr("hocket.bench.engine.bench.random_models", made)
    with pytest.raises(ConfigError, match="quantize is fp8, which cpu cannot compute"):
        bench_engine(run_config(engine=EngineConfig(quantize="fp8")))
