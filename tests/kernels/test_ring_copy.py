"""Against the plain twin: streams of any length, between rings of other sizes, with NaN wherever no key is."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from hocket.kernels.gpu import ring_copy
from hocket.kernels.reference import rings as reference_rings

CONTEXT, LAYERS, HEADS = 7, 3, 2


@pytest.mark.parametrize("frames", [0, 1, 3, 4, 25])
@pytest.mark.parametrize("capacities", [(9, 9), (9, 23), (23, 9)])
@pytest.mark.parametrize(("size", "dtype"), [(8, torch.float32), (1024, torch.bfloat16)])
def test_copy_rings(
    frames: int, capacities: tuple[int, int], size: int, dtype: torch.dtype, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(frames)
    rings, target = (
        torch.randn(2, LAYERS, rows, capacity, HEADS, size, generator=generator).to(device, dtype)
        for rows, capacity in zip((4, 5), capacities, strict=True)
    )
    move_3 = torch.tensor([3, 1, frames], device=device)
    expected, actual = target.clone(), target.clone()
    reference_rings.copy_rings(rings, move_3, expected, CONTEXT, 2)
    ring_copy.copy_rings(rings, move_3, actual, CONTEXT, 2)
    assert torch.equal(actual, expected)
    # The last positions and nothing else, each of them where its own ring has it.
    for position in range(max(0, 2 * frames - CONTEXT), 2 * frames):
        slot, target_slot = (position % capacity for capacity in capacities)
        assert torch.equal(actual[:, :, 1, target_slot], rings[:, :, 3, slot])
    others = [row for row in range(5) if row != 1]
    assert torch.equal(actual[:, :, others], target[:, :, others])
    assert (actual != target).flatten(4).any(-1)[:, :, 1].sum(-1).eq(min(CONTEXT, 2 * frames)).all()


def test_rings_that_are_views_of_others_are_refused(device: torch.device) -> None:
    rings = torch.zeros(2, 1, 2, 4, 1, 8, device=device)
    with pytest.raises(ValueError, match="contiguous"):
        ring_copy.copy_rings(rings[:, :, :, ::2], torch.tensor([0, 1, 1], device=device), rings, 2, 1)
