"""Attention within a frame against its references: outputs, new cache entries, and entries that
stay as they were.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels.gpu import frame_attention
from hocket.kernels.reference import talker as reference
from hocket.kernels.types import Scaled
from hocket.models.layers.basic import half_rope_tables, pair_rope_tables
from tests.support.close import some_product

both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def _some(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def _nans(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """To two roundings of the largest element: the reference sums in another order, with rounded
    weights.
    """
    assert actual.dtype == expected.dtype
    step = 1e-6 if actual.dtype == torch.float32 else 2.0**-8
    largest = float(expected.float().abs().max())
    torch.testing.assert_close(actual.float(), expected.float(), rtol=2 * step, atol=step * largest)


@both
@pytest.mark.parametrize(
    ("rows", "heads", "size", "positions"),
    [(3, 2, 8, 16), (2, 3, 80, 12), (1, 1, 2, 3), (2, 2, 30, 5)],
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


def test_depth_keys_are_rounded_as_the_reference_rounds(device: torch.device) -> None:
    """Products and sum each to bfloat16: one rounding of the exact sum gives other bits in a third
    of the keys.
    """
    rows, heads, size = 2, 2, 80
    tables = pair_rope_tables(torch.arange(8, device=device), size, 10000.0, torch.bfloat16)
    keys, values = (_nans((rows, heads, 8, size), torch.bfloat16, device) for _ in range(2))
    keys[:, :, :7], values[:, :, :7] = 0.0, 0.0
    expected_keys, expected_values = keys.clone(), values.clone()
    shared = (
        _some((rows, 3 * heads * size), torch.bfloat16, device, 0),
        tables.cos[7],
        tables.sin[7],
    )
    reference.depth_attention(*shared, expected_keys, expected_values, 7)
    frame_attention.depth_attention(*shared, keys, values, 7)
    assert torch.equal(keys, expected_keys)


@both
def test_depth_attention_of_a_product(dtype: torch.dtype, device: torch.device) -> None:
    """A product of 8 bits is scaled as it is loaded: to the bits of scaling it first."""
    rows, heads, size, position = 3, 2, 20, 2
    tables = pair_rope_tables(torch.arange(4, device=device), size, 10000.0, dtype)
    keys, values = (_some((rows, heads, 4, size), dtype, device, seed) for seed in (0, 1))
    plain_keys, plain_values = keys.clone(), values.clone()
    qkv = some_product((rows, 3 * heads * size), dtype, device, bias=True, seed=2)
    turn = (tables.cos[position], tables.sin[position])
    out_BE = frame_attention.depth_attention(qkv, *turn, keys, values, position)
    plain_BE = frame_attention.depth_attention(
        qkv.plain(), *turn, plain_keys, plain_values, position
    )
    assert torch.equal(out_BE, plain_BE)
    assert torch.equal(keys, plain_keys)
    assert torch.equal(values, plain_values)
    assert_near(out_BE, reference.depth_attention(qkv, *turn, keys, values, position))


def test_depth_rows_that_lie_apart(device: torch.device) -> None:
    """Queries as a slice of wider rows, a cache whose positions are its outer dimension, rows in
    another order.
    """
    rows, heads, size, position = 5, 2, 12, 3
    tables = pair_rope_tables(torch.arange(4, device=device), size, 10000.0, torch.bfloat16)
    shape = (rows, heads, 4, size)
    keys, values = (_some(shape, torch.bfloat16, device, seed) for seed in (0, 1))
    qkv_BE = _some((rows, 3 * heads * size + 7), torch.bfloat16, device, 2)[:, 3:-4]
    turn = (tables.cos[position], tables.sin[position])
    apart_keys, apart_values = (
        cache.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for cache in (keys, values)
    )
    order_B = torch.tensor([4, 2, 0, 1, 3], device=device)
    shuffled_keys, shuffled_values = keys[order_B], values[order_B]
    out_BE = frame_attention.depth_attention(qkv_BE, *turn, keys, values, position)
    apart_BE = frame_attention.depth_attention(qkv_BE, *turn, apart_keys, apart_values, position)
    shuffled_BE = frame_attention.depth_attention(
        qkv_BE[order_B], *turn, shuffled_keys, shuffled_values, position
    )
    assert torch.equal(apart_BE, out_BE)
    assert torch.equal(apart_keys, keys)
    assert torch.equal(shuffled_BE, out_BE[order_B])
    assert torch.equal(shuffled_keys, keys[order_B])


def _frame(
    rows: int,
    heads: int,
    groups: int,
    size: int,
    positions: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[tuple[Tensor, Tensor, float, Tensor, Tensor], Tensor, Tensor]:
    """The inputs that all positions of a frame share (weights, eps, tables), and an unwritten
    cache.
    """
    tables = half_rope_tables(torch.arange(positions, device=device), size, 1e6, dtype)
    q_weight, k_weight = (1 + 0.2 * _some((size,), dtype, device, seed) for seed in (7, 8))
    keys, values = (_nans((rows, positions, groups, size), dtype, device) for _ in range(2))
    return (q_weight, k_weight, 1e-6, tables.cos, tables.sin), keys, values


@both
@pytest.mark.parametrize(
    ("heads", "groups", "size", "positions"),
    [(4, 2, 8, 6), (4, 2, 128, 17), (3, 3, 10, 32), (6, 2, 20, 4)],
)
@pytest.mark.parametrize("first", [1, 2, 3])
def test_frame_attention(
    heads: int,
    groups: int,
    size: int,
    positions: int,
    first: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Position after position: the outputs and the cache of the reference."""
    rows = 2
    shared, expected_keys, expected_values = _frame(
        rows, heads, groups, size, positions, dtype, device
    )
    keys, values = expected_keys.clone(), expected_values.clone()
    starts = [
        0,
        *range(first, min(positions, first + 3)),
        *([positions - 1] if positions > first + 3 else []),
    ]
    for start in starts:
        tokens = first if start == 0 else 1
        if start == positions - 1:
            for cache, expected in ((keys, expected_keys), (values, expected_values)):
                cache[:, :start] = expected[:, :start] = _some(
                    (rows, start, groups, size), dtype, device, start
                )
        qkv_BTE = 3 * _some((rows, tokens, (heads + 2 * groups) * size), dtype, device, start)
        expected_BTE = reference.frame_attention(
            qkv_BTE, *shared, expected_keys, expected_values, start
        )
        actual_BTE = frame_attention.frame_attention(qkv_BTE, *shared, keys, values, start)
        end = start + tokens
        assert actual_BTE.shape == expected_BTE.shape
        assert_near(actual_BTE, expected_BTE)
        assert_near(keys[:, :end], expected_keys[:, :end])
        assert torch.equal(values[:, :end], expected_values[:, :end])
        assert keys[:, end:].isnan().all()
        assert values[:, end:].isnan().all()


def test_frame_keys_are_rounded_as_the_reference_rounds(device: torch.device) -> None:
    """The norm, its weight, both products and their sum each to bfloat16."""
    shared, expected_keys, expected_values = _frame(3, 2, 2, 64, 2, torch.bfloat16, device)
    keys, values = expected_keys.clone(), expected_values.clone()
    qkv_BTE = _some((3, 2, 6 * 64), torch.bfloat16, device, 0)
    reference.frame_attention(qkv_BTE, *shared, expected_keys, expected_values, 0)
    frame_attention.frame_attention(qkv_BTE, *shared, keys, values, 0)
    assert (keys != expected_keys).float().mean() < 0.01  # sums of squares run in another order
    assert torch.equal(values, expected_values)


def test_frame_attention_of_a_product_that_is_not_scaled_yet(device: torch.device) -> None:
    shared, keys, values = _frame(2, 4, 2, 16, 3, torch.bfloat16, device)
    product_BTE = 50 * _some((2, 2, 8 * 16), torch.bfloat16, device, 0)
    rows_BT1, columns_E = (
        _some(shape, torch.float32, device, 1).abs() / 7 for shape in ((2, 2, 1), (8 * 16,))
    )
    for bias_E in (None, _some((8 * 16,), torch.bfloat16, device, 2)):
        scaled = Scaled(product_BTE, rows_BT1, columns_E, bias_E)
        out_BTE = frame_attention.frame_attention(scaled, *shared, keys, values, 0)
        assert torch.equal(
            out_BTE, frame_attention.frame_attention(scaled.plain(), *shared, keys, values, 0)
        )


def test_frame_rows_keep_their_bits(device: torch.device) -> None:
    rows, heads, groups, size = 6, 4, 2, 24
    shared, keys, values = _frame(rows, heads, groups, size, 9, torch.bfloat16, device)
    keys[:, :7], values[:, :7] = (
        _some((rows, 7, groups, size), torch.bfloat16, device, seed) for seed in (0, 1)
    )
    qkv_BTE = _some((rows, 1, (heads + 2 * groups) * size), torch.bfloat16, device, 2)
    order_B = torch.tensor([3, 5, 1], device=device)
    shuffled = (keys[order_B], values[order_B])
    out_BTE = frame_attention.frame_attention(qkv_BTE, *shared, keys, values, 7)
    shuffled_BTE = frame_attention.frame_attention(qkv_BTE[order_B], *shared, *shuffled, 7)
    assert torch.equal(shuffled_BTE, out_BTE[order_B])


def test_positions_outside_the_cache_are_refused(device: torch.device) -> None:
    cache = torch.zeros(1, 2, 4, 8, device=device)
    turn = torch.zeros(8, device=device)
    with pytest.raises(ValueError, match="position 4 is not in a cache of 4"):
        frame_attention.depth_attention(
            torch.zeros(1, 48, device=device), turn, turn, cache, cache.clone(), 4
        )
    for tokens, start, keys, values, refusal in (
        (2, 1, cache, cache.clone(), "positions 1 to 2 are not in a cache of 2"),
        (1, 0, cache, cache.transpose(1, 2), "laid out alike"),
    ):
        qkv_BTE, weight = (
            torch.zeros(1, tokens, 12 * 8, device=device),
            torch.ones(8, device=device),
        )
        with pytest.raises(ValueError, match=refusal):
            frame_attention.frame_attention(
                qkv_BTE, weight, weight, 1e-6, turn, turn, keys, values, start
            )
