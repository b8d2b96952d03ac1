"""Small parts that several models share: RMSNorm and rotary positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (sources: MOSS 1.3).

    The mean and the division run in float32; the result is rounded to the input's dtype *before*
    the weight multiplies.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] to the same shape and dtype."""
        return F.rms_norm(x, (x.shape[-1],), None, self.eps) * self.weight


def lay_out_for_cpu(module: nn.Module) -> None:
    """Store the weights of float32 linear layers input by input, which changes only their strides.

    PyTorch's products of 4 to 64 rows take as little as half the time then; others are unchanged
    (x86, PyTorch 2.13).
    """
    for part in module.modules():
        if isinstance(part, nn.Linear) and part.weight.dtype == torch.float32:
            part.weight.data = part.weight.data.t().contiguous().t()


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Factors that rotate channel pairs by `position * base**(-2j / size)`: `x * cos + partner(x) *
    sin`.

    `sin` carries the sign of the pair's first member, so that `partner` only moves channels.
    """

    #: [..., size], in the dtype of the rotated tensor.
    cos: Tensor
    sin: Tensor


def _angles(positions: Tensor, size: int, base: float) -> Tensor:
    """[...] positions to float32 [..., size / 2] angles."""
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
    return positions.float().unsqueeze(-1) * (1.0 / base**exponents)


def half_rope_tables(positions: Tensor, size: int, base: float, dtype: torch.dtype) -> RopeTables:
    """Tables of the NeoX form, channel j paired with j + size / 2: positions [...] to [..., size]
    (sources: MOSS 1.3).

    Computed in float32 and rounded to `dtype` afterwards, as the official model does.
    """
    angles = _angles(positions, size, base)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return RopeTables(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))


def pair_rope_tables(positions: Tensor, size: int, base: float, dtype: torch.dtype) -> RopeTables:
    """Tables of the GPT-J form, channel 2j paired with 2j + 1: positions [...] to [..., size]
    (sources: MOSS 1.4).
    """
    angles = _angles(positions, size, base)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return RopeTables(
        torch.stack((cos, cos), -1).flatten(-2), torch.stack((-sin, sin), -1).flatten(-2)
    )


def rotate_halves(x: Tensor, tables: RopeTables) -> Tensor:
    """Rotate [..., size] by `half_rope_tables`."""
    return x * tables.cos + x.roll(x.shape[-1] // 2, -1) * tables.sin


def rotate_pairs(x: Tensor, tables: RopeTables) -> Tensor:
    """Rotate [..., size] by `pair_rope_tables`."""
    return x * tables.cos + torch.unflatten(x, -1, (-1, 2)).flip(-1).flatten(-2) * tables.sin
