"""A tiny codec learns on a CPU, its quantizer's training pass is the product's, and the export
loads as the product.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from training.checkpoint import ema_weights
from training.codec_trainer import CodecTrainer
from training.curves import read_log
from training.data import SpeechBank
from training.export import export_codec, load_codec
from training.losses import mel_filters, short_time_spectrum
from training.quantise import quantise
from training.recipe import Recipe
from training.train_codec import train

CPU = torch.device("cpu")


def _run(trainer: CodecTrainer, steps: int) -> list[dict[str, float]]:
    return [{name: float(value) for name, value in trainer.step().items()} for _ in range(steps)]


def test_training_lowers_the_loss_and_the_discriminators_join(
    recipe: Recipe, bank: SpeechBank
) -> None:
    trainer = CodecTrainer(recipe, CPU, bank)
    plain = _run(trainer, 25)
    mel = [row["mel"] for row in plain]
    assert sum(mel[-5:]) < 0.8 * sum(mel[:5])
    assert "discriminator" not in plain[-1]

    before = next(trainer.discriminator.parameters()).clone()
    trainer.seconds = 60 * recipe.train.total_minutes * 0.5
    adversarial = _run(trainer, 4)
    assert all(math.isfinite(value) for row in adversarial for value in row.values())
    assert adversarial[-1]["features"] > 0
    assert not torch.equal(before, next(trainer.discriminator.parameters()))


def test_the_training_quantizer_codes_as_the_product_does(recipe: Recipe, bank: SpeechBank) -> None:
    trainer = CodecTrainer(recipe, CPU, bank)
    _run(trainer, 3)
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
            torch.testing.assert_close(
                found.latent, quantizer.decode(codes_BTN[..., :levels]), rtol=1e-5, atol=1e-5
            )


def test_a_run_can_be_resumed_and_its_export_is_the_product(
    recipe: Recipe, bank: SpeechBank, tmp_path: Path
) -> None:
    trainer = CodecTrainer(recipe, CPU, bank)
    work, out = tmp_path / "work", tmp_path / "out"
    train(trainer, minutes=0.01, work=work, out=out)
    assert {"mel", "validation.mel", "codes_in_use.2"} <= read_log(out / "log.jsonl").keys()

    resumed = CodecTrainer(recipe, CPU, bank)
    resumed.load_state(torch.load(work / "checkpoint.pt"))
    assert (resumed.steps, resumed.seconds) == (trainer.steps, trainer.seconds)
    moved = CodecTrainer(recipe, CPU, bank)
    moved.load_parts(out)
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
        torch.testing.assert_close(
            loaded.decode_whole(codes_TN), expected_BS[b : b + 1].detach(), rtol=1e-4, atol=1e-5
        )


def test_parts_stay_small(
    recipe: Recipe, bank: SpeechBank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.checkpoint.PART_BYTES", 300_000)
    CodecTrainer(recipe, CPU, bank).save_parts(tmp_path)
    assert len(list(tmp_path.glob("part-*.safetensors"))) > 1
    assert ema_weights(tmp_path).keys() == CodecTrainer(recipe, CPU, bank).ema.state_dict().keys()


def test_mel_filters_cover_every_band() -> None:
    filters = mel_filters(8, 64, 24_000)
    assert filters.shape == (33, 8)
    torch.testing.assert_close(filters.sum(0), torch.ones(8))


@pytest.mark.parametrize("samples", [960, 1000])
def test_short_time_spectra_and_their_gradients_are_those_of_stft(samples: int) -> None:
    wave_BS = torch.randn(2, samples, dtype=torch.float64, requires_grad=True)
    taper_W = torch.hann_window(64, dtype=torch.float64)
    mine_BTF = short_time_spectrum(wave_BS, taper_W)
    theirs_BFT = torch.stft(wave_BS, 64, 16, window=taper_W, return_complex=True)
    torch.testing.assert_close(mine_BTF, theirs_BFT.mT)
    weight = torch.randn_like(mine_BTF)
    gradients = [
        torch.autograd.grad((torch.view_as_real(s) * torch.view_as_real(weight)).sum(), wave_BS)[0]
        for s in (mine_BTF, theirs_BFT.mT)
    ]
    torch.testing.assert_close(*gradients)
