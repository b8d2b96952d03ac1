"""Train the codec: the product's own `MossCodec`, on speech written by `make_data speech`.

    python -m training.train_codec --data DATA --work WORK --out OUT --minutes 9.5

Time is the budget: learning rates, the start of the adversarial part and the end of codebook care follow the share of
`total_minutes` that has passed over all runs together. A run resumes from WORK (everything) or, on a new machine, from
OUT of an earlier run (EMA weights and discriminators). Both are written every `checkpoint_seconds` and at the end.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_codec.config import MossCodecConfig
from hocket.models.moss_codec.transformer import CodecLayer, CodecTransformer
from training.checkpoint import read_parts, write_parts
from training.data import LABELS_PER_FRAME, PHONEME_CLASSES, Segments, SpeechBank
from training.discriminator import Discriminator
from training.losses import SpectralLoss, adversarial_loss, discriminator_loss, feature_loss
from training.make_data import write_wav
from training.quantise import Codebooks, initialise_codebooks, initialise_projections, quantise
from training.recipe import CONFIG, Recipe, TrainConfig

CHECKPOINT = "checkpoint.pt"


class PhonemeHead(nn.Module):
    """Training only: phonemes of a frame from what the first quantizer levels say of it."""

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
    """Computes in float32 also under autocast: samples in bf16 would carry noise 54 dB below speech, which the
    discriminators hear."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name that nn.Linear uses)
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def new_codec(model: dict[str, Any], layer_scale: float) -> MossCodec:
    """A codec with random weights, its weight normalisation folded; all but the codebooks take gradients."""
    codec = MossCodec(MossCodecConfig.from_dict(model))
    codec.finalize()
    initialise_projections(codec.quantizer)
    for module in codec.modules():
        if isinstance(module, CodecLayer):
            nn.init.constant_(module.scale1, layer_scale)
            nn.init.constant_(module.scale2, layer_scale)
    last = [stage for stage in codec.decoder if isinstance(stage, CodecTransformer)][-1]
    assert last.output_proj is not None, "the last decoder stage of a v2 codec has an output projection"
    last.output_proj = Float32Linear(last.output_proj.in_features, last.output_proj.out_features, bias=False)
    codec.requires_grad_(True)
    for level in codec.quantizer.levels:
        level.codebook.requires_grad_(False)
    return codec


def optimizer(modules: list[nn.Module], lr: float, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW without decay on vectors."""
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=config.betas, fused=True)


class CodecTrainer:
    """Owns everything that training changes. `step` is one update of both sides."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.config, self.device = recipe, recipe.train, device
        torch.manual_seed(self.config.seed)
        self.codec = new_codec(recipe.model, self.config.layer_scale).to(device)
        self.ema = copy.deepcopy(self.codec).requires_grad_(False)
        self.frame_samples = self.codec.config.frame_samples
        self.phoneme_head = PhonemeHead(self.codec.config.quantizer.rvq_dim).to(device)
        self.discriminator = Discriminator(recipe.discriminator).to(device)
        self.codebooks = Codebooks(self.codec.quantizer, self.config.codebook_decay)
        self.spectral = SpectralLoss(self.codec.config.sample_rate).to(device)
        self.generator_side = optimizer([self.codec, self.phoneme_head], self.config.generator_lr, self.config)
        self.discriminator_side = optimizer([self.discriminator], self.config.discriminator_lr, self.config)
        self.steps = 0
        #: Training time of all runs together.
        self.seconds = 0.0
        self.adversarial_steps = 0

    @property
    def progress(self) -> float:
        """Share of the total training time, 0 .. 1."""
        return min(1.0, self.seconds / (60 * self.config.total_minutes))

    def state(self) -> dict[str, Any]:
        parts = ("codec", "ema", "phoneme_head", "discriminator", "codebooks", "generator_side", "discriminator_side")
        numbers = {name: getattr(self, name) for name in ("steps", "seconds", "adversarial_steps")}
        return {name: getattr(self, name).state_dict() for name in parts} | numbers

    def load_state(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            if name in ("steps", "seconds", "adversarial_steps"):
                setattr(self, name, value)
            else:
                getattr(self, name).load_state_dict(value)

    def reconstruct(self, codec: MossCodec, wave_BS: Tensor) -> tuple[Tensor, Any]:
        """All levels, no dropout: (waveform, what `quantise` says)."""
        levels_B = torch.full((len(wave_BS),), codec.config.n_codebooks, device=self.device)
        with self._autocast():
            found = quantise(
                codec.quantizer,
                codec.encode_latent(wave_BS[:, None]),
                levels_B,
                first_levels=self.config.phoneme_levels,
            )
            return codec.decode_latent(found.latent)[:, 0], found

    def step(self, batch: Segments) -> dict[str, Tensor]:
        """One update. Nothing here waits for the device; the returned losses are tensors."""
        if self.steps == 0:
            self._start_from(batch)
        self._set_learning_rates()
        adversarial = self.progress >= self.config.adversarial_from
        output_BS, found, losses = self._reconstruction(batch)
        if adversarial:
            crops = self._crops(output_BS, batch.wave)
            losses["discriminator"] = self._update_discriminator(*crops)
            losses |= self._adversarial(*crops)
        self._update_generator(losses)
        self.codebooks.follow(self.codec.quantizer, found)
        if self.steps % self.config.revive_every == 0 and self.progress < self.config.revive_until:
            both = [self.codec.quantizer, self.ema.quantizer]
            losses["revived"] = self.codebooks.revive(both, found.queries, self.config.revive_below)
        self.steps += 1
        self.adversarial_steps += adversarial
        return {name: value.detach() for name, value in losses.items()}

    @torch.no_grad()
    def _start_from(self, batch: Segments) -> None:
        """Latents of unit size and codebooks of real frames, so that learning starts in range."""
        last = [stage for stage in self.codec.encoder if isinstance(stage, CodecTransformer)][-1]
        assert last.output_proj is not None, "the last encoder stage of a v2 codec has an output projection"
        latent_BTD = self.codec.encode_latent(batch.wave[:, None])
        last.output_proj.weight.div_(latent_BTD.square().mean().sqrt())
        initialise_codebooks(self.codec.quantizer, self.codec.encode_latent(batch.wave[:, None]))
        self.codebooks.restart(self.codec.quantizer)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def _reconstruction(self, batch: Segments) -> tuple[Tensor, Any, dict[str, Tensor]]:
        config, codec = self.config, self.codec
        size = len(batch.wave)
        levels_B = torch.full((size,), codec.config.n_codebooks, device=self.device)
        fewer_B = torch.randint(1, codec.config.n_codebooks + 1, (size,), device=self.device)
        levels_B = torch.where(torch.rand(size, device=self.device) < config.level_dropout, fewer_B, levels_B)
        with self._autocast():
            latent_BTD = codec.encode_latent(batch.wave[:, None])
            found = quantise(codec.quantizer, latent_BTD, levels_B, first_levels=config.phoneme_levels)
            output_BS = codec.decode_latent(found.latent)[:, 0]
        mel, stft = self.spectral(output_BS, batch.wave)
        logits = self.phoneme_head(found.first)
        losses = {
            "mel": mel,
            "stft": stft,
            "wave": F.l1_loss(output_BS, batch.wave),
            "commitment": found.commitment,
            "phoneme": F.cross_entropy(logits.flatten(0, 2), batch.labels.flatten()),
        }
        return output_BS, found, losses

    def _crops(self, output_BS: Tensor, target_BS: Tensor) -> tuple[Tensor, Tensor]:
        """The same random stretch of both."""
        length = self.config.adversarial_frames * self.frame_samples
        start = int(torch.randint(0, output_BS.shape[1] - length + 1, ()))
        return output_BS[:, start : start + length], target_BS[:, start : start + length]

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
        return {"adversarial": adversarial_loss(fake_scores), "features": feature_loss(real_features, fake_features)}

    def _update_generator(self, losses: dict[str, Tensor]) -> None:
        ramp = min(1.0, self.adversarial_steps / max(1, self.config.adversarial_ramp_steps))
        weights = self.config.loss_weights.model_dump()
        scale = {"adversarial": ramp, "features": ramp}
        total = torch.stack([weights[k] * scale.get(k, 1.0) * v for k, v in losses.items() if k in weights]).sum()
        self.generator_side.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        parameters = [*self.codec.parameters(), *self.phoneme_head.parameters()]
        losses["grad_norm"] = nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        self.generator_side.step()
        losses["total"] = total
        # Early on the average follows quickly, so that it is not made of the random start.
        decay = min(self.config.ema_decay, (1 + self.steps) / (10 + self.steps))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.ema.parameters()), list(self.codec.parameters()), 1 - decay)

    def _set_learning_rates(self) -> None:
        config = self.config
        warm = min(1.0, (self.steps + 1) / max(1, config.warmup_steps))
        fall = max(0.0, (self.progress - config.decay_from) / (1 - config.decay_from))
        share = warm * (1 - (1 - config.final_lr_share) * fall)
        for side, lr in (
            (self.generator_side, config.generator_lr),
            (self.discriminator_side, config.discriminator_lr),
        ):
            for group in side.param_groups:
                group["lr"] = lr * share

    @torch.no_grad()
    def validate(self, bank: SpeechBank) -> tuple[dict[str, float], Tensor]:
        """EMA figures on held-out segments, and [2, S] of originals above reconstructions to listen to."""
        batch = bank.validation(self.config.validation_segments, self.config.segment_frames, self.frame_samples)
        output_BS, found = self.reconstruct(self.ema, batch.wave)
        mel, stft = self.spectral(output_BS, batch.wave)
        right = self.phoneme_head(found.first).argmax(-1) == batch.labels
        heard = torch.stack([batch.wave[:6].flatten(), output_BS[:6].flatten()])
        return {"mel": mel.item(), "stft": stft.item(), "phoneme_accuracy": right.float().mean().item()}, heard


def train(trainer: CodecTrainer, bank: SpeechBank, *, minutes: float, work: Path, out: Path) -> None:
    """Steps until `minutes` or the total time have passed."""
    config, start, before = trainer.config, time.monotonic(), trainer.seconds
    saved, logged, logged_steps = start, start, trainer.steps
    work.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    with (work / "log.jsonl").open("a", encoding="utf-8") as log:
        while True:
            batch = bank.sample(config.batch, config.segment_frames, trainer.frame_samples, config.gain_db)
            losses = trainer.step(batch)
            now = time.monotonic()
            trainer.seconds = before + now - start
            over = now - start >= 60 * minutes or trainer.progress >= 1
            if trainer.steps % config.log_every == 0 or over:
                row = {name: round(value.item(), 5) for name, value in losses.items()}
                step_ms = 1000 * (time.monotonic() - logged) / max(1, trainer.steps - logged_steps)
                logged, logged_steps = time.monotonic(), trainer.steps
                _log(
                    log,
                    {"step": trainer.steps, "seconds": round(trainer.seconds, 1), "step_ms": round(step_ms, 1), **row},
                )
                if not all(value == value for value in row.values()):
                    # Back to the last good state: other data and noise follow, and the lease is not lost.
                    trainer.load_state(
                        torch.load(work / "checkpoint.pt", map_location=trainer.device) | {"seconds": trainer.seconds}
                    )
                    _log(log, {"step": trainer.steps, "event": "a loss was not finite; back to the last checkpoint"})
                    continue
            if over or now - saved > config.checkpoint_seconds:
                saved = now
                figures, heard = trainer.validate(bank)
                usage = [round(value) for value in trainer.codebooks.perplexity()]
                _log(log, {"step": trainer.steps, "validation": figures, "codes_in_use": usage})
                save(trainer, work, out, heard)
            if over:
                return


def _log(log: TextIO, row: dict[str, Any]) -> None:
    line = json.dumps(row)
    log.write(line + "\n")
    log.flush()
    print(line, flush=True)


def save(trainer: CodecTrainer, work: Path, out: Path, heard: Tensor) -> None:
    """The whole state to WORK; to OUT, in files of at most 15 MiB, what a new machine needs to go on or to export."""
    torch.save(trainer.state(), work / f"{CHECKPOINT}.tmp")
    (work / f"{CHECKPOINT}.tmp").replace(work / CHECKPOINT)
    write_parts(out, trainer)
    pcm = (heard.clamp(-1, 1) * 32767).short().cpu()
    write_wav(out / "validation.wav", pcm.flatten().numpy())
    (out / "log.jsonl").write_bytes((work / "log.jsonl").read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="full checkpoints; stays on the machine")
    parser.add_argument(
        "--out", type=Path, required=True, help="weights, log and a listening sample, small enough to fetch"
    )
    parser.add_argument("--resume", type=Path, default=None, help="OUT of an earlier run, used when WORK holds nothing")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--batch", type=int, default=None, help="instead of the configured one")
    parser.add_argument("--total-minutes", type=float, default=None, help="instead of the configured ones")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = Recipe.load(args.config)
    changes = {"batch": args.batch, "total_minutes": args.total_minutes}
    changed = recipe.train.model_copy(update={key: value for key, value in changes.items() if value is not None})
    recipe = recipe.model_copy(update={"train": changed})
    trainer = CodecTrainer(recipe, device)
    if (args.work / CHECKPOINT).exists():
        trainer.load_state(torch.load(args.work / CHECKPOINT, map_location=device))
    elif args.resume is not None:
        read_parts(args.resume, trainer)
    bank = SpeechBank(args.data, device, validation_seconds=recipe.train.validation_seconds)
    print(f"{bank.hours:.2f} h of speech; from step {trainer.steps}, {trainer.seconds:.0f} s", flush=True)
    train(trainer, bank, minutes=args.minutes, work=args.work, out=args.out)


if __name__ == "__main__":
    main()
