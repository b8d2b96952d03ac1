"""The decoder's convolutions, over packed chunks of many streams (sources: Qwen3 9).

Activations are [M, C], channels last. A convolution is then a matrix product whose rows are
windows, and so is a transposed one (each input makes `stride` outputs side by side); activation
functions are applied where a product's sums are. The last inputs of a row lie one convolution after
another in `CodecState.tails`, each [columns, channels]. Modules take the pack and these tails
[rows, E].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.kernels import ops
from hocket.kernels.types import Packed
from hocket.models.qwen3_codec.conv import TailLayout, TailSpec

#: Added to the divisor of Snake, so that a vanishing amplitude does not divide by zero.
MIN_SNAKE_BETA = 1e-9


class SnakeBeta(nn.Module):
    """x + sin^2(rate x) * gain, per channel, computed by the convolution before it.

    A checkpoint has logarithms: rate = e^alpha, gain = e^-beta.
    """

    #: float32 [C] each
    rate: nn.Parameter
    gain: nn.Parameter

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def finalize(self) -> None:
        """Replace the logarithms; once, after loading."""
        self.rate = nn.Parameter(self.alpha.detach().exp(), requires_grad=False)
        self.gain = nn.Parameter(
            1 / (self.beta.detach().exp() + MIN_SNAKE_BETA), requires_grad=False
        )
        del self.alpha, self.beta


class PackedConv(nn.Module):
    """A convolution padded on its left only. Call `finalize` once after the weights are in
    place.
    """

    #: [kernel, in_channels, out_channels]
    filters: nn.Parameter
    tail: TailSpec | None

    def __init__(
        self,
        layout: TailLayout,
        in_channels: int,
        out_channels: int,
        kernel: int,
        tokens_per_frame: int,
        *,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.dilation, self.out_channels = dilation, out_channels
        self.tail = (
            layout.add(in_channels, (kernel - 1) * dilation, tokens_per_frame)
            if kernel > 1
            else None
        )
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel))
        self.bias = nn.Parameter(torch.empty(out_channels))

    def finalize(self) -> None:
        """Lay the weights out for the product; once, after loading."""
        self.filters = nn.Parameter(
            self.weight.detach().permute(2, 1, 0).contiguous(), requires_grad=False
        )
        del self.weight

    def forward(self, x_MC: Tensor, pack: Packed, tails_RE: Tensor) -> Tensor:
        """[M, O]"""
        out, _ = self._run(x_MC, pack, tails_RE, None, None, keep=True)
        assert out is not None
        return out

    def activated(
        self,
        x_MC: Tensor,
        pack: Packed,
        tails_RE: Tensor,
        snake: SnakeBeta,
        residual: Tensor | None = None,
    ) -> Tensor:
        """`snake` applied to the convolution plus `residual`: [M, O]."""
        _, activated = self._run(x_MC, pack, tails_RE, residual, snake, keep=False)
        assert activated is not None
        return activated

    def with_activation(
        self,
        x_MC: Tensor,
        pack: Packed,
        tails_RE: Tensor,
        snake: SnakeBeta,
        residual: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The convolution plus `residual`, and `snake` applied to it: [M, O] each."""
        out, activated = self._run(x_MC, pack, tails_RE, residual, snake, keep=True)
        assert out is not None
        assert activated is not None
        return out, activated

    def _run(
        self,
        x_MC: Tensor,
        pack: Packed,
        tails_RE: Tensor,
        residual: Tensor | None,
        snake: SnakeBeta | None,
        *,
        keep: bool,
    ) -> tuple[Tensor | None, Tensor | None]:
        tails_RPC = None if self.tail is None else self.tail.of(tails_RE)
        factors = None if snake is None else (snake.rate, snake.gain)
        out, activated = ops.causal_conv(
            x_MC, pack, tails_RPC, self.filters, self.bias, self.dilation, residual, factors, keep
        )
        if tails_RPC is not None:
            ops.keep_tail(x_MC, pack, tails_RPC)
        # A transposed convolution makes several tokens of each.
        shape = (-1, self.out_channels)
        return None if out is None else out.view(
            shape
        ), None if activated is None else activated.view(shape)


class UpsamplingConv(PackedConv):
    """A transposed convolution without look-ahead: M inputs give M * stride outputs, the rest is
    cut off.

    Residuals are [M, stride * O].
    """

    def __init__(
        self,
        layout: TailLayout,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int,
        tokens_per_frame: int,
    ) -> None:
        # An input contributes to `kernel` outputs, hence the number of inputs behind an output.
        super().__init__(layout, in_channels, out_channels, -(-kernel // stride), tokens_per_frame)
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels, kernel))

    def finalize(self) -> None:
        """Lay the weights out for the product; once, after loading.

        Output r of an input's `stride` uses filter r for that input, r + stride for the one before,
        and so on.
        """
        reach = -(-self.weight.shape[2] // self.stride)
        weight_COK = F.pad(self.weight.detach(), (0, reach * self.stride - self.weight.shape[2]))
        by_tap_PCSO = (
            weight_COK.view(*weight_COK.shape[:2], reach, self.stride).permute(2, 0, 3, 1).flip(0)
        )
        self.filters = nn.Parameter(by_tap_PCSO.flatten(2).contiguous(), requires_grad=False)
        del self.weight


class DepthwiseConv(nn.Module):
    """A depthwise convolution padded on its left only. Call `finalize` after loading."""

    #: [kernel, channels]
    filters: nn.Parameter

    def __init__(
        self, layout: TailLayout, channels: int, kernel: int, tokens_per_frame: int
    ) -> None:
        super().__init__()
        self.tail = layout.add(channels, kernel - 1, tokens_per_frame)
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel))
        self.bias = nn.Parameter(torch.empty(channels))

    def finalize(self) -> None:
        """Lay the weights out for the operation; once, after loading."""
        self.filters = nn.Parameter(
            self.weight.detach()[:, 0].t().contiguous(), requires_grad=False
        )
        del self.weight

    def forward(self, x_MC: Tensor, pack: Packed, tails_RE: Tensor) -> Tensor:
        """[M, C]"""
        tails_RPC = self.tail.of(tails_RE)
        out_MC = ops.depthwise_conv(x_MC, pack, tails_RPC, self.filters, self.bias)
        ops.keep_tail(x_MC, pack, tails_RPC)
        return out_MC
