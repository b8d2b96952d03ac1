"""Small discriminators for the codec: one per pitch period and one per spectral resolution.

The period discriminators fold a waveform into rows of one period each and convolve along time; the
spectral ones see the complex short-time spectrum. Both are cut-down forms of published ones
(HiFi-GAN, DAC): 3 M parameters together.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from hocket.core import StrictModel
from training.losses import short_time_spectrum

_SLOPE = 0.1


class DiscriminatorConfig(StrictModel):
    periods: tuple[int, ...]
    period_channels: tuple[int, ...]
    ffts: tuple[int, ...]
    spectral_channels: tuple[int, ...]


def _conv(
    in_channels: int, out_channels: int, kernel: tuple[int, int], stride: tuple[int, int] = (1, 1)
) -> nn.Module:
    padding = (kernel[0] // 2, kernel[1] // 2)
    return weight_norm(nn.Conv2d(in_channels, out_channels, kernel, stride, padding))


class _Convolutions(nn.Module):
    """A stack of convolutions; returns the score map and every hidden feature map."""

    def __init__(self, layers: list[nn.Module], channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.score = _conv(channels, 1, (3, 1))

    def forward(self, x_BCHW: Tensor) -> tuple[Tensor, list[Tensor]]:
        features = []
        x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
        for layer in self.layers:
            x_BCHW = F.leaky_relu(layer(x_BCHW), _SLOPE)
            features.append(x_BCHW)
        return self.score(x_BCHW), features


class PeriodDiscriminator(nn.Module):
    def __init__(self, period: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.period = period
        widths = (1, *channels)
        layers = [
            _conv(widths[i], widths[i + 1], (5, 1), (3, 1) if i + 2 < len(widths) else (1, 1))
            for i in range(len(channels))
        ]
        self.stack = _Convolutions(layers, channels[-1])

    def forward(self, wave_BS: Tensor) -> tuple[Tensor, list[Tensor]]:
        whole = wave_BS.shape[1] // self.period * self.period
        return self.stack(wave_BS[:, :whole].reshape(len(wave_BS), 1, -1, self.period))


class SpectralDiscriminator(nn.Module):
    window: Tensor

    def __init__(self, n_fft: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        widths = (2, *channels)
        layers = [
            _conv(widths[i], widths[i + 1], (3, 7) if i == 0 else (3, 5), (1, 2))
            for i in range(len(channels))
        ]
        self.stack = _Convolutions(layers, channels[-1])

    def forward(self, wave_BS: Tensor) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast(wave_BS.device.type, enabled=False):
            spectrum = short_time_spectrum(wave_BS, self.window)
            # A cube-root-like compression of the magnitude, so that quiet detail counts; phase is
            # kept.
            parts = torch.view_as_real(spectrum)
            size = parts.square().sum(-1, keepdim=True).add(1e-6)
            x_BCTF = (parts * size.pow(-0.33)).permute(0, 3, 1, 2)
        return self.stack(x_BCTF)


class Discriminator(nn.Module):
    """All discriminators: waveforms [B, S] to score maps and feature maps, one entry for each."""

    def __init__(self, config: DiscriminatorConfig) -> None:
        super().__init__()
        self.members = nn.ModuleList(
            [PeriodDiscriminator(period, config.period_channels) for period in config.periods]
            + [SpectralDiscriminator(n_fft, config.spectral_channels) for n_fft in config.ffts]
        )

    def forward(self, wave_BS: Tensor) -> tuple[list[Tensor], list[list[Tensor]]]:
        outputs = [member(wave_BS) for member in self.members]
        return [scores for scores, _ in outputs], [features for _, features in outputs]
