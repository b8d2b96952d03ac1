"""The speaker encoder: a recording to a voice vector, by log-mel frames and ECAPA-TDNN (sources:
Qwen3 8; Desplanques et al. 2020).

Base checkpoints hold it beside the talker; the vector is one row of the talker's prompt. Everything
is computed in float32. Recordings are embedded one at a time, because pooling covers exactly the
frames of one recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from hocket.checkpoint.config_file import Section, Size, read_file
from hocket.checkpoint.weights import WeightEntry
from hocket.errors import ReferenceAudioError

FFT_SAMPLES = 1024
HOP_SAMPLES = 256
MAX_HZ = 12_000.0
#: Floor of the power spectrum under its root, and of magnitudes under the logarithm.
MIN_POWER = 1e-9
MIN_MEL = 1e-5
MIN_VARIANCE = 1e-12


class SpeakerConfig(Section):
    """`speaker_encoder_config` of a talker's `config.json`.

    Released files state only differences from the official class, whose values are the defaults.
    """

    mel_dim: Size = 128
    #: Width of the voice vector, equal to the talker's.
    enc_dim: Size = 1024
    #: Channels of the first block, of the middle blocks, and of the layer that joins them.
    enc_channels: list[Size] = Field(default_factory=lambda: [512, 512, 512, 512, 1536])
    enc_kernel_sizes: list[Size] = Field(default_factory=lambda: [5, 3, 3, 3, 1])
    enc_dilations: list[Size] = Field(default_factory=lambda: [1, 2, 3, 4, 1])
    enc_attention_channels: Size = 128
    enc_res2net_scale: Size = 8
    enc_se_channels: Size = 128
    sample_rate: Size = 24_000

    @model_validator(mode="after")
    def _shapes(self) -> SpeakerConfig:
        channels = self.enc_channels
        if not 3 <= len(channels) == len(self.enc_kernel_sizes) == len(self.enc_dilations):
            raise ValueError(
                "enc_channels, enc_kernel_sizes and enc_dilations need one length, of 3 or more"
            )
        if len(set(channels[:-1])) != 1 or channels[-1] != sum(channels[1:-1]):
            raise ValueError(
                f"enc_channels {channels} must be equal, and the last one the sum of those between"
            )
        if channels[0] % self.enc_res2net_scale:
            raise ValueError(
                f"enc_res2net_scale {self.enc_res2net_scale} does not divide {channels[0]} channels"
            )
        if any(kernel % 2 == 0 for kernel in self.enc_kernel_sizes):
            raise ValueError(f"enc_kernel_sizes {self.enc_kernel_sizes} must be odd")
        return self

    @property
    def min_samples(self) -> int:
        """Samples of the shortest recording: reflection padding needs more input than it
        reflects.
        """
        pairs = zip(self.enc_kernel_sizes, self.enc_dilations, strict=True)
        frames = 1 + max((kernel - 1) * dilation // 2 for kernel, dilation in pairs)
        return max(frames * HOP_SAMPLES, (FFT_SAMPLES - HOP_SAMPLES) // 2 + 1)

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> SpeakerConfig:
        """Read the section. Raises ConfigError naming the key at fault."""
        return read_file(cls, raw)


class SamePaddingConv(nn.Module):
    """A convolution whose output is as long as its input; the ends are reflected."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int = 1, dilation: int = 1
    ) -> None:
        super().__init__()
        self.dilation = dilation
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel))
        self.bias = nn.Parameter(torch.empty(out_channels))

    def forward(self, x_BCT: Tensor) -> Tensor:
        side = (self.weight.shape[2] - 1) * self.dilation // 2
        if side:
            x_BCT = F.pad(x_BCT, (side, side), mode="reflect")
        return F.conv1d(x_BCT, self.weight, self.bias, dilation=self.dilation)


class Res2Net(nn.Module):
    """Convolves channels in groups: the first passes, each other one adds the output of the one
    before.
    """

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.scale = scale
        width = channels // scale
        self.convs = nn.ModuleList(
            SamePaddingConv(width, width, kernel, dilation) for _ in range(scale - 1)
        )

    def forward(self, x_BCT: Tensor) -> Tensor:
        first, *groups = x_BCT.chunk(self.scale, dim=1)
        outputs = [first]
        for i, (conv, group) in enumerate(zip(self.convs, groups, strict=True)):
            outputs.append(F.relu(conv(group if i == 0 else group + outputs[-1])))
        return torch.cat(outputs, dim=1)


class SERes2Block(nn.Module):
    """Res2Net between two 1x1 convolutions, gated by a summary of the whole recording."""

    def __init__(self, config: SpeakerConfig, channels: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = SamePaddingConv(channels, channels)
        self.res2net = Res2Net(channels, config.enc_res2net_scale, kernel, dilation)
        self.conv2 = SamePaddingConv(channels, channels)
        self.squeeze = SamePaddingConv(channels, config.enc_se_channels)
        self.excite = SamePaddingConv(config.enc_se_channels, channels)

    def forward(self, x_BCT: Tensor) -> Tensor:
        hidden_BCT = F.relu(self.conv2(self.res2net(F.relu(self.conv1(x_BCT)))))
        gate_BC1 = self.excite(F.relu(self.squeeze(hidden_BCT.mean(dim=2, keepdim=True)))).sigmoid()
        return x_BCT + hidden_BCT * gate_BC1


class AttentivePooling(nn.Module):
    """[B, C, T] -> [B, 2C, 1]: mean and deviation with a weight for each frame of each channel."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.hear = SamePaddingConv(3 * channels, attention_channels)
        self.weigh = SamePaddingConv(attention_channels, channels)

    def forward(self, x_BCT: Tensor) -> Tensor:
        mean_BC1, deviation_BC1 = _statistics(
            x_BCT, torch.full_like(x_BCT[:, :1], 1 / x_BCT.shape[2])
        )
        heard = torch.cat((x_BCT, mean_BC1.expand_as(x_BCT), deviation_BC1.expand_as(x_BCT)), dim=1)
        weights_BCT = self.weigh(F.relu(self.hear(heard)).tanh()).softmax(dim=2)
        return torch.cat(_statistics(x_BCT, weights_BCT), dim=1)


class SpeakerEncoder(nn.Module):
    def __init__(self, config: SpeakerConfig) -> None:
        super().__init__()
        self.config = config
        channels, kernels, dilations = (
            config.enc_channels,
            config.enc_kernel_sizes,
            config.enc_dilations,
        )
        self.first = SamePaddingConv(config.mel_dim, channels[0], kernels[0], dilations[0])
        self.blocks = nn.ModuleList(
            SERes2Block(config, channels[0], kernel, dilation)
            for kernel, dilation in zip(kernels[1:-1], dilations[1:-1], strict=True)
        )
        self.join = SamePaddingConv(channels[-1], channels[-1], kernels[-1], dilations[-1])
        self.pooling = AttentivePooling(channels[-1], config.enc_attention_channels)
        self.output = SamePaddingConv(2 * channels[-1], config.enc_dim)

    @torch.inference_mode()
    def embed(self, samples_S: Tensor) -> Tensor:
        """A mono recording, float32 at `config.sample_rate` -> its voice, float32 [enc_dim].

        Raises ReferenceAudioError when it is too short to be encoded.
        """
        self.check_length(samples_S.shape[0])
        mel_BMT = log_mel(samples_S, self.config.sample_rate, self.config.mel_dim)[None]
        return self(mel_BMT)[0]

    def check_length(self, samples: int) -> None:
        """Raise ReferenceAudioError when a recording of so many samples is too short to be
        encoded.
        """
        if samples < self.config.min_samples:
            raise ReferenceAudioError(
                f"the reference has {samples} samples; a voice needs {self.config.min_samples} "
                f"({1000 * self.config.min_samples / self.config.sample_rate:.0f} ms)",
                param="reference",
            )

    def forward(self, mel_BMT: Tensor) -> Tensor:
        """Log-mel frames -> [B, enc_dim]."""
        x_BCT = F.relu(self.first(mel_BMT))
        outputs: list[Tensor] = []
        for block in self.blocks:
            x_BCT = block(x_BCT)
            outputs.append(x_BCT)
        joined_BCT = F.relu(self.join(torch.cat(outputs, dim=1)))
        return self.output(self.pooling(joined_BCT))[:, :, 0]


def speaker_weight_table(config: SpeakerConfig, prefix: str = "") -> Iterator[WeightEntry]:
    """The weight table; `prefix` is the module's path in its parent, with the dot."""
    channels, kernels = config.enc_channels, config.enc_kernel_sizes
    group = channels[0] // config.enc_res2net_scale

    def conv(
        parameter: str, stored: str, out_dim: int, in_dim: int, kernel: int = 1
    ) -> Iterator[WeightEntry]:
        for name, shape in (("weight", (out_dim, in_dim, kernel)), ("bias", (out_dim,))):
            stored_name = f"speaker_encoder.{stored}.{name}"
            yield WeightEntry(f"{prefix}{parameter}.{name}", (stored_name,), shape, torch.float32)

    yield from conv("first", "blocks.0.conv", channels[0], config.mel_dim, kernels[0])
    for i, kernel in enumerate(kernels[1:-1]):
        block, source = f"blocks.{i}", f"blocks.{i + 1}"
        yield from conv(f"{block}.conv1", f"{source}.tdnn1.conv", channels[0], channels[0])
        for j in range(config.enc_res2net_scale - 1):
            yield from conv(
                f"{block}.res2net.convs.{j}",
                f"{source}.res2net_block.blocks.{j}.conv",
                group,
                group,
                kernel,
            )
        yield from conv(f"{block}.conv2", f"{source}.tdnn2.conv", channels[0], channels[0])
        yield from conv(
            f"{block}.squeeze", f"{source}.se_block.conv1", config.enc_se_channels, channels[0]
        )
        yield from conv(
            f"{block}.excite", f"{source}.se_block.conv2", channels[0], config.enc_se_channels
        )
    yield from conv("join", "mfa.conv", channels[-1], channels[-1], kernels[-1])
    yield from conv(
        "pooling.hear", "asp.tdnn.conv", config.enc_attention_channels, 3 * channels[-1]
    )
    yield from conv("pooling.weigh", "asp.conv", channels[-1], config.enc_attention_channels)
    yield from conv("output", "fc", config.enc_dim, 2 * channels[-1])


def log_mel(samples_S: Tensor, sample_rate: int, mels: int) -> Tensor:
    """Natural logarithm of the mel magnitudes: float32 [S] -> [mels, S // 256]."""
    side = (FFT_SAMPLES - HOP_SAMPLES) // 2
    padded_1S = F.pad(samples_S[None], (side, side), mode="reflect")
    window = torch.hann_window(FFT_SAMPLES, device=samples_S.device)
    spectrum_1FT = torch.stft(
        padded_1S, FFT_SAMPLES, HOP_SAMPLES, FFT_SAMPLES, window, center=False, return_complex=True
    )
    magnitude_FT = torch.view_as_real(spectrum_1FT[0]).square().sum(-1).add(MIN_POWER).sqrt()
    filters_MF = torch.from_numpy(mel_filters(sample_rate, mels)).to(samples_S.device)
    return (filters_MF @ magnitude_FT).clamp(min=MIN_MEL).log()


@cache
def mel_filters(sample_rate: int, mels: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Triangles of unit area on Slaney's mel scale, 0 to 12 kHz: [mels, 513] (Slaney, Auditory
    Toolbox, 1998).
    """
    edges_hz = _mel_to_hz(np.linspace(0.0, _hz_to_mel(MAX_HZ), mels + 2))
    bins_hz = np.fft.rfftfreq(FFT_SAMPLES, 1.0 / sample_rate)
    widths = np.diff(edges_hz)
    distances = edges_hz[:, None] - bins_hz
    rising = -distances[:-2] / widths[:-1, None]
    falling = distances[2:] / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    area = 2.0 / (edges_hz[2:] - edges_hz[:-2])
    filters: np.ndarray[tuple[int, int], np.dtype[np.float32]] = (triangles * area[:, None]).astype(
        np.float32
    )
    return filters


#: Slaney's scale: linear up to 1 kHz, which is mel 15, then 27 mels for every factor of 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0


def _hz_to_mel(hz: float) -> float:
    if hz < _BREAK_HZ:
        return hz / _LINEAR_HZ_PER_MEL
    return float(_BREAK_MEL + np.log(hz / _BREAK_HZ) / _LOG_STEP)


def _mel_to_hz(
    mel: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    # The smaller argument keeps the branch that is not taken from overflowing.
    above = _BREAK_HZ * np.exp(_LOG_STEP * (np.maximum(mel, _BREAK_MEL) - _BREAK_MEL))
    return np.where(mel >= _BREAK_MEL, above, _LINEAR_HZ_PER_MEL * mel)


def _statistics(x_BCT: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and deviation over frames, [B, C, 1] each."""
    mean_BC1 = (weights * x_BCT).sum(dim=2, keepdim=True)
    variance_BC1 = (weights * (x_BCT - mean_BC1).square()).sum(dim=2, keepdim=True)
    return mean_BC1, variance_BC1.clamp(min=MIN_VARIANCE).sqrt()
