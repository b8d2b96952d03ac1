"""The 12 Hz codec of Qwen3-TTS: samples to codes and back, streaming on rows (spec/qwen3 9, 10).

Streaming is exact: any chunking of a stream gives what the whole sequence gives, for the decoder and the encoder. The
official package decodes long speech in windows of 300 frames with 25 before them: equal up to 300 frames, and beyond
them an approximation of what is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hocket.errors import InvalidRequestError
from hocket.models.codec_state import CodecState, Direction, RingSpec
from hocket.models.qwen3_codec.config import Qwen3CodecConfig
from hocket.models.qwen3_codec.conv import TailWindow
from hocket.models.qwen3_codec.decoder import ChunkWindow, CodecDecoder
from hocket.models.qwen3_codec.encoder import CodecEncoder, EncoderWindow, RecordingEnd

#: Frames per step when a whole file is coded: bounds memory whatever the length.
WHOLE_CHUNK_FRAMES = 32


class Qwen3Codec(nn.Module):
    """Decoder and encoder. Call `finalize` once after the weights are in place."""

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

    def new_encoder_state(self, rows: int, max_chunk_frames: int) -> CodecState:
        """State for `rows` recordings of `config.max_recording_frames` at most."""
        assert self.config.max_recording_frames is not None
        return self._encoder_state(rows, max_chunk_frames, self.config.max_recording_frames)

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
        self._check_samples(samples_BCS, 3)
        samples, frame_samples = samples_BCS.shape[-1], self.config.frame_samples
        if samples == 0 or samples % frame_samples:
            raise InvalidRequestError(
                f"{samples} samples are not one or more whole frames of {frame_samples}; pad them and give lengths"
            )
        frames = samples // frame_samples
        counts_B = None if lengths_B is None else (lengths_B + frame_samples - 1) // frame_samples
        state.check_call("encoder", samples_BCS.shape[0], frames, rows_B, counts_B)
        self._check_room(state, rows_B, frames if counts_B is None else counts_B)
        chunk = _open(state, rows_B, counts_B, frames)
        end = None if lengths_B is None else RecordingEnd(lengths_B, samples)
        codes_BTN = self.encoder(samples_BCS, n_codebooks, EncoderWindow(chunk.ring, chunk.tails, end))
        _close(state, chunk.tails, rows_B, counts_B, frames)
        return codes_BTN

    # Whole files

    def decode_whole(self, codes_TN: Tensor) -> Tensor:
        """Codes of one recording -> samples float32 [1, T * frame_samples]. Memory does not grow with T."""
        self._check_codes(codes_TN, 2, check_values=True)
        frames = codes_TN.shape[0]
        if frames == 0:
            return torch.zeros(self.config.channels, 0, device=codes_TN.device)
        state = self.new_decoder_state(1, min(frames, WHOLE_CHUNK_FRAMES))
        row_B = torch.zeros(1, dtype=torch.int64, device=codes_TN.device)
        chunks = [
            self.decode(chunk_TN[None], state, row_B)[0] for chunk_TN in torch.split(codes_TN, state.max_chunk_frames)
        ]
        return torch.cat(chunks, dim=-1)

    def encode_whole(self, samples_CS: Tensor, n_codebooks: int | None = None) -> Tensor:
        """Samples of one recording of any length -> codes int64 [T, n_codebooks], T = ceil(S / frame_samples)."""
        return self.encode_batch([samples_CS], n_codebooks)[0]

    def encode_batch(self, samples: Sequence[Tensor], n_codebooks: int | None = None) -> list[Tensor]:
        """Recordings float32 [1, S_i] of any lengths -> their codes int64 [T_i, n_codebooks], each as if alone."""
        n_codebooks = self._check_n_codebooks(n_codebooks)
        for samples_CS in samples:
            self._check_samples(samples_CS, 2)
        frame_samples = self.config.frame_samples
        frames = [self.config.reference_frames(samples_CS.shape[-1]) for samples_CS in samples]
        codes = [
            torch.empty(f, n_codebooks, dtype=torch.int64, device=s.device)
            for f, s in zip(frames, samples, strict=True)
        ]
        longest = max(frames, default=0)
        if longest == 0:
            return codes
        state = self._encoder_state(len(samples), min(longest, WHOLE_CHUNK_FRAMES), longest)
        for start in range(0, longest, state.max_chunk_frames):
            rows = [row for row in range(len(samples)) if frames[row] > start]
            counts = [min(frames[row] - start, state.max_chunk_frames) for row in rows]
            pieces = [samples[row][:, start * frame_samples :][:, : max(counts) * frame_samples] for row in rows]
            chunk_BCS = samples[0].new_zeros(len(rows), 1, max(counts) * frame_samples)
            for b, piece_CS in enumerate(pieces):
                chunk_BCS[b, :, : piece_CS.shape[1]] = piece_CS
            lengths = [piece_CS.shape[1] for piece_CS in pieces]
            rows_B, lengths_B = torch.tensor([rows, lengths], device=chunk_BCS.device)
            codes_BTN = self.encode(chunk_BCS, state, rows_B, lengths_B, n_codebooks)
            for b, (row, count) in enumerate(zip(rows, counts, strict=True)):
                codes[row][start : start + count] = codes_BTN[b, :count]
        return codes

    # Inside

    def _encoder_state(self, rows: int, max_chunk_frames: int, max_frames: int) -> CodecState:
        spec = self.config.encoder.transformer
        ring = spec.ring(max_frames * spec.tokens_per_frame)
        return self._new_state("encoder", ring, self.encoder.tail_layout.elements, rows, max_chunk_frames)

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

    def _check_samples(self, samples: Tensor, dims: int) -> None:
        if samples.dim() != dims or samples.shape[-2] != self.config.channels or samples.dtype != torch.float32:
            shape = "[batch, 1, samples]" if dims == 3 else "[1, samples]"
            raise InvalidRequestError(f"audio must be float32 {shape}, got {samples.dtype} {list(samples.shape)}")

    def _check_codes(self, codes: Tensor, dims: int, *, check_values: bool) -> None:
        if codes.dim() != dims or codes.dtype != torch.int64:
            shape = "[batch, frames, codebooks]" if dims == 3 else "[frames, codebooks]"
            raise InvalidRequestError(f"codes must be int64 {shape}, got {codes.dtype} {list(codes.shape)}")
        self._check_n_codebooks(codes.shape[-1])
        if check_values and codes.numel():
            low, high = (int(bound) for bound in codes.aminmax())
            if low < 0 or high >= self.config.codebook_size:
                raise InvalidRequestError(
                    f"codes must be 0 .. {self.config.codebook_size - 1}, got {low} .. {high}; "
                    "remove padding before decoding"
                )

    def _check_n_codebooks(self, n_codebooks: int | None) -> int:
        if n_codebooks is None:
            return self.config.n_codebooks
        if not 1 <= n_codebooks <= self.config.n_codebooks:
            raise InvalidRequestError(
                f"this codec has {self.config.n_codebooks} codebooks, {n_codebooks} were asked for"
            )
        return n_codebooks


def state_layout(config: Qwen3CodecConfig, direction: Direction) -> tuple[RingSpec, int, torch.dtype]:
    """Of one row's state: the ring, the elements of the tail, and their dtype."""
    if direction == "decoder":
        with torch.device("meta"):
            elements = CodecDecoder(config.decoder).tail_layout.elements
        return config.decoder.transformer.ring(0), elements, config.compute_dtype
    with torch.device("meta"):
        elements = CodecEncoder(config.encoder, config.frame_samples).tail_layout.elements
    spec = config.encoder.transformer
    assert config.max_recording_frames is not None
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
