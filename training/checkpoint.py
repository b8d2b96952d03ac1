"""Portable training results: EMA weights in small files, for `export` and for resuming on another
machine.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

#: Largest file, so that each can travel through narrow channels.
PART_BYTES = 15 * 2**20


def write_parts(out: Path, tensors: dict[str, Tensor], numbers: dict[str, str]) -> None:
    """Write `part-N.safetensors`, each with the `numbers`."""
    # Written to a temporary folder first, so that a killed run leaves the files of its last save.
    with tempfile.TemporaryDirectory() as scratch:
        for i, part in enumerate(_parts(tensors)):
            save_file(part, Path(scratch) / f"part-{i}.safetensors", metadata=numbers)
        for file in Path(scratch).iterdir():
            shutil.copyfile(file, out / file.name)


def _parts(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Few parts, none over `PART_BYTES`: large tensors first, each into the first part with
    room.
    """
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
    tensors, _ = read_parts(folder)
    return {
        name.removeprefix("ema."): tensor
        for name, tensor in tensors.items()
        if name.startswith("ema.")
    }


def read_parts(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and numbers of an OUT folder."""
    files = sorted(folder.glob("part-*.safetensors"))
    if not files:
        raise FileNotFoundError(
            f"{folder} holds no part-*.safetensors; give the OUT folder of train_codec"
        )
    with safe_open(files[0], "pt") as file:
        numbers = file.metadata()
    return {name: tensor for file in files for name, tensor in load_file(file).items()}, numbers
