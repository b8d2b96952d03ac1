"""Rotary kernels against their references: results, writes, and memory that they must leave
alone.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels.gpu import rotary
from hocket.kernels.reference import talker as reference
from hocket.kernels.types import Rows8, Scaled
from hocket.models.layers.basic import half_rope_tables
from tests.support.close import assert_close, assert_fp8_close

EPS = 1e-6
DTYPES = [torch.float32, torch.bfloat16]
both = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def _some(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _append_backbone(
    heads: int, groups: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    rows, slots = 5, 9
    qkv_ME = _some((rows, (heads + 2 * groups) * size), dtype, device, 0)
    q_weight_K, k_weight_K = _some((size,), dtype, device, 1), _some((size,), dtype, device, 2)
    positions = torch.tensor([0, 1, 77, 5, 3000], device=device)
    tables = half_rope_tables(positions, size, 10000.0, dtype)
    slots_M = torch.tensor([7, 0, 3, 8, 2], device=device)
    keys, values = (
        torch.full((slots, groups, size), float("nan"), dtype=dtype, device=device)
        for _ in range(2)
    )
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
@pytest.mark.parametrize(
    ("heads", "groups", "size"), [(2, 1, 8), (4, 4, 12), (6, 2, 80), (16, 8, 128), (1, 1, 2)]
)
def test_norm_rotate_append(
    heads: int, groups: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    _append_backbone(heads, groups, size, dtype, device)


@both
@pytest.mark.parametrize(
    ("heads", "groups", "size", "page_rows"), [(3, 1, 12, 4), (6, 2, 80, 3), (16, 8, 128, 8)]
)
def test_norm_rotate_append_in_fp8(
    heads: int, groups: int, size: int, page_rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    qkv_ME = _some((4, (heads + 2 * groups) * size), dtype, device, 0)
    qkv_ME[2] = 0.0
    weight_K = _some((size,), dtype, device, 1)
    tables = half_rope_tables(torch.tensor([0, 77, 5, 3000], device=device), size, 10000.0, dtype)
    slots_M = torch.tensor([2 * page_rows, page_rows - 1, 3 * page_rows + 1, 0], device=device)
    shared = (qkv_ME, weight_K, weight_K, EPS, tables.cos, tables.sin, slots_M)

    def kept() -> tuple[Tensor, Tensor, Tensor]:
        keys, values = (
            torch.full((4 * page_rows, groups, size), torch.nan, device=device) for _ in range(2)
        )
        scales = torch.full(
            (4, groups, page_rows, 2), torch.nan, dtype=torch.bfloat16, device=device
        )
        return keys.to(torch.float8_e4m3fn), values.to(torch.float8_e4m3fn), scales

    expected, actual = kept(), kept()
    assert_close(
        rotary.norm_rotate_append(*shared, *actual),
        reference.norm_rotate_append(*shared, *expected),
    )
    written = torch.zeros(4 * page_rows, dtype=torch.bool, device=device).index_fill_(
        0, slots_M, True
    )
    scales, expected_scales = (each[2].transpose(1, 2).flatten(0, 1) for each in (actual, expected))
    for k in range(2):
        # Scales would differ where rounding moved a head's largest channel over a power of two:
        # here none does.
        assert_fp8_close(
            Rows8(actual[k][written], scales[written][..., k, None].float()),
            Rows8(expected[k][written], expected_scales[written][..., k, None].float()),
        )
        assert actual[k][~written].float().isnan().all()
    assert scales[~written].isnan().all()


@both
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_scaled_product_gives_the_bits_of_a_plain_one(
    has_bias: bool, dtype: torch.dtype, device: torch.device
) -> None:
    heads, groups, size, rows = 6, 2, 24, 3
    width = (heads + 2 * groups) * size
    scaled = Scaled(
        _some((rows, width), dtype, device, 0),
        _some((rows, 1), torch.float32, device, 1).exp(),
        _some((width,), torch.float32, device, 2).exp(),
        _some((width,), dtype, device, 3) if has_bias else None,
    )
    weight_K = _some((size,), dtype, device, 1)
    tables = half_rope_tables(torch.arange(rows, device=device), size, 100.0, dtype)

    def append(qkv_ME: Tensor | Scaled) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = (
            torch.zeros(rows, groups, size, dtype=dtype, device=device) for _ in range(2)
        )
        slots_M = torch.arange(rows, device=device)
        q_MHK = rotary.norm_rotate_append(
            qkv_ME, weight_K, weight_K, EPS, tables.cos, tables.sin, slots_M, keys, values
        )
        return q_MHK, keys, values

    for of_scaled, of_plain in zip(append(scaled), append(scaled.plain()), strict=True):
        assert torch.equal(of_scaled, of_plain)


def test_new_rows_keep_their_bits_wherever_they_are(device: torch.device) -> None:
    heads, groups, size, rows = 3, 2, 24, 10
    qkv_ME = _some((rows, (heads + 2 * groups) * size), torch.bfloat16, device, 0)
    weight_K = _some((size,), torch.bfloat16, device, 1)
    tables = half_rope_tables(torch.arange(rows, device=device), size, 100.0, torch.bfloat16)
    slots_M = torch.arange(rows, device=device)
    places = torch.randperm(rows, generator=torch.Generator().manual_seed(1)).to(device)

    def append(chosen: Tensor) -> tuple[Tensor, Tensor]:
        keys = torch.zeros(rows, groups, size, dtype=torch.bfloat16, device=device)
        inputs = (
            qkv_ME[chosen],
            weight_K,
            weight_K,
            EPS,
            tables.cos[chosen],
            tables.sin[chosen],
            slots_M[chosen],
        )
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
