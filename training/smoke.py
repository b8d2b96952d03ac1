"""A one-minute check, on synthetic sound, that the captured codec step works on this machine, and
its gain.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from training.codec_trainer import CodecTrainer, Phase
from training.data import PHONEME_CLASSES, SpeechBank
from training.graph import WARM_UP_RUNS
from training.recipe import Recipe
from training.teacher import FRAME_SAMPLES, SAMPLE_RATE

_SECONDS = 120


def made_up_bank(device: torch.device, seed: int) -> SpeechBank:
    """Two minutes of harmonic tones, a new pitch every 200 ms, labelled by pitch."""
    noise = torch.Generator().manual_seed(seed)
    frames = _SECONDS * SAMPLE_RATE // FRAME_SAMPLES
    pitch_F = (100 + 200 * torch.rand(frames // 8, generator=noise)).repeat_interleave(8)
    phase_S = (
        2 * math.pi * (pitch_F.double().repeat_interleave(FRAME_SAMPLES) / SAMPLE_RATE).cumsum(0)
    )
    wave_S = sum((torch.sin(k * phase_S) / k for k in range(1, 6)), torch.zeros_like(phase_S))
    labels_F = (pitch_F / 300 * (PHONEME_CLASSES - 1)).to(torch.uint8)
    return SpeechBank(
        (0.2 * wave_S * 32767).to(torch.int16).to(device),
        labels_F.to(device),
        validation_seconds=20,
    )


def smoke(recipe: Recipe, device: torch.device, *, steps: int = 30) -> None:
    """Print milliseconds per step of both phases and of the decoder alone, kernel by kernel and
    captured.

    Raises RuntimeError when a loss is not finite, or when captured steps do not learn as plain ones
    do.
    """
    # Full learning rates and every part of the step at once, so that each must show an effect.
    sharp = {"warmup_steps": 1, "adversarial_ramp_steps": 1, "revive_every": 10}
    recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update=sharp)})
    bank = made_up_bank(device, recipe.train.seed)
    phases: tuple[tuple[Phase, bool], ...] = (
        ("reconstruct", False),
        ("adversarial", False),
        ("adversarial", True),
    )
    for phase, frozen_encoder in phases:
        plain, captured = (
            _run(_trainer(recipe, device, bank, phase, frozen_encoder), phase, steps, plain=plain)
            for plain in (True, False)
        )
        if not captured[1] < captured[0] or abs(captured[1] - plain[1]) > 0.25 * plain[1]:
            raise RuntimeError(
                f"{phase}: captured steps do not learn like plain ones: mel {captured}, plain "
                f"{plain}"
            )
    print("smoke: all well", flush=True)


def _trainer(
    recipe: Recipe, device: torch.device, bank: SpeechBank, phase: Phase, frozen_encoder: bool
) -> CodecTrainer:
    trainer = CodecTrainer(recipe, device, bank, frozen_encoder=frozen_encoder)
    if phase == "adversarial":
        trainer.seconds = 60 * recipe.train.total_minutes * (recipe.train.adversarial_from + 0.001)
    trainer.adversarial_steps = 2 * recipe.train.adversarial_ramp_steps
    # A decoder can learn from a random encoder, too.
    trainer.fresh = not frozen_encoder
    return trainer


def _run(trainer: CodecTrainer, phase: Phase, steps: int, *, plain: bool) -> tuple[float, float]:
    """The mel loss of the first and of the last steps, each averaged over five."""
    device = trainer.device

    def plain_step() -> dict[str, Tensor]:
        return {name: value.detach() for name, value in trainer.update(phase).items()}

    start = time.monotonic()
    if plain:
        trainer.prepare()
        for _ in range(WARM_UP_RUNS):
            plain_step()
    else:
        trainer.capture(phase)
    _wait(device)
    ready = time.monotonic() - start
    step: Callable[[], dict[str, Tensor]] = plain_step if plain else trainer.step
    rows = [_values(step()) for _ in range(5)]
    start = time.monotonic()
    for _ in range(steps - 10):
        step()
    _wait(device)
    step_ms = 1000 * (time.monotonic() - start) / (steps - 10)
    # Work between replays, and a capture after another, must do no harm.
    trainer.validate()
    if not plain:
        trainer.load_state(trainer.state())
    rows += [_values(step()) for _ in range(5)]
    if not all(math.isfinite(value) for row in rows for value in row.values()):
        raise RuntimeError(f"{phase}: a loss is not finite: {rows[-1]}")
    mel = [row["mel"] for row in rows]
    first, last = sum(mel[:5]) / 5, sum(mel[-5:]) / 5
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
    print(
        f"{phase:12s} {'frozen encoder' if trainer.frozen_encoder else 'whole codec':15s} "
        f"{'plain' if plain else 'captured':9s} {step_ms:8.2f} ms/step  mel {first:.3f} -> "
        f"{last:.3f}  ready after {ready:.1f} s  peak {peak:.2f} GiB",
        flush=True,
    )
    return first, last


def _values(losses: dict[str, Tensor]) -> dict[str, float]:
    return {name: value.float().mean().item() for name, value in losses.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
