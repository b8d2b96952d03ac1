"""The encoder, samples to codes: Mimi, always in float32 (sources: Qwen3 10; Défossez et al. 2024,
section 3.3).

A recording need not consist of whole frames. The official encoder pads the input of every strided
convolution to whole strides, which differs from silence after the recording; `RecordingEnd` has the
length of each row's recording.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hocket.kernels.types import RingWindow
from hocket.models.layers.codec_state import RingKV
from hocket.models.qwen3_codec.config import EncoderSpec
from hocket.models.qwen3_codec.conv import CausalConv, TailLayout, TailWindow
from hocket.models.qwen3_codec.encoder_transformer import EncoderTransformer
from hocket.models.qwen3_codec.quantizer import Quantizer


@dataclass(frozen=True, slots=True)
class RecordingEnd:
    """Where recordings end within a chunk of [B, ..., S] samples."""

    #: int64 [B], 0 .. S.
    lengths_B: Tensor
    samples: int

    def pad(self, x_BCT: Tensor, *, replicate: bool) -> Tensor:
        """Replace tokens after the end by zeros, or with `replicate` by a row's last token.

        T tokens stand for S samples.
        """
        tokens = x_BCT.shape[2]
        samples_per_token = self.samples // tokens
        valid_B = (self.lengths_B + samples_per_token - 1) // samples_per_token
        over_BT = torch.arange(tokens, device=x_BCT.device) >= valid_B[:, None]
        if not replicate:
            return x_BCT.masked_fill(over_BT[:, None], 0.0)
        last_B11 = (valid_B - 1).clamp(min=0)[:, None, None]
        return torch.where(
            over_BT[:, None], x_BCT.gather(2, last_B11.expand(-1, x_BCT.shape[1], 1)), x_BCT
        )


@dataclass(frozen=True, slots=True)
class EncoderWindow:
    """One chunk's view of its rows' state."""

    ring: RingWindow
    layers: tuple[RingKV, ...]
    tails: TailWindow
    #: None: no recording ends within a frame of this chunk.
    end: RecordingEnd | None

    def strided(self, conv: CausalConv, x_BCT: Tensor) -> Tensor:
        """Apply `conv` to whole strides."""
        if self.end is not None:
            x_BCT = self.end.pad(x_BCT, replicate=conv.replicate)
        return conv(x_BCT, self.tails)


class ResidualUnit(nn.Module):
    def __init__(
        self, layout: TailLayout, spec: EncoderSpec, channels: int, dilation: int, tokens: int
    ) -> None:
        super().__init__()
        hidden = channels // spec.compress
        self.conv1 = CausalConv(
            layout, channels, hidden, spec.residual_kernel, tokens, dilation=dilation
        )
        self.conv2 = CausalConv(layout, hidden, channels, 1, tokens)

    def forward(self, x_BCT: Tensor, tails: TailWindow) -> Tensor:
        return x_BCT + self.conv2(F.elu(self.conv1(F.elu(x_BCT), tails)), tails)


class DownsamplingBlock(nn.Module):
    """Downsamples tokens by `stride` and doubles the width."""

    def __init__(
        self, layout: TailLayout, spec: EncoderSpec, channels: int, stride: int, tokens: int
    ) -> None:
        super().__init__()
        self.units = nn.ModuleList(
            ResidualUnit(layout, spec, channels, spec.dilation_growth**i, tokens)
            for i in range(spec.residual_layers)
        )
        self.conv = CausalConv(layout, channels, 2 * channels, 2 * stride, tokens, stride=stride)

    def forward(self, x_BCT: Tensor, window: EncoderWindow) -> Tensor:
        for unit in self.units:
            x_BCT = unit(x_BCT, window.tails)
        return window.strided(self.conv, F.elu(x_BCT))


class CodecEncoder(nn.Module):
    """Samples to codes. Call `finalize` once after the weights are in place."""

    def __init__(self, spec: EncoderSpec, frame_samples: int) -> None:
        super().__init__()
        self.spec = spec
        self.tail_layout = layout = TailLayout()
        channels, tokens, width = spec.width, frame_samples, spec.transformer.width
        self.wave_conv = CausalConv(layout, 1, channels, spec.kernel, tokens)
        self.blocks = nn.ModuleList()
        for stride in spec.strides:
            self.blocks.append(DownsamplingBlock(layout, spec, channels, stride, tokens))
            channels, tokens = 2 * channels, tokens // stride
        self.latent_conv = CausalConv(layout, channels, width, spec.last_kernel, tokens)
        self.transformer = EncoderTransformer(spec.transformer)
        self.frame_conv = CausalConv(
            layout,
            width,
            width,
            2 * spec.last_stride,
            tokens,
            stride=spec.last_stride,
            bias=False,
            replicate=True,
        )
        self.quantizer = Quantizer(spec)

    def finalize(self) -> None:
        """Build the codebooks; once, after loading."""
        self.quantizer.finalize()

    def forward(self, samples_BCS: Tensor, n_codebooks: int, window: EncoderWindow) -> Tensor:
        """Encode the next whole frames of each row -> codes int64 [B, T, n_codebooks]."""
        x_BCT = self.wave_conv(samples_BCS, window.tails)
        for block in self.blocks:
            x_BCT = block(x_BCT, window)
        x_BTD = self.latent_conv(F.elu(x_BCT), window.tails).transpose(1, 2)
        x_BCT = self.transformer(x_BTD, window.ring, window.layers).transpose(1, 2)
        return self.quantizer(window.strided(self.frame_conv, x_BCT).transpose(1, 2), n_codebooks)
