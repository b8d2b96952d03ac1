"""The configuration of a training run: the codec's dimensions and all numbers of its training, from
one file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hocket.core import StrictModel
from training.discriminator import DiscriminatorConfig

CONFIG = Path(__file__).parent / "configs" / "codec_mini.json"


class LossWeights(StrictModel):
    mel: float
    stft: float
    wave: float
    commitment: float
    #: Weight of predicting phonemes from the first level alone, so that the first code carries the
    #: words.
    phoneme: float
    adversarial: float
    features: float


class StartConfig(StrictModel):
    """Differences of the second stage, which starts from a checkpoint."""

    batch: int
    total_minutes: float
    generator_lr: float
    #: A value above 1 leaves the discriminators out.
    adversarial_from: float


class FrozenConfig(StartConfig):
    """Differences of the third stage, in which only the decoder learns."""

    level_dropout: float


class TrainConfig(StrictModel):
    seed: int
    batch: int
    segment_frames: int
    #: Frames of each segment that the discriminators see.
    adversarial_frames: int
    validation_seconds: float
    validation_segments: int
    #: Initial value of the layer scales.
    layer_scale: float
    total_minutes: float
    warmup_steps: int
    #: Shares of the total time: until `decay_from` the learning rate is full, then it falls
    #: linearly.
    decay_from: float
    final_lr_share: float
    generator_lr: float
    discriminator_lr: float
    betas: tuple[float, float]
    weight_decay: float
    max_grad_norm: float
    ema_decay: float
    adversarial_from: float
    #: Steps in which the discriminators learn alone; in as many more, the weight of their losses
    #: rises from 0.
    adversarial_ramp_steps: int
    gain_db: tuple[float, float]
    #: Share of samples that use a random number of levels.
    level_dropout: float
    #: Levels that the phoneme head reads.
    phoneme_levels: int
    #: Decay of the moving averages of codebook rows.
    codebook_decay: float
    #: Interval, in steps, of replacing codes used less than `revive_below` times the mean, until a
    #: share of the time.
    revive_every: int
    revive_below: float
    revive_until: float
    loss_weights: LossWeights
    log_every: int
    checkpoint_seconds: float
    start: StartConfig
    frozen: FrozenConfig


class Recipe(StrictModel):
    #: The codec's `config.json`, as it is exported.
    model: dict[str, Any]
    train: TrainConfig
    discriminator: DiscriminatorConfig

    @classmethod
    def load(cls, path: Path) -> Recipe:
        return cls.model_validate_json(path.read_text(encoding="utf-8"))

    def adapted(
        self,
        *,
        started: bool = False,
        frozen_encoder: bool = False,
        batch: int | None = None,
        total_minutes: float | None = None,
    ) -> Recipe:
        """The recipe of a run of that kind, with these numbers replaced."""
        changes: dict[str, Any] = {}
        if frozen_encoder:
            changes = self.train.frozen.model_dump()
        elif started:
            changes = self.train.start.model_dump()
        changes |= {} if batch is None else {"batch": batch}
        changes |= {} if total_minutes is None else {"total_minutes": total_minutes}
        return self.model_copy(update={"train": self.train.model_copy(update=changes)})
