"""Runs from a checkpoint, with a frozen encoder, over several growing folders; and the captured
step.
"""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from training.checkpoint import ema_weights
from training.codec_trainer import CodecTrainer
from training.data import SpeechBank, complete_lines
from training.encode_data import unpack_codes
from training.export import MODEL_FILE, export_codec, load_codec
from training.graph import Captured, new_pool
from training.recipe import CONFIG, Recipe
from training.smoke import smoke
from training.teacher import FRAME_SAMPLES
from training.train_codec import train

from hocket.models.moss_codec.codec import MossCodec
from tests.support.tiny_codec import write_speech
from training import encode_data

CPU = torch.device("cpu")


@pytest.fixture
def more_data(tmp_path: Path) -> Path:
    write_speech(tmp_path / "more", seed=1)
    return tmp_path / "more"


def _steps(trainer: CodecTrainer, count: int) -> list[dict[str, float]]:
    return [{name: float(value) for name, value in trainer.step().items()} for _ in range(count)]


@pytest.fixture
def checkpoint(recipe: Recipe, bank: SpeechBank, tmp_path: Path) -> Path:
    """An exported codec that has learned a little, bf16 matrices."""
    trainer = CodecTrainer(recipe, CPU, bank)
    _steps(trainer, 12)
    trainer.save_parts(tmp_path)
    export_codec(ema_weights(tmp_path), recipe.model, tmp_path / "checkpoint", torch.bfloat16)
    return tmp_path / "checkpoint"


def _codes(codec: MossCodec, bank: SpeechBank) -> Tensor:
    wave_BS = bank.validation(3, 6, 1920).wave
    return torch.stack(codec.encode_batch([wave_S[None] for wave_S in wave_BS]))


def test_a_run_starts_from_an_exported_codec(
    recipe: Recipe, bank: SpeechBank, checkpoint: Path
) -> None:
    trainer = CodecTrainer(recipe.adapted(started=True), CPU, bank)
    trainer.start_from(checkpoint)
    assert (
        trainer.config.generator_lr == recipe.train.start.generator_lr != recipe.train.generator_lr
    )
    exported = load_codec(checkpoint, CPU)
    for name, value in exported.state_dict().items():
        assert torch.equal(trainer.codec.state_dict()[name], value)
        assert torch.equal(trainer.ema.state_dict()[name], value)
    torch.testing.assert_close(trainer.codebooks.sums[1], exported.quantizer.levels[1].codebook)

    # The whole codec learns, and the discriminators never join.
    assert all(math.isfinite(value) for row in _steps(trainer, 3) for value in row.values())
    name = "encoder.1.layers.0.ffn_in.weight"
    assert not torch.equal(trainer.codec.state_dict()[name], exported.state_dict()[name])
    trainer.seconds = 60 * trainer.config.total_minutes
    assert (trainer.progress, trainer.phase) == (1.0, "reconstruct")


def test_discriminators_join_gently(recipe: Recipe, bank: SpeechBank, checkpoint: Path) -> None:
    trainer = CodecTrainer(
        recipe.adapted(started=True, frozen_encoder=True), CPU, bank, frozen_encoder=True
    )
    trainer.start_from(checkpoint)
    alone = _steps(trainer, recipe.train.adversarial_ramp_steps)
    assert {"discriminator", "adversarial", "features"} <= alone[0].keys()
    assert trainer.dials.ramp == 0
    rising = _steps(trainer, recipe.train.adversarial_ramp_steps)
    assert 0 < trainer.dials.ramp < 1
    assert all(math.isfinite(value) for row in alone + rising for value in row.values())


def test_what_is_given_goes_before_what_a_stage_has() -> None:
    recipe = Recipe.load(CONFIG)
    stages = {
        "start": recipe.adapted(started=True),
        "frozen": recipe.adapted(started=True, frozen_encoder=True),
    }
    assert recipe.adapted() == recipe
    for name, adapted in stages.items():
        wanted = getattr(recipe.train, name).model_dump()
        assert adapted.train.model_dump(include=set(wanted)) == wanted
    given = recipe.adapted(started=True, frozen_encoder=True, batch=3, total_minutes=0.5).train
    assert (given.batch, given.total_minutes, given.level_dropout) == (
        3,
        0.5,
        recipe.train.frozen.level_dropout,
    )


def test_a_checkpoint_of_another_shape_is_refused(
    recipe: Recipe, bank: SpeechBank, checkpoint: Path
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["quantizer_kwargs"]["num_quantizers"] = 2
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="another architecture"):
        CodecTrainer(recipe, CPU, bank).start_from(checkpoint)


def test_with_a_frozen_encoder_codes_stay_and_the_decoder_learns(
    recipe: Recipe, bank: SpeechBank, checkpoint: Path, tmp_path: Path
) -> None:
    trainer = CodecTrainer(
        recipe.adapted(started=True, frozen_encoder=True, total_minutes=1),
        CPU,
        bank,
        frozen_encoder=True,
    )
    trainer.start_from(checkpoint)
    before = {name: value.clone() for name, value in trainer.codec.state_dict().items()}
    losses = _steps(trainer, 12)
    assert "phoneme" not in losses[0]
    assert "commitment" not in losses[0]
    for module in (trainer.codec, trainer.ema):
        for name, value in module.state_dict().items():
            if name.startswith("decoder."):
                assert name.endswith("scale1") or not torch.equal(value, before[name]), name
            else:
                assert torch.equal(value, before[name]), name

    # The steps see the very codes of the product.
    start = load_codec(checkpoint, CPU)
    wave_BS = bank.validation(3, 6, trainer.frame_samples).wave
    assert torch.equal(trainer.reconstruct(trainer.codec, wave_BS)[1].codes, _codes(start, bank))

    out = tmp_path / "out"
    train(trainer, minutes=0.005, work=tmp_path / "work", out=out)
    export_codec(
        ema_weights(out), recipe.model, tmp_path / "next", torch.bfloat16, frozen=checkpoint
    )
    old, new = load_file(checkpoint / MODEL_FILE), load_file(tmp_path / "next" / MODEL_FILE)
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old if not name.startswith("decoder."))
    codes_BTN = _codes(start, bank)
    after = load_codec(tmp_path / "next", CPU)
    assert torch.equal(codes_BTN, _codes(after, bank))
    assert not torch.equal(start.decode_whole(codes_BTN[0]), after.decode_whole(codes_BTN[0]))


def test_a_frozen_run_resumes_and_is_not_mixed_with_others(
    recipe: Recipe, bank: SpeechBank, checkpoint: Path, tmp_path: Path
) -> None:
    trainer = CodecTrainer(recipe, CPU, bank, frozen_encoder=True)
    with pytest.raises(ValueError, match="must be trained"):
        trainer.step()
    trainer.start_from(checkpoint)
    train(trainer, minutes=0.005, work=tmp_path / "work", out=tmp_path / "out")

    resumed = CodecTrainer(recipe, CPU, bank, frozen_encoder=True)
    resumed.load_state(torch.load(tmp_path / "work" / "checkpoint.pt"))
    moved = CodecTrainer(recipe, CPU, bank, frozen_encoder=True)
    moved.load_parts(tmp_path / "out")
    for other in (resumed, moved):
        assert other.steps == trainer.steps
        assert not other.fresh
        _steps(other, 2)
        assert torch.equal(
            other.codec.quantizer.levels[0].codebook, trainer.codec.quantizer.levels[0].codebook
        )
    with pytest.raises(ValueError, match="frozen_encoder=True"):
        CodecTrainer(recipe, CPU, bank).load_state(torch.load(tmp_path / "work" / "checkpoint.pt"))


def test_the_learning_rate_is_the_dial_also_after_loading(recipe: Recipe, bank: SpeechBank) -> None:
    trainer = CodecTrainer(recipe, CPU, bank)
    _steps(trainer, 1)
    trainer.load_state(trainer.state())
    assert not trainer.captures
    trainer.dials.generator_lr.fill_(0.5)
    assert all(float(group["lr"]) == 0.5 for group in trainer.generator_side.param_groups)
    # The dial moves the weights: at a rate of zero only averages without decay could.
    trainer.capture("reconstruct")
    trainer.dials.generator_lr.zero_()
    weights = [p.clone() for p in trainer.codec.decoder.parameters()]
    trainer.captures["reconstruct"]()
    assert all(
        torch.equal(a, b) for a, b in zip(weights, trainer.codec.decoder.parameters(), strict=True)
    )


def test_several_folders_are_one_recording_of_complete_lines(data: Path, more_data: Path) -> None:
    # A writer stopped within a line, with samples of the last utterance still in its buffer.
    with (data / "lines.jsonl").open("a") as file:
        file.write('{"start": 288000, "sam')
    with (data / "audio.i16").open("r+b") as file:
        file.truncate(400 * FRAME_SAMPLES * 2)
    assert [line["start"] // FRAME_SAMPLES for line in complete_lines(data)] == [0, 7, 50, 121]
    both = SpeechBank.read([data, more_data], CPU, validation_seconds=2.0)
    second = SpeechBank.read([more_data], CPU, validation_seconds=2.0)
    assert both.frames == 300 + 480
    assert torch.equal(both.pcm_S[300 * FRAME_SAMPLES :], second.pcm_S)
    assert torch.equal(both.labels_F[300:], second.labels_F)
    (more_data / "lines.jsonl").write_text("")
    with pytest.raises(ValueError, match="no complete utterance"):
        SpeechBank.read([data, more_data], CPU, validation_seconds=2.0)


def test_encoded_data_holds_the_codes_of_every_utterance(
    data: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode_data, "_BATCH", 3)
    arguments = [
        "encode_data",
        "--data",
        str(data),
        "--codec",
        str(checkpoint),
        "--out",
        str(tmp_path / "codes"),
    ]
    monkeypatch.setattr("sys.argv", arguments)
    encode_data.main()
    with lzma.open(tmp_path / "codes" / "lines.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [json.loads(row) for row in file.read().split("\n")[:-1]]
    codec = load_codec(checkpoint, CPU)
    audio = np.fromfile(data / "audio.i16", np.int16)
    total = sum(row["frames"] for row in rows)
    codes_TN = unpack_codes(
        np.load(tmp_path / "codes" / "codes-0.npy"), total, codec.config.n_codebooks
    )
    lines = complete_lines(data)
    assert [row["text"] for row in rows] == [line["text"] for line in lines]
    differing = 0
    for row, line in zip(rows, lines, strict=True):
        wave_S = (
            torch.from_numpy(audio[line["start"] : line["start"] + line["samples"]]).float() / 32768
        )
        alone_TN = codec.encode_whole(wave_S[None]).numpy()
        assert row["frames"] == len(alone_TN)
        differing += (
            (codes_TN[row["first"] : row["first"] + row["frames"]] != alone_TN).any(1).sum()
        )
    # A sum's rounding depends on the batch: where two codes are equally near, either is right.
    assert differing <= 0.02 * total


def test_smoke_passes_and_notices_steps_that_do_not_learn(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe.adapted(batch=2)
    smoke(recipe, CPU, steps=12)
    assert capsys.readouterr().out.count("ms/step") == 6
    monkeypatch.setattr(CodecTrainer, "step", lambda self: {"mel": torch.ones(())})
    with pytest.raises(RuntimeError, match="do not learn"):
        smoke(recipe, CPU, steps=12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_captured_steps_share_parameters_and_dials() -> None:
    device = torch.device("cuda", 0)
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    rate = torch.tensor(0.1, device=device)
    optimizer = torch.optim.AdamW([weight], lr=rate, fused=True, capturable=True)

    def pull(target: Tensor) -> dict[str, Tensor]:
        loss = (weight - target).square().sum()
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        optimizer.step()
        return {"loss": loss, "noise": torch.rand((), device=device)}

    pool = new_pool(device)
    up = Captured(pull, [torch.full((4,), 5.0, device=device)], device=device, pool=pool)
    down = Captured(pull, [torch.full((4,), -5.0, device=device)], device=device, pool=pool)
    for step, target in ((up, 5.0), (down, -5.0), (up, 5.0)):
        rows = [
            {k: v.item() for k, v in step(torch.full((4,), target, device=device)).items()}
            for _ in range(40)
        ]
        assert rows[-1]["loss"] < 0.9 * max(row["loss"] for row in rows)
        assert rows[-1]["noise"] != rows[-2]["noise"]
    rate.zero_()
    still = weight.detach().clone()
    up(torch.full((4,), 5.0, device=device))
    assert torch.equal(still, weight)
    with pytest.raises(ValueError, match="captured for"):
        up(torch.zeros(3, device=device))
