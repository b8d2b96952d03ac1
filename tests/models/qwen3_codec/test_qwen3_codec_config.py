"""config.json and the weight table, up to the full-size codec."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hocket.errors import CheckpointError, ConfigError
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_codec.family import codec_plan
from hocket.models.qwen3_codec.weights import codec_weight_table, resident_bytes, unread_tensors
from tests.support.qwen3_codec_helpers import FOLDER, full_config, golden_codec, load, raw_config


def test_golden_config() -> None:
    config = golden_codec().config
    assert (config.sample_rate, config.frame_samples, config.frame_rate_hz) == (24000, 1920, 12.5)
    assert (config.channels, config.n_codebooks, config.codebook_size) == (1, 16, 64)
    assert config.decoder.transformer.context_tokens == 6
    assert config.encoder.transformer.context_tokens is None
    assert config.encoder.strides == (4, 5, 6, 8)
    assert [config.reference_frames(samples) for samples in (0, 1, 1920, 1921)] == [0, 1, 1, 2]


def test_full_size_codec() -> None:
    """Tensor and number counts are those of the official classes at full size (sources: Qwen3 1,
    12).
    """
    config = Qwen3CodecConfig.from_dict(full_config())
    table, unread = codec_weight_table(config), unread_tensors(config)
    assert len({entry.names[0] for entry in table} | set(unread)) == 496
    # Unread: 4 projections of 512 x 256, 16 acoustic codebooks, and a flag for each of the
    # encoder's 32.
    not_read = 4 * 512 * 256 + 16 * (2048 * 256 + 2048) + 32
    assert sum(prod(entry.shape) for entry in table) + not_read == 170_557_441
    parts = {
        "decoder.transformer": 8 * (4 * 512 * 1024 + 3 * 512 * 1024 + 4 * 512),
        "decoder.upsampling": 2 * (1024 * 1024 * 2 + 2 * 1024 * 4096 + 4096 + 1024 * (7 + 6)),
        "encoder.transformer": 8 * (4 * 512 * 512 + 2 * 512 * 2048 + 6 * 512),
    }
    for part, numbers in parts.items():
        assert sum(prod(e.shape) for e in table if e.parameter.startswith(f"{part}.")) == numbers
    # Per stream: 71 + chunk positions of 8 x 2 x 1024, and 135 k numbers of tails, which keep
    # inputs (spec: 141 k).
    spec = codec_plan(full_config(), torch.float32).empty().state_spec("decoder")
    assert spec.nbytes(1, 1) == 4 * (8 * 2 * 1024 * (72 + 1) + 135_232)


def test_the_decoder_follows_the_compute_dtype() -> None:
    """Kernels and matrices of the decoder, with their biases; never codebooks, norms, scales, Snake
    or the encoder.
    """
    table = codec_weight_table(load(FOLDER, torch.bfloat16).config)
    half = {entry.parameter for entry in table if entry.dtype == torch.bfloat16}
    expected = {
        entry.parameter.removesuffix(".weight")
        for entry in table
        if entry.parameter.startswith("decoder.")
        and ".quantizer." not in entry.parameter
        and len(entry.shape) > 1
    }
    assert {name.removesuffix(".weight").removesuffix(".bias") for name in half} == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resident_bytes_are_those_of_a_loaded_codec(dtype: torch.dtype) -> None:
    codec = load(FOLDER, dtype)
    assert resident_bytes(codec.config) == sum(
        tensor.nbytes for tensor in (*codec.parameters(), *codec.buffers())
    )


def _tampered(tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    tensors = load_file(FOLDER / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((FOLDER / "config.json").read_bytes())
    return tmp_path


def test_a_checkpoint_without_flags_loads(tmp_path: Path) -> None:
    """Tensors that are not read may be absent."""
    flag = "encoder.quantizer.semantic_residual_vector_quantizer.layers.0.codebook.initialized"
    codec = load(_tampered(tmp_path, lambda tensors: tensors.__delitem__(flag)))
    assert all(
        torch.equal(a, b)
        for a, b in zip(codec.parameters(), golden_codec().parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: t.__delitem__("decoder.decoder.2.block.3.act1.beta"),
            "lacks 'decoder.decoder.2.block.3",
        ),
        (lambda t: t.update({"decoder.extra": torch.zeros(1)}), r"holds 'decoder.extra', unknown"),
        (
            lambda t: t.update({"decoder.pre_conv.conv.bias": torch.zeros(3)}),
            r"has shape \[3\].* asks for \[40\]",
        ),
        (
            lambda t: t.update({"decoder.decoder.6.conv.bias": torch.zeros(1, dtype=torch.int8)}),
            r"stored as I8",
        ),
    ],
)
def test_a_wrong_checkpoint_is_refused(
    change: Callable[[dict[str, torch.Tensor]], None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(_tampered(tmp_path, change))


def _set(path: str, value: object) -> dict[str, Any]:
    raw = raw_config()
    *parents, last = path.split(".")
    node = raw
    for part in parents:
        node = node[part]
    if value is KeyError:
        del node[last]
    else:
        node[last] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model_type", "mimi", "model_type is 'mimi'"),
        ("decoder_config", KeyError, "decoder_config"),
        ("decoder_config.sliding_window", KeyError, r"decoder_config\.sliding_window"),
        ("decoder_config.latent_dim", 0, r"decoder_config\.latent_dim"),
        ("decoder_config.hidden_act", "gelu", r"decoder_config\.hidden_act"),
        ("decoder_config.attention_bias", True, r"decoder_config\.attention_bias"),
        ("decoder_config.rope_scaling", {"rope_type": "yarn"}, r"decoder_config\.rope_scaling"),
        ("decoder_config.rope_theta", None, "rope_theta is missing"),
        (
            "encoder_config.rope_parameters",
            {"rope_theta": 5e5},
            "10000.0 and 500000.0; keep one value",
        ),
        ("decoder_config.num_key_value_heads", 3, "4 heads do not share 3 kv heads"),
        ("decoder_config.head_dim", 7, "head_dim 7 is odd"),
        ("decoder_config.codebook_dim", 15, "codebook_dim 15 is odd"),
        ("decoder_config.decoder_dim", 40, "decoder_dim 40 cannot be halved 4 times"),
        (
            "decoder_config.upsample_rates",
            [8, 5, 4, 2],
            "the decoder's rates .* 1920 and 1280",
        ),
        ("decoder_config.num_quantizers", 12, "16 and 12"),
        ("decoder_config.num_semantic_quantizers", 2, r"decoder_config\.num_semantic_quantizers"),
        (
            "decoder_config.codebook_size",
            128,
            "codebook_size of encoder and decoder must be equal, got 64 and 128",
        ),
        (
            "encoder_config.upsampling_ratios",
            [8, 6, 5],
            "encode_downsample_rate and twice .* 1920 and 480",
        ),
        ("encoder_config.num_quantizers", 8, r"16, but the encoder has 1 \.\. 8"),
        ("encoder_config.codebook_dim", 8, "codebook_dim 8 differs"),
        ("encoder_config.use_causal_conv", False, r"encoder_config\.use_causal_conv"),
        ("encoder_config.use_conv_shortcut", True, r"encoder_config\.use_conv_shortcut"),
        ("encoder_config.pad_mode", "reflect", r"encoder_config\.pad_mode"),
        ("encoder_config.audio_channels", 2, r"encoder_config\.audio_channels"),
        ("encoder_config.head_dim", 9, "head_dim is odd"),
        ("encoder_config.compress", 3, "compress 3 does not divide num_filters 4"),
        ("encoder_config.sampling_rate", 16000, "24000 and 16000"),
        ("output_sample_rate", 48000, "24000 and 48000"),
        ("decode_upsample_rate", 960, "1920 and 960"),
        ("encoder_valid_num_quantizers", "16", "encoder_valid_num_quantizers"),
    ],
)
def test_a_config_that_cannot_be_followed_names_its_key(
    path: str, value: object, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Qwen3CodecConfig.from_dict(_set(path, value))


def test_newer_files_have_the_rope_base_elsewhere() -> None:
    raw = _set("decoder_config.rope_theta", KeyError)
    raw["decoder_config"]["rope_parameters"] = {"rope_type": "default", "rope_theta": 12_345.0}
    assert Qwen3CodecConfig.from_dict(raw).decoder.transformer.rope_base == 12_345.0


def test_mimi_keys_that_are_left_out_are_the_official_class_ones() -> None:
    config = Qwen3CodecConfig.from_dict(full_config())
    assert config.encoder.width == 64
    assert config.encoder.transformer.width == 512
    assert json.loads(json.dumps(full_config()["encoder_config"])) == {"model_type": "mimi"}
