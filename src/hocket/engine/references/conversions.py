"""Codec conversions: recordings to codes and codes to audio, a bounded part per step beside all
speech.

The chunks of a conversion are like those of speech: audio with its codes, or codes without audio,
and then an end. So they travel on the same way as speech.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.core import AudioChunk, FinishReason, RequestEnd, Timings
from hocket.engine.references.codes import codec_fingerprint
from hocket.errors import CapacityError, InvalidRequestError
from hocket.models.codec import Codec

#: Frames of a part: 1.3 s of audio, which lengthens a step by about as much as one chunk of speech.
PIECE_FRAMES = 16
#: Maximum conversions that wait.
MAX_WAITING = 64


@dataclass(slots=True, eq=False)
class _Conversion:
    name: str
    #: float32 [C, S] to encode, or int64 [F, N] to decode.
    content: NDArray[np.float32] | NDArray[np.int64]
    #: Codebooks to encode with; None: all.
    n_codebooks: int | None
    frames: int
    started: float
    done: int = 0

    @property
    def is_decoding(self) -> bool:
        return np.issubdtype(self.content.dtype, np.integer)


class Conversions:
    """A queue, and one codec stream for each direction; conversions run one after another."""

    def __init__(self, codec: Codec, clock: Callable[[], float] = time.perf_counter) -> None:
        self._codec, self._clock = codec, clock
        #: Codec fingerprint: codes are valid only for the same id.
        self.codec_id = codec_fingerprint(codec)
        self._device = next(codec.parameters()).device
        self._row_B = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._encoder = codec.new_encoder_state(1, PIECE_FRAMES)
        self._decoder = codec.new_decoder_state(1, PIECE_FRAMES)
        self._queue: deque[_Conversion] = deque()
        #: Ends of cancelled conversions, which the next step returns.
        self._ended: list[AudioChunk] = []

    @property
    def nbytes(self) -> int:
        """Bytes of both streams' states."""
        return self._encoder.nbytes + self._decoder.nbytes

    @property
    def idle(self) -> bool:
        """`step` would do nothing."""
        return not (self._queue or self._ended)

    def encode(self, name: str, samples_CS: NDArray[np.float32], n_codebooks: int | None) -> None:
        """Queue a recording at the codec's rate and channels; an incomplete last frame is encoded,
        too.

        Raises InvalidRequestError, CapacityError.
        """
        config = self._codec.config
        if (
            samples_CS.ndim != 2
            or samples_CS.shape[0] != config.channels
            or not samples_CS.shape[1]
        ):
            raise InvalidRequestError(
                f"the audio has the shape {samples_CS.shape}; give [{config.channels}, samples]",
                param="audio",
            )
        if n_codebooks is not None and not 1 <= n_codebooks <= config.n_codebooks:
            raise InvalidRequestError(
                f"codebooks is {n_codebooks}; this codec has {config.n_codebooks}",
                param="codebooks",
            )
        frames, max_frames = (
            -(-samples_CS.shape[1] // config.frame_samples),
            config.max_recording_frames,
        )
        if max_frames is not None and frames > max_frames:
            longest = max_frames * config.frame_samples / config.sample_rate
            raise InvalidRequestError(
                f"the audio lasts {samples_CS.shape[1] / config.sample_rate:.1f} s; this codec's "
                f"encoder takes {longest:g} s at a time, cut it",
                param="audio",
            )
        self._open(_Conversion(name, samples_CS, n_codebooks, frames, self._clock()))

    def decode(self, name: str, codes_FN: NDArray[np.int64]) -> None:
        """Queue codes of the first N codebooks. Raises InvalidRequestError, CapacityError."""
        config = self._codec.config
        if codes_FN.ndim != 2 or not codes_FN.size or codes_FN.shape[1] > config.n_codebooks:
            raise InvalidRequestError(
                f"codes have the shape {codes_FN.shape}; give [frames, 1 .. {config.n_codebooks}]",
                param="codes",
            )
        if codes_FN.min() < 0 or codes_FN.max() >= config.codebook_size:
            raise InvalidRequestError(
                f"codes are 0 .. {config.codebook_size - 1}; correct them", param="codes"
            )
        self._open(_Conversion(name, codes_FN, None, len(codes_FN), self._clock()))

    def cancel(self, name: str) -> None:
        """End a conversion; the next step returns its end. No effect on one that has ended."""
        for job in self._queue:
            if job.name == name:
                self._queue.remove(job)
                self._ended.append(self._end(job, "cancelled"))
                return

    @torch.inference_mode()
    def step(self) -> list[AudioChunk]:
        """Convert the next part; returns its chunk, and the end of a conversion that is
        complete.
        """
        chunks, self._ended = self._ended, []
        if not self._queue:
            return chunks
        job = self._queue[0]
        if not job.done:
            (self._decoder if job.is_decoding else self._encoder).reset(self._row_B)
        chunks.append(self._decode_piece(job) if job.is_decoding else self._encode_piece(job))
        job.done += PIECE_FRAMES
        if job.done >= job.frames:
            self._queue.popleft()
            chunks.append(self._end(job, "stop"))
        return chunks

    def _open(self, job: _Conversion) -> None:
        if len(self._queue) >= MAX_WAITING:
            raise CapacityError(f"{MAX_WAITING} conversions are waiting already; try again later")
        self._queue.append(job)

    def _encode_piece(self, job: _Conversion) -> AudioChunk:
        frame_samples = self._codec.config.frame_samples
        first, frames = job.done * frame_samples, min(PIECE_FRAMES, job.frames - job.done)
        piece_CS = np.asarray(job.content[:, first : first + frames * frame_samples], np.float32)
        padding = frames * frame_samples - piece_CS.shape[1]
        samples_BCS = torch.from_numpy(np.pad(piece_CS, ((0, 0), (0, padding))))[None].to(
            self._device
        )
        lengths_B = torch.tensor([piece_CS.shape[1]], device=self._device)
        codes_BTN = self._codec.encode(
            samples_BCS, self._encoder, self._row_B, lengths_B, job.n_codebooks
        )
        return self._chunk(job, self._silence(), codes_BTN[0].cpu().numpy())

    def _decode_piece(self, job: _Conversion) -> AudioChunk:
        piece_FN = np.ascontiguousarray(job.content[job.done : job.done + PIECE_FRAMES], np.int64)
        codes_BTN = torch.from_numpy(piece_FN)[None].to(self._device)
        samples_BCS = self._codec.decode(codes_BTN, self._decoder, self._row_B)
        return self._chunk(job, samples_BCS[0].cpu().numpy(), piece_FN)

    def _end(self, job: _Conversion, reason: FinishReason) -> AudioChunk:
        end = RequestEnd(reason, 0, Timings(total_seconds=self._clock() - job.started))
        return self._chunk(job, self._silence(), np.zeros((0, 0), np.int64), end)

    def _chunk(
        self,
        job: _Conversion,
        samples_CS: NDArray[np.float32],
        codes_FN: NDArray[np.int64],
        end: RequestEnd | None = None,
    ) -> AudioChunk:
        return AudioChunk(job.name, samples_CS, self._codec.config.sample_rate, codes_FN, end)

    def _silence(self) -> NDArray[np.float32]:
        return np.zeros((self._codec.config.channels, 0), np.float32)
