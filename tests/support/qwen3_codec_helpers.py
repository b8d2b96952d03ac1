"""The golden codec, and random ones of other shapes, written as checkpoints and loaded like any
other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hocket.checkpoint.weights import load_weights
from hocket.models.layers.codec_state import CodecState
from hocket.models.qwen3_codec.codec import Qwen3Codec
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_codec.weights import codec_weight_table, unread_tensors
from tests.support import paths
from tests.support.plain_codec import PlainCodec

GOLDEN = paths.GOLDEN / "qwen3_tts"
FOLDER = GOLDEN / "base_1b7" / "speech_tokenizer"
#: For samples with an rms of 0.33. Snake turns by up to e^alpha of its input, so the random weights
#: of the golden codec amplify rounding: any float32 result is 8e-5 off float64, and chunkings
#: differ by 1.1e-4.
WAVE_TOLERANCE = 2e-4


def raw_config() -> dict[str, Any]:
    """A fresh copy of the golden codec's config.json."""
    raw: dict[str, Any] = json.loads((FOLDER / "config.json").read_text())
    return raw


def full_config() -> dict[str, Any]:
    """The released codec, as far as its shapes go (sources: Qwen3 9, 10)."""
    raw = raw_config()
    raw["encoder_config"] = {"model_type": "mimi"}
    raw["decoder_config"] |= {
        "latent_dim": 1024, "codebook_dim": 512, "codebook_size": 2048, "decoder_dim": 1536,
        "hidden_size": 512,
        "intermediate_size": 1024, "head_dim": 64, "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": 8, "sliding_window": 72,
    }  # fmt: skip
    return raw


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Qwen3Codec:
    raw = json.loads((folder / "config.json").read_text())
    config = replace(Qwen3CodecConfig.from_dict(raw), compute_dtype=dtype)
    with torch.device("meta"):
        codec = Qwen3Codec(config)
    table, unread = codec_weight_table(config), unread_tensors(config)
    load_weights(codec, folder, table, tied=unread, device=torch.device("cpu"))
    codec.finalize()
    return codec.eval()


@cache
def golden_codec() -> Qwen3Codec:
    return load(FOLDER)


@cache
def golden_tensors(name: str = "codec") -> dict[str, Tensor]:
    return load_file(GOLDEN / f"golden_{name}.safetensors")


@dataclass(frozen=True)
class Pair:
    """One checkpoint, loaded by the product and read by the reference."""

    codec: Qwen3Codec
    plain: PlainCodec


@cache
def golden_pair() -> Pair:
    return Pair(golden_codec(), PlainCodec(raw_config(), load_file(FOLDER / "model.safetensors")))


def random_pair(raw: dict[str, Any], folder: Path, seed: int = 0) -> Pair:
    """Random weights, in scales that let attention weigh in the output and keep Snake tame."""
    config = Qwen3CodecConfig.from_dict(raw)
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        if name.endswith("cluster_usage"):
            return noise.abs() + 0.5
        if name.endswith((".scale", ".gamma", "norm.weight")):
            return noise.abs() * 0.2 + 0.5
        if name.endswith((".alpha", ".beta", ".bias")):
            return noise * 0.2
        fan_in = max(1, noise[0].numel()) if noise.dim() > 1 else 1
        return noise if "codebook" in name else noise * 0.7 / fan_in**0.5

    tensors = {
        entry.names[0]: draw(entry.names[0], entry.shape) for entry in codec_weight_table(config)
    }
    tensors |= {name: torch.zeros(1) for name in unread_tensors(config)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    return Pair(load(folder), PlainCodec(raw, tensors))


def random_codes(codec: Qwen3Codec, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(
        0, codec.config.codebook_size, shape, generator=torch.Generator().manual_seed(seed)
    )


def random_samples(samples: int, seed: int = 2) -> Tensor:
    return 0.3 * torch.randn(1, samples, generator=torch.Generator().manual_seed(seed))


def assert_waves_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=WAVE_TOLERANCE)


def poison(state: CodecState, rows: Iterable[int] | None = None) -> CodecState:
    """Fills rings and tails with NaN: whatever reads memory that its stream did not write shows."""
    chosen = slice(None) if rows is None else list(rows)
    state.tails[chosen] = torch.nan
    for stage in state.stages:
        for ring in stage.layers if stage is not None else ():
            ring.keys[chosen] = torch.nan
            ring.values[chosen] = torch.nan
    return state


def stream(codec: Qwen3Codec, codes_TN: Tensor, schedule: Sequence[int]) -> Tensor:
    """Decodes one stream chunk by chunk on row 1 of three: [S]."""
    state = poison(codec.new_decoder_state(3, max(schedule)))
    row_B = torch.tensor([1])
    chunks = [
        codec.decode(chunk_TN[None], state, row_B)[0, 0]
        for chunk_TN in torch.split(codes_TN, list(schedule))
    ]
    return torch.cat(chunks)


def whole_wave(codec: Qwen3Codec, codes_TN: Tensor) -> Tensor:
    """One chunk on a fresh row: [S]."""
    return stream(codec, codes_TN, [len(codes_TN)])


def _small(decoder: dict[str, Any], encoder: dict[str, Any], n_codebooks: int) -> dict[str, Any]:
    """A codec of 12 samples a frame at 120 Hz."""
    raw = raw_config()
    raw |= {
        "input_sample_rate": 120,
        "output_sample_rate": 120,
        "encoder_valid_num_quantizers": n_codebooks,
    }
    raw |= {"encode_downsample_rate": 12, "decode_upsample_rate": 12}
    raw["decoder_config"] |= {
        "num_quantizers": n_codebooks,
        "codebook_size": 32,
        "decoder_dim": 16,
    } | decoder
    raw["encoder_config"] |= {
        "sampling_rate": 120,
        "upsampling_ratios": [3, 2],
        "codebook_size": 32,
    } | encoder
    return raw


SHAPES: dict[str, dict[str, Any]] = {
    "shared-keys-and-no-projection": _small(
        {
            "num_key_value_heads": 2,
            "sliding_window": 3,
            "upsample_rates": [3, 2],
            "upsampling_ratios": [2],
        },
        {
            "num_key_value_heads": 2,
            "hidden_size": 16,
            "head_dim": 4,
            "num_filters": 6,
            "num_semantic_quantizers": 2,
        },
        4,
    ),
    "deeper-residuals": _small(
        {
            "sliding_window": 1,
            "upsample_rates": [2],
            "upsampling_ratios": [3, 2],
            "num_hidden_layers": 1,
        },
        {
            "num_residual_layers": 2,
            "residual_kernel_size": 5,
            "kernel_size": 3,
            "last_kernel_size": 5,
            "compress": 1,
        },
        7,
    ),
}
