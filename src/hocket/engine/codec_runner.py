"""The codec's device state, indexed by row, and the only code that moves codes and samples between host and device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.engine.request import DecodeBatch
from hocket.engine.transfer import HostCopy
from hocket.models.family import Codec

#: Streams of every codec batch in strict mode (see `talker_runner.STRICT_BATCH_ROWS`).
STRICT_BATCH_STREAMS = 8


@dataclass(frozen=True, slots=True)
class SamplesInFlight:
    """A launched decode batch: `samples` is float32 [B, C, S], `power` float32 [B, frames]."""

    batch: DecodeBatch
    samples: HostCopy
    power: HostCopy


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """One stream's part of a batch: float32 samples [C, S], and the mean power of each frame [F]."""

    samples_CS: NDArray[np.float32]
    power_F: NDArray[np.float32]


class CodecRunner:
    """Decodes chunks on rows; the ring of a row holds its stream's history, so any chunking equals the whole decode."""

    def __init__(self, codec: Codec, *, rows: int, max_chunk_frames: int, strict: bool = False) -> None:
        self.codec = codec
        self.max_chunk_frames = max_chunk_frames
        self._device = next(codec.parameters()).device
        self._batch_rows = STRICT_BATCH_STREAMS if strict else 1
        # Padding of a batch takes rows that are not in it: with a count of 0 it leaves no trace there.
        self._rows = max(rows, self._batch_rows)
        self._state = codec.new_decoder_state(self._rows, max_chunk_frames)

    def start(self, row: int) -> None:
        """Begin a new stream on `row`: position 0, nothing of an earlier stream is visible."""
        self._state.reset(torch.tensor([row], device=self._device))

    @torch.inference_mode()
    def prime(self, rows: Sequence[int], pieces: Sequence[NDArray[np.int64]]) -> None:
        """Run a piece [F <= max_chunk_frames, N] of what each row's stream continues, and drop its audio."""
        self._decode(rows, [torch.from_numpy(piece).to(self._device) for piece in pieces], self.max_chunk_frames)

    @torch.inference_mode()
    def launch(self, batch: DecodeBatch, codes_RFN: Tensor) -> SamplesInFlight:
        """Decode the chunks of `batch`, whose codes are in the talker's `codes_RFN`; nothing waits for the device."""
        rows = [item.request.row for item in batch.items]
        codes = [
            codes_RFN[row, item.start : item.start + item.count].long()
            for row, item in zip(rows, batch.items, strict=True)
        ]
        samples_BCS = self._decode(rows, codes, batch.chunk_frames)
        # Here, because on the host it would take longer than all the rest of a step.
        power_BF = samples_BCS.square().mean(1).view(len(samples_BCS), batch.chunk_frames, -1).mean(2)
        return SamplesInFlight(batch, HostCopy.start(samples_BCS), HostCopy.start(power_BF))

    def collect(self, flight: SamplesInFlight) -> list[DecodedChunk]:
        """Wait for a launched batch: what became of each item."""
        frame_samples = self.codec.config.frame_samples
        samples, power = flight.samples.wait().numpy(), flight.power.wait().numpy()
        return [
            DecodedChunk(samples[i, :, : item.count * frame_samples].copy(), power[i, : item.count])
            for i, item in enumerate(flight.batch.items)
        ]

    def _decode(self, rows: Sequence[int], codes: Sequence[Tensor], chunk_frames: int) -> Tensor:
        """Samples [B, C, chunk_frames * frame_samples], the padding of each row included."""
        batch = max(len(rows), self._batch_rows)
        codes_BTN = torch.zeros(batch, chunk_frames, codes[0].shape[1], dtype=torch.int64, device=self._device)
        for i, codes_TN in enumerate(codes):
            codes_BTN[i, : len(codes_TN)] = codes_TN
        taken = set(rows)
        others = (row for row in range(self._rows) if row not in taken)
        padded = [*rows, *(next(others) for _ in range(batch - len(rows)))]
        counts = [*(len(codes_TN) for codes_TN in codes), *[0] * (batch - len(rows))]
        rows_B, counts_B = torch.tensor([padded, counts], dtype=torch.int64, device=self._device)
        return self.codec.decode(codes_BTN, self._state, rows_B, counts_B)
