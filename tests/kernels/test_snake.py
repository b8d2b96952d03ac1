"""Against the plain twin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels import reference
from hocket.kernels.snake import snake

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8}


def inputs(device: torch.device, dtype: torch.dtype, batch: int, channels: int, tokens: int) -> tuple[Tensor, ...]:
    """Angles of some tens of radians, as real ones are at most."""
    generator = torch.Generator().manual_seed(channels + tokens)
    x_BCT = torch.randn(batch, channels, tokens, generator=generator) * 4
    rate_C1, gain_C1 = torch.randn(2, channels, 1, generator=generator).exp()
    return x_BCT.to(device, dtype), rate_C1.to(device, dtype), gain_C1.to(device, dtype)


def check(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=TOLERANCES[got.dtype], atol=2e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("batch", "channels", "tokens"), [(1, 1, 1), (2, 24, 4), (3, 7, 33), (2, 3, 1100), (1, 2100, 1), (1, 96, 160)]
)
def test_any_shape(device: torch.device, dtype: torch.dtype, batch: int, channels: int, tokens: int) -> None:
    x_BCT, rate_C1, gain_C1 = inputs(device, dtype, batch, channels, tokens)
    before = x_BCT.clone()
    got = snake(x_BCT, rate_C1, gain_C1)
    check(got, reference.snake(x_BCT, rate_C1, gain_C1))
    assert got.is_contiguous()
    assert torch.equal(x_BCT, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_and_transposes(device: torch.device, dtype: torch.dtype) -> None:
    """What lies beside a slice is NaN."""
    x_BCT, rate_C1, gain_C1 = inputs(device, dtype, 2, 20, 30)
    expected = reference.snake(x_BCT, rate_C1, gain_C1)
    padded = torch.nn.functional.pad(x_BCT, (3, 5), value=torch.nan)
    check(snake(padded[:, :, 3:-5], rate_C1, gain_C1), expected)
    check(snake(x_BCT.transpose(1, 2).contiguous().transpose(1, 2), rate_C1, gain_C1), expected)


def test_row_is_its_own(device: torch.device) -> None:
    """A row's bits are the same alone, in another place, and beside NaN."""
    x_BCT, rate_C1, gain_C1 = inputs(device, torch.bfloat16, 3, 20, 50)
    together = snake(x_BCT, rate_C1, gain_C1)
    x_BCT[0] = torch.nan
    for row in (1, 2):
        assert torch.equal(snake(x_BCT[row:], rate_C1, gain_C1)[0], together[row])
    assert torch.equal(snake(x_BCT.flip(0), rate_C1, gain_C1).flip(0)[1:], together[1:])


def test_float32_parameters_of_bfloat16_activations(device: torch.device) -> None:
    x_BCT, rate_C1, gain_C1 = inputs(device, torch.bfloat16, 2, 12, 9)
    rate_C1, gain_C1 = rate_C1.float() * 1.001, gain_C1.float() * 1.001
    check(snake(x_BCT, rate_C1, gain_C1), reference.snake(x_BCT, rate_C1, gain_C1))
