"""A tiny codec learns on a CPU, its quantizer's training pass is the product's, and the export loads as the product."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training.checkpoint import ema_weights, read_parts, write_parts
from training.curves import read_log
from training.data import SpeechBank
from training.export import export_codec, load_codec
from training.losses import mel_filters
from training.quantise import quantise
from training.recipe import CONFIG, Recipe
from training.teacher import FRAME_SAMPLES
from training.train_codec import CodecTrainer, train

CPU = torch.device("cpu")


def _stage(input_dim: int, width: int, output_dim: int) -> dict[str, Any]:
    template: dict[str, Any] = json.loads(CONFIG.read_text())["model"]["encoder_kwargs"][1]
    sizes = {"input_dimension": input_dim, "d_model": width, "output_dimension": output_dim}
    return template | sizes | {"num_heads": 2, "num_layers": 1, "dim_feedforward": 2 * width, "context_duration": 0.32}


@pytest.fixture
def recipe() -> Recipe:
    raw = json.loads(CONFIG.read_text())
    patch = {"module_type": "PatchedPretransform", "patch_size": 1920}
    halves = (
        {"module_type": "PatchedPretransform", "patch_size": 4},
        {"module_type": "PatchedPretransform", "patch_size": 480},
    )
    raw["model"]["encoder_kwargs"] = [patch, _stage(1920, 64, 32)]
    raw["model"]["decoder_kwargs"] = [_stage(32, 64, 128), halves[0], _stage(32, 64, 480), halves[1]]
    raw["model"]["quantizer_kwargs"] |= {
        "input_dim": 32, "rvq_dim": 32, "output_dim": 32, "num_quantizers": 3, "codebook_size": 64,
    }  # fmt: skip
    raw["train"] |= {
        "batch": 6, "segment_frames": 6, "adversarial_frames": 2, "validation_seconds": 4.0, "validation_segments": 6,
        "generator_lr": 2e-3, "warmup_steps": 5, "adversarial_ramp_steps": 5, "log_every": 5, "revive_every": 5,
    }  # fmt: skip
    raw["discriminator"] = {"periods": [3], "period_channels": [8, 8], "ffts": [256], "spectral_channels": [4, 4]}
    return Recipe.model_validate_json(json.dumps(raw))


@pytest.fixture
def bank(tmp_path: Path) -> SpeechBank:
    """Twelve seconds of gliding harmonic tones whose label is the tone."""
    rng = np.random.default_rng(0)
    frames = 480
    pitch_S = np.repeat(rng.uniform(100, 300, frames // 8), 8 * FRAME_SAMPLES)
    phase_S = 2 * math.pi * np.cumsum(pitch_S) / 24_000
    wave_S = 0.2 * np.sum([np.sin(k * phase_S) / k for k in range(1, 6)], axis=0)
    (wave_S * 32767).astype(np.int16).tofile(tmp_path / "audio.i16")
    (pitch_S[::FRAME_SAMPLES] / 10).astype(np.uint8).tofile(tmp_path / "phonemes.u8")
    return SpeechBank(tmp_path, CPU, validation_seconds=4.0)


def _run(trainer: CodecTrainer, bank: SpeechBank, steps: int) -> list[dict[str, float]]:
    config = trainer.config
    rows = []
    for _ in range(steps):
        batch = bank.sample(config.batch, config.segment_frames, trainer.frame_samples, config.gain_db)
        rows.append({name: float(value) for name, value in trainer.step(batch).items()})
    return rows


def test_training_lowers_the_loss_and_the_discriminators_join(recipe: Recipe, bank: SpeechBank) -> None:
    trainer = CodecTrainer(recipe, CPU)
    plain = _run(trainer, bank, 25)
    mel = [row["mel"] for row in plain]
    assert sum(mel[-5:]) < 0.8 * sum(mel[:5])
    assert "discriminator" not in plain[-1]

    before = next(trainer.discriminator.parameters()).clone()
    trainer.seconds = 60 * recipe.train.total_minutes * 0.5
    adversarial = _run(trainer, bank, 4)
    assert all(math.isfinite(value) for row in adversarial for value in row.values())
    assert adversarial[-1]["features"] > 0
    assert not torch.equal(before, next(trainer.discriminator.parameters()))


def test_the_training_quantizer_codes_as_the_product_does(recipe: Recipe, bank: SpeechBank) -> None:
    trainer = CodecTrainer(recipe, CPU)
    _run(trainer, bank, 3)
    quantizer = trainer.codec.quantizer
    # Levels start on subspaces of their own; only where they overlap does the residual matter.
    for level in quantizer.levels:
        level.in_proj.weight.data += 0.3 * torch.randn_like(level.in_proj.weight)
        level.out_proj.weight.data += 0.3 * torch.randn_like(level.out_proj.weight)
    quantizer.build_tables()
    latent_BTD = torch.randn(4, 9, 32)
    with torch.no_grad():
        for levels in (1, 3):
            found = quantise(quantizer, latent_BTD, torch.full((4,), levels), first_levels=1)
            codes_BTN = quantizer.encode(latent_BTD, 3)
            assert torch.equal(found.codes, codes_BTN)
            torch.testing.assert_close(found.latent, quantizer.decode(codes_BTN[..., :levels]), rtol=1e-5, atol=1e-5)


def test_a_run_can_be_resumed_and_its_export_is_the_product(recipe: Recipe, bank: SpeechBank, tmp_path: Path) -> None:
    trainer = CodecTrainer(recipe, CPU)
    work, out = tmp_path / "work", tmp_path / "out"
    train(trainer, bank, minutes=0.01, work=work, out=out)
    assert {"mel", "validation.mel", "codes_in_use.2"} <= read_log(out / "log.jsonl").keys()

    resumed = CodecTrainer(recipe, CPU)
    resumed.load_state(torch.load(work / "checkpoint.pt"))
    assert (resumed.steps, resumed.seconds) == (trainer.steps, trainer.seconds)
    moved = CodecTrainer(recipe, CPU)
    read_parts(out, moved)
    assert moved.steps == trainer.steps
    for name, value in trainer.ema.state_dict().items():
        torch.testing.assert_close(moved.codec.state_dict()[name], value)

    export_codec(ema_weights(out), recipe.model, tmp_path / "checkpoint", torch.float32)
    loaded = load_codec(tmp_path / "checkpoint", CPU)
    wave_BS = bank.validation(2, 6, trainer.frame_samples).wave
    trainer.ema.quantizer.build_tables()
    expected_BS, found = trainer.reconstruct(trainer.ema, wave_BS)
    for b in range(2):
        codes_TN = loaded.encode_whole(wave_BS[b : b + 1])
        assert torch.equal(codes_TN, found.codes[b])
        torch.testing.assert_close(loaded.decode_whole(codes_TN), expected_BS[b : b + 1].detach(), rtol=1e-4, atol=1e-5)


def test_parts_stay_small(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.checkpoint.PART_BYTES", 300_000)
    write_parts(tmp_path, CodecTrainer(recipe, CPU))
    assert len(list(tmp_path.glob("part-*.safetensors"))) > 1
    assert ema_weights(tmp_path).keys() == CodecTrainer(recipe, CPU).ema.state_dict().keys()


def test_mel_filters_cover_every_band() -> None:
    filters = mel_filters(8, 64, 24_000)
    assert filters.shape == (33, 8)
    torch.testing.assert_close(filters.sum(0), torch.ones(8))
