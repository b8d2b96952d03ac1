"""A codec small enough for a CPU and a DATA folder of tones."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from training.recipe import CONFIG, Recipe
from training.teacher import FRAME_SAMPLES


def stage(input_dim: int, width: int, output_dim: int) -> dict[str, Any]:
    template: dict[str, Any] = json.loads(CONFIG.read_text())["model"]["encoder_kwargs"][1]
    sizes = {"input_dimension": input_dim, "d_model": width, "output_dimension": output_dim}
    return (
        template
        | sizes
        | {"num_heads": 2, "num_layers": 1, "dim_feedforward": 2 * width, "context_duration": 0.32}
    )


def tiny_recipe() -> Recipe:
    raw = json.loads(CONFIG.read_text())
    patch = {"module_type": "PatchedPretransform", "patch_size": 1920}
    halves = (
        {"module_type": "PatchedPretransform", "patch_size": 4},
        {"module_type": "PatchedPretransform", "patch_size": 480},
    )
    raw["model"]["encoder_kwargs"] = [patch, stage(1920, 64, 32)]
    raw["model"]["decoder_kwargs"] = [stage(32, 64, 128), halves[0], stage(32, 64, 480), halves[1]]
    raw["model"]["quantizer_kwargs"] |= {
        "input_dim": 32, "rvq_dim": 32, "output_dim": 32, "num_quantizers": 3, "codebook_size": 64,
    }  # fmt: skip
    raw["train"] |= {
        "batch": 6, "segment_frames": 6, "adversarial_frames": 2, "validation_seconds": 4.0,
        "validation_segments": 6,
        "generator_lr": 2e-3, "warmup_steps": 5, "adversarial_ramp_steps": 5, "log_every": 5,
        "revive_every": 5,
    }  # fmt: skip
    for stage_of_training in ("start", "frozen"):
        raw["train"][stage_of_training]["batch"] = 6
    raw["discriminator"] = {
        "periods": [3],
        "period_channels": [8, 8],
        "ffts": [256],
        "spectral_channels": [4, 4],
    }
    return Recipe.model_validate_json(json.dumps(raw))


def write_speech(folder: Path, seed: int = 0) -> None:
    """A DATA folder: twelve seconds of harmonic tones, labelled by pitch, in utterances of uneven
    lengths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    frames = 480
    pitch_S = np.repeat(rng.uniform(100, 300, frames // 8), 8 * FRAME_SAMPLES)
    phase_S = 2 * math.pi * np.cumsum(pitch_S) / 24_000
    wave_S = 0.2 * np.sum([np.sin(k * phase_S) / k for k in range(1, 6)], axis=0)
    (wave_S * 32767).astype(np.int16).tofile(folder / "audio.i16")
    (pitch_S[::FRAME_SAMPLES] / 10).astype(np.uint8).tofile(folder / "phonemes.u8")
    ends = [0, 7, 50, 121, 300, frames]
    with (folder / "lines.jsonl").open("w", encoding="utf-8") as file:
        for start, end in itertools.pairwise(ends):
            place = {"start": start * FRAME_SAMPLES, "samples": (end - start) * FRAME_SAMPLES}
            said = {"text": f"Tones {start}\u2028on.", "voice": {"tone": 1.0}, "speed": 1.0}
            file.write(json.dumps(place | said, ensure_ascii=False) + "\n")
