"""Losses of the codec: spectra at several resolutions, and the discriminators' scores and
features.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: (window, mel bands): short windows see timing, long ones pitch. Hops are a quarter of the window.
MEL_SCALES = ((64, 8), (128, 16), (256, 32), (512, 64), (1024, 96), (2048, 128))
#: Windows at which linear-frequency magnitudes are compared too; mel bands blur harmonics above 4
#: kHz.
STFT_WINDOWS = (512, 1024, 2048)
#: Magnitudes below this (of a full-scale sine's several hundred) are silence.
_FLOOR = 1e-3


def mel_filters(bands: int, n_fft: int, sample_rate: int) -> Tensor:
    """Triangular filters [n_fft / 2 + 1, bands], equally spaced in mel = 2595 log10(1 + f / 700),
    sums 1.
    """
    top_mel = 2595 * math.log10(1 + sample_rate / 2 / 700)
    edges_hz = 700 * (10 ** (torch.linspace(0, top_mel, bands + 2, dtype=torch.float64) / 2595) - 1)
    bins_hz = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1, dtype=torch.float64)[:, None]
    low, middle, high = edges_hz[:-2], edges_hz[1:-1], edges_hz[2:]
    filters = torch.minimum(
        (bins_hz - low) / (middle - low), (high - bins_hz) / (high - middle)
    ).clamp(min=0)
    # A band narrower than a bin may miss every bin: give it the bin nearest to its middle.
    nearest = (bins_hz - middle).abs().argmin(dim=0)
    empty = filters.sum(dim=0) == 0
    filters[nearest[empty], empty.nonzero().flatten()] = 1.0
    return (filters / filters.sum(dim=0)).float()


def short_time_spectrum(wave_BS: Tensor, taper_W: Tensor) -> Tensor:
    """Complex spectra [B, T, W / 2 + 1] of windows a quarter of their length apart, centred,
    mirrored at the ends.

    The same numbers as `torch.stft`, whose gradient adds every sample of every window by an atomic.
    """
    window = len(taper_W)
    padded_BS = F.pad(wave_BS[:, None], (window // 2, window // 2), mode="reflect")[:, 0]
    return torch.fft.rfft(padded_BS.unfold(-1, window, window // 4) * taper_W)


class SpectralLoss(nn.Module):
    """Mean absolute differences of log10 mel and log10 linear magnitudes, averaged over
    resolutions.
    """

    def __init__(self, sample_rate: int) -> None:
        super().__init__()
        for window, bands in MEL_SCALES:
            self.register_buffer(f"window_{window}", torch.hann_window(window), persistent=False)
            self.register_buffer(
                f"mel_{window}", mel_filters(bands, window, sample_rate), persistent=False
            )

    def forward(self, output_BS: Tensor, target_BS: Tensor) -> tuple[Tensor, Tensor]:
        """(mel, stft) losses of float32 waveforms."""
        mel, stft = [], []
        for window, _ in MEL_SCALES:
            output_BTF = self._magnitude(output_BS, window)
            with torch.no_grad():
                target_BTF = self._magnitude(target_BS, window)
            filters: Tensor = self.get_buffer(f"mel_{window}")
            difference = _log(output_BTF @ filters) - _log(target_BTF @ filters)
            mel.append(difference.abs().mean())
            if window in STFT_WINDOWS:
                stft.append((_log(output_BTF) - _log(target_BTF)).abs().mean())
        return torch.stack(mel).mean(), torch.stack(stft).mean()

    def _magnitude(self, wave_BS: Tensor, window: int) -> Tensor:
        spectrum = short_time_spectrum(wave_BS, self.get_buffer(f"window_{window}"))
        # The square root's slope at 0 is infinite; the small sum keeps gradients finite in digital
        # silence.
        return torch.view_as_real(spectrum).square().sum(-1).add(1e-9).sqrt()


def _log(magnitude: Tensor) -> Tensor:
    return magnitude.clamp(min=_FLOOR).log10()


def discriminator_loss(real: list[Tensor], fake: list[Tensor]) -> Tensor:
    """Least squares: real scores towards 1, fake ones towards 0; mean over discriminators."""
    terms = [
        (1 - r.float()).square().mean() + f.float().square().mean()
        for r, f in zip(real, fake, strict=True)
    ]
    return torch.stack(terms).mean()


def adversarial_loss(fake: list[Tensor]) -> Tensor:
    """The generator's side: fake scores towards 1; mean over discriminators."""
    return torch.stack([(1 - f.float()).square().mean() for f in fake]).mean()


def feature_loss(real: list[list[Tensor]], fake: list[list[Tensor]]) -> Tensor:
    """Mean absolute difference of hidden features, each relative to the real features' mean
    size.
    """
    terms = []
    for real_layers, fake_layers in zip(real, fake, strict=True):
        for r, f in zip(real_layers, fake_layers, strict=True):
            target = r.float()
            terms.append(F.l1_loss(f.float(), target) / target.abs().mean().clamp(min=1e-3))
    return torch.stack(terms).mean()
