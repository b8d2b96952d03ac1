"""config.json of Qwen3-TTS: values, refusals and their messages, and the weight table."""

from __future__ import annotations

import copy
import json
from math import prod
from typing import Any

import pytest
import torch

from hocket.checkpoint.weights import stored_tensors
from hocket.errors import ConfigError
from hocket.models.qwen3_tts.config import Qwen3TtsConfig
from hocket.models.qwen3_tts.talker import Qwen3TtsTalker
from hocket.models.qwen3_tts.weights import talker_weight_table
from tests.support.qwen3_tts_helpers import CHECKPOINTS, GOLDEN

REMOVED = object()


def read(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((GOLDEN / name / "config.json").read_text())
    return raw


def changed(raw: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with the value at a dotted path set or removed."""
    raw = copy.deepcopy(raw)
    *sections, key = path.split(".")
    target = raw
    for section in sections:
        target = target[section]
    if value is REMOVED:
        del target[key]
    else:
        target[key] = value
    return raw


def test_the_golden_files() -> None:
    base = Qwen3TtsConfig.from_dict(read("base_1b7"))
    assert (base.kind, base.takes_instructions, base.voice_size) == ("base", False, 64)
    assert (base.layers, base.kv_heads, base.head_dim, base.hidden_size) == (3, 2, 32, 64)
    assert (base.text_vocab_size, base.text_hidden_size, base.codec_vocab_size) == (320, 56, 1088)
    assert base.audio_codebook_sizes == (64,) * 16
    assert (base.max_positions, base.sampling_rate, base.codec_eos_id) == (32768, 24000, 166)
    assert (base.predictor.layers, base.predictor.hidden_size, base.projects_to_predictor) == (
        2,
        48,
        True,
    )
    assert base.backbone.rope_theta == base.predictor.rope_theta == 1e6
    assert not base.speakers
    assert not base.dialects
    small = Qwen3TtsConfig.from_dict(read("custom_0b6"))
    assert (small.kind, small.takes_instructions, small.voice_size) == ("custom_voice", False, 0)
    assert not small.projects_to_predictor
    assert (small.speakers["vivian"], small.dialects) == (
        1081,
        {"eric": "sichuan_dialect", "dylan": "beijing_dialect"},
    )
    assert small.speaker_encoder is None
    assert Qwen3TtsConfig.from_dict(read("custom_1b7")).takes_instructions
    assert Qwen3TtsConfig.from_dict(read("design_1b7")).takes_instructions


def test_names_are_read_in_lower_case() -> None:
    raw = changed(read("custom_1b7"), "talker_config.spk_id", {"Vivian": 1081})
    raw = changed(raw, "talker_config.spk_is_dialect", {"Vivian": "beijing_dialect"})
    config = Qwen3TtsConfig.from_dict(raw)
    assert (config.speakers, config.dialects) == ({"vivian": 1081}, {"vivian": "beijing_dialect"})


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_table_names_every_tensor_of_the_file(name: str) -> None:
    config = Qwen3TtsConfig.from_dict(read(name))
    stored = stored_tensors(GOLDEN / name)
    table = talker_weight_table(config, torch.float32)
    named = {entry.names[0]: entry.shape for entry in table}
    assert named == {
        key: tensor.shape
        for key, tensor in stored.items()
        if not key.startswith("speaker_encoder.")
    }
    with torch.device("meta"):
        talker = Qwen3TtsTalker(config)
    assert sum(prod(entry.shape) for entry in table) == sum(p.numel() for p in talker.parameters())
    assert ("small_to_mtp_projection" in " ".join(named)) == (name[-3:] == "1b7")


def published(size: str) -> dict[str, Any]:
    """The released dimensions (sources: Qwen3 3, 6)."""
    raw = read("custom_1b7" if size == "1b7" else "custom_0b6")
    hidden, ffn = (2048, 6144) if size == "1b7" else (1024, 3072)
    layers = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    raw["talker_config"] |= layers | {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": 28,
        "text_hidden_size": 2048,
        "text_vocab_size": 151936,
        "vocab_size": 3072,
        "codec_eos_token_id": 2150,
    }
    raw["talker_config"]["code_predictor_config"] |= layers | {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 5,
        "vocab_size": 2048,
    }
    return raw


@pytest.mark.parametrize(
    ("size", "tensors", "parameters"), [("1b7", 404, 1_916_676_352), ("0b6", 402, 905_788_672)]
)
def test_published_sizes(size: str, tensors: int, parameters: int) -> None:
    """Counts of the released CustomVoice files (sources: Qwen3 1)."""
    table = talker_weight_table(Qwen3TtsConfig.from_dict(published(size)), torch.bfloat16)
    assert len(table) == tensors
    assert sum(prod(entry.shape) for entry in table) == parameters


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model_type", "qwen3", "model_type 'qwen3', not 'qwen3_tts'"),
        ("tokenizer_type", "qwen3_tts_tokenizer_25hz", "tokenizer_type 'qwen3_tts_tokenizer_25hz'"),
        ("tts_model_type", "sing", "tts_model_type"),
        ("talker_config", REMOVED, "talker_config: Field required"),
        ("talker_config.codec_pad_id", REMOVED, "talker_config.codec_pad_id: Field required"),
        ("talker_config.hidden_act", "gelu", "talker_config.hidden_act"),
        ("talker_config.attention_bias", True, "talker_config.attention_bias"),
        ("talker_config.num_key_value_heads", 3, "4 heads do not share 3 kv heads evenly"),
        (
            "talker_config.num_code_groups",
            8,
            "num_code_groups is 8, but the code predictor's is 16",
        ),
        ("talker_config.vocab_size", 1024, "vocab_size is 1024"),
        (
            "talker_config.rope_scaling",
            {"rope_type": "yarn"},
            "talker_config.rope_scaling.rope_type",
        ),
        ("talker_config.codec_eos_token_id", 63, "codec_eos_token_id 63 is a code"),
        (
            "talker_config.codec_bos_id",
            1088,
            "the id 1088 lies outside the codec vocabulary of 1088",
        ),
        ("talker_config.spk_id", {"vivian": 5000}, "the id 5000 lies outside the codec vocabulary"),
        (
            "talker_config.spk_is_dialect",
            {"eric": "texan"},
            "'texan', which codec_language_id does not have",
        ),
        ("tts_eos_token_id", 320, "the id 320 lies outside the text vocabulary of 320"),
        ("im_start_token_id", "301", "im_start_token_id"),
    ],
)
def test_refusals_name_the_key(path: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Qwen3TtsConfig.from_dict(changed(read("custom_1b7"), path, value))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_base_checkpoint_needs_its_speaker_encoder() -> None:
    with pytest.raises(ConfigError, match="speaker_encoder_config is missing"):
        Qwen3TtsConfig.from_dict(changed(read("base_1b7"), "speaker_encoder_config", REMOVED))


def test_the_base_of_rotary_positions_under_its_newer_name() -> None:

    raw = changed(read("base_1b7"), "talker_config.rope_theta", REMOVED)
    raw = changed(raw, "talker_config.rope_scaling", REMOVED)
    raw = changed(raw, "talker_config.rope_parameters", {"rope_theta": 5e5, "rope_type": "default"})
    assert Qwen3TtsConfig.from_dict(raw).backbone.rope_theta == 5e5
