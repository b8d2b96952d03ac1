"""Training results that travel: EMA weights in small files, for `export` and for going on elsewhere."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

if TYPE_CHECKING:
    from training.train_codec import CodecTrainer

#: Largest file, so that each can be fetched through narrow channels.
PART_BYTES = 15 * 2**20
_DISCRIMINATOR = "discriminator.safetensors"
_NUMBERS = ("steps", "seconds", "adversarial_steps")


def write_parts(out: Path, trainer: CodecTrainer) -> None:
    """`part-N.safetensors` (EMA weights, phoneme head, code usage; float32) and the discriminators (bf16)."""
    tensors = {
        f"{module}.{name}": value.detach().cpu().contiguous()
        for module in ("ema", "phoneme_head", "usage")
        for name, value in getattr(trainer, module).state_dict().items()
    }
    discriminator = {k: v.to(torch.bfloat16).cpu().contiguous() for k, v in trainer.discriminator.state_dict().items()}
    numbers = {name: str(getattr(trainer, name)) for name in _NUMBERS}
    with tempfile.TemporaryDirectory() as scratch:
        for i, part in enumerate(_parts(tensors)):
            save_file(part, Path(scratch) / f"part-{i}.safetensors", metadata=numbers)
        save_file(discriminator, Path(scratch) / _DISCRIMINATOR)
        for file in Path(scratch).iterdir():
            shutil.copyfile(file, out / file.name)


def _parts(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if size + tensor.nbytes > PART_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    return parts


def ema_weights(folder: Path) -> dict[str, Tensor]:
    """The EMA codec's state dict from an OUT folder."""
    return {name.removeprefix("ema."): tensor for name, tensor in _read(folder).items() if name.startswith("ema.")}


def _read(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("part-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no part-*.safetensors; give the OUT folder of train_codec")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def read_parts(folder: Path, trainer: CodecTrainer) -> None:
    """Go on from an OUT folder: the EMA weights become the weights too; optimisers start anew."""
    tensors = _read(folder)
    for target, module in (("codec", "ema"), ("ema", "ema"), ("phoneme_head", "phoneme_head"), ("usage", "usage")):
        state = {k.removeprefix(f"{module}."): v for k, v in tensors.items() if k.startswith(f"{module}.")}
        getattr(trainer, target).load_state_dict(state)
    trainer.discriminator.load_state_dict(load_file(folder / _DISCRIMINATOR))
    with safe_open(folder / "part-0.safetensors", "pt") as file:
        numbers = file.metadata()
    trainer.steps, trainer.adversarial_steps = int(numbers["steps"]), int(numbers["adversarial_steps"])
    trainer.seconds = float(numbers["seconds"])
