"""How far a kernel's results may be from its twin's."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """float32: to a few roundings of the largest element. bfloat16: equal, but for one element in a hundred that a last
    bit of float32 has pushed over a tie; a rounding in the wrong place changes every fifth.
    """
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    wide, expected_wide = actual.float(), expected.float()
    largest = float(expected_wide.abs().max())
    if actual.dtype == torch.float32:
        torch.testing.assert_close(wide, expected_wide, rtol=4e-6, atol=2e-6 * largest)
    else:
        torch.testing.assert_close(wide, expected_wide, rtol=2.0**-7, atol=2.0**-8 * largest)
        assert int((actual != expected).sum()) <= 1 + actual.numel() // 100


def assert_fp8_close(actual8: Tensor, scale: Tensor, expected8: Tensor, expected_scale: Tensor) -> None:
    """Equal scales (to a bfloat16 rounding of the largest element) and rows to one step of e4m3."""
    assert actual8.dtype == expected8.dtype == torch.float8_e4m3fn
    assert actual8.shape == expected8.shape
    assert scale.dtype == torch.float32
    assert scale.shape == expected_scale.shape
    torch.testing.assert_close(scale, expected_scale, rtol=2.0**-7, atol=0.0)
    assert (_ordinal(actual8) - _ordinal(expected8)).abs().max() <= 1


def _ordinal(x8: Tensor) -> Tensor:
    """Neighbouring values of float8 are neighbouring integers."""
    bits = x8.view(torch.uint8).int()
    magnitude = bits & 0x7F
    return torch.where(bits >= 0x80, -magnitude, magnitude)
