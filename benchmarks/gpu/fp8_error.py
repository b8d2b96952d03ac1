"""What FP8 costs in precision, part by part (`benchmarks.gpu.fp8_error_parts`).

    python -m benchmarks.gpu.fp8_error --model moss-tts-local-v1.5 --random-weights --device cuda --json fp8_error.json

Prints JSON: relative root-mean-square errors of bfloat16 and of FP8 against float32 with the same weights, on random
frames. Without --random-weights `--model` is a checkpoint's folder. Random weights have no outliers, which trained ones
have: their errors are the lower bound.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from benchmarks.gpu.fp8_error_parts import Models, fp8_errors
from hocket.bench.engine.random_model import loaded_models, random_models
from hocket.bench.environment import now
from hocket.engine.build import parse_device


def main() -> None:
    parser = argparse.ArgumentParser(description="Precision of FP8, part by part.")
    parser.add_argument("--model", required=True, help="checkpoint folder, or a name that ships with the package")
    parser.add_argument("--codec", help="codec folder; default: the model's")
    parser.add_argument("--random-weights", action="store_true", help="only the dimensions are the model's")
    parser.add_argument("--device", default="cpu", help="cpu (plain twins of the kernels), cuda or cuda:N")
    parser.add_argument("--rows", type=int, default=256, help="rows of context of the backbone")
    parser.add_argument("--frames", type=int, default=64, help="frames for the codec")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the report here as well")
    wishes = parser.parse_args()
    device = parse_device(wishes.device)
    # By default convolutions in float32 multiply in TF32.
    torch.backends.cudnn.allow_tf32 = False

    def models(dtype: torch.dtype) -> Models:
        if wishes.random_weights:
            return random_models(wishes.model, wishes.codec, device=device, dtype=dtype, seed=wishes.seed)
        return loaded_models(wishes.model, wishes.codec, device=device, dtype=dtype)

    errors = fp8_errors(models, rows=wishes.rows, frames=wishes.frames, seed=wishes.seed)
    report = {
        "model": wishes.model,
        "random_weights": wishes.random_weights,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "rows": wishes.rows,
        "frames": wishes.frames,
        "relative_rms_error": errors,
        "torch": torch.__version__,
        "date": now(),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if wishes.json is not None:
        wishes.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
