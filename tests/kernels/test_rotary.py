"""Rotary kernels against their plain twins: what they return, what they write, and what they leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.kernels.close import assert_close

from hocket.kernels import reference, rotary
from hocket.models.layers import half_rope_tables

EPS = 1e-6
DTYPES = [torch.float32, torch.bfloat16]
both = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _some(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _append_backbone(heads: int, groups: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    rows, slots = 5, 9
    qkv_ME = _some((rows, (heads + 2 * groups) * size), dtype, device, 0)
    q_weight_K, k_weight_K = _some((size,), dtype, device, 1), _some((size,), dtype, device, 2)
    positions = torch.tensor([0, 1, 77, 5, 3000], device=device)
    tables = half_rope_tables(positions, size, 10000.0, dtype)
    slots_M = torch.tensor([7, 0, 3, 8, 2], device=device)
    keys, values = (torch.full((slots, groups, size), float("nan"), dtype=dtype, device=device) for _ in range(2))
    expected_keys, expected_values = keys.clone(), values.clone()
    shared = (qkv_ME, q_weight_K, k_weight_K, EPS, tables.cos, tables.sin, slots_M)

    expected = reference.norm_rotate_append(*shared, expected_keys, expected_values)
    actual = rotary.norm_rotate_append(*shared, keys, values)
    assert_close(actual, expected)
    assert_close(keys[slots_M], expected_keys[slots_M])
    assert torch.equal(values[slots_M], expected_values[slots_M])
    untouched = torch.ones(slots, dtype=torch.bool, device=device).index_fill_(0, slots_M, False)
    assert keys[untouched].isnan().all()
    assert values[untouched].isnan().all()


@both
@pytest.mark.parametrize(("heads", "groups", "size"), [(2, 1, 8), (4, 4, 12), (6, 2, 80), (16, 8, 128), (1, 1, 2)])
def test_norm_rotate_append(heads: int, groups: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    _append_backbone(heads, groups, size, dtype, device)


def test_new_rows_keep_their_bits_wherever_they_are(device: torch.device) -> None:
    heads, groups, size, rows = 3, 2, 24, 10
    qkv_ME = _some((rows, (heads + 2 * groups) * size), torch.bfloat16, device, 0)
    weight_K = _some((size,), torch.bfloat16, device, 1)
    tables = half_rope_tables(torch.arange(rows, device=device), size, 100.0, torch.bfloat16)
    slots_M = torch.arange(rows, device=device)
    places = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).to(device)

    def append(chosen: Tensor) -> tuple[Tensor, Tensor]:
        keys = torch.zeros(rows, groups, size, dtype=torch.bfloat16, device=device)
        inputs = (qkv_ME[chosen], weight_K, weight_K, EPS, tables.cos[chosen], tables.sin[chosen], slots_M[chosen])
        return rotary.norm_rotate_append(*inputs, keys, torch.empty_like(keys)), keys

    queries, keys = append(slots_M)
    moved_queries, moved_keys = append(places)
    assert torch.equal(moved_queries, queries[places])
    assert torch.equal(moved_keys, keys)
    # Padding rows all write to one scratch slot.
    scratch = torch.zeros_like(slots_M)
    inputs = (qkv_ME, weight_K, weight_K, EPS, tables.cos, tables.sin, scratch)
    assert torch.equal(rotary.norm_rotate_append(*inputs, keys, torch.empty_like(keys)), queries)
    assert torch.equal(keys[1:], moved_keys[1:])
