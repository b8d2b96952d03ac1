"""config.json and the weight table, up to the full-size models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hocket.checkpoint.weights import load_weights
from hocket.errors import ConfigError
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MossCodecConfig, TransformerSpec
from hocket.models.moss_codec.weights import codec_weight_table
from tests.support.moss_codec_helpers import golden, raw_config
from tests.support.paths import GOLDEN

#: Patch before the stage, input, width, output, layers, heads, FFN, context in seconds (v2): spec
#: 2.2 and 2.9.
FULL_V2 = [
    (240, 240, 768, 384, 12, 12, 3072, 1.0),
    (2, 768, 768, 384, 12, 12, 3072, 2.0),
    (2, 768, 768, 384, 12, 12, 3072, 4.0),
    (2, 768, 768, 384, 12, 12, 3072, 8.0),
    (2, 768, 768, 640, 12, 12, 3072, 10.0),
    (2, 1280, 1280, 768, 32, 20, 5120, 10.0),
]
FULL_V1 = [
    (240, 240, 768, 384, 12, 12, 3072, None),
    (2, 768, 768, 384, 12, 12, 3072, None),
    (2, 768, 768, 640, 12, 12, 3072, None),
    (2, 1280, 1280, 768, 32, 20, 5120, None),
]


def _full_config(name: str) -> dict[str, Any]:
    raw = raw_config(name)
    raw |= {"sampling_rate": 48000, "downsample_rate": 3840} if name == "codec2_tiny" else {}
    raw |= {"sampling_rate": 24000, "downsample_rate": 1920} if name == "codec1_tiny" else {}
    raw["causal_transformer_context_duration"] = 10
    raw["quantizer_kwargs"] |= {
        "input_dim": 768, "rvq_dim": 512, "output_dim": 768, "num_quantizers": 32,
        "codebook_size": 1024
    }  # fmt: skip
    shared = {k: v for k, v in raw["encoder_kwargs"][1].items() if k != "context_duration"}
    encoder: list[dict[str, Any]] = []
    decoder: list[dict[str, Any]] = []
    for patch, incoming, width, out, layers, heads, ffn, seconds in (
        FULL_V2 if name == "codec2_tiny" else FULL_V1
    ):
        stage = shared | {
            "d_model": width,
            "num_layers": layers,
            "num_heads": heads,
            "dim_feedforward": ffn,
        }
        stage |= {} if seconds is None else {"context_duration": seconds}
        patcher = {"module_type": "PatchedPretransform", "patch_size": patch}
        encoder += [patcher, stage | {"input_dimension": incoming, "output_dimension": out}]
        decoder = [
            stage | {"input_dimension": out, "output_dimension": incoming},
            patcher,
            *decoder,
        ]
    return raw | {"encoder_kwargs": encoder, "decoder_kwargs": decoder}


def _contexts(config: MossCodecConfig) -> dict[str, int]:
    chains = (("encoder", config.encoder), ("decoder", config.decoder))
    return {
        f"{chain}.{i}.transformer": spec.context_tokens
        for chain, stages in chains
        for i, spec in enumerate(stages)
        if isinstance(spec, TransformerSpec)
    }


@pytest.mark.parametrize("name", ["codec2_tiny", "codec1_tiny"])
def test_golden_config(name: str) -> None:
    it = golden(name)
    config = it.codec.config
    assert (config.sample_rate, config.frame_samples, config.frame_rate_hz) == (300, 24, 12.5)
    assert (config.channels, config.n_codebooks) == ((2, 16) if name == "codec2_tiny" else (1, 8))
    assert config.codebook_size == 64
    expected = {key.split(".layers")[0]: value for key, value in it.notes["contexts"].items()}
    assert _contexts(config) == expected


@pytest.mark.parametrize("name", ["codec2_tiny", "codec1_tiny"])
def test_full_size_model(name: str) -> None:
    """Contexts, parameter and tensor counts are those of the official classes at full size."""
    notes = golden(name).notes
    config = MossCodecConfig.from_dict(_full_config(name))
    assert _contexts(config) == notes["full_size_contexts"]
    assert config.frame_rate_hz == 12.5
    with torch.device("meta"):
        codec = MossCodec(config)
    counts = {
        part: sum(p.numel() for p in codec.get_submodule(part).parameters())
        for part in notes["full_size_params"]
    }
    assert counts == notes["full_size_params"]
    table = codec_weight_table(config)
    assert {entry.parameter for entry in table} == set(codec.state_dict())
    if "full_size_tensor_count" in notes:
        assert len(table) == notes["full_size_tensor_count"]


def test_linear_weights_follow_compute_dtype() -> None:
    config = MossCodecConfig.from_dict(raw_config("codec2_tiny") | {"compute_dtype": "bf16"})
    for entry in codec_weight_table(config):
        linear = entry.parameter.endswith("_proj.weight") or ".ffn_" in entry.parameter
        assert entry.dtype == (
            torch.bfloat16 if linear and "quantizer" not in entry.parameter else torch.float32
        )


ALIASES = {
    "self_attn.in_proj.weight": "self_attn.in_proj_weight",
    "self_attn.out_proj.weight": "self_attn.out_projs.0.weight",
    "ffn.0.weight": "linear1.weight",
    "ffn.2.weight": "linear2.weight",
    "parametrizations.weight.original0": "weight_g",
    "parametrizations.weight.original1": "weight_v",
}


def test_older_tensor_names_load(tmp_path: Path) -> None:
    v2 = golden("codec2_tiny")
    stored = load_file(GOLDEN / "codec2_tiny" / "model.safetensors")
    renamed = {}
    for name, tensor in stored.items():
        for official, alias in ALIASES.items():
            name = name.replace(official, alias)
        renamed[name] = tensor
    save_file(renamed, tmp_path / "model.safetensors")
    with torch.device("meta"):
        codec = MossCodec(v2.codec.config)
    load_weights(codec, tmp_path, codec_weight_table(v2.codec.config), device=torch.device("cpu"))
    codec.finalize()
    assert len(set(renamed) - set(stored)) > 100
    assert all(
        torch.equal(a, b) for a, b in zip(codec.parameters(), v2.codec.parameters(), strict=True)
    )


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(raw: dict[str, Any]) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        node: Any = raw
        for part in parents:
            node = node[part]
        if value is KeyError:
            del node[last]
        else:
            node[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("quantizer_type", "rvq"), "quantizer_type"),
        (_set("quantizer_kwargs.quantizer_type", "rvq"), "quantizer_kwargs.quantizer_type"),
        (_set("quantizer_kwargs.codebook_dim", KeyError), "quantizer_kwargs.codebook_dim"),
        (_set("quantizer_kwargs.input_dim", 25), "quantizer_kwargs.input_dim is 25"),
        (_set("quantizer_kwargs.output_dim", 25), r"decoder_kwargs\[0\].input_dimension"),
        (_set("sampling_rate", 0), "sampling_rate"),
        (_set("sampling_rate", "300"), "sampling_rate"),
        (_set("downsample_rate", 12), r"encoder_kwargs multiply to 48.* is 24"),
        (_set("number_channels", 1), r"encoder_kwargs multiply to 48.* is 24"),
        (_set("enable_channel_interleave", False), "enable_channel_interleave"),
        (_set("compute_dtype", "int8"), "compute_dtype"),
        (_set("codec_weight_dtype", "fp8"), "codec_weight_dtype"),
        (_set("encoder_kwargs.0.module_type", "Conv"), r"encoder_kwargs\[0\].module_type"),
        (_set("encoder_kwargs.0.patch_size", 6), r"encoder_kwargs multiply to 24"),
        (_set("decoder_kwargs.5.patch_size", 6), r"decoder_kwargs multiply to 24"),
        (_set("encoder_kwargs.1.norm", "rms_norm"), r"encoder_kwargs\[1\].norm"),
        (_set("encoder_kwargs.1.gating", "silu"), r"encoder_kwargs\[1\].gating"),
        (
            _set("encoder_kwargs.1.positional_embedding", "sin"),
            r"encoder_kwargs\[1\].positional_embedding",
        ),
        (_set("encoder_kwargs.1.causal", False), r"encoder_kwargs\[1\].causal"),
        (_set("encoder_kwargs.1.qk_norm", True), r"encoder_kwargs\[1\].qk_norm"),
        (_set("encoder_kwargs.1.num_heads", 3), r"encoder_kwargs\[1\].num_heads 3"),
        (_set("encoder_kwargs.1.num_heads", 32), r"encoder_kwargs\[1\].num_heads 32"),
        (_set("encoder_kwargs.3.input_dimension", 16), r"encoder_kwargs\[3\].input_dimension"),
        (_set("encoder_kwargs.1.context_duration", 0.001), r"encoder_kwargs\[1\].context_duration"),
        (
            _set("decoder_kwargs.0.output_dimension", 49),
            r"decoder_kwargs\[1\].patch_size 2 does not divide",
        ),
        (_set("decoder_kwargs.4.output_dimension", 24), "decoder_kwargs end 2 wide"),
        (_set("encoder_kwargs", KeyError), "encoder_kwargs"),
    ],
)
def test_what_cannot_run_names_the_key(
    change: Callable[[dict[str, Any]], None], message: str
) -> None:
    raw = raw_config("codec2_tiny")
    change(raw)
    with pytest.raises(ConfigError, match=message):
        MossCodecConfig.from_dict(raw)


@pytest.mark.parametrize(("seconds", "tokens"), [(0.32, 16), (0.358, 18), (0.351, 18), (0.349, 17)])
def test_context_is_rounded_to_tokens(seconds: float, tokens: int) -> None:
    raw = raw_config("codec2_tiny")
    raw["encoder_kwargs"][1]["context_duration"] = seconds  # at 50 Hz
    assert _contexts(MossCodecConfig.from_dict(raw))["encoder.1.transformer"] == tokens


def test_a_stage_without_any_context() -> None:
    raw = raw_config("codec1_tiny")
    del raw["causal_transformer_context_duration"]
    with pytest.raises(ConfigError, match=r"encoder_kwargs\[1\].context_duration is missing"):
        MossCodecConfig.from_dict(raw)


def test_a_foreign_config() -> None:
    with pytest.raises(ConfigError, match="model_type is 'encodec'"):
        MossCodecConfig.from_dict({"model_type": "encodec", "sampling_rate": 24000})


def test_spellings_of_official_checkpoints() -> None:
    """`sample_rate` is an alias, and early checkpoints carry another `model_type`."""
    raw = raw_config("codec1_tiny") | {"model_type": "speech_tokenizer"}
    raw["sample_rate"] = raw.pop("sampling_rate")
    assert MossCodecConfig.from_dict(raw) == MossCodecConfig.from_dict(raw_config("codec1_tiny"))


def test_only_v1_leaves_out_projections_between_equal_widths() -> None:
    raw = raw_config("codec1_tiny")
    stage = MossCodecConfig.from_dict(raw).encoder[3]
    assert isinstance(stage, TransformerSpec)
    assert (stage.has_input_proj, stage.has_output_proj) == (False, True)
    stage = MossCodecConfig.from_dict(raw | {"number_channels": 1}).encoder[3]
    assert isinstance(stage, TransformerSpec)
    assert (stage.has_input_proj, stage.has_output_proj) == (True, True)
