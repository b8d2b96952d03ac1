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
    from training.codec_trainer import CodecTrainer

#: Largest file, so that each can be fetched through narrow channels.
PART_BYTES = 15 * 2**20
_SAVED = {
    "ema": torch.float32,
    "phoneme_head": torch.float32,
    "codebooks": torch.float32,
    "discriminator": torch.bfloat16,
}
_NUMBERS = ("steps", "seconds", "adversarial_steps")


def write_parts(out: Path, trainer: CodecTrainer) -> None:
    """`part-N.safetensors`: EMA weights, phoneme head and codebook averages in float32, discriminators in bf16."""
    tensors = {
        f"{module}.{name}": value.to(dtype).cpu().contiguous()
        for module, dtype in _SAVED.items()
        for name, value in getattr(trainer, module).state_dict().items()
    }
    numbers = {name: str(getattr(trainer, name)) for name in _NUMBERS}
    # Written elsewhere first: a run that is killed here leaves the files of the save before.
    with tempfile.TemporaryDirectory() as scratch:
        for i, part in enumerate(_parts(tensors)):
            save_file(part, Path(scratch) / f"part-{i}.safetensors", metadata=numbers)
        for file in Path(scratch).iterdir():
            shutil.copyfile(file, out / file.name)


def _parts(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Few parts, none over `PART_BYTES`: large tensors first, each into the first part with room."""
    parts: list[dict[str, Tensor]] = []
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].nbytes):
        for part in parts:
            if sum(held.nbytes for held in part.values()) + tensor.nbytes <= PART_BYTES:
                part[name] = tensor
                break
        else:
            parts.append({name: tensor})
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
    for target, module in {"codec": "ema", **{name: name for name in _SAVED}}.items():
        state = {k.removeprefix(f"{module}."): v for k, v in tensors.items() if k.startswith(f"{module}.")}
        getattr(trainer, target).load_state_dict(state)
    with safe_open(folder / "part-0.safetensors", "pt") as file:
        numbers = file.metadata()
    trainer.steps, trainer.adversarial_steps = int(numbers["steps"]), int(numbers["adversarial_steps"])
    trainer.seconds = float(numbers["seconds"])
    trainer.fresh = False
