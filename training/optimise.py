"""Weight updates and logs of both trainers; all of it may be part of a captured step."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, TextIO

import torch
from torch import Tensor


def adamw(
    parameters: Sequence[Tensor], lr: Tensor, *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """AdamW without decay on vectors; `lr`, 0-dim on the device, is filled from outside."""
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True, capturable=True)


def lr_share(
    step: int, progress: float, *, warmup_steps: int, decay_from: float, final_lr_share: float
) -> float:
    """Share of the full learning rate: rises over the first steps, and falls linearly from a share
    of the total time on.
    """
    warm = min(1.0, (step + 1) / max(1, warmup_steps))
    fall = max(0.0, (progress - decay_from) / (1 - decay_from))
    return warm * (1 - (1 - final_lr_share) * fall)


def average_share(step: int, ema_decay: float) -> float:
    """Share by which averaged weights move towards the weights: large at first, to forget the
    random start.
    """
    return 1 - min(ema_decay, (1 + step) / (10 + step))


@torch.no_grad()
def move_average(averages: list[Tensor], values: list[Tensor], share: Tensor) -> None:
    """Move `averages` towards `values` by `share`, 0-dim on the device.

    Not `_foreach_lerp_`: its weight is a number, which a graph would never see change.
    """
    steps = torch._foreach_sub(values, averages)
    torch._foreach_mul_(steps, share)
    torch._foreach_add_(averages, steps)


class Pace:
    """Measures milliseconds per step since its creation; the caller counts steps that the device
    has finished.
    """

    def __init__(self) -> None:
        self.start, self.steps = time.monotonic(), 0

    def step_ms(self) -> float:
        return round(1000 * (time.monotonic() - self.start) / max(1, self.steps), 2)


def fetch(losses: dict[str, Tensor]) -> dict[str, float]:
    """Read the values, with one wait for the device."""
    values = torch.stack([value.float() for value in losses.values()]).tolist()
    return {name: round(value, 5) for name, value in zip(losses, values, strict=True)}


def log_row(log: TextIO, row: dict[str, Any]) -> None:
    """Write to the file and to standard output."""
    line = json.dumps(row)
    log.write(line + "\n")
    log.flush()
    print(line, flush=True)
