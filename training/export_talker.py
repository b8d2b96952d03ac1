"""Write the trained talker as an official checkpoint (sources: MOSS 1.9), and read such a folder
back.

    python -m training.export_talker --source CHECKPOINT --target FOLDER

joins the shards that training writes into one file; `--source` and `--target` are both whole
checkpoint folders.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from hocket.checkpoint.hub import read_config
from hocket.checkpoint.weights import load_weights
from hocket.models.moss_local.config import MossLocalConfig
from hocket.models.moss_local.talker import MossLocalTalker
from hocket.models.moss_local.weights import talker_weight_table, tied_copies


def export_talker(
    weights: dict[str, Tensor],
    model: dict[str, Any],
    tokenizer: Path,
    target: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int | None = None,
) -> None:
    """Write `weights` of a `MossLocalTalker` under the official names, without the tied heads,
    which are copies.

    `tokenizer` is the tokenizer.json to put beside them. With `shard_bytes` no file is larger than
    that (one tensor may be), and an index says where each tensor is.
    """
    stored: dict[str, Tensor] = {}
    rows_done: dict[str, int] = {}
    for entry in talker_weight_table(MossLocalConfig.from_dict(model), dtype):
        first = rows_done.get(entry.parameter, 0)
        rows_done[entry.parameter] = first + entry.shape[0]
        value = weights[entry.parameter][first : first + entry.shape[0]]
        stored[entry.names[0]] = value.to(dtype).cpu().contiguous()
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("model*.safetensors*"):
        old.unlink()
    (target / "config.json").write_text(json.dumps(model, indent=1) + "\n", encoding="utf-8")
    if tokenizer != target / "tokenizer.json":
        shutil.copyfile(tokenizer, target / "tokenizer.json")
    shards = [stored] if shard_bytes is None else _shards(stored, shard_bytes)
    if len(shards) == 1:
        save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
        (target / "model.safetensors").chmod(0o644)
        return
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, target / name, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in stored.values())},
        "weight_map": {
            key: name for name, shard in zip(names, shards, strict=True) for key in shard
        },
    }
    (target / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=1) + "\n", encoding="utf-8"
    )


def _shards(stored: dict[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in stored.items():
        if (
            shards[-1]
            and sum(held.nbytes for held in shards[-1].values()) + tensor.nbytes > shard_bytes
        ):
            shards.append({})
        shards[-1][name] = tensor
    return shards


def load_talker(folder: Path, dtype: torch.dtype, device: torch.device) -> MossLocalTalker:
    """Load the talker of a checkpoint folder."""
    config = MossLocalConfig.from_dict(read_config(folder))
    with torch.device("meta"):
        talker = MossLocalTalker(config)
    load_weights(
        talker, folder, talker_weight_table(config, dtype), device=device, tied=tied_copies(config)
    )
    return talker


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    args = parser.parse_args()
    talker = load_talker(args.source, torch.float32, torch.device("cpu"))
    export_talker(
        dict(talker.state_dict()),
        read_config(args.source),
        args.source / "tokenizer.json",
        args.target,
    )
    size = (args.target / "model.safetensors").stat().st_size
    count = sum(p.numel() for p in talker.parameters())
    print(f"{count:,} parameters, {size:,} bytes in {args.target}")


if __name__ == "__main__":
    main()
