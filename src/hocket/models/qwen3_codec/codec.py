"""The 12 Hz codec of Qwen3-TTS: samples to codes and back, streaming on rows (spec/qwen3 9, 10).

Streaming is exact: any chunking of a stream gives what the whole sequence gives, for the decoder and the encoder. The
official package decodes long speech in windows of 300 frames with 25 before them: equal up to 300 frames, and beyond
them an approximation of what is computed here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hocket.errors import InvalidRequestError
from hocket.models.layers.codec_state import CodecState, Direction, PackedStreams, RingSpec
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_codec.conv import TailWindow
from hocket.models.qwen3_codec.decoder import CodecDecoder, DecoderWindow
from hocket.models.qwen3_codec.encoder import CodecEncoder, EncoderWindow, RecordingEnd
from hocket.models.qwen3_codec.packed_conv import TailPack
from hocket.models.codec import StreamingCodec


class Qwen3Codec(StreamingCodec):
    """Decoder and encoder. Call `finalize` once after the weights are in place."""

    config: Qwen3CodecConfig
    packs = True

    def __init__(self, config: Qwen3CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = CodecDecoder(config.decoder)
        self.encoder = CodecEncoder(config.encoder, config.frame_samples)

    def finalize(self) -> None:
        """Builds tables from what is stored; once, after loading."""
        self.decoder.finalize()
        self.encoder.finalize()

    # Streaming on rows

    def new_decoder_state(self, rows: int, max_chunk_frames: int) -> CodecState:
        """State for `rows` streams that are decoded at most `max_chunk_frames` frames at a time."""
        ring = self.config.decoder.ring
        return self._new_state("decoder", ring, self.decoder.tail_layout.elements, rows, max_chunk_frames)

    def new_encoder_state(self, rows: int, max_chunk_frames: int, max_frames: int | None = None) -> CodecState:
        """State for `rows` recordings of at most `max_frames`, by default `config.max_recording_frames`."""
        spec = self.config.encoder.transformer
        ring = spec.ring((max_frames or self.config.max_recording_frames) * spec.tokens_per_frame)
        return self._new_state("encoder", ring, self.encoder.tail_layout.elements, rows, max_chunk_frames)

    @torch.inference_mode()
    def decode(self, codes_BTN: Tensor, state: CodecState, rows_B: Tensor, counts_B: Tensor | None = None) -> Tensor:
        """The next chunk of the streams on `rows_B` (distinct): codes -> samples float32 [B, 1, T * frame_samples].

        N may be smaller than `n_codebooks`: the first N are used. `counts_B` is how many of the T frames are real for
        each row (0..T); the rest is padding, whose samples mean nothing and which leaves no trace in the state.
        Raises InvalidRequestError for codes, rows, counts or shapes that do not fit.
        """
        # Reading values back would make a CUDA caller wait for the device; there, codes come from the sampler.
        self._check_codes(codes_BTN, 3, check_values=codes_BTN.device.type == "cpu")
        batch, frames, _ = codes_BTN.shape
        state.check_call("decoder", batch, frames, rows_B, counts_B)
        streams = _padded(rows_B, torch.full_like(rows_B, frames) if counts_B is None else counts_B, frames)
        return self.decode_packed(codes_BTN.flatten(0, 1), state, streams).view(batch, 1, -1)

    @torch.inference_mode()
    def decode_packed(self, codes_FN: Tensor, state: CodecState, streams: PackedStreams) -> Tensor:
        """The next chunks of several streams, packed: codes int64 [F, N] -> samples float32 [1, F * frame_samples].

        The same as `decode`, but that streams may be given different numbers of frames without padding. Nothing is
        checked: that would make the caller wait for the device.
        """
        (rings,) = state.stages
        assert rings is not None
        positions_F = state.offsets[streams.frame_rows_F.clamp(min=0)] + streams.frame_places_F
        window = DecoderWindow(rings.pack(streams.after(state.offsets)), TailPack(state.tails, streams, positions_F))
        samples_S = self.decoder(codes_FN, window)
        state.advance(streams.rows_S, streams.counts_S)
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
        """The next chunk of the recordings on `rows_B`: float32 [B, 1, T * frame_samples] -> int64 [B, T, n_codebooks].

        `lengths_B` is how many of the samples are real for each row; the rest is padding and leaves no trace. A length
        within a frame ends its recording: that frame is coded as the official encoder codes a last one, and the row
        takes nothing more. Raises InvalidRequestError for rows, lengths or shapes that do not fit.
        """
        n_codebooks = self._check_n_codebooks(n_codebooks)
        frames, frame_samples = self._check_whole_frames(samples_BCS), self.config.frame_samples
        counts_B = None if lengths_B is None else (lengths_B + frame_samples - 1) // frame_samples
        state.check_call("encoder", samples_BCS.shape[0], frames, rows_B, counts_B)
        self._check_room(state, rows_B, frames if counts_B is None else counts_B)
        offsets_B = state.offsets[rows_B]
        (rings,) = state.stages
        assert rings is not None
        ring = rings.window(rows_B, offsets_B, frames)
        tails = TailWindow.open(state.tails, rows_B, offsets_B, counts_B)
        end = None if lengths_B is None else RecordingEnd(lengths_B, samples_BCS.shape[-1])
        codes_BTN = self.encoder(samples_BCS, n_codebooks, EncoderWindow(ring, tails, end))
        tails.close(state.tails, rows_B)
        state.advance(rows_B, frames if counts_B is None else counts_B)
        return codes_BTN

    # Inside

    def _new_state(
        self, direction: Direction, ring: RingSpec, tail_elements: int, rows: int, max_chunk_frames: int
    ) -> CodecState:
        coder = self.decoder if direction == "decoder" else self.encoder
        weight = next(coder.transformer.parameters())
        dtype = self.config.compute_dtype if direction == "decoder" else torch.float32
        return CodecState.allocate(
            direction,
            [ring],
            rows=rows,
            max_chunk_frames=max_chunk_frames,
            dtype=dtype,
            device=weight.device,
            tail_elements=tail_elements,
        )

    def _check_room(self, state: CodecState, rows_B: Tensor, counts: Tensor | int) -> None:
        """Raises InvalidRequestError where a recording outgrows what its row can look back over."""
        if rows_B.device.type != "cpu":  # there, a look would be a wait: the caller has seen to it
            return
        (rings,) = state.stages
        assert rings is not None
        limit = rings.context // rings.tokens_per_frame
        longest = int((state.offsets[rows_B] + counts).max())
        if longest > limit:
            raise InvalidRequestError(
                f"the recording has {longest} frames so far, this state holds {limit}; encode it whole, or cut it"
            )


def state_layout(config: Qwen3CodecConfig, direction: Direction) -> tuple[RingSpec, int, torch.dtype]:
    """Of one row's state: the ring, the elements of the tail, and their dtype."""
    if direction == "decoder":
        with torch.device("meta"):
            elements = CodecDecoder(config.decoder).tail_layout.elements
        return config.decoder.ring, elements, config.compute_dtype
    with torch.device("meta"):
        elements = CodecEncoder(config.encoder, config.frame_samples).tail_layout.elements
    spec = config.encoder.transformer
    return spec.ring(config.max_recording_frames * spec.tokens_per_frame), elements, torch.float32


def _padded(rows_B: Tensor, counts_B: Tensor, frames: int) -> PackedStreams:
    """Chunks of `counts_B` frames, each padded to `frames`."""
    places_BT = torch.arange(frames, device=rows_B.device).expand(len(rows_B), -1)
    frame_rows_BT = torch.where(places_BT < counts_B[:, None], rows_B[:, None], -1)
    firsts_B = torch.arange(0, len(rows_B) * frames, frames, device=rows_B.device)
    return PackedStreams(rows_B, counts_B, firsts_B, frame_rows_BT.flatten(), places_BT.flatten(), frames)
