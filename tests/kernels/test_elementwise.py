"""Activations, embeddings and FP8 rows against their references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels.gpu import elementwise
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

DTYPES = [torch.float32, torch.bfloat16]

both = pytest.mark.parametrize("dtype", DTYPES, ids=str)
shapes = pytest.mark.parametrize("shape", [(1, 2), (7, 24), (2, 3, 128), (3, 2600)], ids=str)


def _some(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int = 0
) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3.0).to(
        device, dtype
    )


ACTIVATIONS = [
    (elementwise.silu_mul, reference.silu_mul),
    (elementwise.silu, reference.silu),
    (elementwise.gelu, reference.gelu),
]
each = pytest.mark.parametrize(
    ("activate", "expect"), ACTIVATIONS, ids=["silu_mul", "silu", "gelu"]
)


@both
@shapes
@each
def test_activations(
    activate: Callable[..., Any],
    expect: Callable[..., Any],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    x = _some(shape, dtype, device) / 2.0
    actual, expected = activate(x), expect(x)
    assert actual.shape == expected.shape
    assert_close(actual, expected)
    assert_fp8_close(activate(x, True), expect(x, True))


@both
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("shape", [(7, 24), (2, 3, 128), (3, 600)], ids=str)
@each
def test_a_product_is_scaled_as_it_is_loaded(
    activate: Callable[..., Any],
    expect: Callable[..., Any],
    shape: tuple[int, ...],
    has_bias: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """To the bits of scaling it first, which on the way to 8 bits is not rounded."""
    x = some_product(shape, dtype, device, bias=has_bias, seed=0)
    assert torch.equal(activate(x), activate(x.plain()))
    assert_fp8_equal(activate(x, True), activate(x.wide(), True))
    assert_fp8_close(activate(x, True), expect(x, True))


def test_many_rows_share_a_program(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    x = _some((11, 1300), torch.bfloat16, device)
    few = elementwise.silu(x)
    monkeypatch.setattr(elementwise, "_MANY", 1)
    assert_equal(elementwise.silu(x), few)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # of the interpreter
def test_silu_of_what_exp_cannot_hold(device: torch.device) -> None:
    gate_up = torch.tensor([[-200.0, 200.0, -1e30, 2.0, 2.0, 2.0]], device=device)
    assert_close(elementwise.silu_mul(gate_up), torch.tensor([[0.0, 400.0, 0.0]], device=device))


@pytest.mark.filterwarnings("ignore:overflow encountered in multiply")  # of the interpreter
def test_gelu_from_one_end_to_the_other(device: torch.device) -> None:
    """Against float64, to a few roundings of float32 where the result is more than its tail."""
    x = torch.cat(
        (
            torch.linspace(-12.0, 12.0, 20_001),
            torch.tensor([0.0, 1e-30, -1e-30, 1e4, -1e4, 3e38, -3e38]),
        )
    )
    exact = torch.nn.functional.gelu(x.double())
    error = (tensor(elementwise.gelu(x.to(device))).cpu().double() - exact).abs()
    assert (error <= 2e-6 * exact.abs() + 1e-8 * (x < -3)).all()


def test_rows_may_lie_apart(device: torch.device) -> None:
    x = _some((6, 90), torch.bfloat16, device)[:, 3:53]
    assert_equal(elementwise.gelu(x), elementwise.gelu(x.contiguous()))
    assert_fp8_equal(elementwise.gelu(x, True), elementwise.gelu(x.contiguous(), True))


def _assert_quantized_exactly(x_MK: Tensor) -> None:
    # PyTorch divides by a number as such on a CPU; on a GPU it multiplies by the reciprocal.
    assert_fp8_equal(elementwise.quantize_rows(x_MK), reference.quantize_rows(x_MK.cpu()))


@both
@pytest.mark.parametrize("width", [1, 40, 1400])
def test_quantize_rows_is_exact(width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Every step is correctly rounded, so nothing may differ: rows of all sizes, of zeros, with an
    outlier.
    """
    x_MK = (
        _some((12, width), dtype, device)
        * torch.logspace(-30, 30, 12, device=device).to(dtype)[:, None]
    )
    x_MK[3] = 0.0
    x_MK[5, 0] = 1e9
    _assert_quantized_exactly(x_MK)
    # A row's largest becomes e4m3's, whatever its size.
    largest = reference.quantize_rows(x_MK).values.float().abs().amax(1)
    assert largest.tolist() == [448.0] * 3 + [0.0] + [448.0] * 8


def test_rows_too_small_for_a_scale_stay_finite(device: torch.device) -> None:
    """The inverse of their scale would be infinite."""
    x_MK = torch.tensor([[1.0e-42, -5.0e-43], [4.0e-36, 0.0], [0.0, 6.0e-36]], device=device)
    _assert_quantized_exactly(x_MK)
    found = elementwise.quantize_rows(x_MK)
    back = found.values.float() * found.scales
    torch.testing.assert_close(back, x_MK, rtol=2.0**-4, atol=2.0**-126 * 2.0**-9)


def test_fp8_rows_do_not_depend_on_neighbours(device: torch.device) -> None:
    gate_up = _some((40, 48), torch.bfloat16, device)
    places = torch.randperm(40, generator=torch.Generator().manual_seed(1)).to(device)
    found = rows8(elementwise.silu_mul(gate_up, True))
    expected = Rows8(
        found.values.view(torch.uint8)[places].view(torch.float8_e4m3fn), found.scales[places]
    )
    assert_fp8_equal(elementwise.silu_mul(gate_up[places], True), expected)


@both
@pytest.mark.parametrize(("ids", "width"), [(1, 8), (5, 20), (3, 1100)])
def test_embed_sum(ids: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
    noise = torch.Generator().manual_seed(2)
    text_VD, codes_WD = _some((11, width), dtype, device, 3), _some((30, width), dtype, device, 4)
    # Columns of one matrix, as prompts are; negative ids of several values.
    matrix = torch.randint(-3, 30, (6, ids + 1), generator=noise).to(device)
    matrix[0, 1:] = -1
    text_M, ids_MN = matrix[:, 0].clamp(0, 10), matrix[:, 1:]
    actual = elementwise.embed_sum(text_VD, codes_WD, text_M, ids_MN)
    assert torch.equal(actual, reference.embed_sum(text_VD, codes_WD, text_M, ids_MN))
    assert torch.equal(actual[0], text_VD[text_M[0]])


def test_a_negative_id_reads_nothing(device: torch.device) -> None:
    text_VD, codes_WD = (
        torch.ones(2, 8, device=device),
        torch.full((4, 8), float("nan"), device=device),
    )
    ids_MN = torch.full((3, 2), -1, device=device)
    text_M = torch.zeros(3, dtype=torch.int64, device=device)
    assert torch.equal(
        elementwise.embed_sum(text_VD, codes_WD, text_M, ids_MN), torch.ones(3, 8, device=device)
    )
