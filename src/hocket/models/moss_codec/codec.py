"""MOSS-Audio-Tokenizer: samples to codes and back, streaming on rows (spec/moss 2; v1 in 2.9).

Streaming is exact: any chunking of a stream gives what the whole sequence gives, for the decoder and the encoder.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hocket.kernels import ops
from hocket.kernels.types.packed import Chunks
from hocket.models.layers.codec_state import CodecState, Direction, PackedStreams
from hocket.models.moss_codec.config import MossCodecConfig, StageSpec, TransformerSpec
from hocket.models.moss_codec.quantizer import ResidualLFQ
from hocket.models.moss_codec.transformer import CodecLayer, CodecTransformer
from hocket.models.codec import StreamingCodec


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


class MossCodec(StreamingCodec):
    """Encoder, residual quantizer and decoder. Call `finalize` once after the weights are in place."""

    config: MossCodecConfig
    packs = True

    def __init__(self, config: MossCodecConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.ModuleList(_stage(spec, PatchMerge) for spec in config.encoder)
        self.quantizer = ResidualLFQ(config.quantizer)
        self.decoder = nn.ModuleList(_stage(spec, PatchSplit) for spec in config.decoder)

    def finalize(self) -> None:
        """Folds the quantizer's weight normalisation and builds its tables; once, after loading."""
        self.quantizer.finalize()

    # Streaming on rows

    def new_decoder_state(self, rows: int, max_chunk_frames: int) -> CodecState:
        """State for `rows` streams that are decoded at most `max_chunk_frames` frames at a time."""
        return self._new_state("decoder", self.config.decoder, rows, max_chunk_frames)

    def new_encoder_state(self, rows: int, max_chunk_frames: int, max_frames: int | None = None) -> CodecState:
        """State for `rows` streams that are encoded at most `max_chunk_frames` frames at a time, endlessly."""
        return self._new_state("encoder", self.config.encoder, rows, max_chunk_frames)

    @torch.inference_mode()
    def decode(self, codes_BTN: Tensor, state: CodecState, rows_B: Tensor, counts_B: Tensor | None = None) -> Tensor:
        """The next chunk of the streams on `rows_B` (distinct): codes -> samples float32 [B, C, T * frame_samples].

        N may be smaller than `n_codebooks`: the first N are used. `counts_B` is how many of the T frames are real for
        each row (0..T); the rest is padding, whose samples mean nothing and which leaves no trace in the state.
        Raises InvalidRequestError for codes, rows, counts or shapes that do not fit.
        """
        # Reading values back would make a CUDA caller wait for the device; there, codes come from the sampler.
        self._check_codes(codes_BTN, 3, check_values=codes_BTN.device.type == "cpu")
        batch, frames, _ = codes_BTN.shape
        state.check_call("decoder", batch, frames, rows_B, counts_B)
        latent_BTD = self.quantizer.decode(codes_BTN)
        return self._to_samples(self._stream(self.decoder, latent_BTD, state, rows_B, counts_B, frames))

    @torch.inference_mode()
    def decode_packed(self, codes_FN: Tensor, state: CodecState, streams: PackedStreams) -> Tensor:
        """The next chunks of several streams, packed: codes int64 [F, N] -> samples float32 [C, F * frame_samples].

        The same as `decode`, but that streams may be given different numbers of frames without padding. Nothing is
        checked: that would make the caller wait for the device.
        """
        chunks, latent_1FD = streams.after(state.offsets), self.quantizer.decode(codes_FN[None])
        samples_1CS = self._to_samples(_run_packed(self.decoder, latent_1FD, state, chunks))
        state.advance(streams.rows_S, streams.counts_S)
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
        """The next chunk of the streams on `rows_B`: whole frames of samples -> codes int64 [B, T, n_codebooks].

        `lengths_B` is how many of the samples are real for each row; the rest is padding and leaves no trace, but for
        that of a frame which has real samples: there it is heard. Raises InvalidRequestError for rows, lengths or
        shapes that do not fit.
        """
        n_codebooks = self._check_n_codebooks(n_codebooks)
        mono_BS1 = self._to_mono(samples_BCS)
        batch, frame_samples = samples_BCS.shape[0], self.config.frame_samples
        frames = samples_BCS.shape[-1] // frame_samples
        counts_B = None if lengths_B is None else (lengths_B + frame_samples - 1) // frame_samples
        state.check_call("encoder", batch, frames, rows_B, counts_B)
        latent_BTD = self._stream(self.encoder, mono_BS1, state, rows_B, counts_B, frames)
        return self.quantizer.encode(latent_BTD, n_codebooks)

    # Whole sequences, differentiable

    def encode_latent(self, samples_BCS: Tensor) -> Tensor:
        """Whole frames of samples -> the latent [B, T, D] that the quantizer codes. Memory grows with T squared."""
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

    # Inside

    def _new_state(
        self, direction: Direction, specs: Sequence[StageSpec], rows: int, max_chunk_frames: int
    ) -> CodecState:
        layer = next(layer for layer in self.modules() if isinstance(layer, CodecLayer))
        rings = [spec.ring if isinstance(spec, TransformerSpec) else None for spec in specs]
        return CodecState.allocate(
            direction,
            rings,
            rows=rows,
            max_chunk_frames=max_chunk_frames,
            dtype=layer.dtype,
            device=layer.scale1.device,
        )

    def _stream(
        self,
        chain: nn.ModuleList,
        x_BTD: Tensor,
        state: CodecState,
        rows_B: Tensor,
        counts_B: Tensor | None,
        frames: int,
    ) -> Tensor:
        offsets_B = state.offsets[rows_B]
        if ops.column_of(x_BTD.device) == "gpu":
            chunks = Chunks.even(rows_B, offsets_B, frames)
            x_1MD = _run_packed(chain, x_BTD.flatten(0, 1)[None], state, chunks)
            x_BTD = x_1MD.reshape(len(rows_B), -1, x_1MD.shape[-1])
        else:
            for stage, rings in zip(chain, state.stages, strict=True):
                x_BTD = stage(x_BTD) if rings is None else stage(x_BTD, rings.window(rows_B, offsets_B, frames))
        state.advance(rows_B, frames if counts_B is None else counts_B)
        return x_BTD

    def _to_mono(self, samples_BCS: Tensor) -> Tensor:
        """Channels interleaved into one stream [B, S * C, 1]."""
        self._check_whole_frames(samples_BCS)
        return samples_BCS.transpose(1, 2).reshape(samples_BCS.shape[0], -1, 1)

    def _to_samples(self, mono_BS1: Tensor) -> Tensor:
        """The inverse of `_to_mono`, float32."""
        return mono_BS1.float().reshape(mono_BS1.shape[0], -1, self.config.channels).transpose(1, 2)


def _run_packed(chain: nn.ModuleList, x_1MD: Tensor, state: CodecState, chunks: Chunks) -> Tensor:
    """Chunks one behind the other, counted in frames, through all stages."""
    for stage, rings in zip(chain, state.stages, strict=True):
        x_1MD = stage(x_1MD) if rings is None else stage(x_1MD, rings.pack(chunks))
    return x_1MD


def _stage(spec: StageSpec, patch: type[PatchMerge] | type[PatchSplit]) -> nn.Module:
    return CodecTransformer(spec) if isinstance(spec, TransformerSpec) else patch(spec.size)
