"""Train the codec: the product's own `MossCodec`, on speech written by `make_data speech`.

    python -m training.train_codec --data DATA [DATA ...] --work WORK --out OUT --minutes 9.5
    python -m training.train_codec ... --start CHECKPOINT                    # improve a codec
    python -m training.train_codec ... --start CHECKPOINT --frozen-encoder   # its decoder alone
    python -m training.train_codec --smoke                                   # check a new GPU

Time is the budget: learning rates, the start of the adversarial part and the end of codebook care
follow the share of `total_minutes` that has passed over all runs together. A run resumes from WORK
(everything) or, on a new machine, from OUT of an earlier run (EMA weights and discriminators), with
the same options. Both are written every `checkpoint_seconds` and at the end.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from training.codec_trainer import CodecTrainer
from training.data import SpeechBank
from training.graph import training_device
from training.make_data import write_wav
from training.optimise import Pace, fetch, log_row
from training.recipe import CONFIG, Recipe
from training.smoke import smoke

CHECKPOINT = "checkpoint.pt"


def train(trainer: CodecTrainer, *, minutes: float, work: Path, out: Path) -> None:
    """Train until `minutes` or the total time have passed."""
    config, start, before = trainer.config, time.monotonic(), trainer.seconds
    saved = start
    work.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    with (work / "log.jsonl").open("a", encoding="utf-8") as log:
        pace = Pace()
        while True:
            phase = trainer.phase
            if phase not in trainer.captures:
                seconds = trainer.capture(phase)
                event = {"event": f"captured {phase}", "capture_seconds": round(seconds, 2)}
                log_row(log, {"step": trainer.steps} | event)
                pace = Pace()
            losses = trainer.step()
            pace.steps += 1
            now = time.monotonic()
            trainer.seconds = before + now - start
            over = now - start >= 60 * minutes or trainer.progress >= 1
            if trainer.steps % config.log_every == 0 or over:
                row = fetch(losses)
                head = {"step": trainer.steps, "seconds": round(trainer.seconds, 1), "phase": phase}
                log_row(log, head | {"step_ms": pace.step_ms(), **_memory(trainer.device), **row})
                pace = Pace()
                if not all(map(math.isfinite, row.values())):
                    _go_back(trainer, work)
                    log_row(
                        log,
                        {
                            "step": trainer.steps,
                            "event": "a loss was not finite; back to the last checkpoint",
                        },
                    )
                    continue
            if over or now - saved > config.checkpoint_seconds:
                saved = now
                figures, heard = trainer.validate()
                usage = (
                    {}
                    if trainer.frozen_encoder
                    else {"codes_in_use": _rounded(trainer.codebooks.perplexity())}
                )
                log_row(log, {"step": trainer.steps, "validation": figures, **usage})
                save(trainer, work, out, heard)
                pace = Pace()
            if over:
                return


def _memory(device: torch.device) -> dict[str, float]:
    if device.type != "cuda":
        return {}
    return {"peak_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 2)}


def _rounded(values: list[float]) -> list[int]:
    return [round(value) for value in values]


def _go_back(trainer: CodecTrainer, work: Path) -> None:
    """Return to the last good state; the next data and noise differ, and the spent time still
    counts.
    """
    file = work / CHECKPOINT
    if not file.exists():
        raise RuntimeError(
            "a loss was not finite before the first checkpoint; lower the learning rates"
        )
    trainer.load_state(torch.load(file, map_location=trainer.device) | {"seconds": trainer.seconds})


def save(trainer: CodecTrainer, work: Path, out: Path, heard: Tensor) -> None:
    """Write the whole state to WORK, and the inputs of resuming and of exporting, in files of at
    most 15 MiB, to OUT.
    """
    torch.save(trainer.state(), work / f"{CHECKPOINT}.tmp")
    (work / f"{CHECKPOINT}.tmp").replace(work / CHECKPOINT)
    trainer.save_parts(out)
    pcm = (heard.clamp(-1, 1) * 32767).short().cpu()
    write_wav(out / "validation.wav", pcm.flatten().numpy())
    (out / "log.jsonl").write_bytes((work / "log.jsonl").read_bytes())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="a few steps on made-up sound, plain and captured, timed",
    )
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        action="extend",
        help="DATA folders; the first one validates",
    )
    parser.add_argument("--work", type=Path, help="full checkpoints; stays on the machine")
    parser.add_argument(
        "--out", type=Path, help="weights, log and a listening sample, small enough to fetch"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        default=None,
        help="OUT of an earlier run, used when WORK holds nothing",
    )
    parser.add_argument(
        "--start",
        type=Path,
        default=None,
        help="checkpoint folder to begin from, when there is nothing to resume",
    )
    parser.add_argument(
        "--frozen-encoder",
        action="store_true",
        help="train the decoder alone; encoder and quantizer keep every bit",
    )
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--batch", type=int, default=None, help="instead of the configured one")
    parser.add_argument(
        "--total-minutes", type=float, default=None, help="instead of the configured ones"
    )
    args = parser.parse_args()
    missing = [
        f"--{name}" for name in ("data", "work", "out", "minutes") if getattr(args, name) is None
    ]
    if missing and not args.smoke:
        parser.error(f"{', '.join(missing)} must be given (or --smoke)")
    return args


def main() -> None:
    args = _arguments()
    device = training_device()
    recipe = Recipe.load(args.config)
    if args.smoke:
        smoke(recipe.adapted(batch=args.batch), device)
        return
    recipe = recipe.adapted(
        started=args.start is not None,
        frozen_encoder=args.frozen_encoder,
        batch=args.batch,
        total_minutes=args.total_minutes,
    )
    bank = SpeechBank.read(args.data, device, validation_seconds=recipe.train.validation_seconds)
    trainer = CodecTrainer(recipe, device, bank, frozen_encoder=args.frozen_encoder)
    if (args.work / CHECKPOINT).exists():
        trainer.load_state(torch.load(args.work / CHECKPOINT, map_location=device))
    elif args.resume is not None:
        trainer.load_parts(args.resume)
    elif args.start is not None:
        trainer.start_from(args.start)
    print(
        f"{bank.hours:.2f} h of speech; from step {trainer.steps}, {trainer.seconds:.0f} s",
        flush=True,
    )
    train(trainer, minutes=args.minutes, work=args.work, out=args.out)


if __name__ == "__main__":
    main()
