"""Rotation and append to rings against the plain twins: what is returned, written, and left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.kernels.close import assert_close

from hocket.kernels import reference, ring_append

DTYPES = [torch.float32, torch.bfloat16]
both = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _some(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


@both
@pytest.mark.parametrize("shared_tables", [False, True])
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "size"), [(1, 1, 1, 2), (3, 5, 2, 8), (2, 3, 3, 20), (2, 1, 12, 64)]
)
def test_rotate_append(
    batch: int, tokens: int, heads: int, size: int, shared_tables: bool, dtype: torch.dtype, device: torch.device
) -> None:
    rings, capacity = 5, 7
    qkv_BTE = _some((batch, tokens, 3 * heads * size), dtype, device, 0)
    angles = 3.0 * _some((1 if shared_tables else batch, tokens, size // 2), torch.float32, device, 1)
    rows_B = torch.tensor([4, 1, 2], device=device)[:batch]
    starts_B = torch.tensor([5, 0, 1234567], device=device)[:batch]
    shape = (rings, capacity, heads, size)
    keys, values = (torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in range(2))
    expected_keys, expected_values = keys.clone(), values.clone()
    shared = (qkv_BTE, angles.cos(), angles.sin(), rows_B, starts_B)

    expected = reference.rotate_append(*shared, expected_keys, expected_values)
    actual = ring_append.rotate_append(*shared, keys, values)
    assert_close(actual, expected)
    written = ~expected_keys.isnan()
    assert int(written.sum()) == batch * tokens * heads * size
    assert torch.equal(~keys.isnan(), written)
    assert_close(keys[written], expected_keys[written])
    assert torch.equal(values.nan_to_num(), expected_values.nan_to_num())


@both
@pytest.mark.parametrize(("tokens", "heads", "size"), [(1, 2, 8), (4, 3, 20), (2, 12, 64)])
def test_rotate_append_packed(tokens: int, heads: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    """Streams of 3, 2 and 1 frames, one behind the other and with padding: as each stream on its own."""
    chunks = [(4, 5, 3), (1, 0, 2), (2, 1234567, 1)]
    rows = [row for row, _, count in chunks for _ in range(count)]
    positions = [start + i for _, start, count in chunks for i in range(count)]
    # Where padding says it is, real frames of row 0 would be; nothing may be written there.
    frame_rows_F = torch.tensor([*rows, -1, -1], device=device)
    frame_positions_F = torch.tensor([*positions, 0, 77], device=device)
    shape = (5, 3 * tokens + 1, heads, size)
    qkv_ME = _some((8 * tokens, 3 * heads * size), dtype, device, 0)
    angles_MJ = 3.0 * _some((8 * tokens, size // 2), torch.float32, device, 1)
    tables = (angles_MJ.cos(), angles_MJ.sin())

    # In the twin of streams, in kernel and twin of packs.
    expected_rings, rings, twin_rings = (
        [torch.full(shape, float("nan"), dtype=dtype, device=device) for _ in range(2)] for _ in range(3)
    )
    expected, first = [], 0
    for row, start, count in chunks:
        chunk = slice(first * tokens, (first + count) * tokens)
        row_1, start_1 = (torch.tensor([number], device=device) for number in (row, start * tokens))
        inputs = (x[None, chunk] for x in (qkv_ME, *tables))
        expected.append(reference.rotate_append(*inputs, row_1, start_1, *expected_rings)[0])
        first += count
    expected_MHK = torch.cat(expected)
    shared = (qkv_ME, *tables, frame_rows_F, frame_positions_F)
    for operation, (keys, values) in (
        (ring_append.rotate_append_packed, rings),
        (reference.rotate_append_packed, twin_rings),
    ):
        actual = operation(*shared, keys, values)
        assert actual.shape == (8 * tokens, heads, size)
        assert actual.isfinite().all()
        assert_close(actual[: len(expected_MHK)], expected_MHK)
        written = ~expected_rings[0].isnan()
        assert torch.equal(~keys.isnan(), written)
        assert_close(keys[written], expected_rings[0][written])
        assert torch.equal(values.nan_to_num(), expected_rings[1].nan_to_num())


@pytest.mark.parametrize("module", [ring_append, reference])
def test_a_pack_of_nothing_but_padding(module: Any, device: torch.device) -> None:
    """Also of one frame alone, whose tables look like those that all chunks share."""
    rings = torch.full((2, 3, 7, 2, 8), float("nan"), device=device)
    for frames in (1, 3):
        qkv_ME, angles_MJ = torch.ones(2 * frames, 48, device=device), torch.ones(2 * frames, 4, device=device)
        rows_F = torch.full((frames,), -1, device=device)
        q_MHK = module.rotate_append_packed(qkv_ME, angles_MJ, angles_MJ, rows_F, torch.zeros_like(rows_F), *rings)
        assert q_MHK.isfinite().all()
        assert rings.isnan().all()
