"""config.json of MOSS-TTS-Local: values, refusals and their messages, and the weight table."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket.errors import ConfigError
from hocket.kernels.types import DrawParams
from hocket.models.layers.kv_cache import kv_bytes_per_row
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.talker import MossLocalTalker
from hocket.models.moss_local.weights import talker_weight_table, tied_copies
from hocket.models.sampling import ResolvedSampling
from tests.support import paths
from tests.support.sampling import sampling_batch

GOLDEN = paths.GOLDEN / "local_tiny"
REMOVED = object()
SECTIONS = {
    "qwen3": ("qwen3_config", "language_config"),
    "language": ("language_config",),
    "gpt2": ("gpt2_config",),
}


@pytest.fixture(name="raw")
def _raw() -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((GOLDEN / "config.json").read_text())
    return raw


def changed(raw: dict[str, Any], **changes: object) -> dict[str, Any]:
    """A copy with `section__key=value` set or removed; `qwen3__key` changes both names of the
    backbone's section.
    """
    raw = copy.deepcopy(raw)
    for path, value in changes.items():
        section, _, key = path.rpartition("__")
        for target in (
            [raw[name] for name in SECTIONS[section] if name in raw] if section else [raw]
        ):
            if value is REMOVED:
                del target[key]
            else:
                target[key] = value
    return raw


def test_the_golden_file(raw: dict[str, Any]) -> None:
    config = MossLocalConfig.from_dict(raw)
    assert (config.layers, config.kv_heads, config.head_dim, config.hidden_size) == (3, 2, 32, 64)
    assert (config.vocab_size, config.max_positions, config.n_vq) == (320, 4096, 12)
    assert config.backbone.rope_theta == 1e6
    assert config.depth.rope_base == 1e6
    assert (config.depth.layers, config.depth.heads, config.depth.positions) == (1, 4, 12)
    assert config.audio_codebook_sizes == (64,) * 12
    assert config.audio_pad_code == 64
    assert (config.pad_token_id, config.im_start_token_id, config.im_end_token_id) == (
        276,
        277,
        278,
    )
    assert (config.audio_start_token_id, config.audio_end_token_id) == (279, 280)
    assert (config.audio_user_slot_token_id, config.audio_assistant_slot_token_id) == (281, 282)
    assert config.sampling_rate == 300
    assert config.audio_tokenizer_name_or_path is None
    assert kv_bytes_per_row(config, torch.bfloat16) == 2 * 3 * 2 * 32 * 2


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"qwen3__rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5),
        ({"qwen3__rope_parameters": REMOVED, "qwen3__rope_theta": 10000}, 1e4),
        ({"qwen3__rope_parameters": REMOVED}, 1e6),
        ({"qwen3__rope_parameters": None, "qwen3__rope_scaling": None}, 1e6),
    ],
)
def test_where_theta_is_found(
    raw: dict[str, Any], changes: dict[str, object], theta: float
) -> None:
    assert MossLocalConfig.from_dict(changed(raw, **changes)).backbone.rope_theta == theta


def test_defaults_and_overrides(raw: dict[str, Any]) -> None:
    config = MossLocalConfig.from_dict(
        changed(
            raw,
            language_config=REMOVED,
            local_transformer_layers=3,
            gpt2__rope_base=REMOVED,
            gpt2__n_inner=None,
        )
    )
    assert (config.depth.layers, config.depth.rope_base, config.depth.intermediate_size) == (
        3,
        1e4,
        256,
    )
    unset = changed(
        raw, local_transformer_layers=REMOVED, gpt2__n_layer=2, audio_codebook_sizes=REMOVED
    )
    config = MossLocalConfig.from_dict(unset)
    assert (config.depth.layers, config.audio_codebook_sizes) == (2, (64,) * 12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "moss_tts_delay"}, "model_type 'moss_tts_delay', not 'moss_tts_local'"),
        ({"model_type": REMOVED}, "model_type None"),
        ({"qwen3_config": REMOVED, "language_config": REMOVED}, "qwen3_config is missing"),
        ({"gpt2_config": REMOVED}, "gpt2_config: Field required"),
        ({"language__num_hidden_layers": 4}, "qwen3_config and language_config contradict"),
        ({"qwen3__rope_theta": 1e4}, r"rope_theta is given as 10000\.0 and 1000000\.0"),
        (
            {"qwen3__rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            r"rope_parameters\.rope_type: .*'yarn'",
        ),
        ({"qwen3__rope_scaling": {"type": "linear"}}, r"rope_scaling\.type: .*'linear'"),
        ({"qwen3__attention_bias": True}, r"attention_bias: .*True"),
        ({"qwen3__use_sliding_window": True}, "use_sliding_window"),
        ({"qwen3__layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"qwen3__hidden_act": "gelu"}, "hidden_act: .*'gelu'"),
        ({"qwen3__num_key_value_heads": 3}, "4 heads do not share 3 kv heads"),
        ({"qwen3__head_dim": 31}, "head_dim 31 is odd"),
        ({"qwen3__intermediate_size": "160"}, "intermediate_size: .*'160'"),
        ({"gpt2__position_embedding_type": "absolute"}, "position_embedding_type: .*'absolute'"),
        ({"gpt2__position_embedding_type": REMOVED}, "position_embedding_type: Field required"),
        ({"gpt2__activation_function": "gelu_new"}, "activation_function: .*'gelu_new'"),
        ({"gpt2__activation_function": REMOVED}, "activation_function: Field required"),
        ({"gpt2__scale_attn_weights": False}, "scale_attn_weights"),
        ({"gpt2__n_head": 3}, "64 channels do not split into 3 heads"),
        ({"gpt2__n_embd": 32}, "gpt2_config.n_embd and qwen3_config.hidden_size contradict"),
        ({"hidden_size": 65}, "hidden_size and qwen3_config.hidden_size contradict"),
        ({"vocab_size": 321}, "vocab_size and qwen3_config.vocab_size contradict"),
        ({"local_text_head_mode": "full"}, "local_text_head_mode: .*'full'"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"n_vq": 11}, "lists 12 codebooks, but n_vq is 11"),
        ({"n_vq": 0}, "n_vq"),
        ({"audio_pad_code": 65}, "audio_pad_token_id and audio_pad_code contradict"),
        ({"audio_pad_code": 63, "audio_pad_token_id": 63}, "pad code 63 is a code"),
        (
            {"audio_pad_code": REMOVED, "audio_pad_token_id": REMOVED},
            "audio_pad_token_id is missing",
        ),
        ({"audio_end_token_id": 320}, "special id 320 lies outside"),
        ({"audio_start_token_id": REMOVED}, "audio_start_token_id: Field required"),
        ({"audio_assistant_gen_slot_token_id": 281}, "audio_assistant_slot_token_id contradict"),
        ({"sampling_rate": 0}, "sampling_rate"),
    ],
)
def test_what_is_refused(raw: dict[str, Any], changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        MossLocalConfig.from_dict(changed(raw, **changes))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_deeper_depth_and_unequal_codebooks(raw: dict[str, Any]) -> None:
    """The table fills every parameter exactly, and all paths run on such a model."""
    sizes = [64, 48, *[32] * 10]
    config = MossLocalConfig.from_dict(
        changed(raw, local_transformer_layers=2, audio_codebook_sizes=sizes)
    )
    torch.manual_seed(0)
    talker = MossLocalTalker(config).requires_grad_(False)
    rows: dict[str, int] = {}
    for entry in talker_weight_table(config, torch.float32):
        rows[entry.parameter] = rows.get(entry.parameter, 0) + entry.shape[0]
        assert entry.shape[1:] == talker.get_parameter(entry.parameter).shape[1:]
    assert rows == {name: len(parameter) for name, parameter in talker.named_parameters()}
    assert len(tied_copies(config)) == 13

    for k, size in enumerate(sizes):
        assert talker.codebook(k).shape == (size, 64)
    x_BPD = torch.randn(3, 12, 64)
    cache = talker.depth.new_cache(3, torch.float32, torch.device("cpu"))
    steps = torch.stack([talker.depth.step(x_BPD[:, k], k, cache) for k in range(12)], 1)
    torch.testing.assert_close(steps, talker.depth(x_BPD), rtol=1e-4, atol=1e-5)

    sampling = sampling_batch(
        [ResolvedSampling(DrawParams(temperature=100.0, repetition_penalty=2.0))] * 500
    )
    frame_B = torch.zeros(500, dtype=torch.int64)
    _, codes_BN = talker.frame(
        torch.randn(500, 64), sampling, frame_B, torch.ones(500, 12, 64, dtype=torch.bool)
    )
    for k, size in enumerate(sizes):
        assert 0.8 * size < codes_BN[:, k].max().item() < size


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size", "head_dim"])
def test_sizes_beyond_any_model_are_refused(golden: Path, key: str) -> None:
    raw = json.loads((golden / "local_tiny" / "config.json").read_text(encoding="utf-8"))
    raw["qwen3_config"][key] = 10**10
    with pytest.raises(ConfigError, match=key):
        MossLocalConfig.from_dict(raw)
