"""`hocket info`: facts from the configuration that agree with what is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hocket.info import Fact, describe
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.registry import builtin_model, load_codec, load_talker
from tests.support.cli_runner import CODEC, TALKER, run
from tests.support.paths import GOLDEN

DTYPES = [torch.float32, torch.bfloat16]
CPU = torch.device("cpu")


def parts(facts: dict[str, Fact], prefix: str = "") -> dict[str, Fact]:
    start = f"{prefix}parameters_"
    return {
        name.removeprefix(start): value for name, value in facts.items() if name.startswith(start)
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_talker_facts_are_those_of_the_loaded_model(dtype: torch.dtype) -> None:
    facts = describe(TALKER, dtype)
    weights = list(load_talker(Path(TALKER), device=CPU, dtype=dtype).talker.parameters())
    assert facts["parameters"] == sum(weight.numel() for weight in weights)
    assert facts["weight_bytes"] == sum(weight.nbytes for weight in weights)
    assert sum(int(count) for count in parts(facts).values()) == facts["parameters"]
    assert facts["kv_bytes_per_row"] == 3 * 2 * 2 * 32 * dtype.itemsize
    assert (facts["kind"], facts["family"]) == ("talker", "moss_tts_local")
    assert (facts["sample_rate_hz"], facts["codebooks"], facts["codebook_size"]) == (300, 12, 64)
    assert facts["max_context_rows"] == 4096


@pytest.mark.parametrize("dtype", DTYPES)
def test_codec_facts_are_those_of_the_checkpoint(dtype: torch.dtype) -> None:
    facts = describe(CODEC, dtype)
    codec = load_codec(Path(CODEC), device=CPU, dtype=dtype)
    assert isinstance(codec, MossCodec)
    assert (facts["sample_rate_hz"], facts["channels"], facts["frame_rate_hz"]) == (300, 2, 12.5)
    assert (facts["frame_samples_per_channel"], facts["codebooks"], facts["codebook_size"]) == (
        24,
        16,
        64,
    )
    weights = [
        p for name, p in codec.named_parameters() if not name.startswith("quantizer")
    ]  # that one is folded
    counts = parts(facts)
    assert int(counts["encoder"]) + int(counts["decoder"]) == sum(
        weight.numel() for weight in weights
    )
    in_float32 = int(facts["weight_bytes"]) - int(counts["quantizer"]) * 4
    assert in_float32 == sum(weight.nbytes for weight in weights)


def test_a_talker_is_followed_by_its_codec_and_the_total(tmp_path: Path) -> None:
    builtin = describe(None, torch.float32)
    codec = describe(str(builtin_model() / "codec"), torch.float32)
    assert builtin["codec_checkpoint"] == str(builtin_model() / "codec")
    assert parts(builtin, "codec_") == parts(codec)
    for name in ("parameters", "weight_bytes"):
        assert builtin[f"total_{name}"] == int(builtin[name]) + int(codec[name])

    shutil.copytree(TALKER, tmp_path / "talker", ignore=shutil.ignore_patterns("golden_*"))
    file = tmp_path / "talker" / "config.json"
    raw = json.loads(file.read_text())
    file.write_text(json.dumps(raw | {"audio_tokenizer_name_or_path": CODEC}))
    named = describe(str(tmp_path / "talker"), torch.float32)
    assert named["codec_checkpoint"] == CODEC
    assert named["codec_channels"] == 2


def test_a_codec_that_is_not_there_is_said_so() -> None:
    facts = describe(TALKER, torch.float32)
    assert "names no codec" in str(facts["codec"])
    assert "total_parameters" not in facts


def test_the_released_talker(tmp_path: Path) -> None:
    """sources: MOSS 1.1 and 1.9: 4,129,990,144 parameters, 8.26 GB in bfloat16, 147,456 bytes of
    K/V a row.
    """
    raw: dict[str, Any] = json.loads((GOLDEN / "local_tiny" / "config.json").read_text())
    backbone = {
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "layer_types": ["full_attention"] * 36,
    }
    for section in ("qwen3_config", "language_config"):
        if section in raw:
            raw[section] |= backbone
    raw["gpt2_config"] |= {"n_embd": 2560, "n_head": 32, "n_inner": 9728, "vocab_size": 151936}
    raw |= {"hidden_size": 2560, "vocab_size": 151936, "sampling_rate": 48000}
    raw |= {"audio_vocab_size": 1024, "audio_codebook_sizes": [1024] * 12}
    raw |= {"audio_pad_token_id": 1024, "audio_pad_code": 1024}
    raw |= {name: 2560 for name in ("local_hidden_size",) if name in raw}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    facts = describe(str(tmp_path), torch.bfloat16)
    assert parts(facts) == {
        "text_embedding": 388_956_160,
        "audio_embeddings": 31_457_280,
        "backbone": 3_633_511_936,
        "depth_transformer": 76_059_648,
        "stop_head": 5_120,
    }
    assert facts["parameters"] == 4_129_990_144
    assert facts["weight_bytes"] == 2 * 4_129_990_144
    assert facts["kv_bytes_per_row"] == 147_456


@pytest.mark.parametrize("folder", [TALKER, CODEC])
def test_command(folder: str) -> None:
    facts = describe(folder, torch.bfloat16)
    done = run("info", folder, "--dtype", "bfloat16", "--json")
    assert done.out.count("\n") == 1
    assert json.loads(done.out) == facts
    lines = run("info", folder, "--dtype", "bfloat16").out.splitlines()
    assert len(lines) == len(facts)
    assert [line.split("  ")[0] for line in lines] == [name.replace("_", " ") for name in facts]
    assert f"{facts['weight_bytes']:,}" in "".join(lines)
