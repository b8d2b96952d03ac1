"""The codec's device state, indexed by row, and the only code that moves codes and samples between host and device.

It has a stream of its own: chunks are decoded while the talker goes on. Codes come from the host, which has read them
back by then (a batch of 32 streams takes 46 kB), so the codec may be on another GPU than the talker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hocket.engine.batches import chunk_batch, packed_batch
from hocket.engine.codec_places import HEARING_SLOTS, STRICT_STREAMS, Kind, Place, hearing_sizes
from hocket.engine.graphs import Launcher, batch_sizes
from hocket.engine.request import DecodeBatch
from hocket.engine.transfer import CopyLane, HostCopy
from hocket.models.codec_state import PackedStreams
from hocket.models.family import Codec


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
        #: Whether chunks of any sizes go together without padding.
        self.packs = codec.packs and self._launcher.records and not strict
        self._sizes = [STRICT_STREAMS[kind]] if strict else batch_sizes(min(rows, max_batch))
        self._hearing_sizes = [self.hearing_slots] if strict else batch_sizes(self.hearing_slots)
        self._states = {
            # Padding of a batch takes rows that are not in it: with a count of 0 it leaves no trace there.
            "row": codec.new_decoder_state(max(rows, self._sizes[-1]), self.chunk_sizes[-1]),
            "hearing": codec.new_decoder_state(self.hearing_slots, self.hearing_sizes[-1]),
        }
        if kept:
            self._states["kept"] = codec.new_decoder_state(kept, 1)
        self._max_frames = {"row": self.chunk_sizes[-1], "hearing": self.hearing_sizes[-1]}

    def start(self, place: Place) -> None:
        """Begin a new stream: position 0, nothing of an earlier one is visible."""
        with self._launcher.active():
            self._states[place.kind].offsets[place.number].zero_()

    def prepare(self, n_codebooks: int) -> None:
        """Record everything that may be launched on codes of so many codebooks. Nothing to do on a CPU."""
        if not self._launcher.records:
            return
        nothing = np.zeros((0, n_codebooks), np.int64)
        kinds: tuple[tuple[Kind, list[int], tuple[int, ...]], ...] = (
            ("hearing", self._hearing_sizes, self.hearing_sizes),
            ("row", self._sizes, self.chunk_sizes),
        )
        with self._launcher.active():
            # The largest first: the smaller ones fit into its memory.
            for kind, sizes, frames in kinds:
                for count in reversed(batch_sizes(sizes[-1] * frames[-1]) if self.packs else []):
                    self._decode_packed(kind, [0], [nothing], count)
                for size in reversed([] if self.packs else sizes):
                    for width in reversed(frames):
                        self._decode(kind, range(size), [nothing] * size, width)
        self._launcher.seal()

    def copy(self, source: Place, target: Place, frames: int) -> None:
        """Make the stream at `target` go on where the one at `source` is, which has heard `frames` frames."""
        with self._launcher.active():
            self._states[source.kind].copy(source.number, self._states[target.kind], target.number, frames)

    def hear(self, slots: Sequence[int], pieces: Sequence[NDArray[np.int64]], frames: int) -> HostCopy:
        """Run a piece [F <= frames, N] of a recording on each of `slots`; `frames` is one of `hearing_sizes`.

        The result tells when it has been done.
        """
        with self._launcher.active():
            if self.packs:
                _, power = self._decode_packed("hearing", slots, pieces)
            else:
                _, power = self._decode("hearing", slots, pieces, frames)
            heard = self._copies.start(power)
            self._copies.settle()
        return heard

    def launch(self, batch: DecodeBatch, pieces: Sequence[NDArray[np.int64]]) -> SamplesInFlight:
        """Decode the chunks of `batch`, each with its codes [count, N] in `pieces`."""
        rows = [item.request.row for item in batch.items]
        counts = [len(piece) for piece in pieces]
        with self._launcher.active():
            if self.packs:
                samples_CS, power_F = self._decode_packed("row", rows, pieces)
                used = sum(counts)
                results = samples_CS[None, :, : used * self.codec.config.frame_samples], power_F[None, :used]
            else:
                samples_BCS, power_BF = self._decode("row", rows, pieces, batch.chunk_frames)
                results = samples_BCS[: len(rows)], power_BF[: len(rows)]
            samples, power = (self._copies.start(result) for result in results)
            self._copies.settle()
        return SamplesInFlight(batch, samples, power)

    def collect(self, flight: SamplesInFlight) -> list[DecodedChunk]:
        """Wait for a launched batch: what became of each item."""
        frame_samples = self.codec.config.frame_samples
        samples, power = flight.samples.wait().numpy(), flight.power.wait().numpy()
        chunks, first = [], 0
        for i, item in enumerate(flight.batch.items):
            row, begin = (0, first) if self.packs else (i, 0)
            end = begin + item.count
            # A copy: the memory that it came in is wanted for the next.
            samples_CS = samples[row, :, begin * frame_samples : end * frame_samples].copy()
            chunks.append(DecodedChunk(samples_CS, power[row, begin:end]))
            first = end
        return chunks

    def _decode_packed(
        self, kind: Kind, rows: Sequence[int], pieces: Sequence[NDArray[np.int64]], frames: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Run a piece [F, N] on each row, one behind the other, padded at the end to a size that is used.

        Returns samples [C, F * frame_samples], the padding included, and the power of each frame [F].
        """
        state, most = self._states[kind], (self._sizes if kind == "row" else self._hearing_sizes)[-1]
        used = sum(map(len, pieces))
        size = frames or next(size for size in batch_sizes(most * self._max_frames[kind]) if size >= used)
        streams, packed_frames, packed_codes = packed_batch(rows, pieces, size, most, state.rows)
        streams_3S, frames_2F = self._launcher.put("streams", streams), self._launcher.put("frames", packed_frames)
        codes = self._launcher.put("codes", packed_codes)

        def decode() -> tuple[Tensor, Tensor]:
            rows_S, counts_S, firsts_S = streams_3S.unbind(0)
            frame_rows_F, frame_places_F = frames_2F.unbind(0)
            batch = PackedStreams(rows_S, counts_S, firsts_S, frame_rows_F, frame_places_F, self._max_frames[kind])
            samples_CS = self.codec.decode_packed(codes, state, batch).contiguous()
            return samples_CS, samples_CS.square().mean(0).view(size, -1).mean(1)

        return self._launcher.run((kind, size), decode)

    def _decode(
        self, kind: Kind, rows: Sequence[int], pieces: Sequence[NDArray[np.int64]], frames: int
    ) -> tuple[Tensor, Tensor]:
        """Run a piece [F <= frames, N] on each row, padded to `frames`, and the batch to a size that is used.

        Returns samples [B, C, frames * frame_samples], the padding included, and their power [B, frames].
        """
        state, sizes = self._states[kind], self._sizes if kind == "row" else self._hearing_sizes
        fixed = self._strict or self._launcher.records
        size = next(size for size in sizes if size >= len(rows)) if fixed else len(rows)
        numbers, padded_codes = chunk_batch(rows, pieces, size, frames, state.rows)
        places, codes = self._launcher.put("places", numbers), self._launcher.put("codes", padded_codes)

        def decode() -> tuple[Tensor, Tensor]:
            rows_B, counts_B = places.unbind(0)
            samples_BCS = self.codec.decode(codes, state, rows_B, counts_B).contiguous()
            # Here, because on the host it would take longer than all the rest of a step.
            power_BF = samples_BCS.square().mean(1).view(size, frames, -1).mean(2)
            return samples_BCS, power_BF

        return self._launcher.run((kind, size, frames), decode)
