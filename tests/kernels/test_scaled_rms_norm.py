"""Against the plain twin."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from hocket.kernels.gpu.scaled_rms_norm import scaled_add_rms_norm
from hocket.kernels.reference import talker as reference
from tests.support.close import assert_close


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 12), (5, 512), (2, 3, 100)])
def test_any_shape(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """A stream that something joins, and one that nothing does."""
    x, delta = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device) for seed in (1, 2))
    scale_D, weight_D = (torch.rand(shape[-1], generator=torch.Generator().manual_seed(s)).to(device) for s in (3, 4))
    before = x.clone()
    for joins in ((delta.to(dtype), scale_D), (None, None)):
        total, normed = scaled_add_rms_norm(x, *joins, weight_D, 1e-5, dtype)
        wanted_total, wanted = reference.scaled_add_rms_norm(x, *joins, weight_D, 1e-5, dtype)
        assert_close(total, wanted_total)
        assert_close(normed, wanted)
    assert torch.equal(x, before)


def test_rows_keep_their_bits(device: torch.device) -> None:
    x, delta = (torch.randn(6, 96, generator=torch.Generator().manual_seed(seed)).to(device) for seed in (1, 2))
    scale_D, weight_D = x[0].abs(), delta[0].abs()
    together = scaled_add_rms_norm(x, delta, scale_D, weight_D, 1e-5, torch.bfloat16)
    alone = scaled_add_rms_norm(x[3:4].clone(), delta[3:4].clone(), scale_D, weight_D, 1e-5, torch.bfloat16)
    assert all(torch.equal(one[3:4], other) for one, other in zip(together, alone, strict=True))


def test_rows_that_lie_apart_are_refused(device: torch.device) -> None:
    x = torch.zeros(4, 8, device=device)
    with pytest.raises(ValueError, match="contiguous"):
        scaled_add_rms_norm(x[:, ::2], None, None, x[0, :4], 1e-5, torch.float32)
