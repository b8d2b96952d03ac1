"""Attention within a frame against its plain twins: outputs, what joins the cache, and what stays as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels import frame_attention, reference
from hocket.models.layers import pair_rope_tables

both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def _some(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _nans(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """To two roundings of the largest element: sums of the twin run in another order, with rounded weights."""
    assert actual.dtype == expected.dtype
    step = 1e-6 if actual.dtype == torch.float32 else 2.0**-8
    largest = float(expected.float().abs().max())
    torch.testing.assert_close(actual.float(), expected.float(), rtol=2 * step, atol=step * largest)


@both
@pytest.mark.parametrize(
    ("rows", "heads", "size", "positions"), [(3, 2, 8, 16), (2, 3, 80, 12), (1, 1, 2, 3), (2, 2, 30, 5)]
)
def test_depth_attention(
    rows: int, heads: int, size: int, positions: int, dtype: torch.dtype, device: torch.device
) -> None:
    tables = pair_rope_tables(torch.arange(positions, device=device), size, 10000.0, dtype)
    keys, values = (_nans((rows, heads, positions, size), dtype, device) for _ in range(2))
    expected_keys, expected_values = keys.clone(), values.clone()
    for position in range(positions):
        qkv_BE = _some((rows, 3 * heads * size), dtype, device, position)
        shared = (qkv_BE, tables.cos[position], tables.sin[position])
        expected_BE = reference.depth_attention(*shared, expected_keys, expected_values, position)
        actual_BE = frame_attention.depth_attention(*shared, keys, values, position)
        assert actual_BE.shape == expected_BE.shape
        assert_near(actual_BE, expected_BE)
        assert_near(keys[:, :, : position + 1], expected_keys[:, :, : position + 1])
        assert torch.equal(values[:, :, : position + 1], expected_values[:, :, : position + 1])
        assert keys[:, :, position + 1 :].isnan().all()
        assert values[:, :, position + 1 :].isnan().all()


def test_depth_keys_are_rounded_as_the_twin_rounds(device: torch.device) -> None:
    """Products and sum each to bfloat16: one rounding of the exact sum gives other bits in a third of the keys."""
    rows, heads, size = 2, 2, 80
    tables = pair_rope_tables(torch.arange(8, device=device), size, 10000.0, torch.bfloat16)
    keys, values = (_nans((rows, heads, 8, size), torch.bfloat16, device) for _ in range(2))
    keys[:, :, :7], values[:, :, :7] = 0.0, 0.0
    expected_keys, expected_values = keys.clone(), values.clone()
    shared = (_some((rows, 3 * heads * size), torch.bfloat16, device, 0), tables.cos[7], tables.sin[7])
    reference.depth_attention(*shared, expected_keys, expected_values, 7)
    frame_attention.depth_attention(*shared, keys, values, 7)
    assert torch.equal(keys, expected_keys)


def test_depth_rows_that_lie_apart(device: torch.device) -> None:
    """Queries as a slice of wider rows, a cache whose positions are its outer dimension, rows in another order."""
    rows, heads, size, position = 5, 2, 12, 3
    tables = pair_rope_tables(torch.arange(4, device=device), size, 10000.0, torch.bfloat16)
    shape = (rows, heads, 4, size)
    keys, values = (_some(shape, torch.bfloat16, device, seed) for seed in (0, 1))
    qkv_BE = _some((rows, 3 * heads * size + 7), torch.bfloat16, device, 2)[:, 3:-4]
    turn = (tables.cos[position], tables.sin[position])
    apart_keys, apart_values = (cache.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for cache in (keys, values))
    order_B = torch.tensor([4, 2, 0, 1, 3], device=device)
    shuffled_keys, shuffled_values = keys[order_B], values[order_B]
    out_BE = frame_attention.depth_attention(qkv_BE, *turn, keys, values, position)
    apart_BE = frame_attention.depth_attention(qkv_BE, *turn, apart_keys, apart_values, position)
    shuffled_BE = frame_attention.depth_attention(qkv_BE[order_B], *turn, shuffled_keys, shuffled_values, position)
    assert torch.equal(apart_BE, out_BE)
    assert torch.equal(apart_keys, keys)
    assert torch.equal(shuffled_BE, out_BE[order_B])
    assert torch.equal(shuffled_keys, keys[order_B])


@both
@pytest.mark.parametrize(
    ("heads", "groups", "size", "positions"), [(4, 2, 8, 6), (16, 8, 128, 17), (3, 3, 10, 32), (4, 1, 20, 4)]
)
def test_frame_attention(
    heads: int, groups: int, size: int, positions: int, dtype: torch.dtype, device: torch.device
) -> None:
    rows = 2
    for start, tokens in ((0, 1), (0, 2), (0, 4), (2, 1), (positions - 1, 1)):
        keys, values = (_nans((rows, positions, groups, size), dtype, device) for _ in range(2))
        seen = start + tokens
        keys[:, :seen] = _some((rows, seen, groups, size), dtype, device, seen)
        values[:, :seen] = _some((rows, seen, groups, size), dtype, device, seen + 100)
        q_BTHK = _some((rows, tokens, heads, size), dtype, device, seen + 200)
        expected_BTHK = reference.frame_attention(q_BTHK, keys, values, start)
        actual_BTHK = frame_attention.frame_attention(q_BTHK, keys, values, start)
        assert actual_BTHK.shape == expected_BTHK.shape
        assert_near(actual_BTHK, expected_BTHK)


def test_frame_rows_keep_their_bits(device: torch.device) -> None:
    rows, heads, groups, size = 6, 4, 2, 24
    keys, values = (_some((rows, 9, groups, size), torch.bfloat16, device, seed) for seed in (0, 1))
    wide_BTE = _some((rows, 1, (heads + 2) * size), torch.bfloat16, device, 2)
    q_BTHK = torch.unflatten(wide_BTE[..., size:-size], -1, (heads, size))
    order_B = torch.tensor([3, 5, 1], device=device)
    out_BTHK = frame_attention.frame_attention(q_BTHK, keys, values, 7)
    shuffled_BTHK = frame_attention.frame_attention(q_BTHK[order_B], keys[order_B], values[order_B], 7)
    assert torch.equal(shuffled_BTHK, out_BTHK[order_B])


def test_positions_outside_the_cache_are_refused(device: torch.device) -> None:
    cache = torch.zeros(1, 2, 4, 8, device=device)
    turn = torch.zeros(8, device=device)
    with pytest.raises(ValueError, match="position 4 is not in a cache of 4"):
        frame_attention.depth_attention(torch.zeros(1, 48, device=device), turn, turn, cache, cache.clone(), 4)
    with pytest.raises(ValueError, match="positions 1 to 2 are not in a cache of 2"):
        frame_attention.frame_attention(torch.zeros(1, 2, 4, 8, device=device), cache, cache.clone(), 1)
    with pytest.raises(ValueError, match="laid out alike"):
        frame_attention.frame_attention(torch.zeros(1, 1, 4, 8, device=device), cache, cache.transpose(1, 2), 0)
