"""The decoder, codes to samples: a windowed transformer at the frame rate, then convolutions up to
the sample rate (sources: Qwen3 9).

Activations between convolutions are in the dtype of the weights; Snake, norms and the residual
stream of the transformer are computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from hocket.kernels import ops
from hocket.kernels.types import Packed
from hocket.models.layers.basic import RMSNorm
from hocket.models.layers.codec_state import CodecState
from hocket.models.qwen3_codec.config import DecoderSpec
from hocket.models.qwen3_codec.conv import TailLayout
from hocket.models.qwen3_codec.decoder_transformer import DecoderTransformer
from hocket.models.qwen3_codec.packed_conv import (
    DepthwiseConv,
    PackedConv,
    SnakeBeta,
    UpsamplingConv,
)
from hocket.models.qwen3_codec.quantizer import Dequantizer

#: Kernels and dilations come from the official class; the file has none.
LATENT_KERNEL = 3
KERNEL = 7
DILATIONS = (1, 3, 9)
CONVNEXT_NORM_EPS = 1e-6


class ConvNeXt(nn.Module):
    """A depthwise convolution and a feed-forward over channels, scaled and added to the input."""

    def __init__(self, layout: TailLayout, channels: int, tokens_per_frame: int) -> None:
        super().__init__()
        self.conv = DepthwiseConv(layout, channels, KERNEL, tokens_per_frame)
        self.norm = nn.LayerNorm(channels, eps=CONVNEXT_NORM_EPS)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x_MC: Tensor, pack: Packed, tails_RE: Tensor) -> Tensor:
        norm, dtype = self.norm, x_MC.dtype
        wide_MC = self.conv(x_MC, pack, tails_RE).float()
        normed_MC = ops.layer_norm_to(wide_MC, norm.weight, norm.bias, norm.eps, dtype)
        return x_MC + (self.scale * self.down(ops.gelu(self.up(normed_MC)))).to(dtype)


class LatentUpsampling(nn.Module):
    """Upsamples latents at constant width."""

    def __init__(
        self, layout: TailLayout, channels: int, stride: int, tokens_per_frame: int
    ) -> None:
        super().__init__()
        self.conv = UpsamplingConv(layout, channels, channels, stride, stride, tokens_per_frame)
        self.block = ConvNeXt(layout, channels, tokens_per_frame * stride)

    def forward(self, x_MC: Tensor, pack: Packed, tails_RE: Tensor) -> Tensor:
        return self.block(self.conv(x_MC, pack, tails_RE), pack, tails_RE)


class ResidualUnit(nn.Module):
    """Adds two convolutions to its input, each after a Snake; `snake1` is applied by the caller."""

    def __init__(
        self, layout: TailLayout, channels: int, dilation: int, tokens_per_frame: int
    ) -> None:
        super().__init__()
        self.snake1 = SnakeBeta(channels)
        self.conv1 = PackedConv(
            layout, channels, channels, KERNEL, tokens_per_frame, dilation=dilation
        )
        self.snake2 = SnakeBeta(channels)
        self.conv2 = PackedConv(layout, channels, channels, 1, tokens_per_frame)

    def forward(
        self, x_MC: Tensor, activated_MC: Tensor, pack: Packed, tails_RE: Tensor, snake: SnakeBeta
    ) -> tuple[Tensor, Tensor]:
        """The unit's output, and `snake` applied to it."""
        return self.conv2.with_activation(
            self.conv1.activated(activated_MC, pack, tails_RE, self.snake2),
            pack,
            tails_RE,
            snake,
            x_MC,
        )

    def last(
        self, x_MC: Tensor, activated_MC: Tensor, pack: Packed, tails_RE: Tensor, snake: SnakeBeta
    ) -> Tensor:
        """`snake` applied to the output, without the output itself."""
        return self.conv2.activated(
            self.conv1.activated(activated_MC, pack, tails_RE, self.snake2),
            pack,
            tails_RE,
            snake,
            x_MC,
        )


class UpsamplingBlock(nn.Module):
    """Upsamples tokens by `stride` and halves the width; the caller has applied `snake`."""

    def __init__(
        self, layout: TailLayout, channels: int, stride: int, tokens_per_frame: int
    ) -> None:
        super().__init__()
        self.snake = SnakeBeta(channels)
        self.conv = UpsamplingConv(
            layout, channels, channels // 2, 2 * stride, stride, tokens_per_frame
        )
        units = nn.ModuleList(
            ResidualUnit(layout, channels // 2, dilation, tokens_per_frame * stride)
            for dilation in DILATIONS
        )
        self.units = cast("Sequence[ResidualUnit]", units)

    def forward(
        self, activated_MC: Tensor, pack: Packed, tails_RE: Tensor, snake: SnakeBeta
    ) -> Tensor:
        """`snake` applied to the block's output."""
        x_MC, activated_MC = self.conv.with_activation(
            activated_MC, pack, tails_RE, self.units[0].snake1
        )
        for unit, following in pairwise(self.units):
            x_MC, activated_MC = unit(x_MC, activated_MC, pack, tails_RE, following.snake1)
        return self.units[-1].last(x_MC, activated_MC, pack, tails_RE, snake)


class CodecDecoder(nn.Module):
    """Codes to samples. Call `finalize` once after the weights are in place."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.tail_layout = layout = TailLayout()
        width, latent = spec.transformer.width, spec.latent_dim
        self.quantizer = Dequantizer(spec)
        self.latent_conv = PackedConv(layout, spec.quantizer_dim, latent, LATENT_KERNEL, 1)
        self.input_proj = nn.Linear(latent, width)
        self.transformer = DecoderTransformer(spec.transformer)
        self.norm = RMSNorm(width, spec.transformer.norm_eps)
        self.output_proj = nn.Linear(width, latent)
        tokens = 1
        self.upsampling = nn.ModuleList()
        for stride in spec.latent_strides:
            self.upsampling.append(LatentUpsampling(layout, latent, stride, tokens))
            tokens *= stride
        self.wave_conv = PackedConv(layout, latent, spec.width, KERNEL, tokens)
        widths = [spec.width // 2**i for i in range(len(spec.strides) + 1)]
        blocks = nn.ModuleList()
        for (wide, _), stride in zip(pairwise(widths), spec.strides, strict=True):
            blocks.append(UpsamplingBlock(layout, wide, stride, tokens))
            tokens *= stride
        self.blocks = cast("Sequence[UpsamplingBlock]", blocks)
        self.snake = SnakeBeta(widths[-1])
        self.sample_conv = PackedConv(layout, widths[-1], 1, KERNEL, tokens)

    def finalize(self) -> None:
        """Build the table of codes, the factors of Snake, and weights in their final layout."""
        self.quantizer.finalize()
        self.transformer.finalize()
        for module in self.modules():
            if isinstance(module, SnakeBeta | PackedConv | DepthwiseConv):
                module.finalize()

    def forward(self, codes_FN: Tensor, pack: Packed, state: CodecState) -> Tensor:
        """Decode a pack of frames -> samples float32 [F * frame_samples] in [-1, 1]."""
        (rings,), tails_RE = state.stages, state.tails
        assert rings is not None
        dtype = self.input_proj.weight.dtype
        x_MC = self.latent_conv(self.quantizer(codes_FN).to(dtype), pack, tails_RE)
        x_MC = self.output_proj(self.transformer(self.input_proj(x_MC), pack, rings, self.norm))
        for stage in self.upsampling:
            x_MC = stage(x_MC, pack, tails_RE)
        snakes = [*(block.snake for block in self.blocks), self.snake]
        activated_MC = self.wave_conv.activated(x_MC, pack, tails_RE, snakes[0])
        for block, snake in zip(self.blocks, snakes[1:], strict=True):
            activated_MC = block(activated_MC, pack, tails_RE, snake)
        samples = self.sample_conv(activated_MC, pack, tails_RE)[:, 0].float()
        # An infinite sample becomes NaN, which ends the request with an error, instead of 1.
        return samples.clamp(-1.0, 1.0) + (samples - samples)
