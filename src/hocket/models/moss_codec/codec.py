"""MOSS-Audio-Tokenizer: samples to codes and back, streaming on rows (sources: MOSS 2; v1 in 2.9).

Streaming is exact in both directions: any chunking of a stream equals the whole sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hocket.kernels.types import Packed
from hocket.models.codec import Codec, RingStage
from hocket.models.layers.codec_state import CodecState, Direction, StateSpec
from hocket.models.moss_codec.config import MossCodecConfig, StageSpec, TransformerSpec
from hocket.models.moss_codec.quantizer import ResidualLFQ
from hocket.models.moss_codec.transformer import CodecLayer, CodecTransformer


class PatchMerge(nn.Module):
    """[B, T * size, D] -> [B, T, D * size]: channel d * size + j holds step j of old channel d."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.view(x_BTD.shape[0], -1, self.size, x_BTD.shape[2]).transpose(2, 3).flatten(2)


class PatchSplit(nn.Module):
    """[B, T, D * size] -> [B, T * size, D], the inverse of `PatchMerge`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.view(*x_BTD.shape[:2], -1, self.size).transpose(2, 3).flatten(1, 2)


class MossCodec(Codec):
    """Encoder, residual quantizer and decoder."""

    config: MossCodecConfig
    packs = True

    def __init__(self, config: MossCodecConfig) -> None:
        super().__init__(config)
        self.encoder = nn.ModuleList(_stage(spec, PatchMerge) for spec in config.encoder)
        self.quantizer = ResidualLFQ(config.quantizer)
        self.decoder = nn.ModuleList(_stage(spec, PatchSplit) for spec in config.decoder)

    def finalize(self) -> None:
        """Fold the quantizer's weight normalisation and build its tables."""
        self.quantizer.finalize()

    # Streaming on rows

    def state_spec(self, direction: Direction, max_frames: int | None = None) -> StateSpec:
        """Streams are endless in both directions, so `max_frames` changes nothing."""
        layer = next(layer for layer in self.modules() if isinstance(layer, CodecLayer))
        specs = self.config.encoder if direction == "encoder" else self.config.decoder
        rings = tuple(spec.ring if isinstance(spec, TransformerSpec) else None for spec in specs)
        return StateSpec(rings, tail_elements=0, dtype=layer.dtype)

    @torch.inference_mode()
    def decode(
        self, codes_BTN: Tensor, state: CodecState, rows_B: Tensor, counts_B: Tensor | None = None
    ) -> Tensor:
        # Reading values back would make a CUDA caller wait; there, codes come from the sampler.
        self._check_codes(codes_BTN, 3, check_values=codes_BTN.device.type == "cpu")
        batch, frames, _ = codes_BTN.shape
        state.check_call("decoder", batch, frames, rows_B, counts_B)
        latent_BTD = self.quantizer.decode(codes_BTN)
        return self._to_samples(
            self._stream(self.decoder, latent_BTD, state, rows_B, counts_B, frames)
        )

    @torch.inference_mode()
    def decode_packed(self, codes_FN: Tensor, state: CodecState, pack: Packed) -> Tensor:
        latent_1FD = self.quantizer.decode(codes_FN[None])
        samples_1CS = self._to_samples(_run(self.decoder, latent_1FD, state, pack))
        state.advance(pack.rows_S, pack.counts_S)
        return samples_1CS[0]

    @torch.inference_mode()
    def encode(
        self,
        samples_BCS: Tensor,
        state: CodecState,
        rows_B: Tensor,
        lengths_B: Tensor | None = None,
        n_codebooks: int | None = None,
    ) -> Tensor:
        """See the base class. Padding after the real samples of a frame counts as part of the
        frame.
        """
        n_codebooks = self._check_n_codebooks(n_codebooks)
        mono_BS1 = self._to_mono(samples_BCS)
        batch, frame_samples = samples_BCS.shape[0], self.config.frame_samples
        frames = samples_BCS.shape[-1] // frame_samples
        counts_B = None if lengths_B is None else (lengths_B + frame_samples - 1) // frame_samples
        state.check_call("encoder", batch, frames, rows_B, counts_B)
        latent_BTD = self._stream(self.encoder, mono_BS1, state, rows_B, counts_B, frames)
        return self.quantizer.encode(latent_BTD, n_codebooks)

    @property
    def ring_stages(self) -> list[RingStage]:
        stages = zip(self.decoder, self.config.decoder, strict=True)
        return [
            RingStage(module, spec.ring, spec.width, spec.ffn_dim, spec.rope_base)
            for module, spec in stages
            if isinstance(spec, TransformerSpec)
        ]

    # Whole sequences, differentiable

    def encode_latent(self, samples_BCS: Tensor) -> Tensor:
        """Whole frames of samples -> the latent [B, T, D] of the quantizer.

        Memory grows with T squared.
        """
        x_BTD = self._to_mono(samples_BCS)
        for stage in self.encoder:
            x_BTD = stage(x_BTD)
        return x_BTD

    def decode_latent(self, latent_BTD: Tensor) -> Tensor:
        """The decoder's input latent -> samples float32 [B, C, S]. Memory grows with T squared."""
        x_BTD = latent_BTD
        for stage in self.decoder:
            x_BTD = stage(x_BTD)
        return self._to_samples(x_BTD)

    # Internals

    def _stream(
        self,
        chain: nn.ModuleList,
        x_BTD: Tensor,
        state: CodecState,
        rows_B: Tensor,
        counts_B: Tensor | None,
        frames: int,
    ) -> Tensor:
        # Padding runs through all stages like the rest; only `advance` knows which frames are real.
        x_1MD = _run(chain, x_BTD.flatten(0, 1)[None], state, state.padded(rows_B, None, frames))
        state.advance(rows_B, frames if counts_B is None else counts_B)
        return x_1MD.reshape(len(rows_B), -1, x_1MD.shape[-1])

    def _to_mono(self, samples_BCS: Tensor) -> Tensor:
        """Interleave channels into one stream [B, S * C, 1]."""
        self._check_whole_frames(samples_BCS)
        return samples_BCS.transpose(1, 2).reshape(samples_BCS.shape[0], -1, 1)

    def _to_samples(self, mono_BS1: Tensor) -> Tensor:
        """The inverse of `_to_mono`, float32."""
        return mono_BS1.float().reshape(mono_BS1.shape[0], -1, self.config.channels).transpose(1, 2)


def _run(chain: nn.ModuleList, x_1MD: Tensor, state: CodecState, pack: Packed) -> Tensor:
    """Run a pack through all stages."""
    for stage, rings in zip(chain, state.stages, strict=True):
        x_1MD = stage(x_1MD) if rings is None else stage(x_1MD, rings, pack)
    return x_1MD


def _stage(spec: StageSpec, patch: type[PatchMerge] | type[PatchSplit]) -> nn.Module:
    return CodecTransformer(spec) if isinstance(spec, TransformerSpec) else patch(spec.size)
