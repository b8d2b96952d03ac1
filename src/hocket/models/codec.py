"""What codecs that stream on rows do alike: whole recordings in bounded chunks, and checks of what they are given."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hocket.errors import InvalidRequestError
from hocket.models.family import CodecConfig
from hocket.models.layers.codec_state import CodecState, PackedStreams

#: Frames per step when a whole recording is coded: bounds memory whatever its length.
WHOLE_CHUNK_FRAMES = 32


class StreamingCodec(nn.Module):
    """A codec whose streaming is exact, so that whole recordings go through the same code chunk by chunk."""

    config: CodecConfig
    #: Whether `decode_packed` is there.
    packs = False

    def decode_packed(self, codes_FN: Tensor, state: CodecState, streams: PackedStreams) -> Tensor:
        """The next chunks of several streams, packed; see `MossCodec.decode_packed`."""
        raise NotImplementedError(f"{type(self).__name__} does not pack")

    @abstractmethod
    def new_decoder_state(self, rows: int, max_chunk_frames: int) -> CodecState:
        """State for `rows` streams that are decoded at most `max_chunk_frames` frames at a time."""

    @abstractmethod
    def new_encoder_state(self, rows: int, max_chunk_frames: int, max_frames: int | None = None) -> CodecState:
        """State for `rows` recordings that are encoded at most `max_chunk_frames` frames at a time.

        Of at most `max_frames` frames each; None is `config.max_recording_frames`.
        """

    @abstractmethod
    def decode(self, codes_BTN: Tensor, state: CodecState, rows_B: Tensor, counts_B: Tensor | None = None) -> Tensor:
        """The next chunk of the streams on `rows_B`: codes -> samples float32 [B, C, T * frame_samples]."""

    @abstractmethod
    def encode(
        self,
        samples_BCS: Tensor,
        state: CodecState,
        rows_B: Tensor,
        lengths_B: Tensor | None = None,
        n_codebooks: int | None = None,
    ) -> Tensor:
        """The next chunk of the recordings on `rows_B`: whole frames of samples -> codes int64 [B, T, n_codebooks]."""

    # Whole recordings

    def decode_whole(self, codes_TN: Tensor) -> Tensor:
        """Codes of one recording -> samples float32 [C, T * frame_samples]. Memory does not grow with T."""
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
        """Samples of one recording of any length -> codes int64 [`config.reference_frames`(S), n_codebooks]."""
        return self.encode_batch([samples_CS], n_codebooks)[0]

    def encode_batch(self, samples: Sequence[Tensor], n_codebooks: int | None = None) -> list[Tensor]:
        """Recordings float32 [C, S_i] of any lengths -> their codes int64 [T_i, n_codebooks], each as if alone."""
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
        state = self.new_encoder_state(len(samples), min(longest, WHOLE_CHUNK_FRAMES), longest)
        for start in range(0, longest, state.max_chunk_frames):
            rows = [row for row in range(len(samples)) if frames[row] > start]
            counts = [min(frames[row] - start, state.max_chunk_frames) for row in rows]
            pieces = [
                samples[row][:, start * frame_samples : (start + count) * frame_samples]
                for row, count in zip(rows, counts, strict=True)
            ]
            chunk_BCS = samples[0].new_zeros(len(rows), self.config.channels, max(counts) * frame_samples)
            for b, piece_CS in enumerate(pieces):
                chunk_BCS[b, :, : piece_CS.shape[1]] = piece_CS
            lengths = [piece_CS.shape[1] for piece_CS in pieces]
            rows_B, lengths_B = torch.tensor([rows, lengths], device=chunk_BCS.device)
            codes_BTN = self.encode(chunk_BCS, state, rows_B, lengths_B, n_codebooks)
            for b, (row, count) in enumerate(zip(rows, counts, strict=True)):
                codes[row][start : start + count] = codes_BTN[b, :count]
        return codes

    # Checks

    def _check_samples(self, samples: Tensor, dims: int) -> None:
        if samples.dim() != dims or samples.shape[-2] != self.config.channels or samples.dtype != torch.float32:
            shape = "[batch, channels, samples]" if dims == 3 else "[channels, samples]"
            raise InvalidRequestError(
                f"audio must be float32 {shape} with {self.config.channels} channel(s), "
                f"got {samples.dtype} {list(samples.shape)}"
            )

    def _check_whole_frames(self, samples_BCS: Tensor) -> int:
        """Frames of a chunk of samples. Raises InvalidRequestError when it is not one or more whole ones."""
        self._check_samples(samples_BCS, 3)
        samples, frame_samples = samples_BCS.shape[-1], self.config.frame_samples
        if samples == 0 or samples % frame_samples:
            raise InvalidRequestError(
                f"{samples} samples are not one or more whole frames of {frame_samples}; cut them, or pad them and "
                "give lengths"
            )
        return samples // frame_samples

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
