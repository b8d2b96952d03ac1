"""Golden codecs, and random small ones of other shapes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from hocket.checkpoint.weights import load_weights
from hocket.models.layers.codec_state import CodecState
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_codec.weights import codec_weight_table
from tests.support.paths import GOLDEN

#: Relative and absolute. Outputs have an rms of about 3.5; float32 rounding over the tiny chains
#: stays under 7e-6.
TOLERANCE = 2e-5


@dataclass(frozen=True)
class Golden:
    codec: MossCodec
    tensors: dict[str, Tensor]
    notes: dict[str, Any]


def raw_config(name: str) -> dict[str, Any]:
    """A fresh copy of a golden checkpoint's config.json."""
    raw: dict[str, Any] = json.loads((GOLDEN / name / "config.json").read_text())
    return raw


@cache
def golden(name: str) -> Golden:
    """`codec2_tiny` or `codec1_tiny`, loaded the way the engine does."""
    folder, short = GOLDEN / name, name.removesuffix("_tiny")
    config = MossCodecConfig.from_dict(raw_config(name))
    with torch.device("meta"):
        codec = MossCodec(config)
    load_weights(codec, folder, codec_weight_table(config), device=torch.device("cpu"))
    codec.finalize()
    return Golden(
        codec,
        load_file(folder / f"golden_{short}.safetensors"),
        json.loads((folder / f"golden_{short}.json").read_text()),
    )


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


def chain_config(
    *,
    channels: int | None,
    patches: Sequence[int],
    widths: Sequence[int],
    heads: int,
    layers: int,
    contexts: Sequence[int],
    n_codebooks: int,
) -> dict[str, Any]:
    """A config with one transformer after each patch (encoder order); `contexts` in tokens.
    `channels=None` is v1.
    """
    frame_rate = 10
    product = 1
    for patch in patches:
        product *= patch
    raw: dict[str, Any] = {
        "model_type": "moss-audio-tokenizer",
        "downsample_rate": product // (channels or 1),
        "sampling_rate": product // (channels or 1) * frame_rate,
        "causal_transformer_context_duration": 1.0,
        "quantizer_kwargs": {
            "input_dim": 12,
            "rvq_dim": 10,
            "output_dim": 12,
            "num_quantizers": n_codebooks,
            "codebook_size": 32,
            "codebook_dim": 6,
            "quantizer_type": "rlfq",
        },
    }
    if channels is not None:
        raw |= {
            "number_channels": channels,
            "enable_channel_interleave": channels > 1,
            "compute_dtype": "fp32",
        }
    outs = [*widths[:-1], 12]
    encoder: list[dict[str, Any]] = []
    decoder: list[dict[str, Any]] = []
    tokens_per_frame, incoming = product, 1
    for patch, width, out, context in zip(patches, widths, outs, contexts, strict=True):
        tokens_per_frame //= patch
        incoming *= patch
        stage = {
            "module_type": "Transformer",
            "input_dimension": incoming,
            "output_dimension": out,
            "d_model": width,
            "num_heads": heads,
            "num_layers": layers,
            "dim_feedforward": 2 * width,
            "causal": True,
            "norm": "layer_norm",
            "positional_embedding": "rope",
            "max_period": 10000,
            "gating": "none",
            "layer_scale": 0.01,
            "conv_layout": True,
        }
        if channels is not None:
            stage["context_duration"] = context / (frame_rate * tokens_per_frame)
        encoder += [{"module_type": "PatchedPretransform", "patch_size": patch}, stage]
        decoder = [
            stage | {"input_dimension": out, "output_dimension": incoming},
            {"module_type": "PatchedPretransform", "patch_size": patch},
            *decoder,
        ]
        incoming = out
    return raw | {"encoder_kwargs": encoder, "decoder_kwargs": decoder}


def random_codec(raw: dict[str, Any], seed: int = 0) -> MossCodec:
    """Random weights; the scales are large so that attention, and with it a wrong window, weighs in
    the output.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        codec = MossCodec(MossCodecConfig.from_dict(raw))
        for name, parameter in codec.named_parameters():
            if name.endswith(("scale1", "scale2")):
                torch.nn.init.uniform_(parameter, 0.5, 1.0)
            elif name.endswith("in_proj.weight"):
                torch.nn.init.normal_(parameter, std=0.3)
    codec.finalize()
    return codec


def to_bf16(codec: MossCodec) -> MossCodec:
    """A copy that holds its linear weights as a bf16 checkpoint does."""
    codec = copy.deepcopy(codec)
    for chain in (codec.encoder, codec.decoder):
        for module in chain.modules():
            if isinstance(module, torch.nn.Linear):
                module.to(torch.bfloat16)
    return codec


def random_codes(codec: MossCodec, *shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, codec.config.codebook_size, shape, generator=generator)


def random_samples(codec: MossCodec, samples: int, seed: int = 2) -> Tensor:
    return torch.randn(
        codec.config.channels, samples, generator=torch.Generator().manual_seed(seed)
    )


def whole_wave(codec: MossCodec, codes_TN: Tensor) -> Tensor:
    """The definition that streaming must meet: one pass over the whole sequence, no state."""
    with torch.no_grad():
        return codec.decode_latent(codec.quantizer.decode(codes_TN[None]))[0]


def poison(state: CodecState, rows: Iterable[int] | None = None) -> CodecState:
    """Fills rings with NaN: whatever reads memory that it did not write shows."""
    chosen = slice(None) if rows is None else list(rows)
    for stage in state.stages:
        for ring in stage.layers if stage is not None else ():
            ring.keys[chosen] = torch.nan
            ring.values[chosen] = torch.nan
    return state


def stream(codec: MossCodec, codes_TN: Tensor, schedule: Sequence[int]) -> Tensor:
    """Decodes one stream chunk by chunk on row 1 of three."""
    state = poison(codec.new_decoder_state(3, max(schedule)))
    row_B = torch.tensor([1])
    chunks = [
        codec.decode(chunk_TN[None], state, row_B)[0]
        for chunk_TN in torch.split(codes_TN, list(schedule))
    ]
    return torch.cat(chunks, dim=-1)
