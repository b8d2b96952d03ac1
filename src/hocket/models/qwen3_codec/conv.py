"""The encoder's causal convolutions, which remember their last inputs on rows (sources: Qwen3 10).

Every convolution is a window over its inputs: an output needs the inputs of its token and of a few
tokens before. Those few columns are all that a stream keeps, so any chunking equals the whole. The
columns of a row lie one convolution after another in `CodecState.tails`, at the places of
`TailLayout`. The decoder's convolutions are in `packed_conv.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class TailSpec:
    """Place of one convolution's last inputs in a row's tail, from element `start` on."""

    start: int
    channels: int
    columns: int
    #: Rate of the convolution's input.
    tokens_per_frame: int

    @property
    def place(self) -> slice:
        return slice(self.start, self.start + self.channels * self.columns)

    def of(self, tails_RE: Tensor) -> Tensor:
        """[rows, columns, channels]: this convolution's part of all tails."""
        return tails_RE[:, self.place].view(len(tails_RE), self.columns, self.channels)


class TailLayout:
    """Allocates places in a row's tail while a model is built."""

    def __init__(self) -> None:
        self.elements = 0

    def add(self, channels: int, columns: int, tokens_per_frame: int) -> TailSpec:
        spec = TailSpec(self.elements, channels, columns, tokens_per_frame)
        self.elements += channels * columns
        return spec


@dataclass(frozen=True, slots=True)
class TailWindow:
    """One chunk's view of the tails of its B rows, old and new."""

    #: [B, E]: read by the convolutions; zero where a stream begins.
    old: Tensor
    #: [B, E]: written by the convolutions.
    new: Tensor
    #: bool [B]: the stream begins with this chunk.
    begins_B: Tensor
    #: int64 [B]: valid frames of each row; None: all.
    counts_B: Tensor | None

    @classmethod
    def open(
        cls, tails_RE: Tensor, rows_B: Tensor, offsets_B: Tensor, counts_B: Tensor | None
    ) -> TailWindow:
        begins_B = offsets_B == 0
        # No product with 0, because the memory may hold NaN.
        old_BE = tails_RE[rows_B].masked_fill_(begins_B[:, None], 0.0)
        return cls(old_BE, torch.empty_like(old_BE), begins_B, counts_B)

    def close(self, tails_RE: Tensor, rows_B: Tensor) -> None:
        """Store the new tails, after every convolution has run."""
        tails_RE.index_copy_(0, rows_B, self.new)

    def extend(self, spec: TailSpec, x_BCT: Tensor, *, replicate: bool = False) -> Tensor:
        """Prepend the columns before the chunk, [B, C, columns + T], and remember its last ones.

        Columns before a stream's first token are zero, or with `replicate` that token itself.
        """
        if spec.columns == 0:
            return x_BCT
        old_BCP = self.old[:, spec.place].view(-1, spec.channels, spec.columns)
        if replicate:
            old_BCP = torch.where(self.begins_B[:, None, None], x_BCT[:, :, :1], old_BCP)
        x_BCL = torch.cat((old_BCP, x_BCT), dim=2)
        if self.counts_B is None:
            last_BCP = x_BCL[:, :, -spec.columns :]
        else:
            columns_P = torch.arange(spec.columns, device=x_BCT.device)
            kept_BP = (self.counts_B * spec.tokens_per_frame)[:, None] + columns_P
            last_BCP = x_BCL.gather(2, kept_BP[:, None].expand(-1, spec.channels, -1))
        self.new[:, spec.place] = last_BCP.flatten(1)
        return x_BCL


class CausalConv(nn.Module):
    """A convolution padded on its left only; T inputs (whole strides) give T / stride outputs."""

    def __init__(
        self,
        layout: TailLayout,
        in_channels: int,
        out_channels: int,
        kernel: int,
        tokens_per_frame: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        replicate: bool = False,
    ) -> None:
        super().__init__()
        self.stride, self.dilation, self.replicate = stride, dilation, replicate
        self.tail = layout.add(in_channels, (kernel - 1) * dilation + 1 - stride, tokens_per_frame)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None

    def forward(self, x_BCT: Tensor, window: TailWindow) -> Tensor:
        x_BCL = window.extend(self.tail, x_BCT, replicate=self.replicate)
        return F.conv1d(x_BCL, self.weight, self.bias, self.stride, 0, self.dilation)
