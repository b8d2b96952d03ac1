"""Codes to samples: a windowed transformer at the frame rate, then convolutions up to the sample rate (spec/qwen3 9).

Activations between convolutions are in the dtype of the weights; Snake, norms and the residual stream of the
transformer are computed in float32.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.kernels import ops
from hocket.models.codec_state import RingWindow
from hocket.models.layers import RMSNorm
from hocket.models.qwen3_codec.config import DecoderSpec
from hocket.models.qwen3_codec.conv import CausalConv, TailLayout, TailWindow, UpsamplingConv
from hocket.models.qwen3_codec.quantizer import Dequantizer
from hocket.models.qwen3_codec.transformer import CodecTransformer

#: Kernels and dilations are the official class's, not the file's.
LATENT_KERNEL = 3
KERNEL = 7
DILATIONS = (1, 3, 9)
CONVNEXT_NORM_EPS = 1e-6
#: Keeps a vanishing amplitude of Snake's from dividing by zero.
MIN_SNAKE_BETA = 1e-9


class ChunkWindow(NamedTuple):
    """One chunk's view of its rows' state."""

    ring: RingWindow
    tails: TailWindow


class SnakeBeta(nn.Module):
    """x + sin^2(rate x) * gain, per channel. A checkpoint has logarithms: rate = e^alpha, gain = e^-beta."""

    rate: nn.Parameter
    gain: nn.Parameter

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def finalize(self) -> None:
        """Replaces the logarithms; once, after loading."""
        self.rate = nn.Parameter(self.alpha.detach().exp()[:, None], requires_grad=False)
        self.gain = nn.Parameter(1 / (self.beta.detach().exp() + MIN_SNAKE_BETA)[:, None], requires_grad=False)
        del self.alpha, self.beta

    def forward(self, x_BCT: Tensor) -> Tensor:
        return ops.snake(x_BCT, self.rate, self.gain)


class ConvNeXt(nn.Module):
    """A depthwise convolution and a feed-forward over channels, scaled, beside the identity."""

    def __init__(self, layout: TailLayout, channels: int, tokens_per_frame: int) -> None:
        super().__init__()
        self.conv = CausalConv(layout, channels, channels, KERNEL, tokens_per_frame, depthwise=True)
        self.norm = nn.LayerNorm(channels, eps=CONVNEXT_NORM_EPS)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x_BCT: Tensor, tails: TailWindow) -> Tensor:
        normed_BTC = self.norm(self.conv(x_BCT, tails).transpose(1, 2).float()).to(x_BCT.dtype)
        out_BTC = self.scale * self.down(F.gelu(self.up(normed_BTC)))
        return x_BCT + out_BTC.transpose(1, 2).to(x_BCT.dtype)


class LatentUpsampling(nn.Module):
    """More latents per frame, of the same width."""

    def __init__(self, layout: TailLayout, channels: int, stride: int, tokens_per_frame: int) -> None:
        super().__init__()
        self.conv = UpsamplingConv(layout, channels, channels, stride, stride, tokens_per_frame)
        self.block = ConvNeXt(layout, channels, tokens_per_frame * stride)

    def forward(self, x_BCT: Tensor, tails: TailWindow) -> Tensor:
        return self.block(self.conv(x_BCT, tails), tails)


class ResidualUnit(nn.Module):
    def __init__(self, layout: TailLayout, channels: int, dilation: int, tokens_per_frame: int) -> None:
        super().__init__()
        self.snake1 = SnakeBeta(channels)
        self.conv1 = CausalConv(layout, channels, channels, KERNEL, tokens_per_frame, dilation=dilation)
        self.snake2 = SnakeBeta(channels)
        self.conv2 = CausalConv(layout, channels, channels, 1, tokens_per_frame)

    def forward(self, x_BCT: Tensor, tails: TailWindow) -> Tensor:
        return x_BCT + self.conv2(self.snake2(self.conv1(self.snake1(x_BCT), tails)), tails)


class UpsamplingBlock(nn.Module):
    """`stride` times as many tokens, half as wide."""

    def __init__(self, layout: TailLayout, channels: int, stride: int, tokens_per_frame: int) -> None:
        super().__init__()
        self.snake = SnakeBeta(channels)
        self.conv = UpsamplingConv(layout, channels, channels // 2, 2 * stride, stride, tokens_per_frame)
        self.units = nn.ModuleList(
            ResidualUnit(layout, channels // 2, dilation, tokens_per_frame * stride) for dilation in DILATIONS
        )

    def forward(self, x_BCT: Tensor, tails: TailWindow) -> Tensor:
        x_BCT = self.conv(self.snake(x_BCT), tails)
        for unit in self.units:
            x_BCT = unit(x_BCT, tails)
        return x_BCT


class CodecDecoder(nn.Module):
    """Call `finalize` once after the weights are in place."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.tail_layout = layout = TailLayout()
        width, latent = spec.transformer.width, spec.latent_dim
        self.quantizer = Dequantizer(spec)
        self.latent_conv = CausalConv(layout, spec.quantizer_dim, latent, LATENT_KERNEL, 1)
        self.input_proj = nn.Linear(latent, width)
        self.transformer = CodecTransformer(spec.transformer, gated=True)
        self.norm = RMSNorm(width, spec.transformer.norm_eps)
        self.output_proj = nn.Linear(width, latent)
        tokens = 1
        self.upsampling = nn.ModuleList()
        for stride in spec.latent_strides:
            self.upsampling.append(LatentUpsampling(layout, latent, stride, tokens))
            tokens *= stride
        self.wave_conv = CausalConv(layout, latent, spec.width, KERNEL, tokens)
        widths = [spec.width // 2**i for i in range(len(spec.strides) + 1)]
        self.blocks = nn.ModuleList()
        for (wide, _), stride in zip(pairwise(widths), spec.strides, strict=True):
            self.blocks.append(UpsamplingBlock(layout, wide, stride, tokens))
            tokens *= stride
        self.snake = SnakeBeta(widths[-1])
        self.sample_conv = CausalConv(layout, widths[-1], 1, KERNEL, tokens)

    def finalize(self) -> None:
        """Builds the table of codes and Snake's factors; once, after loading."""
        self.quantizer.finalize()
        for module in self.modules():
            if isinstance(module, SnakeBeta):
                module.finalize()

    def forward(self, codes_BTN: Tensor, window: ChunkWindow) -> Tensor:
        """The next T frames of each row -> samples float32 [B, 1, T * frame_samples] in [-1, 1]."""
        dtype, tails = self.input_proj.weight.dtype, window.tails
        x_BCT = self.latent_conv(self.quantizer(codes_BTN).to(dtype), tails)
        x_BTD = self.transformer(self.input_proj(x_BCT.transpose(1, 2)), window.ring)
        x_BCT = self.output_proj(self.norm(x_BTD).to(dtype)).transpose(1, 2)
        for stage in self.upsampling:
            x_BCT = stage(x_BCT, tails)
        x_BCT = self.wave_conv(x_BCT, tails)
        for block in self.blocks:
            x_BCT = block(x_BCT, tails)
        return self.sample_conv(self.snake(x_BCT), tails).float().clamp(-1.0, 1.0)
