"""Matrix products of 8-bit rows and weights that are not scaled yet.

Scaling them in a pass of their own costs what FP8 gains; whoever takes a product next scales it as it loads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scaled:
    """It means `product * rows * columns + bias`, in float32, rounded once to the product's dtype."""

    #: [..., N]; rows lie one behind the other.
    product: Tensor
    #: float32 [..., 1]
    rows: Tensor
    #: float32 [N]
    columns: Tensor
    #: [N]
    bias: Tensor | None

    @property
    def device(self) -> torch.device:
        return self.product.device

    @property
    def dtype(self) -> torch.dtype:
        return self.product.dtype

    @property
    def shape(self) -> torch.Size:
        return self.product.shape

    def plain(self) -> Tensor:
        """What it means."""
        scaled = self.product.float() * self.rows * self.columns
        return (scaled if self.bias is None else scaled + self.bias.float()).to(self.product.dtype)


def plain(x: Tensor | Scaled) -> Tensor:
    """What `x` means."""
    return x.plain() if isinstance(x, Scaled) else x
