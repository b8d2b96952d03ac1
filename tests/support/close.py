"""Tolerances between a kernel's results and its reference's."""

from __future__ import annotations

import torch
from torch import Tensor

from hocket.kernels.types import Rows8, Scaled


def tensor(x: Tensor | Rows8) -> Tensor:
    """A result that has not been rounded to 8 bits."""
    assert isinstance(x, Tensor)
    return x


def rows8(x: Tensor | Rows8) -> Rows8:
    """A result that has been rounded to 8 bits."""
    assert isinstance(x, Rows8)
    return x


def assert_close(found: Tensor | Rows8, wanted: Tensor | Rows8) -> None:
    """float32: to a few roundings of the largest element. bfloat16: equal, but for one element in a
    hundred that a last bit of float32 has pushed over a tie; a rounding in the wrong place changes
    every fifth.
    """
    actual, expected = tensor(found), tensor(wanted)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    wide, expected_wide = actual.float(), expected.float()
    largest = float(expected_wide.abs().max())
    if actual.dtype == torch.float32:
        torch.testing.assert_close(wide, expected_wide, rtol=4e-6, atol=2e-6 * largest)
    else:
        torch.testing.assert_close(wide, expected_wide, rtol=2.0**-7, atol=2.0**-8 * largest)
        assert int((actual != expected).sum()) <= 1 + actual.numel() // 100


def assert_fp8_close(found: Tensor | Rows8, wanted: Tensor | Rows8) -> None:
    """Equal scales (to a bfloat16 rounding of the largest element) and rows to one step of e4m3."""
    actual, expected = rows8(found), rows8(wanted)
    assert actual.values.dtype == expected.values.dtype == torch.float8_e4m3fn
    assert actual.values.shape == expected.values.shape
    assert actual.scales.dtype == torch.float32
    assert actual.scales.shape == expected.scales.shape
    torch.testing.assert_close(actual.scales, expected.scales, rtol=2.0**-7, atol=0.0)
    assert (_ordinal(actual.values) - _ordinal(expected.values)).abs().max() <= 1


def assert_equal(actual: Tensor | Rows8, expected: Tensor | Rows8) -> None:
    assert torch.equal(tensor(actual), tensor(expected))


def assert_fp8_equal(found: Tensor | Rows8, wanted: Tensor | Rows8) -> None:
    actual, expected = rows8(found), rows8(wanted)
    assert torch.equal(actual.scales.cpu(), expected.scales.cpu())
    assert torch.equal(
        actual.values.view(torch.uint8).cpu(), expected.values.view(torch.uint8).cpu()
    )


def some_product(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, bias: bool, seed: int
) -> Scaled:
    """An 8-bit matrix whose rows and columns have many scales; dequantised values are around 1."""
    noise = torch.Generator().manual_seed(seed)
    product = 1e4 * torch.randn(shape, generator=noise)
    rows = 1e-3 * (0.5 + torch.rand((*shape[:-1], 1), generator=noise))
    columns = 1e-1 * (0.5 + torch.rand(shape[-1:], generator=noise))
    biases = torch.randn(shape[-1:], generator=noise).to(device, dtype) if bias else None
    return Scaled(product.to(device, dtype), rows.to(device), columns.to(device), biases)


def _ordinal(x8: Tensor) -> Tensor:
    """Neighbouring values of float8 are neighbouring integers."""
    bits = x8.view(torch.uint8).int()
    magnitude = bits & 0x7F
    return torch.where(bits >= 0x80, -magnitude, magnitude)
