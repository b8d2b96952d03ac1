"""The 12 Hz codec of Qwen3-TTS: samples to codes and back, streaming on rows (spec/qwen3 9, 10).

Streaming is exact: any chunking of a stream gives what the whole sequence gives, for the decoder and the encoder. The
official package decodes long speech in windows of 300 frames with 25 before them: equal up to 300 frames, and beyond
them an approximation of what is computed here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hocket.errors import InvalidRequestError
from hocket.models.codec_state import CodecState, Direction, RingSpec
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_codec.conv import TailWindow
from hocket.models.qwen3_codec.decoder import ChunkWindow, CodecDecoder
from hocket.models.qwen3_codec.encoder import CodecEncoder, EncoderWindow, RecordingEnd
from hocket.models.streaming_codec import StreamingCodec


class Qwen3Codec(StreamingCodec):
    """Decoder and encoder. Call `finalize` once after the weights are in place."""

    config: Qwen3CodecConfig

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
        spec = self.config.decoder.transformer
        return self._new_state("decoder", spec.ring(0), self.decoder.tail_layout.elements, rows, max_chunk_frames)

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
        window = _open(state, rows_B, counts_B, frames)
        samples_BCS = self.decoder(codes_BTN, window)
        _close(state, window.tails, rows_B, counts_B, frames)
        return samples_BCS

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
        chunk = _open(state, rows_B, counts_B, frames)
        end = None if lengths_B is None else RecordingEnd(lengths_B, samples_BCS.shape[-1])
        codes_BTN = self.encoder(samples_BCS, n_codebooks, EncoderWindow(chunk.ring, chunk.tails, end))
        _close(state, chunk.tails, rows_B, counts_B, frames)
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
        return config.decoder.transformer.ring(0), elements, config.compute_dtype
    with torch.device("meta"):
        elements = CodecEncoder(config.encoder, config.frame_samples).tail_layout.elements
    spec = config.encoder.transformer
    return spec.ring(config.max_recording_frames * spec.tokens_per_frame), elements, torch.float32


def _open(state: CodecState, rows_B: Tensor, counts_B: Tensor | None, frames: int) -> ChunkWindow:
    offsets_B = state.offsets[rows_B]
    (rings,) = state.stages
    assert rings is not None
    return ChunkWindow(
        rings.window(rows_B, offsets_B, frames), TailWindow.open(state.tails, rows_B, offsets_B, counts_B)
    )


def _close(state: CodecState, tails: TailWindow, rows_B: Tensor, counts_B: Tensor | None, frames: int) -> None:
    tails.close(state.tails, rows_B)
    state.advance(rows_B, frames if counts_B is None else counts_B)
