"""The codec's device state, indexed by row, and the only code that moves codes and samples between host and device.

It has a stream of its own: chunks are decoded while the talker goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.engine.graphs import Launcher, StaticInput, batch_sizes
from hocket.engine.request import DecodeBatch
from hocket.engine.transfer import CopyLane, HostCopy
from hocket.models.family import Codec

#: Streams of every codec batch in strict mode (see `talker_runner.STRICT_ROWS`).
STRICT_STREAMS = {"cpu": 8, "cuda": 32}


@dataclass(frozen=True, slots=True)
class SamplesInFlight:
    """A launched decode batch: `samples` is float32 [B, C, S], `power` float32 [B, frames]."""

    batch: DecodeBatch
    samples: HostCopy
    power: HostCopy

    @property
    def done(self) -> bool:
        """Whether collecting it would return at once."""
        return self.samples.done and self.power.done


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """One stream's part of a batch: float32 samples [C, S], and the mean power of each frame [F]."""

    samples_CS: NDArray[np.float32]
    power_F: NDArray[np.float32]


class CodecRunner:
    """Decodes chunks on rows; the ring of a row holds its stream's history, so any chunking equals the whole decode.

    `chunk_sizes` are the sizes in frames that batches will have, and `max_batch` their most streams. Behind the rows of
    requests there are `kept_rows` more (`kept` has their numbers), to which and from which streams can be copied.
    """

    def __init__(
        self,
        codec: Codec,
        *,
        rows: int,
        chunk_sizes: Sequence[int],
        max_batch: int,
        kept_rows: int = 0,
        strict: bool = False,
    ) -> None:
        self.codec = codec
        self.chunk_sizes = tuple(sorted(set(chunk_sizes)))
        self.max_chunk_frames = self.chunk_sizes[-1]
        self._device = next(codec.parameters()).device
        # Ahead of the talker: it has less to do, and a listener waits for it.
        self._launcher = Launcher(self._device, priority=-1)
        self._copies = CopyLane(self._device)
        # Padding of a batch takes rows that are not in it: with a count of 0 it leaves no trace there.
        if strict:
            streams = STRICT_STREAMS[self._device.type]
            self._rows, self._sizes = max(rows, streams), [streams]
        else:
            self._rows, self._sizes = rows, batch_sizes(min(rows, max_batch))
        self._strict = strict
        self.kept = range(self._rows, self._rows + kept_rows)
        self._state = codec.new_decoder_state(self._rows + kept_rows, self.max_chunk_frames)
        self._inputs: dict[tuple[int, ...], StaticInput] = {}

    def start(self, row: int) -> None:
        """Begin a new stream on `row`: position 0, nothing of an earlier stream is visible."""
        with self._launcher.active():
            self._state.offsets[row].zero_()

    def prepare(self, codes_RFN: Tensor) -> None:
        """Record everything that may be launched on the talker's codes. Nothing to do on a CPU."""
        if not self._launcher.records:
            return
        nothing = np.zeros((0, codes_RFN.shape[2]), np.int64)
        with self._launcher.active():
            for size in reversed(self._sizes):
                rows = list(range(size))
                self._prime(rows, [nothing] * size)
                for frames in reversed(self.chunk_sizes):
                    self._decode(rows, [0] * size, [0] * size, frames, codes_RFN)

    def copy(self, source: int, target: int) -> None:
        """Make the stream on row `target` go on where the one on `source` is."""
        with self._launcher.active():
            self._state.copy(source, target)

    def prime(self, rows: Sequence[int], pieces: Sequence[NDArray[np.int64]]) -> None:
        """Run a piece [F <= max_chunk_frames, N] of what each row's stream continues, and drop its audio."""
        with self._launcher.active():
            self._prime(rows, pieces)

    def launch(self, batch: DecodeBatch, codes_RFN: Tensor) -> SamplesInFlight:
        """Decode the chunks of `batch`, whose codes are in the talker's `codes_RFN` and were read back from there."""
        items = batch.items
        rows, starts, counts = (
            [item.request.row for item in items],
            [i.start for i in items],
            [i.count for i in items],
        )
        with self._launcher.active():
            samples_BCS, power_BF = self._decode(rows, starts, counts, batch.chunk_frames, codes_RFN)
            samples, power = (self._copies.start(result[: len(items)]) for result in (samples_BCS, power_BF))
            self._copies.settle()
        return SamplesInFlight(batch, samples, power)

    def collect(self, flight: SamplesInFlight) -> list[DecodedChunk]:
        """Wait for a launched batch: what became of each item."""
        frame_samples = self.codec.config.frame_samples
        samples, power = flight.samples.wait().numpy(), flight.power.wait().numpy()
        return [
            DecodedChunk(samples[i, :, : item.count * frame_samples].copy(), power[i, : item.count])
            for i, item in enumerate(flight.batch.items)
        ]

    def _decode(
        self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int], frames: int, codes_RFN: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Samples [B, C, frames * frame_samples], the padding of each row included, and their power [B, frames]."""
        numbers = self._numbers(rows, starts, counts)
        places, size = self._put(numbers), numbers.shape[1]

        def decode() -> tuple[Tensor, Tensor]:
            rows_B, starts_B, counts_B = places.unbind(0)
            frames_BT = starts_B[:, None] + torch.arange(frames, device=self._device)
            # Padding, of rows and behind a row's count, may lie outside the table.
            last_row, last_frame = codes_RFN.shape[0] - 1, codes_RFN.shape[1] - 1
            codes_BTN = codes_RFN[rows_B.clamp(max=last_row)[:, None], frames_BT.clamp(max=last_frame)].long()
            samples_BCS = self.codec.decode(codes_BTN, self._state, rows_B, counts_B).contiguous()
            # Here, because on the host it would take longer than all the rest of a step.
            power_BF = samples_BCS.square().mean(1).view(size, frames, -1).mean(2)
            return samples_BCS, power_BF

        return self._launcher.run(("decode", size, frames), decode)

    def _prime(self, rows: Sequence[int], pieces: Sequence[NDArray[np.int64]]) -> None:
        numbers = self._numbers(rows, [0] * len(rows), [len(piece) for piece in pieces])
        codes_BTN = np.zeros((numbers.shape[1], self.max_chunk_frames, pieces[0].shape[1]), np.int64)
        for i, piece in enumerate(pieces):
            codes_BTN[i, : len(piece)] = piece
        places, codes = self._put(numbers), self._put(codes_BTN)

        def prime() -> None:
            rows_B, _, counts_B = places.unbind(0)
            self.codec.decode(codes, self._state, rows_B, counts_B)

        self._launcher.run(("prime", numbers.shape[1]), prime)

    def _numbers(self, rows: Sequence[int], starts: Sequence[int], counts: Sequence[int]) -> NDArray[np.int64]:
        """int64 [3, B]: request row, first frame and count of each stream, padded to a size that is used."""
        fixed = self._strict or self._launcher.records
        size = next(size for size in self._sizes if size >= len(rows)) if fixed else len(rows)
        taken = set(rows)
        others = (row for row in range(self._rows) if row not in taken)
        numbers = np.zeros((3, size), np.int64)
        numbers[:, : len(rows)] = rows, starts, counts
        numbers[0, len(rows) :] = [next(others) for _ in range(size - len(rows))]
        return numbers

    def _put(self, values: NDArray[np.int64]) -> Tensor:
        """`values` on the device; where programs are recorded, in the same place for all of one shape."""
        if not self._launcher.records:
            return torch.from_numpy(values)
        if values.shape not in self._inputs:
            self._inputs[values.shape] = StaticInput(values.shape, self._device)
        self._inputs[values.shape].put(values)
        return self._inputs[values.shape].tensor
