"""Activations, embeddings and FP8 rows against their plain twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from tests.kernels.close import assert_close, assert_fp8_close

from hocket.kernels import elementwise, reference

DTYPES = [torch.float32, torch.bfloat16]

both = pytest.mark.parametrize("dtype", DTYPES, ids=str)
shapes = pytest.mark.parametrize("shape", [(1, 2), (7, 24), (2, 3, 128), (3, 2600)], ids=str)


def _some(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int = 0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3.0).to(device, dtype)


@both
@shapes
def test_silu_mul(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    gate_up = _some(shape, dtype, device)
    assert_close(elementwise.silu_mul(gate_up), reference.silu_mul(gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of the interpreter
def test_silu_of_what_exp_cannot_hold(device: torch.device) -> None:
    gate_up = torch.tensor([[-200.0, 200.0, -1e30, 2.0, 2.0, 2.0]], device=device)
    assert_close(elementwise.silu_mul(gate_up), torch.tensor([[0.0, 400.0, 0.0]], device=device))


@both
@pytest.mark.parametrize("shape", [(1,), (7, 24), (2, 3, 128), (5, 2600)], ids=str)
def test_gelu(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    x = _some(shape, dtype, device) / 3.0
    actual = elementwise.gelu(x)
    assert actual.shape == shape
    assert_close(actual, reference.gelu(x))


@pytest.mark.filterwarnings("ignore:overflow encountered in multiply")  # of the interpreter
def test_gelu_from_one_end_to_the_other(device: torch.device) -> None:
    """Against float64, to a few roundings of float32 where the result is more than its tail."""
    x = torch.cat((torch.linspace(-12.0, 12.0, 20_001), torch.tensor([0.0, 1e-30, -1e-30, 1e4, -1e4, 3e38, -3e38])))
    exact = torch.nn.functional.gelu(x.double())
    error = (elementwise.gelu(x.to(device)).cpu().double() - exact).abs()
    assert (error <= 2e-6 * exact.abs() + 1e-8 * (x < -3)).all()


def test_gelu_of_a_slice_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        elementwise.gelu(torch.ones(4, 8, device=device)[:, :5])


@both
@shapes
def test_silu_mul_fp8(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    gate_up = _some(shape, dtype, device)
    assert_fp8_close(*elementwise.silu_mul_fp8(gate_up), *reference.silu_mul_fp8(gate_up))


def _assert_quantized_exactly(x_MK: Tensor) -> None:
    x8, scale_M1 = elementwise.quantize_rows(x_MK)
    # PyTorch divides by a number as such on a CPU; on a GPU it multiplies by the reciprocal.
    expected8, expected_scale = reference.quantize_rows(x_MK.cpu())
    assert torch.equal(scale_M1.cpu(), expected_scale)
    assert torch.equal(x8.view(torch.uint8).cpu(), expected8.view(torch.uint8))


@both
@pytest.mark.parametrize("width", [1, 40, 1400])
def test_quantize_rows_is_exact(width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Every division is correctly rounded, so nothing may differ: rows of all sizes, of zeros, with an outlier."""
    x_MK = _some((12, width), dtype, device) * torch.logspace(-30, 30, 12, device=device).to(dtype)[:, None]
    x_MK[3] = 0.0
    x_MK[5, 0] = 1e9
    _assert_quantized_exactly(x_MK)


def test_a_subnormal_scale_stays_in_range(device: torch.device) -> None:
    """Largest elements around 448 times the smallest subnormals: the scale is off by up to a half."""
    x_MK = torch.tensor([[1.0e-42, -5.0e-43], [9.0e-43, 1.0e-43]], device=device)
    _assert_quantized_exactly(x_MK)


def test_fp8_rows_do_not_depend_on_neighbours(device: torch.device) -> None:
    gate_up = _some((40, 48), torch.bfloat16, device)
    places = torch.randperm(40, generator=torch.Generator().manual_seed(1)).to(device)
    x8, scale_M1 = elementwise.silu_mul_fp8(gate_up)
    moved8, moved_scale = elementwise.silu_mul_fp8(gate_up[places])
    assert torch.equal(moved8.view(torch.uint8), x8.view(torch.uint8)[places])
    assert torch.equal(moved_scale, scale_M1[places])


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
    text_VD, codes_WD = torch.ones(2, 8, device=device), torch.full((4, 8), float("nan"), device=device)
    ids_MN = torch.full((3, 2), -1, device=device)
    text_M = torch.zeros(3, dtype=torch.int64, device=device)
    assert torch.equal(elementwise.embed_sum(text_VD, codes_WD, text_M, ids_MN), torch.ones(3, 8, device=device))
