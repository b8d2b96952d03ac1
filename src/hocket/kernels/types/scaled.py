"""What goes into a matrix product of 8 bits, and what comes out of it: neither is scaled in a pass of its own.

Such passes cost what FP8 gains. Whoever makes rows rounds them to 8 bits as it stores them, and whoever takes a product
next scales it as it loads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows8:
    """It means `values * scales`."""

    #: [..., K], float8 e4m3.
    values: Tensor
    #: float32 [..., 1]
    scales: Tensor


@dataclass(frozen=True, slots=True)
class Scaled:
    """A product of such rows. It means `product * rows * columns + bias`, float32, rounded once to its dtype."""

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

    def flatten(self, start_dim: int, end_dim: int) -> Scaled:
        """Of the rows, as a tensor's; the last dimension stays by itself."""
        product, rows = (x.flatten(start_dim, end_dim) for x in (self.product, self.rows))
        return Scaled(product, rows, self.columns, self.bias)

    def wide(self) -> Tensor:
        """What it means before it is rounded, float32."""
        scaled = self.product.float() * self.rows * self.columns
        return scaled if self.bias is None else scaled + self.bias.float()

    def plain(self) -> Tensor:
        """What it means."""
        return self.wide().to(self.product.dtype)


def plain(x: Tensor | Scaled) -> Tensor:
    """What `x` means."""
    return x.plain() if isinstance(x, Scaled) else x


def operands(x: Tensor | Scaled) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Product, scales and bias, as a kernel takes them."""
    return (x.product, x.rows, x.columns, x.bias) if isinstance(x, Scaled) else (x, None, None, None)
