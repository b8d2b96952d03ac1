"""Reference recordings to codes: several at once, in bounded parts.

Encoding a minute of audio in one call would stall every running stream, so a streaming encoder
takes a few frames per step. Streaming is exact: the parts give the codes of the whole.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.errors import ReferenceAudioError
from hocket.models.codec import Codec

#: Recordings in a call of the encoder, and frames of each: 4 x 16 frames are 5 s of audio per step.
ENCODER_ROWS = 4
ENCODER_CHUNK_FRAMES = 16

Key = str


@dataclass(slots=True, eq=False)
class _Encoding:
    """A recording that is being encoded: `samples` [C, S]; `done` of its `frames` frames have
    `codes`.
    """

    key: Key
    samples: torch.Tensor
    frames: int
    row: int
    done: int
    codes: list[NDArray[np.int64]]


class CodeEncoder:
    """A queue of prepared recordings, which it encodes with the first `n_codebooks` codebooks."""

    def __init__(self, codec: Codec, *, n_codebooks: int, fixed_batch: bool) -> None:
        self._codec = codec
        self._n_codebooks = n_codebooks
        self._device = next(codec.parameters()).device
        self._fixed_batch = fixed_batch
        self._state = codec.new_encoder_state(ENCODER_ROWS, ENCODER_CHUNK_FRAMES)
        self._waiting: OrderedDict[Key, torch.Tensor] = OrderedDict()
        self._active: list[_Encoding] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the encoder's state."""
        return self._state.nbytes

    @property
    def idle(self) -> bool:
        """`step` would do nothing."""
        return not (self._waiting or self._active)

    def check_length(self, samples: int) -> None:
        """Raise ReferenceAudioError when a recording of so many samples has no frame, or more than
        the encoder takes.
        """
        config = self._codec.config
        frame_seconds = config.frame_samples / config.sample_rate
        frames, longest = config.reference_frames(samples), config.max_recording_frames
        if frames == 0:
            raise ReferenceAudioError(
                f"a reference is shorter than one frame of the codec ({1000 * frame_seconds:.0f} "
                "ms)",
                param="reference",
            )
        if longest is not None and frames > longest:
            raise ReferenceAudioError(
                f"a reference lasts {samples / config.sample_rate:.1f} s; this codec's encoder "
                f"takes {longest * frame_seconds:g} s at most, cut it",
                param="reference",
            )

    def submit(self, key: Key, samples_CS: NDArray[np.float32]) -> None:
        """Queue a recording whose length has been checked; a later `step` returns its codes
        [F, N].
        """
        frames = self._codec.config.reference_frames(samples_CS.shape[1])
        whole = np.ascontiguousarray(samples_CS[:, : frames * self._codec.config.frame_samples])
        self._waiting[key] = torch.from_numpy(whole)

    @torch.inference_mode()
    def step(self, wanted: Set[Key]) -> dict[Key, NDArray[np.int64]]:
        """Encode the next part of up to `ENCODER_ROWS` recordings; returns the codes of those that
        are complete.

        Recordings that are no longer `wanted` are dropped.
        """
        for key in self._waiting.keys() - wanted:
            del self._waiting[key]
        self._active = [item for item in self._active if item.key in wanted]
        free = sorted(set(range(ENCODER_ROWS)) - {item.row for item in self._active})
        while self._waiting and free:
            key, samples = self._waiting.popitem(last=False)
            item = _Encoding(
                key,
                samples,
                self._codec.config.reference_frames(samples.shape[1]),
                free.pop(0),
                0,
                [],
            )
            self._state.reset(torch.tensor([item.row], device=self._device))
            self._active.append(item)
        if not self._active:
            return {}
        self._encode_piece()
        done = [item for item in self._active if item.done == item.frames]
        self._active = [item for item in self._active if item not in done]
        return {item.key: np.concatenate(item.codes) for item in done}

    def _encode_piece(self) -> None:
        items = self._active
        frame_samples = self._codec.config.frame_samples
        counts = [min(ENCODER_CHUNK_FRAMES, item.frames - item.done) for item in items]
        rows = [item.row for item in items]
        frames = max(counts)
        if self._fixed_batch:
            frames = ENCODER_CHUNK_FRAMES
            others = [row for row in range(ENCODER_ROWS) if row not in rows]
            rows += others
        chunk_BCS = torch.zeros(len(rows), items[0].samples.shape[0], frames * frame_samples)
        lengths = [0] * len(rows)
        for i, item in enumerate(items):
            first = item.done * frame_samples
            piece = item.samples[:, first : first + counts[i] * frame_samples]
            chunk_BCS[i, :, : piece.shape[1]] = piece
            lengths[i] = piece.shape[1]
        rows_B, lengths_B = torch.tensor([rows, lengths], device=self._device)
        codes_BTN = self._codec.encode(
            chunk_BCS.to(self._device), self._state, rows_B, lengths_B, self._n_codebooks
        )
        host = codes_BTN.cpu().numpy()
        for i, item in enumerate(items):
            item.codes.append(host[i, : counts[i]].copy())
            item.done += counts[i]


def codec_fingerprint(codec: Codec) -> str:
    """Identifies a codec by its configuration and a sample of its weights: its codes are noise to
    any other codec.
    """
    digest = hashlib.blake2b(repr(codec.config).encode(), digest_size=20)
    for parameter in codec.parameters():
        digest.update(parameter.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()
