"""The codec's device state, indexed by row, and the only code that moves codes and samples for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.models.family import Codec


@dataclass(frozen=True, slots=True)
class DecodeItem:
    """The next frames of one stream: `codes` int64 [frames, N] of request row `row`."""

    row: int
    codes: NDArray[np.int64]


class CodecRunner:
    """Decodes chunks on rows; the ring of a row holds its stream's history, so any chunking equals the whole decode."""

    def __init__(self, codec: Codec, *, rows: int, max_chunk_frames: int) -> None:
        self.codec = codec
        self.max_chunk_frames = max_chunk_frames
        self._device = next(codec.parameters()).device
        self._state = codec.new_decoder_state(rows, max_chunk_frames)

    def start(self, row: int) -> None:
        """Begin a new stream on `row`: position 0, nothing of an earlier stream is visible."""
        self._state.reset(torch.tensor([row], device=self._device))

    def prime(self, row: int, codes: NDArray[np.int64]) -> None:
        """Run a continuation's reference frames [F, N] through the stream and drop their audio (spec/moss 1.7)."""
        for begin in range(0, len(codes), self.max_chunk_frames):
            self.decode([DecodeItem(row, codes[begin : begin + self.max_chunk_frames])])

    @torch.inference_mode()
    def decode(self, items: Sequence[DecodeItem]) -> list[NDArray[np.float32]]:
        """Samples [C, frames * frame_samples] for each item. At most one item a row."""
        counts = [len(item.codes) for item in items]
        codes_BTN = np.zeros((len(items), max(counts), items[0].codes.shape[1]), np.int64)
        for i, item in enumerate(items):
            codes_BTN[i, : counts[i]] = item.codes
        samples_BCS = self.codec.decode(
            torch.from_numpy(codes_BTN).to(self._device),
            self._state,
            torch.tensor([item.row for item in items], dtype=torch.int64, device=self._device),
            torch.tensor(counts, dtype=torch.int64, device=self._device),
        )
        samples = samples_BCS.cpu().numpy()
        frame_samples = self.codec.config.frame_samples
        return [samples[i, :, : n * frame_samples].copy() for i, n in enumerate(counts)]
