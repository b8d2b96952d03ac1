"""A codec as the engine sees it: codes to samples and back, in streams on rows, or whole
recordings.

Streaming is exact: any chunking of a stream gives what the whole sequence gives. So a recording of
any length goes through the same code, chunk by chunk, in bounded memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from hocket.errors import InvalidRequestError
from hocket.kernels.types import Packed
from hocket.models.layers.codec_state import CodecState, Direction, RingSpec, StateSpec

#: Frames per step when a whole recording is coded: bounds memory whatever its length.
WHOLE_CHUNK_FRAMES = 32


class CodecConfig(Protocol):
    """The properties of a codec that the engine reads."""

    @property
    def sample_rate(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def frame_samples(self) -> int: ...
    @property
    def n_codebooks(self) -> int: ...
    @property
    def codebook_size(self) -> int: ...
    @property
    def max_recording_frames(self) -> int | None:
        """Longest recording that a stream of the encoder takes; None means any length."""

    def reference_frames(self, samples: int) -> int:
        """Frames of a reference recording of so many samples."""


@dataclass(frozen=True, slots=True)
class RingStage:
    """A transformer stage of a decoder, as benchmarks measure it."""

    module: nn.Module
    ring: RingSpec
    width: int
    ffn_dim: int
    rope_base: float


@dataclass(frozen=True, slots=True)
class ConvShape:
    """A convolution of a decoder between two tensors of as many channels, as benchmarks measure
    it.
    """

    channels: int
    taps: int
    dilation: int
    positions_per_frame: int
    is_depthwise: bool = False


class Codec(nn.Module):
    """Base of all codecs. A family implements the abstract methods; `decode_packed` only where
    `packs` is set.

    Call `finalize` once after the weights are in place.
    """

    config: CodecConfig
    #: Whether `decode_packed` exists: chunks of any sizes in one batch, without padding.
    packs = False

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self._n_codebooks, self._codebook_size = config.n_codebooks, config.codebook_size

    @abstractmethod
    def finalize(self) -> None:
        """Compute what follows from the weights alone, such as lookup tables."""

    @abstractmethod
    def state_spec(self, direction: Direction, max_frames: int | None = None) -> StateSpec:
        """Layout of a stream's state. An encoder's streams hold at most `max_frames` frames each;
        None stands for `config.max_recording_frames`.
        """

    @abstractmethod
    def decode(
        self, codes_BTN: Tensor, state: CodecState, rows_B: Tensor, counts_B: Tensor | None = None
    ) -> Tensor:
        """Decode the next chunk of the streams on `rows_B` (distinct): codes -> samples float32
        [B, C, T * frame_samples].

        N may be smaller than `n_codebooks`: the first N are used. `counts_B` is how many of the T
        frames are real for each row (0..T); the rest is padding, whose samples mean nothing and
        which leaves no trace in the state. Raises InvalidRequestError for codes, rows, counts or
        shapes that do not fit.
        """

    def decode_packed(self, codes_FN: Tensor, state: CodecState, pack: Packed) -> Tensor:
        """Decode the next chunks of several streams, packed: codes int64 [F, N] -> samples float32
        [C, F * frame_samples].

        The result equals that of `decode`, but streams may have different numbers of frames without
        padding. Nothing is checked, since a check would make the caller wait for the device.
        """
        raise NotImplementedError(f"{type(self).__name__} does not pack")

    @abstractmethod
    def encode(
        self,
        samples_BCS: Tensor,
        state: CodecState,
        rows_B: Tensor,
        lengths_B: Tensor | None = None,
        n_codebooks: int | None = None,
    ) -> Tensor:
        """Encode the next chunk of the recordings on `rows_B`: float32 [B, C, T * frame_samples] ->
        int64 [B, T, n_codebooks].

        `lengths_B` is how many of the samples are real for each row; the rest is padding and leaves
        no trace. A length within a frame ends its recording. Raises InvalidRequestError for rows,
        lengths or shapes that do not fit.
        """

    @property
    @abstractmethod
    def ring_stages(self) -> Sequence[RingStage]:
        """The decoder's transformers, in order."""

    @property
    def convolutions(self) -> Sequence[ConvShape]:
        """The convolutions that take most of the decoder's time; empty where transformers do."""
        return ()

    # State

    def new_decoder_state(self, rows: int, max_chunk_frames: int) -> CodecState:
        """State for `rows` streams that are decoded at most `max_chunk_frames` frames at a time."""
        spec = self.state_spec("decoder")
        return CodecState.allocate("decoder", spec, rows, max_chunk_frames, self._device)

    def new_encoder_state(
        self, rows: int, max_chunk_frames: int, max_frames: int | None = None
    ) -> CodecState:
        """State for `rows` recordings, encoded at most `max_chunk_frames` frames at a time; see
        `state_spec`.
        """
        spec = self.state_spec("encoder", max_frames)
        return CodecState.allocate("encoder", spec, rows, max_chunk_frames, self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    # Whole recordings

    def decode_whole(self, codes_TN: Tensor) -> Tensor:
        """Codes of one recording -> samples float32 [C, T * frame_samples]. Memory does not grow
        with T.
        """
        self._check_codes(codes_TN, 2, check_values=True)
        frames = codes_TN.shape[0]
        if frames == 0:
            return torch.zeros(self.config.channels, 0, device=codes_TN.device)
        state = self.new_decoder_state(1, min(frames, WHOLE_CHUNK_FRAMES))
        row_B = torch.zeros(1, dtype=torch.int64, device=codes_TN.device)
        chunks = [
            self.decode(chunk_TN[None], state, row_B)[0]
            for chunk_TN in torch.split(codes_TN, state.max_chunk_frames)
        ]
        return torch.cat(chunks, dim=-1)

    def encode_whole(self, samples_CS: Tensor, n_codebooks: int | None = None) -> Tensor:
        """Samples of one recording of any length -> codes int64 [`config.reference_frames`(S),
        n_codebooks].
        """
        return self.encode_batch([samples_CS], n_codebooks)[0]

    def encode_batch(
        self, samples: Sequence[Tensor], n_codebooks: int | None = None
    ) -> list[Tensor]:
        """Recordings float32 [C, S_i] of any lengths -> their codes int64 [T_i, n_codebooks], each
        as if alone.
        """
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
            chunk_BCS = samples[0].new_zeros(
                len(rows), self.config.channels, max(counts) * frame_samples
            )
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
        if (
            samples.dim() != dims
            or samples.shape[-2] != self.config.channels
            or samples.dtype != torch.float32
        ):
            shape = "[batch, channels, samples]" if dims == 3 else "[channels, samples]"
            raise InvalidRequestError(
                f"audio must be float32 {shape} with {self.config.channels} channel(s), "
                f"got {samples.dtype} {list(samples.shape)}"
            )

    def _check_whole_frames(self, samples_BCS: Tensor) -> int:
        """Frames of a chunk of samples. Raises InvalidRequestError when it is not one or more whole
        ones.
        """
        self._check_samples(samples_BCS, 3)
        samples, frame_samples = samples_BCS.shape[-1], self.config.frame_samples
        if samples == 0 or samples % frame_samples:
            raise InvalidRequestError(
                f"{samples} samples are not one or more whole frames of {frame_samples}; cut them, "
                "or pad them and give lengths"
            )
        return samples // frame_samples

    def _check_codes(self, codes: Tensor, dims: int, *, check_values: bool) -> None:
        if codes.dim() != dims or codes.dtype != torch.int64:
            shape = "[batch, frames, codebooks]" if dims == 3 else "[frames, codebooks]"
            raise InvalidRequestError(
                f"codes must be int64 {shape}, got {codes.dtype} {list(codes.shape)}"
            )
        self._check_n_codebooks(codes.shape[-1])
        if check_values and codes.numel():
            low, high = (int(bound) for bound in codes.aminmax())
            if low < 0 or high >= self._codebook_size:
                raise InvalidRequestError(
                    f"codes must be 0 .. {self._codebook_size - 1}, got {low} .. {high}; remove "
                    "padding before decoding"
                )

    def _check_n_codebooks(self, n_codebooks: int | None) -> int:
        if n_codebooks is None:
            return self._n_codebooks
        if not 1 <= n_codebooks <= self._n_codebooks:
            raise InvalidRequestError(
                f"this codec has {self._n_codebooks} codebooks, {n_codebooks} were asked for"
            )
        return n_codebooks
