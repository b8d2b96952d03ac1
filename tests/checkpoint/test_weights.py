"""Loading weights: what the table means, every way a checkpoint can be wrong, and the memory that
loading takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hocket.checkpoint import weights
from hocket.checkpoint.weights import WeightEntry, load_weights, stored_tensors
from hocket.errors import CheckpointError
from tests.support import paths

CPU = torch.device("cpu")
GOLDEN = paths.GOLDEN / "local_tiny" / "model.safetensors"


class Block(nn.Module):
    """A fused projection, a convolution held as a linear, a bias, and a buffer."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 8, bias=False)
        self.proj = nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(4, 1))
        self.register_buffer("table", torch.ones(3), persistent=False)


F32 = torch.float32
TABLE = [
    WeightEntry("qkv.weight", ("q", "old.q"), (4, 4), F32),
    WeightEntry("qkv.weight", ("k",), (2, 4), F32),
    WeightEntry("qkv.weight", ("v",), (2, 4), F32),
    WeightEntry("proj.weight", ("proj.conv",), (4, 8, 1), F32, squeeze=True),
    WeightEntry("proj.bias", ("proj.bias",), (4,), torch.bfloat16),
    WeightEntry("scale", ("scale",), (4, 1, 1), F32, squeeze=True),
]


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {entry.names[0]: torch.randn(entry.shape, generator=generator) for entry in TABLE}


def meta_block() -> Block:
    with torch.device("meta"):
        return Block()


def save(folder: Path, stored: dict[str, Tensor]) -> Path:
    save_file(stored, folder / "model.safetensors")
    return folder


def save_sharded(folder: Path, stored: dict[str, Tensor]) -> dict[str, str]:
    """Two shards and their index; returns the weight map."""
    weight_map = {name: f"model-{1 + i % 2}-of-2.safetensors" for i, name in enumerate(stored)}
    for shard in set(weight_map.values()):
        save_file(
            {name: stored[name] for name, file in weight_map.items() if file == shard},
            folder / shard,
        )
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


def write_raw(file: Path, header: object, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def refused(folder: Path, *, tied: tuple[str, ...] = ()) -> str:
    """The message of the error, after proving that the module was left as it was."""
    module = meta_block()
    with pytest.raises(CheckpointError) as caught:
        load_weights(module, folder, TABLE, tied=tied, device=CPU)
    assert all(tensor.is_meta for tensor in module.state_dict().values())
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what loads
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["single", "sharded", "lone file"])
def test_every_layout_loads(tmp_path: Path, layout: str) -> None:
    stored, module = tensors(), meta_block()
    if layout == "sharded":
        save_sharded(tmp_path, stored)
    else:
        save_file(
            stored,
            tmp_path / ("model.safetensors" if layout == "single" else "weights.safetensors"),
        )
    load_weights(module, tmp_path, TABLE, device=CPU)
    assert torch.equal(module.qkv.weight, torch.cat((stored["q"], stored["k"], stored["v"])))
    assert torch.equal(module.proj.weight, stored["proj.conv"].squeeze(2))
    assert torch.equal(module.proj.bias, stored["proj.bias"].bfloat16())
    assert torch.equal(module.scale, stored["scale"].squeeze(2))
    assert isinstance(module.proj.bias, nn.Parameter)
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_linked_files_load(tmp_path: Path) -> None:
    # The hub's cache keeps a folder of links to blobs elsewhere.
    blob, folder = tmp_path / "blob", tmp_path / "snapshot"
    folder.mkdir()
    save_file(tensors(), blob)
    (folder / "model.safetensors").symlink_to(blob)
    load_weights(meta_block(), folder, TABLE, device=CPU)


@pytest.mark.parametrize("slice_bytes", [8, 40, 2**20])
@pytest.mark.parametrize("held", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_are_cast_exactly_in_any_slicing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: torch.dtype,
    held: torch.dtype,
    slice_bytes: int,
) -> None:
    monkeypatch.setattr(weights, "_SLICE_BYTES", slice_bytes)
    value = torch.linspace(-3, 3, 33 * 5, dtype=torch.float64).view(33, 5).to(stored)
    with torch.device("meta"):
        module = nn.Linear(5, 33, bias=False)
    # A header of odd length leaves the data unaligned.
    name = {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.bfloat16: "BF16",
        torch.float16: "F16",
    }[stored]
    header = json.dumps({"w": span(0, value.nbytes, name, [33, 5])})
    write_raw(
        tmp_path / "model.safetensors",
        (header + " " * (1 - len(header) % 2)).encode(),
        value.view(torch.uint8).numpy().tobytes(),
    )
    load_weights(module, tmp_path, [WeightEntry("weight", ("w",), (33, 5), held)], device=CPU)
    assert module.weight.dtype == held
    assert torch.equal(module.weight, value.to(held))


def test_alias_serves_and_both_names_do_not(tmp_path: Path) -> None:
    stored = tensors()
    stored["old.q"] = stored.pop("q")
    module = meta_block()
    load_weights(module, save(tmp_path, stored), TABLE, device=CPU)
    assert torch.equal(module.qkv.weight[:4], stored["old.q"])
    message = refused(save(tmp_path, stored | {"q": stored["old.q"].clone()}))
    assert "'q' more than once, as 'q' and 1 more" in message


def test_tied_copies_are_skipped_unread(tmp_path: Path) -> None:
    copies = {"lm_head": torch.zeros(3, dtype=torch.int8)}
    load_weights(
        meta_block(),
        save(tmp_path, tensors() | copies),
        TABLE,
        tied={"lm_head", "absent"},
        device=CPU,
    )
    assert "holds 'lm_head', unknown" in refused(tmp_path)


def test_empty_tensor_and_scalar(tmp_path: Path) -> None:
    module = nn.Module()
    module.register_buffer("none", torch.empty(0, 3, device="meta"))
    module.register_buffer("one", torch.empty((), device="meta"))
    save(tmp_path, {"none": torch.empty(0, 3), "one": torch.tensor(7.0)})
    table = [WeightEntry("none", ("none",), (0, 3), F32), WeightEntry("one", ("one",), (), F32)]
    load_weights(module, tmp_path, table, device=CPU)
    state = module.state_dict()
    assert state["one"].item() == 7.0
    assert state["none"].shape == (0, 3)


def test_headers_agree_with_the_safetensors_library() -> None:
    found, expected = stored_tensors(GOLDEN.parent), load_file(GOLDEN)
    assert {name: tensor.shape for name, tensor in found.items()} == {
        n: tuple(t.shape) for n, t in expected.items()
    }


# --- checkpoints that do not match the table
# ----------------------------------------------------------------------


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    stored = tensors()
    del stored["k"], stored["scale"]
    assert "lacks 'k' and 1 more; download" in refused(save(tmp_path, stored))


def test_unknown_tensors_are_named(tmp_path: Path) -> None:
    assert "holds 'extra', unknown" in refused(save(tmp_path, tensors() | {"extra": torch.ones(1)}))


@pytest.mark.parametrize("shape", [(4, 8), (4, 8, 1, 1), (8, 4, 1), (4, 7, 1)])
def test_wrong_shapes_are_named(tmp_path: Path, shape: tuple[int, ...]) -> None:
    message = refused(save(tmp_path, tensors() | {"proj.conv": torch.zeros(shape)}))
    assert f"'proj.conv' in model.safetensors has shape {list(shape)}" in message
    assert "[4, 8, 1]" in message


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.bool, "BOOL")]
)
def test_other_dtypes_are_refused(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    message = refused(save(tmp_path, tensors() | {"k": torch.zeros(2, 4).to(dtype)}))
    assert f"'k' in model.safetensors is stored as {name}" in message


# --- folders
# --------------------------------------------------------------------------------------------------


def test_folders_without_usable_weights(tmp_path: Path) -> None:
    assert "no *.safetensors file" in refused(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02}.")
    assert "pickled" in refused(tmp_path)
    save_file(tensors(), tmp_path / "a.safetensors")
    save_file(tensors(), tmp_path / "b.safetensors")
    assert "a.safetensors, b.safetensors but no model.safetensors.index.json" in refused(tmp_path)


def test_two_sets_of_weights_are_refused(tmp_path: Path) -> None:
    save_sharded(tmp_path, tensors())
    assert "holds both" in refused(save(tmp_path, tensors()))


# --- indexes
# --------------------------------------------------------------------------------------------------


def test_index_naming_a_missing_shard(tmp_path: Path) -> None:
    save_sharded(tmp_path, tensors())
    (tmp_path / "model-2-of-2.safetensors").unlink()
    assert "names model-2-of-2.safetensors, which is not there" in refused(tmp_path)


def test_index_naming_the_wrong_shard(tmp_path: Path) -> None:
    weight_map = save_sharded(tmp_path, tensors())
    write_index(tmp_path, weight_map | {"q": "model-2-of-2.safetensors"})
    assert "puts 'q' into model-2-of-2.safetensors, which lacks it" in refused(tmp_path)


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    weight_map = save_sharded(tmp_path, tensors())
    shard = tmp_path / "model-2-of-2.safetensors"
    save_file(load_file(shard) | {"q": tensors()["q"]}, shard)
    assert weight_map["q"] != shard.name
    assert f"{shard.name} holds 'q', which" in refused(tmp_path)


@pytest.mark.parametrize(
    "shard",
    [
        "../x.safetensors",
        "/x.safetensors",
        "a/x.safetensors",
        "..",
        "",
        "a\\x.safetensors",
        "x.bin",
        3,
        None,
    ],
)
def test_index_leaving_the_folder(tmp_path: Path, shard: object) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    save_file(tensors(), tmp_path / "x.safetensors")
    write_index(folder, dict.fromkeys(tensors(), shard))
    assert "no *.safetensors file of the folder" in refused(folder)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"weight_map": []}', b'{"weight_map": {}}', b"\xff", b"[" * 10**5]
)
def test_broken_index(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    assert "model.safetensors.index.json" in refused(tmp_path)


# --- files
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_file(tmp_path: Path, keep: int) -> None:
    file = save(tmp_path, tensors()) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert " is truncated" in refused(tmp_path)


def test_trailing_bytes(tmp_path: Path) -> None:
    file = save(tmp_path, tensors()) / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"x")
    assert "longer than its header says" in refused(tmp_path)


def test_folder_or_pointer_in_place_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.mkdir()
    assert "cannot be read" in refused(tmp_path)
    file.rmdir()
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert "no safetensors file" in refused(tmp_path)


def span(
    begin: object, end: object, dtype: object = "F32", shape: object = (1,)
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        b"{" + b" " * 7,
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        b"[]",
        b'{"a": 1}',
        b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        {"a": span(0, 4), "b": span(0, 4)},
        {"a": span(0, 4), "b": span(2, 6), "c": span(4, 8)},
        {"a": span(4, 8)},
        {"a": span(0, 8)},
        {"a": span(0, 4, shape=[2])},
        {"a": span(8, 0)},
        {"a": span(-4, 0)},
        {"a": span(0, 4, shape=[-1])},
        {"a": span(0, 4, shape=[True])},
        {"a": span(0.0, 4.0)},
        {"a": span("0", "4")},
        {"a": span(0, 4, dtype=7)},
        {"a": span(0, 4, shape=1)},
        {"a": span(0, 8, dtype="I8"), "b": span(4, 8)},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]}},
        {"a": {"dtype": "F32", "shape": [1]}},
        {"a": span(0, 4 * 2**62, shape=[2**31, 2**31])},
    ],
)
def test_corrupt_header(tmp_path: Path, header: object) -> None:
    write_raw(tmp_path / "model.safetensors", header, bytes(8))
    message = refused(tmp_path)
    assert "corrupt header" in message or " is truncated" in message


def test_enormous_header_length(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert "truncated or no safetensors file" in refused(tmp_path)


def test_file_that_shrinks_while_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(tmp_path, tensors()) / "model.safetensors"
    honest: Callable[[Path], dict[str, weights.StoredTensor]] = stored_tensors

    def then_shrink(folder: Path) -> dict[str, weights.StoredTensor]:
        found = honest(folder)
        os.truncate(file, file.stat().st_size - 4)
        return found

    monkeypatch.setattr(weights, "stored_tensors", then_shrink)
    assert "changed while being read" in refused(tmp_path)


# --- tables that do not fit the module
# ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE[:-1], "does not fill 'scale'"),
        (TABLE[1:], "rows of 'qkv.weight' do not add up"),
        (
            [*TABLE, WeightEntry("qkv.weight", ("more",), (1, 4), F32)],
            "rows of 'qkv.weight' do not add up",
        ),
        (
            [*TABLE, WeightEntry("nothing", ("n",), (1,), F32)],
            "'nothing', which the module does not have",
        ),
        (
            [*TABLE, WeightEntry("table", ("t",), (3,), F32)],
            "'table', which the module does not have",
        ),
        (
            [*TABLE[:3], WeightEntry("proj.weight", ("p",), (4, 8, 1), F32), *TABLE[4:]],
            "does not fit 'proj.weight'",
        ),
        (
            [*TABLE[:3], WeightEntry("proj.weight", ("p",), (8, 4), F32), *TABLE[4:]],
            "does not fit 'proj.weight'",
        ),
        (
            [*TABLE[:2], WeightEntry("qkv.weight", ("v",), (2, 4), torch.float16), *TABLE[3:]],
            "several dtypes",
        ),
        (
            [*TABLE[:2], WeightEntry("qkv.weight", ("k", "v2"), (2, 4), F32), *TABLE[3:]],
            "two entries .* accept .k.",
        ),
    ],
)
def test_a_table_that_does_not_fit_the_module_is_a_programming_error(
    tmp_path: Path, table: list[WeightEntry], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        load_weights(meta_block(), save(tmp_path, tensors()), table, device=CPU)


# --- memory
# --------------------------------------------------------------------------------------------------

_MEASURE = """
    import sys
    from pathlib import Path
    import torch
    from torch import nn
    from hocket.checkpoint.weights import WeightEntry, load_weights

    folder, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
    layers, width = int(sys.argv[3]), int(sys.argv[4])
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    table = [WeightEntry(f"{i}.weight", (f"{i}",), (width, width), dtype) for i in range(layers)]

    # VmRSS: resident now, file-backed pages included; VmHWM: its peak since the program began
    def memory_bytes(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

    baseline = memory_bytes("VmRSS:")
    load_weights(module, folder, table, device=torch.device("cpu"))
    print((memory_bytes("VmHWM:") - baseline) / sum(p.nbytes for p in module.parameters()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads resident memory from /proc")
@pytest.mark.parametrize(
    ("stored", "held"),
    [(torch.bfloat16, "bfloat16"), (torch.float32, "bfloat16"), (torch.bfloat16, "float32")],
)
def test_peak_memory_is_the_weights_and_a_buffer(
    tmp_path: Path, stored: torch.dtype, held: str
) -> None:
    # About 300 MB of file: 8 MiB of buffer are 3 % of it, 6 % of its half.
    width = 3_500
    layers = 300_000_000 // (width * width * stored.itemsize)
    block = torch.randn(width, width).to(stored)
    save_file({str(i): block.clone() for i in range(layers)}, tmp_path / "model.safetensors")
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(_MEASURE),
        str(tmp_path),
        held,
        str(layers),
        str(width),
    ]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    ratio = float(result.stdout)
    assert 0.9 < ratio < 1.15
