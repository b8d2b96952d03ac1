"""Train the talker: the product's own `MossLocalTalker`, on codes written by `encode_data`.

    python -m training.train_talker --codes CODES [CODES ...] --work WORK --out OUT --minutes 9.5

Time is the budget: the learning rate follows the share of `total_minutes` that has passed over all
runs together. WORK holds everything that a run needs to go on; OUT an official checkpoint of the
averaged weights in files of at most 15 MiB. A run on another machine can begin with those (`--start
OUT/talker`): a new one, its time and steps counted from 0. Both are written every
`checkpoint_seconds` and at the end.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hocket.core import StrictModel
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.prompt import MossLocalPrompt
from hocket.text.tokenizer import TextTokenizer
from training.export_talker import export_talker, load_talker
from training.graph import Captured, new_pool, training_device
from training.optimise import Pace, adamw, average_share, fetch, log_row, lr_share, move_average
from training.talker_data import (
    Batch,
    Batches,
    BatchShape,
    CodeBank,
    Examples,
    PromptConfig,
    batch_shapes,
)
from training.talker_model import TalkerLosses, add_dropout, new_talker, talker_losses, with_noise
from training.tokenizer import write_tokenizer

CONFIG = Path(__file__).parent / "configs" / "talker_mini.json"
CHECKPOINT = "checkpoint.pt"
_SHARD_BYTES = 15 * 2**20
_VALIDATION_BATCHES = 6


class TrainConfig(StrictModel):
    seed: int
    #: Rows of a batch, padding included, and the lengths that sequences are padded to.
    rows_per_batch: int
    row_buckets: tuple[int, ...]
    #: Maximum share of predicting rows in a batch.
    frame_share: float
    #: Number of texts that are kept for validation, with all their voices.
    held_out_lines: int
    total_minutes: float
    warmup_steps: int
    #: Shares of the total time: until `decay_from` the learning rate is full, then it falls
    #: linearly.
    decay_from: float
    final_lr_share: float
    lr: float
    betas: tuple[float, float]
    weight_decay: float
    max_grad_norm: float
    ema_decay: float
    dropout: float
    #: Share of the codes read back that are replaced by random ones.
    code_noise: float
    #: Weight of the first codebook, which carries the words; the others have 1.
    first_code_weight: float
    stop_weight: float
    log_every: int
    checkpoint_seconds: float


class TalkerRecipe(StrictModel):
    #: The talker's `config.json` without the tokenizer's part.
    model: dict[str, Any]
    prompts: PromptConfig
    train: TrainConfig

    @classmethod
    def load(cls, path: Path = CONFIG) -> TalkerRecipe:
        return cls.model_validate_json(path.read_text(encoding="utf-8"))

    def model_with(self, tokenizer: dict[str, Any]) -> dict[str, Any]:
        """The whole `config.json`, given the tokenizer's vocabulary size and special ids."""
        backbone = self.model["qwen3_config"] | {"vocab_size": tokenizer["vocab_size"]}
        return self.model | tokenizer | {"qwen3_config": backbone, "language_config": backbone}


class TalkerTrainer:
    """Owns everything that training changes. `step` is one update; it never waits for the
    device.
    """

    def __init__(self, recipe: TalkerRecipe, model: dict[str, Any], device: torch.device) -> None:
        self.config, self.model, self.device = recipe.train, model, device
        torch.manual_seed(self.config.seed)
        self.shape = MossLocalConfig.from_dict(model)
        self.talker = new_talker(self.shape).to(device)
        add_dropout(self.talker, self.config.dropout)
        self.ema = copy.deepcopy(self.talker).requires_grad_(False).eval()
        self.parameters: list[Tensor] = list(self.talker.parameters())
        self._lr = torch.zeros((), device=device)
        self._ema_share = torch.zeros((), device=device)
        self.optimizer = adamw(
            self.parameters,
            self._lr,
            betas=self.config.betas,
            weight_decay=self.config.weight_decay,
        )
        weights = torch.ones(self.shape.n_vq)
        weights[0] = self.config.first_code_weight
        self._code_weights = (weights / weights.sum()).to(device)
        self._graphs: dict[tuple[int, int], Captured] = {}
        self._pool = new_pool(device)
        self.steps = 0
        #: Training time of all runs together.
        self.seconds = 0.0

    @property
    def progress(self) -> float:
        """Share of the total training time, 0 .. 1."""
        return min(1.0, self.seconds / (60 * self.config.total_minutes))

    def start_from(self, checkpoint: Path) -> None:
        """Take the weights of an official checkpoint folder."""
        state = load_talker(checkpoint, torch.float32, self.device).state_dict()
        self.talker.load_state_dict(state)
        self.ema.load_state_dict(state)

    def state(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("talker", "ema", "optimizer")}
        return parts | {"steps": self.steps, "seconds": self.seconds}

    def load_state(self, state: dict[str, Any]) -> None:
        self.steps, self.seconds = state["steps"], state["seconds"]
        self.talker.load_state_dict(state["talker"])
        self.ema.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Make one update; the next step of the same shape overwrites the returned losses."""
        config = self.config
        share = lr_share(
            self.steps,
            self.progress,
            warmup_steps=config.warmup_steps,
            decay_from=config.decay_from,
            final_lr_share=config.final_lr_share,
        )
        self._lr.fill_(config.lr * share)
        self._ema_share.fill_(average_share(self.steps, config.ema_decay))
        self.steps += 1
        inputs = _tensors(batch)
        rows_BTR = inputs[0]
        key = (rows_BTR.shape[0], rows_BTR.shape[1])
        if key not in self._graphs:
            self.talker.train()
            self._graphs[key] = Captured(self._update, inputs, device=self.device, pool=self._pool)
        return self._graphs[key](*inputs)

    def _autocast(self) -> torch.autocast:
        on_gpu = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False)

    def _update(
        self, rows_BTR: Tensor, places_M: Tensor, targets_MN: Tensor, stops_M: Tensor
    ) -> dict[str, Tensor]:
        """The captured program: losses, gradients, weights, average."""
        self.optimizer.zero_grad(set_to_none=True)
        noisy_BTR = with_noise(rows_BTR.long(), self.shape, self.config.code_noise)
        with self._autocast():
            found = talker_losses(self.talker, noisy_BTR, places_M, targets_MN, stops_M)
        total = (found.codes * self._code_weights).sum() + self.config.stop_weight * found.stop
        torch.autograd.backward(total)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm, foreach=True)
        self.optimizer.step()
        move_average(list(self.ema.parameters()), self.parameters, self._ema_share)
        return {"total": total.detach(), "grad_norm": norm} | _figures(found)

    @torch.no_grad()
    def validate(self, batches: list[Batch]) -> dict[str, float]:
        """Mean figures of the averaged weights, without noise."""
        rows = []
        for batch in batches:
            rows_BTR, *others = (x.to(self.device) for x in _tensors(batch))
            with self._autocast():
                rows.append(_figures(talker_losses(self.ema, rows_BTR.long(), *others)))
        return {
            name: round(torch.stack([row[name] for row in rows]).mean().item(), 4)
            for name in rows[0]
        }


def _tensors(batch: Batch) -> list[Tensor]:
    return [
        torch.from_numpy(part) for part in (batch.rows, batch.places, batch.targets, batch.stops)
    ]


def _figures(found: TalkerLosses) -> dict[str, Tensor]:
    codes = found.codes.detach()
    return {
        "first": codes[0],
        "rest": codes[1:].mean(),
        "stop": found.stop.detach(),
        "first_right": found.first_right,
    }


class _Stream(IterableDataset[Batch]):
    """Endless training batches, each worker's from its own seed."""

    def __init__(self, examples: Examples, batches: Batches, seed: int) -> None:
        self._examples, self._batches, self._seed = examples, batches, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        rng = np.random.default_rng([self._seed, 0 if worker is None else worker.id])
        return self._batches.stream(self._examples.stream(rng))


def _as_it_is(batch: Any) -> Any:
    return batch


class TalkerData:
    """Batches for training and for validation, from CODES folders."""

    def __init__(
        self, folders: list[Path], recipe: TalkerRecipe, model: dict[str, Any], tokenizer: Path
    ) -> None:
        train, config = recipe.train, MossLocalConfig.from_dict(model)
        self._train = train
        self.bank = CodeBank(
            folders, codebooks=config.n_vq, held_out_lines=train.held_out_lines, seed=train.seed
        )
        prompt = MossLocalPrompt(
            config, TextTokenizer.load(tokenizer, vocab_size=config.vocab_size)
        )
        self.shapes: list[BatchShape] = batch_shapes(
            train.row_buckets, train.rows_per_batch, train.frame_share
        )
        self._batches = Batches(
            self.shapes, config.pad_token_id, config.audio_pad_code, config.n_vq
        )
        self._training = Examples(self.bank, self.bank.training, prompt, recipe.prompts)
        self._held_out = Examples(self.bank, self.bank.held_out, prompt, recipe.prompts)

    def stream(self, seed: int, workers: int) -> Iterator[Batch]:
        """Yield batches endlessly, made by `workers` processes."""
        source = _Stream(self._training, self._batches, seed)
        return iter(DataLoader(source, batch_size=None, num_workers=workers, collate_fn=_as_it_is))

    def validation(self) -> list[Batch]:
        """The validation batches, the same at every call."""
        stream = self._held_out.stream(np.random.default_rng(self._train.seed))
        return list(itertools.islice(self._batches.stream(stream), _VALIDATION_BATCHES))


def train(
    trainer: TalkerTrainer, data: TalkerData, *, minutes: float, work: Path, out: Path, workers: int
) -> None:
    """Train until `minutes` or the total time have passed."""
    config, start, before = trainer.config, time.monotonic(), trainer.seconds
    saved = start
    work.mkdir(parents=True, exist_ok=True)
    held_out = data.validation()
    with (work / "log.jsonl").open("a", encoding="utf-8") as log:
        pace = Pace()
        for batch in data.stream(config.seed + trainer.steps, workers):
            losses = trainer.step(batch)
            pace.steps += 1
            now = time.monotonic()
            trainer.seconds = before + now - start
            over = now - start >= 60 * minutes or trainer.progress >= 1
            if trainer.steps % config.log_every == 0 or over:
                row = fetch(losses)
                place = {
                    "step": trainer.steps,
                    "seconds": round(trainer.seconds, 1),
                    "step_ms": pace.step_ms(),
                }
                log_row(log, place | row)
                pace = Pace()
                if not all(map(math.isfinite, row.values())):
                    raise FloatingPointError(
                        f"a loss is not finite at step {trainer.steps}; go on from WORK with less "
                        "lr"
                    )
            if over or now - saved > config.checkpoint_seconds:
                saved = now
                log_row(log, {"step": trainer.steps, "validation": trainer.validate(held_out)})
                save(trainer, work, out)
                pace = Pace()
            if over:
                return


def save(trainer: TalkerTrainer, work: Path, out: Path) -> None:
    """Write the whole state to WORK, and the averaged weights as a checkpoint, with the log, to
    OUT.
    """
    torch.save(trainer.state(), work / f"{CHECKPOINT}.tmp")
    (work / f"{CHECKPOINT}.tmp").replace(work / CHECKPOINT)
    weights = dict(trainer.ema.state_dict())
    export_talker(
        weights, trainer.model, work / "tokenizer.json", out / "talker", shard_bytes=_SHARD_BYTES
    )
    (out / "talker_log.jsonl").write_bytes((work / "log.jsonl").read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument(
        "--codes", type=Path, nargs="+", required=True, help="folders written by encode_data"
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="full checkpoints; stays on the machine"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="the checkpoint and the log, small enough to fetch"
    )
    parser.add_argument(
        "--start",
        type=Path,
        default=None,
        help="a checkpoint folder to begin with, not random weights",
    )
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument(
        "--total-minutes", type=float, default=None, help="instead of the configured ones"
    )
    parser.add_argument("--workers", type=int, default=6, help="processes that lay batches out")
    args = parser.parse_args()
    device = training_device()
    recipe = TalkerRecipe.load(args.config)
    if args.total_minutes is not None:
        changed = recipe.train.model_copy(update={"total_minutes": args.total_minutes})
        recipe = recipe.model_copy(update={"train": changed})
    args.out.mkdir(parents=True, exist_ok=True)
    model = recipe.model_with(write_tokenizer(args.work))
    data = TalkerData(args.codes, recipe, model, args.work)
    trainer = TalkerTrainer(recipe, model, device)
    if (args.work / CHECKPOINT).exists():
        trainer.load_state(torch.load(args.work / CHECKPOINT, map_location=device))
    elif args.start is not None:
        trainer.start_from(args.start)
    count = sum(parameter.numel() for parameter in trainer.parameters)
    print(
        f"{data.bank.hours:.1f} h; {count:,} parameters; step {trainer.steps}, "
        f"{trainer.seconds:.0f} s",
        flush=True,
    )
    train(trainer, data, minutes=args.minutes, work=args.work, out=args.out, workers=args.workers)


if __name__ == "__main__":
    main()
