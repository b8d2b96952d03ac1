"""One update of the codec (the product's own `MossCodec`) and its discriminators, as one CUDA graph
per phase.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.checkpoint.hub import read_config
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_codec.transformer import CodecLayer, CodecTransformer
from training.checkpoint import read_parts, write_parts
from training.data import LABELS_PER_FRAME, PHONEME_CLASSES, Segments, SpeechBank
from training.discriminator import Discriminator
from training.export import load_codec
from training.graph import Captured, new_pool
from training.losses import SpectralLoss, adversarial_loss, discriminator_loss, feature_loss
from training.optimise import adamw, average_share, lr_share, move_average
from training.quantise import (
    Codebooks,
    Quantised,
    initialise_codebooks,
    initialise_projections,
    quantise,
)
from training.recipe import Recipe, TrainConfig

Phase = Literal["reconstruct", "adversarial"]
_MODULES = ("codec", "ema", "phoneme_head", "discriminator", "codebooks")
_NUMBERS = ("steps", "seconds", "adversarial_steps", "frozen_encoder")
#: Modules that travel in small files, and their dtypes there.
_PART_DTYPES = {
    "ema": torch.float32,
    "phoneme_head": torch.float32,
    "codebooks": torch.float32,
    "discriminator": torch.bfloat16,
}
_PART_NUMBERS = ("steps", "seconds", "adversarial_steps")


class PhonemeHead(nn.Module):
    """Predicts the phonemes of a frame from its first quantizer levels; for training only."""

    def __init__(self, width: int, hidden: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.LayerNorm(hidden),
            nn.Linear(hidden, LABELS_PER_FRAME * PHONEME_CLASSES),
        )

    def forward(self, first_BTR: Tensor) -> Tensor:
        """[B, T, R] -> logits [B, T, 3, classes]."""
        return self.layers(first_BTR).unflatten(-1, (LABELS_PER_FRAME, PHONEME_CLASSES))


class Float32Linear(nn.Linear):
    """Computes in float32 even under autocast: samples in bf16 have noise 54 dB below speech, which
    the discriminators detect.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name that nn.Linear uses)
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def new_codec(model: dict[str, Any], layer_scale: float) -> MossCodec:
    """A codec with random weights, its weight normalisation folded; all but the codebooks take
    gradients.
    """
    codec = MossCodec(MossCodecConfig.from_dict(model))
    codec.finalize()
    initialise_projections(codec.quantizer)
    for module in codec.modules():
        if isinstance(module, CodecLayer):
            nn.init.constant_(module.scale1, layer_scale)
            nn.init.constant_(module.scale2, layer_scale)
    last = [stage for stage in codec.decoder if isinstance(stage, CodecTransformer)][-1]
    assert last.output_proj is not None, (
        "the last decoder stage of a v2 codec has an output projection"
    )
    last.output_proj = Float32Linear(
        last.output_proj.in_features, last.output_proj.out_features, bias=False
    )
    codec.requires_grad_(True)
    for level in codec.quantizer.levels:
        level.codebook.requires_grad_(False)
    return codec


def optimizer(modules: list[nn.Module], lr: Tensor, config: TrainConfig) -> torch.optim.AdamW:
    """An optimiser of the trainable parameters of `modules`."""
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    return adamw(parameters, lr, betas=config.betas, weight_decay=config.weight_decay)


@dataclass(frozen=True, slots=True)
class Dials:
    """Values that change from step to step: 0-dim float32 on the device, set by the host, read by
    the captured step.
    """

    generator_lr: Tensor
    discriminator_lr: Tensor
    #: Weight of the adversarial terms, 0 .. 1.
    ramp: Tensor
    #: Share by which the EMA weights move towards the weights.
    ema_share: Tensor

    @classmethod
    def on(cls, device: torch.device) -> Dials:
        return cls(*(torch.zeros((), device=device) for _ in range(4)))


class CodecTrainer:
    """Owns everything that training changes. `step` is one update of both sides.

    With `frozen_encoder`, encoder, quantizer and codebooks keep every bit, so that their codes stay
    valid; only the decoder learns, from the codes that the product makes.
    """

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        bank: SpeechBank,
        *,
        frozen_encoder: bool = False,
    ) -> None:
        self.recipe, self.config, self.device, self.bank = recipe, recipe.train, device, bank
        self.frozen_encoder = frozen_encoder
        torch.manual_seed(self.config.seed)
        self.codec = new_codec(recipe.model, self.config.layer_scale).to(device)
        self.ema = copy.deepcopy(self.codec).requires_grad_(False)
        self.frame_samples = self.codec.config.frame_samples
        self.phoneme_head = PhonemeHead(self.codec.config.quantizer.rvq_dim).to(device)
        self.discriminator = Discriminator(recipe.discriminator).to(device)
        self.codebooks = Codebooks(self.codec.quantizer, self.config.codebook_decay)
        self.spectral = SpectralLoss(self.codec.config.sample_rate).to(device)
        if frozen_encoder:
            for module in (self.codec.encoder, self.codec.quantizer, self.phoneme_head):
                module.requires_grad_(False)
        self.dials = Dials.on(device)
        self.generator_side = optimizer(
            [self.codec, self.phoneme_head], self.dials.generator_lr, self.config
        )
        self.discriminator_side = optimizer(
            [self.discriminator], self.dials.discriminator_lr, self.config
        )
        self.steps = 0
        #: Training time of all runs together.
        self.seconds = 0.0
        self.adversarial_steps = 0
        #: True for random weights, which the first data must bring into range.
        self.fresh = True
        self.captures: dict[Phase, Captured] = {}
        self._pool = new_pool(device)

    @property
    def progress(self) -> float:
        """Share of the total training time, 0 .. 1."""
        return min(1.0, self.seconds / (60 * self.config.total_minutes))

    @property
    def phase(self) -> Phase:
        """The phase of the next step."""
        return "adversarial" if self.progress >= self.config.adversarial_from else "reconstruct"

    # Starting and resuming

    def state(self) -> dict[str, Any]:
        parts = (*_MODULES, "generator_side", "discriminator_side")
        return {name: getattr(self, name).state_dict() for name in parts} | {
            n: getattr(self, n) for n in _NUMBERS
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from `state()`. Raises ValueError when that run had the other `frozen_encoder`."""
        if state["frozen_encoder"] != self.frozen_encoder:
            raise ValueError(
                f"the checkpoint has frozen_encoder={state['frozen_encoder']}; give another WORK "
                "folder"
            )
        for name, value in state.items():
            if name in _NUMBERS:
                setattr(self, name, value)
            else:
                getattr(self, name).load_state_dict(value)
        sides = (
            (self.generator_side, self.dials.generator_lr),
            (self.discriminator_side, self.dials.discriminator_lr),
        )
        for side, dial in sides:
            for group in side.param_groups:
                group["lr"] = dial
        # The optimisers' state has moved; captured graphs would write to the old one.
        self.captures.clear()
        self._pool = new_pool(self.device)
        self.fresh = False

    def save_parts(self, out: Path) -> None:
        """Write small files: EMA weights, phoneme head and codebook averages in float32,
        discriminators in bf16.
        """
        tensors = {
            f"{module}.{name}": value.to(dtype).cpu().contiguous()
            for module, dtype in _PART_DTYPES.items()
            for name, value in getattr(self, module).state_dict().items()
        }
        write_parts(out, tensors, {name: str(getattr(self, name)) for name in _PART_NUMBERS})

    def load_parts(self, folder: Path) -> None:
        """Resume from an OUT folder: the EMA weights become the weights too, and optimisers start
        anew.
        """
        tensors, numbers = read_parts(folder)
        for target, module in {"codec": "ema", **{name: name for name in _PART_DTYPES}}.items():
            state = {
                k.removeprefix(f"{module}."): v
                for k, v in tensors.items()
                if k.startswith(f"{module}.")
            }
            getattr(self, target).load_state_dict(state)
        self.steps, self.adversarial_steps = (
            int(numbers["steps"]),
            int(numbers["adversarial_steps"]),
        )
        self.seconds = float(numbers["seconds"])
        self.fresh = False

    def start_from(self, folder: Path) -> None:
        """Start with the weights of a checkpoint folder; discriminators, phoneme head and
        optimisers are new.

        Raises ValueError when the checkpoint has another architecture than the recipe.
        """
        if MossCodecConfig.from_dict(read_config(folder)) != self.codec.config:
            raise ValueError(
                f"{folder} has another architecture than the recipe's `model`; give its --config"
            )
        weights = load_codec(folder, self.device).state_dict()
        self.codec.load_state_dict(weights)
        self.ema.load_state_dict(weights)
        self.codebooks.restart(self.codec.quantizer)
        self.fresh = False

    @torch.no_grad()
    def _start_from_data(self) -> None:
        """Scale latents to unit size and fill codebooks with real frames, so that learning starts
        in range.
        """
        if self.frozen_encoder:
            raise ValueError(
                "a frozen encoder must be trained; start from a checkpoint or resume a run"
            )
        wave_BS = self._sample().wave
        last = [stage for stage in self.codec.encoder if isinstance(stage, CodecTransformer)][-1]
        assert last.output_proj is not None, (
            "the last encoder stage of a v2 codec has an output projection"
        )
        latent_BTD = self.codec.encode_latent(wave_BS[:, None])
        last.output_proj.weight.div_(latent_BTD.square().mean().sqrt())
        initialise_codebooks(self.codec.quantizer, self.codec.encode_latent(wave_BS[:, None]))
        self.codebooks.restart(self.codec.quantizer)
        self.fresh = False

    # One step

    def prepare(self) -> None:
        """Prepare an update: bring weights into range, and set the dials."""
        if self.fresh:
            self._start_from_data()
        self._turn_dials()

    def capture(self, phase: Phase) -> float:
        """Capture the update of a phase; returns its seconds. On CUDA, capture itself makes a few
        updates.
        """
        self.prepare()
        self.captures[phase] = Captured(
            partial(self.update, phase), device=self.device, pool=self._pool
        )
        return self.captures[phase].seconds

    def step(self) -> dict[str, Tensor]:
        """Make one update, without waiting for the device; the returned losses are valid until the
        next step.
        """
        phase = self.phase
        if phase not in self.captures:
            self.capture(phase)
        self._turn_dials()
        losses = dict(self.captures[phase]())
        queries_NMQ = losses.pop("queries", None)
        self.steps += 1
        self.adversarial_steps += phase == "adversarial"
        if (
            queries_NMQ is not None
            and self.steps % self.config.revive_every == 0
            and self.progress < self.config.revive_until
        ):
            both = [self.codec.quantizer, self.ema.quantizer]
            losses["revived"] = self.codebooks.revive(both, queries_NMQ, self.config.revive_below)
        return losses

    def _turn_dials(self) -> None:
        config = self.config
        share = lr_share(
            self.steps,
            self.progress,
            warmup_steps=config.warmup_steps,
            decay_from=config.decay_from,
            final_lr_share=config.final_lr_share,
        )
        self.dials.generator_lr.fill_(config.generator_lr * share)
        self.dials.discriminator_lr.fill_(config.discriminator_lr * share)
        alone = max(1, config.adversarial_ramp_steps)
        self.dials.ramp.fill_(min(1.0, max(0.0, self.adversarial_steps / alone - 1)))
        self.dials.ema_share.fill_(average_share(self.steps, config.ema_decay))

    def update(self, phase: Phase) -> dict[str, Tensor]:
        """The captured program: sample, forward, backward, both optimisers, averages. Returns
        losses and `queries`.
        """
        batch = self._sample()
        output_BS, found, losses = self._reconstruction(batch)
        if phase == "adversarial":
            crops = self._crops(output_BS, batch.wave)
            losses["discriminator"] = self._update_discriminator(*crops)
            losses |= self._adversarial(*crops)
        self._update_generator(losses)
        self._update_ema()
        if not self.frozen_encoder:
            self.codebooks.follow(self.codec.quantizer, found)
            losses["queries"] = found.queries
        return losses

    def _sample(self) -> Segments:
        config = self.config
        return self.bank.sample(
            config.batch, config.segment_frames, self.frame_samples, config.gain_db
        )

    def _autocast(self, enabled: bool = True) -> torch.autocast:
        on = enabled and self.device.type == "cuda"
        # A cache would keep casts of a warm-up alive during the capture.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on, cache_enabled=False)

    def _quantised(self, codec: MossCodec, wave_BS: Tensor, levels_B: Tensor) -> Quantised:
        """A frozen encoder computes in float32, as the product does, so that the decoder gets the
        product's codes.
        """
        learns = torch.is_grad_enabled() and not self.frozen_encoder
        with torch.set_grad_enabled(learns), self._autocast(not self.frozen_encoder):
            latent_BTD = codec.encode_latent(wave_BS[:, None])
            return quantise(
                codec.quantizer, latent_BTD, levels_B, first_levels=self.config.phoneme_levels
            )

    def _decoded(self, codec: MossCodec, found: Quantised) -> Tensor:
        with self._autocast():
            return codec.decode_latent(found.latent)[:, 0]

    def reconstruct(self, codec: MossCodec, wave_BS: Tensor) -> tuple[Tensor, Quantised]:
        """(waveform, result of `quantise`), with all levels and without dropout."""
        levels_B = torch.full((len(wave_BS),), codec.config.n_codebooks, device=self.device)
        found = self._quantised(codec, wave_BS, levels_B)
        return self._decoded(codec, found), found

    def _reconstruction(self, batch: Segments) -> tuple[Tensor, Quantised, dict[str, Tensor]]:
        config, codec = self.config, self.codec
        size = len(batch.wave)
        levels_B = torch.full((size,), codec.config.n_codebooks, device=self.device)
        fewer_B = torch.randint(1, codec.config.n_codebooks + 1, (size,), device=self.device)
        levels_B = torch.where(
            torch.rand(size, device=self.device) < config.level_dropout, fewer_B, levels_B
        )
        found = self._quantised(codec, batch.wave, levels_B)
        output_BS = self._decoded(codec, found)
        mel, stft = self.spectral(output_BS, batch.wave)
        losses = {"mel": mel, "stft": stft, "wave": F.l1_loss(output_BS, batch.wave)}
        if not self.frozen_encoder:
            logits = self.phoneme_head(found.first)
            losses["commitment"] = found.commitment
            losses["phoneme"] = F.cross_entropy(logits.flatten(0, 2), batch.labels.flatten())
        return output_BS, found, losses

    def _crops(self, output_BS: Tensor, target_BS: Tensor) -> tuple[Tensor, Tensor]:
        """The same random segment of both, another one for every sample of the batch."""
        batch, samples = output_BS.shape
        length = self.config.adversarial_frames * self.frame_samples
        starts_B1 = torch.randint(0, samples - length + 1, (batch, 1), device=self.device)
        places_BS = starts_B1 + torch.arange(length, device=self.device)
        return output_BS.gather(1, places_BS), target_BS.gather(1, places_BS)

    def _update_discriminator(self, output_BS: Tensor, target_BS: Tensor) -> Tensor:
        both_BS = torch.cat([target_BS, output_BS.detach()])
        with self._autocast():
            scores, _ = self.discriminator(both_BS)
        real, fake = zip(*(score.chunk(2) for score in scores), strict=True)
        loss = discriminator_loss(list(real), list(fake))
        self.discriminator_side.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.discriminator.parameters(), self.config.max_grad_norm * 10)
        self.discriminator_side.step()
        return loss.detach()

    def _adversarial(self, output_BS: Tensor, target_BS: Tensor) -> dict[str, Tensor]:
        self.discriminator.requires_grad_(False)
        with self._autocast():
            fake_scores, fake_features = self.discriminator(output_BS)
            with torch.no_grad():
                _, real_features = self.discriminator(target_BS)
        self.discriminator.requires_grad_(True)
        return {
            "adversarial": adversarial_loss(fake_scores),
            "features": feature_loss(real_features, fake_features),
        }

    def _update_generator(self, losses: dict[str, Tensor]) -> None:
        """One optimiser step on the weighted sum of `losses`; adds `grad_norm` and `total`."""
        weights = self.config.loss_weights.model_dump()
        terms = {name: weights[name] * value for name, value in losses.items() if name in weights}
        for name in terms.keys() & {"adversarial", "features"}:
            terms[name] = terms[name] * self.dials.ramp
        total = torch.stack(list(terms.values())).sum()
        self.generator_side.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        parameters = [*self.codec.parameters(), *self.phoneme_head.parameters()]
        losses["grad_norm"] = nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        self.generator_side.step()
        losses["total"] = total

    def _update_ema(self) -> None:
        """All parameters with codebooks, or only the trainable ones with a frozen encoder."""
        pairs = [
            (average, value)
            for average, value in zip(self.ema.parameters(), self.codec.parameters(), strict=True)
            if value.requires_grad or not self.frozen_encoder
        ]
        averages, values = map(list, zip(*pairs, strict=True))
        move_average(averages, values, self.dials.ema_share)

    @torch.no_grad()
    def validate(self) -> tuple[dict[str, float], Tensor]:
        """EMA figures on held-out segments, and [2, S] of originals above reconstructions to listen
        to.
        """
        batch = self.bank.validation(
            self.config.validation_segments, self.config.segment_frames, self.frame_samples
        )
        output_BS, found = self.reconstruct(self.ema, batch.wave)
        mel, stft = self.spectral(output_BS, batch.wave)
        figures = {"mel": mel.item(), "stft": stft.item()}
        if not self.frozen_encoder:
            right = self.phoneme_head(found.first).argmax(-1) == batch.labels
            figures["phoneme_accuracy"] = right.float().mean().item()
        return figures, torch.stack([batch.wave[:6].flatten(), output_BS[:6].flatten()])
