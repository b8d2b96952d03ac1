"""The 12 Hz codec of Qwen3-TTS: samples to codes and back, streaming on rows (sources: Qwen3 9,
10).

Streaming is exact in both directions: any chunking of a stream equals the whole sequence. The
official package decodes long speech in windows of 300 frames with 25 frames of context, which is
equal up to 300 frames and an approximation beyond.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from hocket.errors import InvalidRequestError
from hocket.kernels.types import Packed
from hocket.models.codec import Codec, ConvShape, RingStage
from hocket.models.layers.codec_state import CodecState, Direction, StateSpec
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_codec.conv import TailWindow
from hocket.models.qwen3_codec.decoder import DILATIONS, KERNEL, CodecDecoder
from hocket.models.qwen3_codec.encoder import CodecEncoder, EncoderWindow, RecordingEnd


class Qwen3Codec(Codec):
    """Decoder and encoder."""

    config: Qwen3CodecConfig
    packs = True

    def __init__(self, config: Qwen3CodecConfig) -> None:
        super().__init__(config)
        self.decoder = CodecDecoder(config.decoder)
        self.encoder = CodecEncoder(config.encoder, config.frame_samples)

    def finalize(self) -> None:
        """Build the tables that follow from the stored codebooks."""
        self.decoder.finalize()
        self.encoder.finalize()

    # Streaming on rows

    def state_spec(self, direction: Direction, max_frames: int | None = None) -> StateSpec:
        """The encoder attends to a whole recording, so its ring holds `max_frames`; it is
        float32.
        """
        if direction == "decoder":
            ring, elements = self.config.decoder.ring, self.decoder.tail_layout.elements
            return StateSpec((ring,), elements, self.config.compute_dtype)
        spec = self.config.encoder.transformer
        ring = spec.ring((max_frames or self.config.max_recording_frames) * spec.tokens_per_frame)
        return StateSpec((ring,), self.encoder.tail_layout.elements, torch.float32)

    @torch.inference_mode()
    def decode(
        self, codes_BTN: Tensor, state: CodecState, rows_B: Tensor, counts_B: Tensor | None = None
    ) -> Tensor:
        # Reading values back would make a CUDA caller wait; there, codes come from the sampler.
        self._check_codes(codes_BTN, 3, check_values=codes_BTN.device.type == "cpu")
        batch, frames, _ = codes_BTN.shape
        state.check_call("decoder", batch, frames, rows_B, counts_B)
        pack = state.padded(rows_B, counts_B, frames)
        return self.decode_packed(codes_BTN.flatten(0, 1), state, pack).view(batch, 1, -1)

    @torch.inference_mode()
    def decode_packed(self, codes_FN: Tensor, state: CodecState, pack: Packed) -> Tensor:
        samples_S = self.decoder(codes_FN, pack, state)
        state.advance(pack.rows_S, pack.counts_S)
        return samples_S[None]

    @torch.inference_mode()
    def encode(
        self,
        samples_BCS: Tensor,
        state: CodecState,
        rows_B: Tensor,
        lengths_B: Tensor | None = None,
        n_codebooks: int | None = None,
    ) -> Tensor:
        """See the base class. A frame that ends a recording is encoded as the official encoder does
        it.
        """
        n_codebooks = self._check_n_codebooks(n_codebooks)
        frames, frame_samples = self._check_whole_frames(samples_BCS), self.config.frame_samples
        counts_B = None if lengths_B is None else (lengths_B + frame_samples - 1) // frame_samples
        state.check_call("encoder", samples_BCS.shape[0], frames, rows_B, counts_B)
        self._check_room(state, rows_B, frames if counts_B is None else counts_B)
        offsets_B = state.offsets[rows_B]
        (rings,) = state.stages
        assert rings is not None
        ring = rings.window(state.padded(rows_B, None, frames))
        tails = TailWindow.open(state.tails, rows_B, offsets_B, counts_B)
        end = None if lengths_B is None else RecordingEnd(lengths_B, samples_BCS.shape[-1])
        codes_BTN = self.encoder(
            samples_BCS, n_codebooks, EncoderWindow(ring, rings.layers, tails, end)
        )
        tails.close(state.tails, rows_B)
        state.advance(rows_B, frames if counts_B is None else counts_B)
        return codes_BTN

    @property
    def ring_stages(self) -> list[RingStage]:
        """The one transformer, at the frame rate."""
        spec = self.config.decoder.transformer
        return [
            RingStage(
                self.decoder.transformer,
                self.config.decoder.ring,
                spec.width,
                spec.ffn_dim,
                spec.rope_base,
            )
        ]

    @property
    def convolutions(self) -> list[ConvShape]:
        """Convolutions of the residual units (four fifths of the decoder's products) and of
        latents.
        """
        spec = self.config.decoder
        shapes, positions = list[ConvShape](), prod(spec.latent_strides)
        for i, stride in enumerate(spec.strides):
            channels, positions = spec.width // 2 ** (i + 1), positions * stride
            shapes += [
                ConvShape(channels, KERNEL, DILATIONS[-1], positions),
                ConvShape(channels, 1, 1, positions),
            ]
        return [*shapes, ConvShape(spec.latent_dim, KERNEL, 1, 1, is_depthwise=True)]

    # Internals

    def _check_room(self, state: CodecState, rows_B: Tensor, counts: Tensor | int) -> None:
        """Raise InvalidRequestError where a recording outgrows the context of its row."""
        # Reading values would wait for the device; the caller has checked.
        if rows_B.device.type != "cpu":
            return
        (rings,) = state.stages
        assert rings is not None
        limit = rings.context // rings.tokens_per_frame
        longest = int((state.offsets[rows_B] + counts).max())
        if longest > limit:
            raise InvalidRequestError(
                f"the recording has {longest} frames so far, this state holds {limit}; encode it "
                "whole, or cut it"
            )
