"""The error of FP8: each part of a model against the same part in float32, on the same random
input.

    python -m benchmarks.gpu.fp8_error --model moss-tts-local-v1.5 --random-weights --device cuda \
        --json fp8_error.json

Prints JSON: relative root-mean-square errors of bfloat16 and of FP8 against float32 with the same
weights, on random frames. Without --random-weights `--model` is a checkpoint's folder. Random
weights lack the outliers of trained ones, so their errors are a lower bound.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from hocket.bench.engine.random_model import loaded_models, random_models
from hocket.bench.environment import device_facts, now
from hocket.engine.build import parse_device
from hocket.kernels.types import FP8, PagedBatch
from hocket.models.codec import Codec
from hocket.models.family import LoadedTalker
from hocket.models.layers.fp8 import quantize_models
from hocket.models.layers.kv_cache import KVPages
from hocket.models.talker import Talker

Models: TypeAlias = tuple[LoadedTalker, Codec]
#: Number of backbone outputs that go to the predictor of the frame's codes.
_PREDICTED_ROWS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Precision of FP8, part by part.")
    parser.add_argument(
        "--model", required=True, help="checkpoint folder, or a name that ships with the package"
    )
    parser.add_argument("--codec", help="codec folder; default: the model's")
    parser.add_argument(
        "--random-weights", action="store_true", help="only the dimensions are the model's"
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--rows", type=int, default=256, help="rows of context of the backbone")
    parser.add_argument("--frames", type=int, default=64, help="frames for the codec")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the report here as well")
    arguments = parser.parse_args()
    device = parse_device(arguments.device)
    # By default, convolutions in float32 use TF32.
    torch.backends.cudnn.allow_tf32 = False

    def models(dtype: torch.dtype) -> Models:
        if arguments.random_weights:
            return random_models(
                arguments.model, arguments.codec, device=device, dtype=dtype, seed=arguments.seed
            )
        return loaded_models(arguments.model, arguments.codec, device=device, dtype=dtype)

    facts = device_facts(device)
    errors = fp8_errors(models, rows=arguments.rows, frames=arguments.frames, seed=arguments.seed)
    report = {
        "model": arguments.model,
        "random_weights": arguments.random_weights,
        "device": facts["gpu"] or device.type,
        "rows": arguments.rows,
        "frames": arguments.frames,
        "relative_rms_error": errors,
        "torch": facts["torch"],
        "date": now(),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")


@torch.inference_mode()
def fp8_errors(
    models: Callable[[torch.dtype], Models], *, rows: int, frames: int, seed: int
) -> dict[str, dict[str, float]]:
    """Relative root-mean-square errors by part and precision: "bf16", "fp8", and for the backbone
    "fp8_kv" (bfloat16 with keys and values in FP8).

    `models` makes a model in float32 or bfloat16. All models get the bfloat16 one's weights, so
    that only arithmetic and FP8 rounding differ. Two sequences of `rows` random frames go through
    the backbone, their last hidden states through the code predictor, and `frames` random frames
    through the codec's decoder.
    """
    exact, rounded = models(torch.float32), models(torch.bfloat16)
    for ours, theirs in zip(_tensors(exact), _tensors(rounded), strict=True):
        ours.copy_(theirs)
    talker, device = rounded[0].talker, next(rounded[0].talker.parameters()).device
    sizes = torch.tensor(talker.config.audio_codebook_sizes)
    generator = torch.Generator().manual_seed(seed)
    codes_MN = (torch.rand(2 * rows, len(sizes), generator=generator) * sizes).long().to(device)
    codec_codes_TN = torch.randint(
        rounded[1].config.codebook_size, (frames, len(sizes)), generator=generator
    ).to(device)
    text_M = torch.full((len(codes_MN),), talker.config.frame_text_id, device=device)
    x_BTD = torch.unflatten(talker.embed_frame(codes_MN, text_M), 0, (2, rows))

    def parts(model: Models, hidden_MD: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        loaded, codec = model
        dtype = next(loaded.talker.parameters()).dtype
        hidden_BTD = loaded.talker.backbone(x_BTD.to(dtype))
        own_MD = hidden_BTD.flatten(0, 1)[-_PREDICTED_ROWS:]
        # All precisions predict from the exact hidden states, rounded to bfloat16.
        from_MD = (own_MD.bfloat16() if hidden_MD is None else hidden_MD).to(dtype)
        logits = loaded.talker.forced_logits(from_MD, codes_MN[-len(from_MD) :])
        return hidden_BTD, logits, codec.decode_whole(codec_codes_TN)

    wanted = parts(exact, None)
    hidden_MD = wanted[0].flatten(0, 1)[-_PREDICTED_ROWS:].bfloat16()
    in_bf16 = parts(rounded, hidden_MD)
    fp8_kv = relative_error(_paged_backbone(rounded[0].talker, x_BTD.bfloat16()), wanted[0])
    quantize_models(rounded[0].talker, rounded[1])
    in_fp8 = parts(rounded, hidden_MD)
    errors = {
        name: {"bf16": relative_error(bf16, right), "fp8": relative_error(fp8, right)}
        for name, bf16, fp8, right in zip(
            ("backbone_hidden", "code_logits", "codec_samples"),
            in_bf16,
            in_fp8,
            wanted,
            strict=True,
        )
    }
    errors["backbone_hidden"]["fp8_kv"] = fp8_kv
    return errors


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Root mean square of the difference, over that of `wanted`."""
    difference = found.double() - wanted.double()
    return float(difference.square().mean().sqrt() / wanted.double().square().mean().sqrt())


def _tensors(models: Models) -> Iterator[Tensor]:
    loaded, codec = models
    return itertools.chain(
        loaded.talker.parameters(), loaded.talker.buffers(), codec.parameters(), codec.buffers()
    )


def _paged_backbone(talker: Talker, x_BTD: Tensor) -> Tensor:
    """The backbone with keys and values in FP8."""
    config, (batch, rows), device = talker.config, x_BTD.shape[:2], x_BTD.device
    table_BP = torch.arange(batch, device=device)[:, None] + 1
    kv = KVPages.allocate(
        config.layers, 1 + batch, rows, config.kv_heads, config.head_dim, FP8, device
    )
    starts_B = torch.zeros(batch, dtype=torch.int64, device=device)
    return talker.backbone(x_BTD, kv, PagedBatch(table_BP, starts_B, starts_B + rows))


if __name__ == "__main__":
    main()
