"""The codec's device state, indexed by row, and the only code that moves codes and samples between host and device.

It has a stream of its own: chunks are decoded while the talker goes on. Codes come from the host, which has read them
back by then (a batch of 32 streams takes 46 kB), so the codec may be on another GPU than the talker.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
#: Recordings that are heard at a time, and in pieces of how many frames; none: as speech is decoded. On a GPU one call
#: for a whole recording of 5 s takes not much longer than one for a single frame.
HEARING_SLOTS = {"cpu": 1, "cuda": 4}
HEARING_SIZES = {"cpu": (), "cuda": (16, 32, 48, 64, 80)}


def hearing_sizes(device: str, max_chunk_frames: int) -> tuple[int, ...]:
    """In pieces of how many frames a recording is heard, on a kind of device."""
    return HEARING_SIZES[device] or (max_chunk_frames,)


class Place(NamedTuple):
    """Where a stream's state is: on a request's row, being built up from a recording, or kept for later requests."""

    kind: Literal["row", "hearing", "kept"]
    number: int


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

    `chunk_sizes` are the sizes in frames that batches will have, and `max_batch` their most streams. Recordings that
    requests continue are heard elsewhere, in larger pieces, and copied to a row; `kept` of them stay.
    """

    def __init__(
        self,
        codec: Codec,
        *,
        rows: int,
        chunk_sizes: Sequence[int],
        max_batch: int,
        kept: int = 0,
        strict: bool = False,
    ) -> None:
        self.codec = codec
        self.chunk_sizes = tuple(sorted(set(chunk_sizes)))
        self._device = next(codec.parameters()).device
        kind = self._device.type
        self.hearing_slots, self.hearing_sizes = HEARING_SLOTS[kind], hearing_sizes(kind, self.chunk_sizes[-1])
        self.kept = kept
        # Ahead of the talker: it has less to do, and a listener waits for it.
        self._launcher = Launcher(self._device, priority=-1)
        self._copies = CopyLane(self._device)
        self._strict = strict
        self._sizes = [STRICT_STREAMS[kind]] if strict else batch_sizes(min(rows, max_batch))
        self._hearing_sizes = [self.hearing_slots] if strict else batch_sizes(self.hearing_slots)
        self._states = {
            # Padding of a batch takes rows that are not in it: with a count of 0 it leaves no trace there.
            "row": codec.new_decoder_state(max(rows, self._sizes[-1]), self.chunk_sizes[-1]),
            "hearing": codec.new_decoder_state(self.hearing_slots, self.hearing_sizes[-1]),
            "kept": codec.new_decoder_state(max(1, kept), 1),
        }
        self._inputs: dict[tuple[int, ...], StaticInput] = {}

    def start(self, place: Place) -> None:
        """Begin a new stream: position 0, nothing of an earlier one is visible."""
        with self._launcher.active():
            self._states[place.kind].offsets[place.number].zero_()

    def prepare(self, n_codebooks: int) -> None:
        """Record everything that may be launched on codes of so many codebooks. Nothing to do on a CPU."""
        if not self._launcher.records:
            return
        nothing = np.zeros((0, n_codebooks), np.int64)
        with self._launcher.active():
            for size in reversed(self._hearing_sizes):
                for frames in reversed(self.hearing_sizes):
                    self._decode("hearing", range(size), [nothing] * size, frames)
            for size in reversed(self._sizes):
                for frames in reversed(self.chunk_sizes):
                    self._decode("row", range(size), [nothing] * size, frames)

    def copy(self, source: Place, target: Place, frames: int) -> None:
        """Make the stream at `target` go on where the one at `source` is, which has heard `frames` frames."""
        with self._launcher.active():
            self._states[source.kind].copy(source.number, self._states[target.kind], target.number, frames)

    def hear(self, slots: Sequence[int], pieces: Sequence[NDArray[np.int64]], frames: int) -> None:
        """Run a piece [F <= frames, N] of a recording on each of `slots`; `frames` is one of `hearing_sizes`."""
        with self._launcher.active():
            self._decode("hearing", slots, pieces, frames)

    def launch(self, batch: DecodeBatch, pieces: Sequence[NDArray[np.int64]]) -> SamplesInFlight:
        """Decode the chunks of `batch`, each with its codes [count, N] in `pieces`."""
        rows = [item.request.row for item in batch.items]
        with self._launcher.active():
            samples_BCS, power_BF = self._decode("row", rows, pieces, batch.chunk_frames)
            samples, power = (self._copies.start(result[: len(rows)]) for result in (samples_BCS, power_BF))
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
        self, kind: Literal["row", "hearing"], rows: Sequence[int], pieces: Sequence[NDArray[np.int64]], frames: int
    ) -> tuple[Tensor, Tensor]:
        """Run a piece [F <= frames, N] on each row, padded to `frames`, and the batch to a size that is used.

        Returns samples [B, C, frames * frame_samples], the padding included, and their power [B, frames].
        """
        state, sizes = self._states[kind], self._sizes if kind == "row" else self._hearing_sizes
        fixed = self._strict or self._launcher.records
        size = next(size for size in sizes if size >= len(rows)) if fixed else len(rows)
        taken = set(rows)
        others = (row for row in range(state.rows) if row not in taken)
        numbers = np.zeros((2, size), np.int64)
        numbers[0] = [*rows, *itertools.islice(others, size - len(rows))]
        codes_BTN = np.zeros((size, frames, pieces[0].shape[1]), np.int64)
        for i, piece in enumerate(pieces):
            numbers[1, i] = len(piece)
            codes_BTN[i, : len(piece)] = piece
        places, codes = self._put(numbers), self._put(codes_BTN)

        def decode() -> tuple[Tensor, Tensor]:
            rows_B, counts_B = places.unbind(0)
            samples_BCS = self.codec.decode(codes, state, rows_B, counts_B).contiguous()
            # Here, because on the host it would take longer than all the rest of a step.
            power_BF = samples_BCS.square().mean(1).view(size, frames, -1).mean(2)
            return samples_BCS, power_BF

        return self._launcher.run((kind, size, frames), decode)

    def _put(self, values: NDArray[np.int64]) -> Tensor:
        """`values` on the device; where programs are recorded, in the same place for all of one shape."""
        if not self._launcher.records:
            return torch.from_numpy(values)
        if values.shape not in self._inputs:
            self._inputs[values.shape] = StaticInput(values.shape, self._device)
        self._inputs[values.shape].put(values)
        return self._inputs[values.shape].tensor
