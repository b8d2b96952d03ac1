"""Loads safetensors into a module, through one explicit table (sources: MOSS 1.9 and 2.7).

No code of a checkpoint is executed and no name is guessed: the table names every tensor of the
files or lists it as a tied copy, and fills every parameter of the module.

Files are read in slices through one reused buffer instead of mapped: mapped pages would count as
resident memory beside the weights, and tensors in a file need not be aligned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import torch
from torch import Tensor, nn

from hocket.checkpoint.files import open_regular, read_small
from hocket.errors import CheckpointError

#: Dtypes that may be read, by their names in a safetensors header; others are quantised or not
#: weights.
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: Size of the read buffer: the only memory needed beside the weights.
_SLICE_BYTES = 8 * 2**20
#: Longest header that the format allows; an arbitrary file is refused here instead of requesting
#: exabytes.
_MAX_HEADER_BYTES = 100_000_000
_DOWNLOAD_AGAIN = "download the checkpoint again"


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One stored tensor and the parameter (or persistent buffer) it fills.

    Entries that name the same parameter fill it one after another along dimension 0, in table
    order; q, k and v become one fused projection that way. Their rows must add up to the
    parameter's, and their dtypes must agree.
    """

    #: Path in the module, as in `state_dict()`.
    parameter: str
    #: Accepted names in a checkpoint, the official one first; a checkpoint must hold exactly one of
    #: them.
    names: tuple[str, ...]
    #: Shape in the checkpoint.
    shape: tuple[int, ...]
    #: Dtype on the device, whatever the checkpoint's.
    dtype: torch.dtype
    #: Whether dimensions of size 1 after dimension 0 may differ: a [o, i, 1] convolution held as
    #: [o, i].
    squeeze: bool = False


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location of a tensor in a checkpoint."""

    file: Path
    #: Bytes from the start of the file.
    offset: int
    #: Name of the dtype in the safetensors header, such as "BF16".
    dtype: str
    shape: tuple[int, ...]


def load_weights(
    module: nn.Module,
    folder: Path,
    table: Sequence[WeightEntry],
    *,
    tied: Collection[str] = (),
    device: torch.device,
) -> None:
    """Fill `module`, built on the meta device, from `folder`; its parameters come out frozen.

    Parameters and persistent buffers are created one at a time on `device` in the table's dtype, so
    the peak is the weights plus 8 MiB. `tied` names stored copies of other tensors and unused
    tensors (exact names, present or not); they are not read.

    All but the data is checked before memory is allocated. Raises CheckpointError for a file that
    is missing, truncated or corrupt and for a tensor that is unknown, missing, doubly present,
    misshaped or not a float; RuntimeError when the table does not fit the module, which is a
    programming error.
    """
    targets = _entries_by_parameter(module, table)
    stored = stored_tensors(folder)
    sources = _match(stored, table, tied, folder)
    buffer = torch.empty(_SLICE_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    state: dict[str, Tensor] = {}
    for parameter, (shape, entries) in targets.items():
        weight = torch.empty(shape, dtype=entries[0].dtype, device=device)
        start = 0
        for entry in entries:
            end = start + math.prod(entry.shape)
            _read_into(weight.view(-1)[start:end], stored[sources[entry]], sources[entry], buffer)
            start = end
        state[parameter] = weight
    module.load_state_dict(state, assign=True)
    module.requires_grad_(False)


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of the checkpoint in `folder` by name, from headers alone.

    The weights are the shards of `model.safetensors.index.json`, or `model.safetensors`, or the
    folder's only *.safetensors file. Raises CheckpointError for a missing file and for a corrupt
    header or index.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists() and single.exists():
        raise CheckpointError(
            f"{folder} holds both {index.name} and {single.name}; remove the one that is out of "
            "date"
        )
    if index.exists():
        return _sharded_tensors(index)
    if single.exists():
        return _read_header(single)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return _read_header(files[0])
    if files:
        names = ", ".join(file.name for file in files)
        raise CheckpointError(f"{folder} holds {names} but no {index.name}; {_DOWNLOAD_AGAIN}")
    if any(file.suffix in {".bin", ".pt", ".pth", ".ckpt"} for file in folder.iterdir()):
        raise CheckpointError(
            f"{folder} holds only pickled weights, which can run code when opened; convert them to "
            f"{single.name}"
        )
    raise CheckpointError(
        f"{folder} holds no *.safetensors file; {_DOWNLOAD_AGAIN} or give the folder that holds it"
    )


def _entries_by_parameter(
    module: nn.Module, table: Iterable[WeightEntry]
) -> dict[str, tuple[torch.Size, list[WeightEntry]]]:
    """Group the table by parameter, with its shape, and check that it fills the module exactly."""
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    groups: dict[str, tuple[torch.Size, list[WeightEntry]]] = {}
    accepted: set[str] = set()
    for entry in table:
        if taken := accepted.intersection(entry.names):
            raise RuntimeError(f"two entries of the weight table accept {taken.pop()!r}")
        accepted.update(entry.names)
        if entry.parameter not in shapes:
            raise RuntimeError(
                f"the weight table fills {entry.parameter!r}, which the module does not have"
            )
        shape = shapes[entry.parameter]
        if _row_shape(entry.shape, entry.squeeze) != _row_shape(shape, entry.squeeze):
            raise RuntimeError(
                f"{entry.names[0]!r} {entry.shape} does not fit {entry.parameter!r} {tuple(shape)}"
            )
        groups.setdefault(entry.parameter, (shape, []))[1].append(entry)
    for parameter, (shape, entries) in groups.items():
        if sum(math.prod(entry.shape) for entry in entries) != shape.numel():
            raise RuntimeError(
                f"the weight table's rows of {parameter!r} do not add up to {tuple(shape)}"
            )
        if len({entry.dtype for entry in entries}) != 1:
            raise RuntimeError(f"the weight table gives {parameter!r} several dtypes")
    if unfilled := sorted(shapes.keys() - groups.keys()):
        raise RuntimeError(f"the weight table does not fill {_some(unfilled)}")
    return groups


def _row_shape(shape: Sequence[int], squeeze: bool) -> tuple[int, ...]:
    return tuple(size for size in shape[1:] if not (squeeze and size == 1))


def _match(
    stored: dict[str, StoredTensor],
    table: Iterable[WeightEntry],
    tied: Collection[str],
    folder: Path,
) -> dict[WeightEntry, str]:
    """The stored name for each entry; every stored tensor is used once or tied."""
    sources: dict[WeightEntry, str] = {}
    missing: list[str] = []
    for entry in table:
        found = [name for name in entry.names if name in stored]
        if len(found) > 1:
            raise CheckpointError(
                f"{folder} holds {entry.names[0]!r} more than once, as {_some(found)}; keep one"
            )
        if not found:
            missing.append(entry.names[0])
            continue
        (sources[entry],) = found
        tensor = stored[found[0]]
        if tensor.dtype not in _FLOATS:
            raise CheckpointError(
                f"{found[0]!r} in {tensor.file.name} is stored as {tensor.dtype}, not as one of "
                f"{', '.join(_FLOATS)}; use the original checkpoint, not a quantised one"
            )
        if tensor.shape != entry.shape:
            raise CheckpointError(
                f"{found[0]!r} in {tensor.file.name} has shape {list(tensor.shape)}, but "
                f"config.json asks for {list(entry.shape)}; use the config.json that belongs to "
                "these weights"
            )
    if missing:
        raise CheckpointError(
            f"{folder} lacks {_some(missing)}; {_DOWNLOAD_AGAIN}, or check that it is the right "
            "model"
        )
    if unknown := sorted(stored.keys() - set(sources.values()) - set(tied)):
        raise CheckpointError(
            f"{folder} holds {_some(unknown)}, unknown for its config.json; use the config.json of "
            "these weights"
        )
    return sources


def _sharded_tensors(index: Path) -> dict[str, StoredTensor]:
    """The tensors of all shards; index and headers must agree."""
    try:
        document = json.loads(read_small(index))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{index} cannot be read ({_first_line(error)}); {_DOWNLOAD_AGAIN}"
        ) from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; {_DOWNLOAD_AGAIN}")
    names_by_shard: dict[str, set[str]] = {}
    for name, shard in weight_map.items():
        # A shard is a file beside the index; "../x", "/x" and "a/x" are errors or attacks.
        if (
            not isinstance(shard, str)
            or Path(shard).name != shard
            or "\\" in shard
            or not shard.endswith(".safetensors")
        ):
            raise CheckpointError(
                f"{index} puts {name!r} into {shard!r}, which is no *.safetensors file of the "
                "folder"
            )
        names_by_shard.setdefault(shard, set()).add(name)
    for shard in names_by_shard:
        if not (index.parent / shard).exists():
            raise CheckpointError(f"{index} names {shard}, which is not there; {_DOWNLOAD_AGAIN}")
    tensors: dict[str, StoredTensor] = {}
    for shard, names in names_by_shard.items():
        header = _read_header(index.parent / shard)
        if absent := sorted(names - header.keys()):
            raise CheckpointError(
                f"{index} puts {_some(absent)} into {shard}, which lacks it; {_DOWNLOAD_AGAIN}"
            )
        if extra := sorted(header.keys() - names):
            raise CheckpointError(
                f"{shard} holds {_some(extra)}, which {index} does not put there; {_DOWNLOAD_AGAIN}"
            )
        tensors |= header
    return tensors


def _read_header(file: Path) -> dict[str, StoredTensor]:
    """One file's header: its length (8 bytes, little-endian), and JSON that covers the data."""
    try:
        with open_regular(file) as stream:
            file_bytes = stream.seek(0, 2)
            stream.seek(0)
            header_bytes = int.from_bytes(stream.read(8), "little")
            if file_bytes < 8 or header_bytes > min(_MAX_HEADER_BYTES, file_bytes - 8):
                raise CheckpointError(
                    f"{file} is truncated or no safetensors file; {_DOWNLOAD_AGAIN}"
                )
            text = stream.read(header_bytes)
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read ({_first_line(error)}); check it and its permissions"
        ) from error
    try:
        header = json.loads(text, object_pairs_hook=_object_without_duplicates)
        if not isinstance(header, dict):
            raise ValueError("the header is not an object")
        header.pop("__metadata__", None)
        spans = {name: _parse_span(name, value) for name, value in header.items()}
    # RecursionError comes from thousands of nested brackets.
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} has a corrupt header ({_first_line(error)}); {_DOWNLOAD_AGAIN}"
        ) from error

    data_start, position = 8 + header_bytes, 0
    for name, (_, _, begin, end) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if begin != position:
            raise CheckpointError(
                f"{file} has a corrupt header (data gap or overlap at {name!r}); {_DOWNLOAD_AGAIN}"
            )
        position = end
    if data_start + position != file_bytes:
        state = "truncated" if data_start + position > file_bytes else "longer than its header says"
        raise CheckpointError(
            f"{file} is {state}: {file_bytes} bytes instead of {data_start + position}; "
            f"{_DOWNLOAD_AGAIN}"
        )
    return {
        name: StoredTensor(file, data_start + begin, dtype, shape)
        for name, (dtype, shape, begin, _) in spans.items()
    }


def _object_without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _parse_span(name: str, value: object) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of one header entry. Raises ValueError when they disagree."""
    if not isinstance(value, dict):
        raise ValueError(f"{name!r} is not an object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if (
        not isinstance(dtype, str)
        or not _is_sizes(shape)
        or not _is_sizes(offsets)
        or len(offsets) != 2
    ):
        raise ValueError(f"{name!r} lacks a dtype, a shape or two data_offsets")
    begin, end = offsets
    # Other dtypes need no size: their tensors are refused, or tied and not read.
    if end < begin or (
        dtype in _FLOATS and end - begin != math.prod(shape) * _FLOATS[dtype].itemsize
    ):
        raise ValueError(f"the data of {name!r} does not have the size of its shape")
    return dtype, tuple(shape), begin, end


def _is_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _read_into(flat: Tensor, tensor: StoredTensor, name: str, buffer: Tensor) -> None:
    """Read the tensor's data, slice by slice, into `flat` (1-D, any device), cast to its dtype."""
    values = buffer.view(_FLOATS[tensor.dtype])
    with tensor.file.open("rb") as stream:
        stream.seek(tensor.offset)
        for start in range(0, flat.numel(), values.numel()):
            part = flat[start : start + values.numel()]
            piece = values[: part.numel()]
            if stream.readinto(piece.view(torch.uint8).numpy().data) != piece.nbytes:
                raise CheckpointError(
                    f"{tensor.file} ends within {name!r}: it changed while being read; load it "
                    "again"
                )
            # The cast is on the device; a copy between dtypes would cast on the host, through
            # unpinned memory.
            part.copy_(piece.to(part.device))


def _some(names: Sequence[str]) -> str:
    """The first of `names` and how many more there are, for a message of one line."""
    rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]!r}{rest}"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
