"""Norm kernels against their references: odd widths, both dtypes, and the bits of each row
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels.gpu import norms
from hocket.kernels.reference import talker as reference
from hocket.kernels.types import Rows8
from tests.support.close import (
    assert_close,
    assert_equal,
    assert_fp8_close,
    assert_fp8_equal,
    rows8,
    some_product,
    tensor,
)

EPS = 1e-5
#: Rows that share a program, several programs of such, rows that fill their pieces or do not, one
#: of two warps.
SHAPES = [(1, 1), (7, 12), (150, 16), (2, 3, 64), (5, 300), (3, 2, 1280)]
DTYPES = [torch.float32, torch.bfloat16]

both = pytest.mark.parametrize("dtype", DTYPES, ids=str)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def _some(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=noise) * 1.5 + 0.3).to(device, dtype)


@both
@shapes
@pytest.mark.parametrize("has_delta", [True, False], ids=["delta", "alone"])
def test_add_rms_norm(
    shape: tuple[int, ...], has_delta: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x, some, weight_D = (
        _some(s, dtype, device, i) for i, s in enumerate((shape, shape, shape[-1:]))
    )
    delta = some if has_delta else None
    total, normed = norms.add_rms_norm(x, delta, weight_D, EPS)
    expected_total, expected = reference.add_rms_norm(x, delta, weight_D, EPS)
    assert torch.equal(total, expected_total)
    assert_close(normed, expected)
    total, normed8 = norms.add_rms_norm(x, delta, weight_D, EPS, True)
    assert torch.equal(total, expected_total)
    assert_fp8_close(normed8, reference.add_rms_norm(x, delta, weight_D, EPS, True)[1])


@both
@shapes
@pytest.mark.parametrize("has_delta", [True, False], ids=["delta", "alone"])
def test_add_layer_norm(
    shape: tuple[int, ...], has_delta: bool, dtype: torch.dtype, device: torch.device
) -> None:
    width = shape[-1:]
    x, some, weight_D, bias_D = (
        _some(s, dtype, device, i) for i, s in enumerate((shape, shape, width, width))
    )
    delta = some if has_delta else None
    total, normed = norms.add_layer_norm(x, delta, weight_D, bias_D, EPS)
    expected_total, expected = reference.add_layer_norm(x, delta, weight_D, bias_D, EPS)
    assert torch.equal(total, expected_total)
    assert_close(normed, expected)
    total, normed8 = norms.add_layer_norm(x, delta, weight_D, bias_D, EPS, True)
    assert torch.equal(total, expected_total)
    assert_fp8_close(normed8, reference.add_layer_norm(x, delta, weight_D, bias_D, EPS, True)[1])


@both
@shapes
def test_layer_norm_of_a_float32_stream(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    width = shape[-1:]
    x, scale_D, weight_D, bias_D = (
        _some(s, torch.float32, device, i) for i, s in enumerate((shape, width, width, width))
    )
    delta = _some(shape, dtype, device, 4)
    expected_total, expected = reference.scaled_add_layer_norm(
        x, delta, scale_D, weight_D, bias_D, EPS
    )

    total, normed = norms.scaled_add_layer_norm(x, delta, scale_D, weight_D, bias_D, EPS)
    assert torch.equal(total, expected_total)
    assert_close(normed, expected)
    assert torch.equal(norms.scaled_add(x, delta, scale_D), expected_total)
    assert_close(
        norms.layer_norm_to(x, weight_D, bias_D, EPS, dtype),
        reference.layer_norm_to(x, weight_D, bias_D, EPS, dtype),
    )
    for found, plain in zip(
        norms.scaled_add_layer_norm(x, delta, scale_D, weight_D, bias_D, EPS, True),
        reference.scaled_add_layer_norm(x, delta, scale_D, weight_D, bias_D, EPS, True),
        strict=True,
    ):
        if isinstance(found, Rows8):
            assert_fp8_close(found, plain)
        else:
            assert torch.equal(found, expected_total)
    assert_fp8_close(
        norms.layer_norm_to(x, weight_D, bias_D, EPS, dtype, True),
        reference.layer_norm_to(x, weight_D, bias_D, EPS, dtype, True),
    )


@both
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("shape", [(7, 12), (2, 3, 64), (5, 300)], ids=str)
def test_a_product_is_scaled_as_it_is_added(
    shape: tuple[int, ...], has_bias: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """To the bits of scaling it first; but that a mean's terms may be added in another order, which
    bfloat16 hides.

    Threads share a row in another way where the two lie at other addresses.
    """
    width = shape[-1:]
    delta = some_product(shape, dtype, device, bias=has_bias, seed=0)
    x, weight_D, bias_D = (_some(s, dtype, device, i) for i, s in enumerate((shape, width, width)))
    stream, scale_D = _some(shape, torch.float32, device, 3), _some(width, torch.float32, device, 4)
    adds: list[
        tuple[Callable[..., tuple[Tensor, Tensor | Rows8]], Tensor, tuple[Tensor | float, ...]]
    ] = [
        (norms.add_rms_norm, x, (weight_D, EPS)),
        (norms.add_layer_norm, x, (weight_D, bias_D, EPS)),
        (norms.scaled_add_layer_norm, stream, (scale_D, weight_D.float(), bias_D.float(), EPS)),
    ]
    for add, first, rest in adds:
        for found, plain in zip(
            add(first, delta, *rest), add(first, delta.plain(), *rest), strict=True
        ):
            if dtype == torch.bfloat16:
                assert_equal(found, plain)
            else:
                torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-6)
        found8, plain8 = (
            add(first, delta, *rest, True)[1],
            add(first, delta.plain(), *rest, True)[1],
        )
        if dtype == torch.bfloat16:
            assert_fp8_equal(found8, plain8)
        else:
            torch.testing.assert_close(
                rows8(found8).scales, rows8(plain8).scales, rtol=1e-6, atol=0.0
            )
    assert torch.equal(
        norms.scaled_add(stream, delta, scale_D), norms.scaled_add(stream, delta.plain(), scale_D)
    )


def test_a_large_mean_does_not_cancel(device: torch.device) -> None:
    """The mean of squares minus the squared mean would be all noise here."""
    x = 1000.0 + _some((3, 96), torch.float32, device, 0)
    weight_D, bias_D = torch.ones(96, device=device), torch.zeros(96, device=device)
    expected = F.layer_norm(x.double(), (96,), weight_D.double(), bias_D.double(), EPS).float()
    normed = norms.layer_norm_to(x, weight_D, bias_D, EPS, torch.float32)
    torch.testing.assert_close(tensor(normed), expected, rtol=1e-3, atol=1e-3)


def test_rows_may_lie_apart(device: torch.device) -> None:
    wide = _some((6, 2, 40), torch.float32, device, 0)
    x, delta, weight_D = wide[:, 0], wide[:, 1], _some((40,), torch.float32, device, 1)
    total, normed = norms.add_rms_norm(x, delta, weight_D, EPS)
    assert torch.equal(total, x + delta)
    assert_close(normed, reference.add_rms_norm(x + delta, None, weight_D, EPS)[1])


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # of the interpreter
@both
@pytest.mark.parametrize("width", [24, 700])
def test_a_row_keeps_its_bits_wherever_it_is(
    width: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight_D, bias_D = (
        _some(s, dtype, device, i) for i, s in enumerate(((12, width), (width,), (width,)))
    )
    places = torch.randperm(12, generator=torch.Generator().manual_seed(3)).to(device)
    among_nan = torch.full_like(x, float("nan"))
    among_nan[:1] = x[:1]
    kinds: list[Callable[..., tuple[Tensor, Tensor | Rows8]]] = [
        partial(norms.add_rms_norm, weight_D=weight_D, eps=EPS),
        partial(norms.add_layer_norm, weight_D=weight_D, bias_D=bias_D, eps=EPS),
    ]
    for norm in kinds:
        normed = tensor(norm(x, None)[1])
        assert_equal(norm(x[places], None)[1], normed[places])
        assert_equal(norm(x[:1], None)[1], normed[:1])
        assert torch.equal(tensor(norm(among_nan, None)[1])[:1], normed[:1])
        normed8, alone8 = (rows8(norm(rows, None, to_fp8=True)[1]) for rows in (x, among_nan))
        assert_fp8_equal(
            Rows8(alone8.values[:1], alone8.scales[:1]),
            Rows8(normed8.values[:1], normed8.scales[:1]),
        )


def test_no_rows(device: torch.device) -> None:
    x, weight_D = torch.empty(0, 8, device=device), torch.ones(8, device=device)
    assert tensor(norms.add_rms_norm(x, None, weight_D, EPS)[1]).shape == (0, 8)


# ---- the RMS norm of a float32 stream


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 12), (5, 512), (2, 3, 100)])
def test_scaled_add_rms_norm(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """A stream that something joins, and one that nothing does."""
    x, delta = (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)
        for seed in (1, 2)
    )
    scale_D, weight_D = (
        torch.rand(shape[-1], generator=torch.Generator().manual_seed(s)).to(device) for s in (3, 4)
    )
    before = x.clone()
    for joining, scale in ((delta.to(dtype), scale_D), (None, None)):
        total, normed = norms.scaled_add_rms_norm(x, joining, scale, weight_D, 1e-5, dtype)
        wanted_total, wanted = reference.scaled_add_rms_norm(
            x, joining, scale, weight_D, 1e-5, dtype
        )
        assert_close(total, wanted_total)
        assert_close(normed, wanted)
    assert torch.equal(x, before)


def test_rows_of_a_float32_stream_keep_their_bits(device: torch.device) -> None:
    x, delta = (
        torch.randn(6, 96, generator=torch.Generator().manual_seed(seed)).to(device)
        for seed in (1, 2)
    )
    scale_D, weight_D = x[0].abs(), delta[0].abs()
    together = norms.scaled_add_rms_norm(x, delta, scale_D, weight_D, 1e-5, torch.bfloat16)
    alone = norms.scaled_add_rms_norm(
        x[3:4].clone(), delta[3:4].clone(), scale_D, weight_D, 1e-5, torch.bfloat16
    )
    assert all(torch.equal(one[3:4], other) for one, other in zip(together, alone, strict=True))


def test_rows_of_a_float32_stream_that_lie_apart_are_refused(device: torch.device) -> None:
    x = torch.zeros(4, 8, device=device)
    with pytest.raises(ValueError, match="contiguous"):
        norms.scaled_add_rms_norm(x[:, ::2], None, None, x[0, :4], 1e-5, torch.float32)
