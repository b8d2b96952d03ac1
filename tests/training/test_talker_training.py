"""The talker's tokenizer, data, training step and export, on synthetic codes."""

from __future__ import annotations

import itertools
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from training.encode_data import pack_codes
from training.export_talker import export_talker, load_talker
from training.talker_data import CodeBank, read_codes
from training.talker_model import new_talker, talker_losses, with_noise
from training.tokenizer import train_tokenizer, write_tokenizer
from training.train_talker import TalkerData, TalkerRecipe, TalkerTrainer, train

from hocket.core import SpeechRequest
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.prompt import MossLocalPrompt
from hocket.text.tokenizer import TextTokenizer

CODEBOOKS = 3
WORDS = ("one", "two", "three", "four", "five", "six")


def _recipe() -> TalkerRecipe:
    """The shipped recipe with a small model."""
    recipe = TalkerRecipe.load()
    model = recipe.model | {
        "n_vq": CODEBOOKS,
        "hidden_size": 32,
        "audio_codebook_sizes": [1024] * CODEBOOKS,
    }
    model["qwen3_config"] = model["qwen3_config"] | {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    model["gpt2_config"] = model["gpt2_config"] | {"n_embd": 32, "n_head": 2, "n_inner": 48}
    settings = recipe.train.model_copy(
        update={
            "rows_per_batch": 512,
            "row_buckets": (96, 192),
            "held_out_lines": 2,
            "total_minutes": 0.2,
            "warmup_steps": 5,
            "lr": 0.01,
            "ema_decay": 0.9,
            "log_every": 20,
        }
    )
    return recipe.model_copy(update={"model": model, "train": settings})


def _write_codes(folder: Path, rng: np.random.Generator) -> None:
    """Every word has the same four frames, shifted by the voice, so that a talker can learn them
    from the text alone.
    """
    folder.mkdir()
    codes: list[NDArray[np.uint16]] = []
    lines: list[dict[str, Any]] = []
    for i in range(60):
        words = [WORDS[j] for j in rng.integers(0, len(WORDS), 1 + i % 4)]
        voice = {"af_heart": 1.0} if i % 3 == 0 else {"am_puck": 0.6, "bf_emma": 0.4}
        shift = 0 if i % 3 == 0 else 100
        frames = [
            (WORDS.index(word) * 10 + frame + shift, 7, 9) for word in words for frame in range(4)
        ]
        first = sum(len(part) for part in codes)
        lines.append(
            {
                "first": first,
                "frames": len(frames),
                "text": " ".join(words) + ".",
                "voice": voice,
                "speed": 1.0,
            }
        )
        codes.append(np.array(frames, np.uint16))
    with lzma.open(folder / "lines.jsonl.xz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    np.save(folder / "codes-0.npy", pack_codes(np.concatenate(codes)))


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("codes") / "a"
    _write_codes(folder, np.random.default_rng(1))
    return folder


def _parts(codes: Path, work: Path) -> tuple[TalkerRecipe, dict[str, Any], TalkerData]:
    recipe = _recipe()
    model = recipe.model_with(write_tokenizer(work))
    return recipe, model, TalkerData([codes], recipe, model, work)


class TestTokenizer:
    def test_a_template_line_is_one_token_and_a_letter_is_one(self, tmp_path: Path) -> None:
        write_tokenizer(tmp_path)
        tokenizer = TextTokenizer.load(tmp_path)
        for piece in (
            "user\n",
            "assistant\n",
            "<user_inst>\n- Reference(s):\n",
            "None",
            "\n</user_inst>",
        ):
            assert len(tokenizer.encode(piece)) == 1
        assert len(tokenizer.encode("- Quality:\nNone\n")) == 1
        assert len(tokenizer.encode("None of us")) == len("None of us")

    def test_nothing_is_lost(self) -> None:
        tokenizer = train_tokenizer()
        text = "Größe, 東京 and \U0001f600!\n- Text:\n<|im_end|"
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text

    def test_a_prompt_without_its_text_takes_few_rows(self, tmp_path: Path) -> None:
        recipe = TalkerRecipe.load()
        config = MossLocalConfig.from_dict(recipe.model_with(write_tokenizer(tmp_path)))
        prompt = MossLocalPrompt(config, TextTokenizer.load(tmp_path, vocab_size=config.vocab_size))
        assert len(prompt.build(SpeechRequest(text="x"), []).rows) <= 20


class TestData:
    def test_codes_come_back_and_held_out_texts_stay_out(self, codes: Path) -> None:
        bank = CodeBank([codes, codes], codebooks=CODEBOOKS, held_out_lines=2, seed=0)
        assert bank.codes.shape[1] == CODEBOOKS
        assert len(bank.held_out) >= 2
        assert not {u.text for u in bank.held_out} & {u.text for u in bank.training}
        last = max(bank.training, key=lambda u: u.first)
        assert last.first + last.frames > len(bank.codes) // 2, (
            "the second folder's frames follow the first's"
        )

    def test_missing_codes_are_told(self, codes: Path) -> None:
        with pytest.raises(ValueError, match="lacks the codes of"):
            read_codes(codes, 10_000, CODEBOOKS)

    def test_a_batch_predicts_each_frame_from_the_row_before(
        self, codes: Path, tmp_path: Path
    ) -> None:
        _, model, data = _parts(codes, tmp_path)
        pad = MossLocalConfig.from_dict(model).audio_pad_code
        for batch in itertools.islice(data.stream(0, 0), 5):
            rows = batch.rows.reshape(-1, batch.rows.shape[-1])
            goes_on = batch.stops == 0
            np.testing.assert_array_equal(
                rows[batch.places[goes_on] + 1, 1:], batch.targets[goes_on]
            )
            assert (batch.targets[batch.stops == 1] == pad).all()
            assert (batch.stops == 1).sum() == (rows[:, 0] == model["im_end_token_id"]).sum(), (
                "one stop per sequence"
            )

    def test_every_kind_of_prompt_occurs(self, codes: Path, tmp_path: Path) -> None:
        _, model, data = _parts(codes, tmp_path)
        batches = list(itertools.islice(data.stream(0, 0), 12))
        user = sum(
            int((batch.rows[..., 0] == model["audio_user_slot_token_id"]).sum())
            for batch in batches
        )
        frames = sum(
            int((batch.rows[..., 0] == model["audio_assistant_slot_token_id"]).sum())
            for batch in batches
        )
        predicted = sum(int((batch.stops == 0).sum()) for batch in batches)
        assert user > 0, "references to clone"
        assert frames > predicted, "prefixes of continuations"

    def test_noise_leaves_texts_and_padding_alone(self, codes: Path, tmp_path: Path) -> None:
        _, model, data = _parts(codes, tmp_path)
        config = MossLocalConfig.from_dict(model)
        rows = torch.from_numpy(next(data.stream(0, 0)).rows).long()
        noisy = with_noise(rows, config, 0.5)
        is_code = rows[..., 1:] != config.audio_pad_code
        assert torch.equal(noisy[..., 0], rows[..., 0])
        assert torch.equal(noisy[..., 1:][~is_code], rows[..., 1:][~is_code])
        assert 0.4 < (noisy[..., 1:][is_code] != rows[..., 1:][is_code]).float().mean() < 0.6


class TestTraining:
    def test_it_learns_what_the_text_says(self, codes: Path, tmp_path: Path) -> None:
        recipe, model, data = _parts(codes, tmp_path / "work")
        trainer = TalkerTrainer(recipe, model, torch.device("cpu"))
        held_out = data.validation()
        before = trainer.validate(held_out)
        for batch in itertools.islice(data.stream(0, 0), 150):
            trainer.step(batch)
        after = trainer.validate(held_out)
        assert before["first"] > 6.5, "chance is ln 1024"
        assert after["first"] < 0.6 * before["first"]
        assert after["stop"] < 0.3

    def test_a_run_leaves_a_checkpoint_that_goes_on(self, codes: Path, tmp_path: Path) -> None:
        work, out = tmp_path / "work", tmp_path / "out"
        recipe, model, data = _parts(codes, work)
        trainer = TalkerTrainer(recipe, model, torch.device("cpu"))
        train(trainer, data, minutes=0.03, work=work, out=out, workers=0)
        again = TalkerTrainer(recipe, model, torch.device("cpu"))
        again.load_state(torch.load(work / "checkpoint.pt"))
        assert again.steps == trainer.steps > 0
        again.step(next(data.stream(0, 0)))
        elsewhere = TalkerTrainer(recipe, model, torch.device("cpu"))
        elsewhere.start_from(out / "talker")
        for mine, theirs in zip(elsewhere.parameters, trainer.ema.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.to(torch.bfloat16).float(), rtol=0, atol=0)
        assert '"validation"' in (out / "talker_log.jsonl").read_text()

    def test_padding_and_the_future_do_not_reach_a_prediction(
        self, codes: Path, tmp_path: Path
    ) -> None:
        _, model, data = _parts(codes, tmp_path)
        config = MossLocalConfig.from_dict(model)
        torch.manual_seed(0)
        talker = new_talker(config)
        batch = next(data.stream(0, 0))
        tensors = [
            torch.from_numpy(x) for x in (batch.rows, batch.places, batch.targets, batch.stops)
        ]
        rows = tensors[0].long()
        last = int(tensors[1].max())
        spoilt = rows.clone().flatten(0, 1)
        spoilt[last + 1 :, 0] = 5
        one = talker_losses(talker, rows, *tensors[1:])
        other = talker_losses(talker, spoilt.view_as(rows), *tensors[1:])
        torch.testing.assert_close(one.codes, other.codes)


def test_a_sharded_checkpoint_equals_a_whole_one(tmp_path: Path) -> None:
    model = _recipe().model_with(write_tokenizer(tmp_path))
    talker = new_talker(MossLocalConfig.from_dict(model))
    weights = dict(talker.state_dict())
    tokenizer = tmp_path / "tokenizer.json"
    export_talker(weights, model, tokenizer, tmp_path / "whole", dtype=torch.float32)
    export_talker(
        weights, model, tokenizer, tmp_path / "shards", dtype=torch.float32, shard_bytes=100_000
    )
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    for folder in ("whole", "shards"):
        loaded = load_talker(tmp_path / folder, torch.float32, torch.device("cpu")).state_dict()
        assert all(torch.equal(loaded[name], value) for name, value in weights.items())
