"""Write the trained codec as an official checkpoint (sources: MOSS 2.7), and load such a folder as
the product does.

    python -m training.export --source OUT --target CHECKPOINT [--frozen START]

Matrices of encoder and decoder are stored in bf16; vectors and the quantizer, under 3 % of the
weights, in float32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hocket.checkpoint.hub import read_config
from hocket.checkpoint.weights import load_weights
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_codec.weights import codec_weight_table
from training.checkpoint import ema_weights
from training.recipe import CONFIG, Recipe

MODEL_FILE = "model.safetensors"


def export_codec(
    weights: dict[str, Tensor],
    model: dict[str, Any],
    target: Path,
    dtype: torch.dtype,
    *,
    frozen: Path | None = None,
) -> None:
    """Write `weights` of a finalised `MossCodec`: plain projections become weight-normed ones, g =
    |row|, v = row.

    `frozen` is the checkpoint folder that a run with a frozen encoder began from. Encoder and
    quantizer are copied from it: folding and unfolding weight normalisation could change a last
    bit, and so a code.
    """
    stored = {}
    for entry in codec_weight_table(MossCodecConfig.from_dict(model)):
        owner, _, kind = entry.parameter.rpartition(".")
        if kind == "gain":
            value = torch.linalg.vector_norm(weights[f"{owner}.weight"], dim=1)
        elif kind == "direction":
            value = weights[f"{owner}.weight"]
        else:
            value = weights[entry.parameter]
        matrix = value.dim() > 1 and not owner.startswith("quantizer")
        stored[entry.names[0]] = (
            value.reshape(entry.shape).to(dtype if matrix else torch.float32).contiguous()
        )
    if frozen is not None:
        kept = load_file(frozen / MODEL_FILE)
        stored |= {
            name: kept[name] for name in stored if name.startswith(("encoder.", "quantizer."))
        }
    target.mkdir(parents=True, exist_ok=True)
    save_file(stored, target / MODEL_FILE, metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(model, indent=1) + "\n", encoding="utf-8")


def load_codec(folder: Path, device: torch.device) -> MossCodec:
    """Load the codec of a checkpoint folder, ready for use."""
    config = MossCodecConfig.from_dict(read_config(folder))
    with torch.device("meta"):
        codec = MossCodec(config)
    load_weights(codec, folder, codec_weight_table(config), device=device)
    codec.finalize()
    return codec


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True, help="OUT folder of train_codec")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--fp32", action="store_true", help="keep float32, for comparisons")
    parser.add_argument(
        "--frozen",
        type=Path,
        default=None,
        help="checkpoint whose encoder and quantizer are kept, after --frozen-encoder",
    )
    args = parser.parse_args()
    dtype = torch.float32 if args.fp32 else torch.bfloat16
    export_codec(
        ema_weights(args.source),
        Recipe.load(args.config).model,
        args.target,
        dtype,
        frozen=args.frozen,
    )
    codec = load_codec(args.target, torch.device("cpu"))
    size = (args.target / MODEL_FILE).stat().st_size
    count = sum(p.numel() for p in codec.parameters())
    print(f"{count:,} parameters, {size:,} bytes in {args.target}")


if __name__ == "__main__":
    main()
