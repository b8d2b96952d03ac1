"""Norm kernels against their plain twins: odd widths, both dtypes, every row alone with its bits."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.kernels.close import assert_close, assert_fp8_close

from hocket.kernels import norms, reference

EPS = 1e-5
#: Rows that share a program, a row that fills its block, one that does not, and one of several warps' elements.
SHAPES = [(1, 1), (7, 12), (2, 3, 64), (5, 300), (3, 2, 1280)]
DTYPES = [torch.float32, torch.bfloat16]

both = pytest.mark.parametrize("dtype", DTYPES, ids=str)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def _some(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=noise) * 1.5 + 0.3).to(device, dtype)


@both
@shapes
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    x, weight_D = _some(shape, dtype, device, 0), _some(shape[-1:], dtype, device, 1)
    assert_close(norms.rms_norm(x, weight_D, EPS), reference.rms_norm(x, weight_D, EPS))


@both
@shapes
def test_add_rms_norm(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    x, delta, weight_D = (_some(s, dtype, device, i) for i, s in enumerate((shape, shape, shape[-1:])))
    total, normed = norms.add_rms_norm(x, delta, weight_D, EPS)
    expected_total, expected = reference.add_rms_norm(x, delta, weight_D, EPS)
    assert torch.equal(total, expected_total)
    assert_close(normed, expected)


@both
@shapes
def test_layer_norm(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    x, weight_D, bias_D = (_some(s, dtype, device, i) for i, s in enumerate((shape, shape[-1:], shape[-1:])))
    assert_close(norms.layer_norm(x, weight_D, bias_D, EPS), reference.layer_norm(x, weight_D, bias_D, EPS))


@both
@shapes
def test_add_layer_norm(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    width = shape[-1:]
    x, delta, weight_D, bias_D = (_some(s, dtype, device, i) for i, s in enumerate((shape, shape, width, width)))
    total, normed = norms.add_layer_norm(x, delta, weight_D, bias_D, EPS)
    expected_total, expected = reference.add_layer_norm(x, delta, weight_D, bias_D, EPS)
    assert torch.equal(total, expected_total)
    assert_close(normed, expected)


@both
@shapes
def test_layer_norm_of_a_float32_stream(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    width = shape[-1:]
    x, scale_D, weight_D, bias_D = (
        _some(s, torch.float32, device, i) for i, s in enumerate((shape, width, width, width))
    )
    delta = _some(shape, dtype, device, 4)
    expected_total, expected = reference.scaled_add_layer_norm(x, delta, scale_D, weight_D, bias_D, EPS)

    total, normed = norms.scaled_add_layer_norm(x, delta, scale_D, weight_D, bias_D, EPS)
    assert torch.equal(total, expected_total)
    assert_close(normed, expected)
    assert torch.equal(norms.scaled_add(x, delta, scale_D), expected_total)
    assert_close(
        norms.layer_norm_to(x, weight_D, bias_D, EPS, dtype), reference.layer_norm_to(x, weight_D, bias_D, EPS, dtype)
    )


def test_a_large_mean_does_not_cancel(device: torch.device) -> None:
    """The mean of squares minus the squared mean would be all noise here."""
    x = 1000.0 + _some((3, 96), torch.float32, device, 0)
    weight_D, bias_D = torch.ones(96, device=device), torch.zeros(96, device=device)
    expected = reference.layer_norm(x.double(), weight_D.double(), bias_D.double(), EPS).float()
    torch.testing.assert_close(norms.layer_norm(x, weight_D, bias_D, EPS), expected, rtol=1e-3, atol=1e-3)


def test_rows_may_lie_apart(device: torch.device) -> None:
    wide = _some((6, 2, 40), torch.float32, device, 0)
    x, delta, weight_D = wide[:, 0], wide[:, 1], _some((40,), torch.float32, device, 1)
    total, normed = norms.add_rms_norm(x, delta, weight_D, EPS)
    assert torch.equal(total, x + delta)
    assert_close(normed, reference.rms_norm(x + delta, weight_D, EPS))


@both
@pytest.mark.parametrize("width", [24, 700])
def test_a_row_keeps_its_bits_wherever_it_is(width: int, dtype: torch.dtype, device: torch.device) -> None:
    x, weight_D, bias_D = (_some(s, dtype, device, i) for i, s in enumerate(((50, width), (width,), (width,))))
    places = torch.randperm(50, generator=torch.Generator().manual_seed(3)).to(device)
    among_nan = torch.full_like(x, float("nan"))
    among_nan[:1] = x[:1]
    for norm in (
        partial(norms.rms_norm, weight_D=weight_D, eps=EPS),
        partial(norms.layer_norm, weight_D=weight_D, bias_D=bias_D, eps=EPS),
    ):
        normed = norm(x)
        assert torch.equal(norm(x[places]), normed[places])
        assert torch.equal(norm(x[:1]), normed[:1])
        assert torch.equal(norm(among_nan)[:1], normed[:1])


@both
@shapes
def test_fp8(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    x, delta, weight_D = (_some(s, dtype, device, i) for i, s in enumerate((shape, shape, shape[-1:])))
    normed8, scale = norms.rms_norm_fp8(x, weight_D, EPS)
    assert_fp8_close(normed8, scale, *reference.rms_norm_fp8(x, weight_D, EPS))

    total, normed8, scale = norms.add_rms_norm_fp8(x, delta, weight_D, EPS)
    expected_total, *expected = reference.add_rms_norm_fp8(x, delta, weight_D, EPS)
    assert torch.equal(total, expected_total)
    assert_fp8_close(normed8, scale, *expected)


def test_no_rows(device: torch.device) -> None:
    x, weight_D = torch.empty(0, 8, device=device), torch.ones(8, device=device)
    assert norms.rms_norm(x, weight_D, EPS).shape == (0, 8)
