"""The codec's device state, indexed by row, and the only code that moves codes and samples between
host and device.

It uses CUDA streams of its own, so that chunks are decoded while the talker runs. Codes come from
the host, which has read them back by then (a batch of 32 streams takes 46 kB), so the codec may be
on another GPU than the talker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.audio.io import to_int16_on_device
from hocket.core import SampleFormat, Samples
from hocket.engine.runners.device import CopyStream, HostCopy, Launcher, batch_sizes
from hocket.engine.runners.padding import chunk_batch, packed_batch
from hocket.engine.scheduling.request import DecodeBatch
from hocket.models.codec import Codec
from hocket.models.layers.codec_state import CodecState

#: CUDA stream priorities (lower runs first). The talker has 0.
_FIRST_PRIORITY, _PRIMING_PRIORITY, _STEADY_PRIORITY = -3, -2, -1

#: Streams of every codec batch in strict mode (see `talker.STRICT_ROWS`).
STRICT_STREAMS = {"cpu": 8, "cuda": 32}
#: Frames of every strict pack except those of first chunks: 11 ms, at four fifths of the throughput
#: of 480 (H200).
STRICT_FRAMES = 256
#: Recordings primed at a time, and slice sizes in frames (none: the largest chunk of speech). On a
#: GPU one call for a whole recording of 5 s takes not much longer than one for a single frame.
PRIMING_SLOTS = {"cpu": 1, "cuda": 4}
PRIMING_SIZES = {"cpu": (), "cuda": (16, 32, 48, 64, 80)}


def priming_sizes(device: str, max_chunk_frames: int) -> tuple[int, ...]:
    """Priming slice sizes, in frames, per device type."""
    return PRIMING_SIZES[device] or (max_chunk_frames,)


class StateSlot(NamedTuple):
    """The slot of a stream's state: a request's row, a slot for priming, or one that keeps a primed
    state.
    """

    kind: Literal["row", "priming", "kept"]
    number: int


@dataclass(frozen=True, slots=True)
class SamplesInFlight:
    """A launched decode batch: `samples` is [B, C, S], `power` float32 [B, frames]."""

    batch: DecodeBatch
    samples: HostCopy
    power: HostCopy

    @property
    def done(self) -> bool:
        """Whether `collect` would return at once."""
        return self.power.done  # both are copied together


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """One stream's part of a batch: samples [C, S], and the mean power [F] of each frame as
    floats.
    """

    samples_CS: Samples
    power_F: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class _DecodePath:
    """One way through the codec: a state, a launcher, and the batch sizes. Work on a launcher runs
    in order.
    """

    name: str
    launcher: Launcher
    #: None for priming, which returns no audio.
    copies: CopyStream | None
    state: CodecState
    #: Maximum streams of a batch.
    streams: int
    #: Chunk sizes in frames.
    chunks: tuple[int, ...]
    #: Batches are padded to one of these: packs in frames, other batches in streams.
    sizes: list[int]

    def size(self, used: int) -> int:
        return next(size for size in self.sizes if size >= used)


class CodecRunner:
    """Decodes chunks on rows; the ring of a row holds its stream's history, so any chunking equals
    the whole decode.

    `chunk_sizes` are the chunk sizes in frames, `max_batch` the maximum streams of a batch, and
    `first_frames` the maximum frames of a batch of first chunks (0: they go with the others).
    Recordings that requests continue are primed in slots of their own, in larger slices, and copied
    to a row; `kept` primed states stay.

    Where chunks are packed, first chunks, priming and all other chunks have CUDA streams of their
    own, so that none waits for another: beside the talker a batch of many frames takes 20 to 33 ms,
    one of first chunks 10 to 14 (H200, 64 to 256 clients). No two of them work on one row at a
    time, because a row's second chunk is launched only when the first has been collected.
    """

    def __init__(
        self,
        codec: Codec,
        *,
        rows: int,
        chunk_sizes: Sequence[int],
        max_batch: int,
        first_frames: int = 32,
        kept: int = 0,
        strict: bool = False,
        samples: SampleFormat = "float32",
    ) -> None:
        self.codec = codec
        self._is_int16 = samples == "int16"
        self.chunk_sizes = tuple(sorted(set(chunk_sizes)))
        self._device = next(codec.parameters()).device
        kind = self._device.type
        self._strict = strict
        steady = self._launching(_STEADY_PRIORITY)
        #: Whether chunks of any sizes are packed without padding, first chunks apart from the
        #: others.
        self.packs = codec.packs and steady[0].records
        # The size of a strict pack depends only on the stream in it.
        self.priming_slots = 1 if strict and self.packs else PRIMING_SLOTS[kind]
        self.priming_sizes = priming_sizes(kind, self.chunk_sizes[-1])
        self.kept = kept
        streams = STRICT_STREAMS[kind] if strict else min(rows, max_batch)
        row_state = codec.new_decoder_state(max(rows, streams), self.chunk_sizes[-1])
        priming_state = codec.new_decoder_state(self.priming_slots, self.priming_sizes[-1])
        self._states = {"row": row_state, "priming": priming_state}
        #: Completion of the work that starts a row's stream; the path that continues the stream
        #: waits for it.
        self._row_events: dict[int, torch.cuda.Event | None] = {}
        if kept:
            self._states["kept"] = codec.new_decoder_state(kept, 1)
        slots = self.priming_slots
        if self.packs:
            max_frames, priming = (
                streams * self.chunk_sizes[-1],
                Launcher(self._device, priority=_PRIMING_PRIORITY),
            )
            # Bits depend on the size of a pack. Strict packs have one size; that of priming follows
            # from the recording.
            sizes = [STRICT_FRAMES] if strict else batch_sizes(max_frames)
            priming_batch_sizes = batch_sizes(slots * self.priming_sizes[-1])
        else:
            priming = steady[0]
            sizes, priming_batch_sizes = (
                ([streams], [slots]) if strict else (batch_sizes(streams), batch_sizes(slots))
            )
        self._steady = self._first = _DecodePath(
            "row", *steady, row_state, streams, self.chunk_sizes, sizes
        )
        self._priming = _DecodePath(
            "priming", priming, None, priming_state, slots, self.priming_sizes, priming_batch_sizes
        )
        if self.packs and first_frames:
            chunk = self.chunk_sizes[:1]
            sizes, max_first_chunks = (
                [first_frames] if strict else batch_sizes(first_frames),
                min(streams, first_frames // chunk[0]),
            )
            self._first = _DecodePath(
                "first",
                *self._launching(_FIRST_PRIORITY),
                row_state,
                max_first_chunks,
                chunk,
                sizes,
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the streams' states."""
        return sum(state.nbytes for state in self._states.values())

    @property
    def pack_frames(self) -> int:
        """Frames of the largest pack; 0: chunks are padded."""
        return self._steady.sizes[-1] if self.packs else 0

    def start(self, slot: StateSlot) -> None:
        """Start a new stream: position 0, nothing of an earlier stream is visible."""
        path = self._first if slot.kind == "row" else self._priming
        with path.launcher.active():
            if slot.kind == "row":
                # A copy for an earlier request, which has ended since, may still be in flight.
                path.launcher.wait(self._row_events.get(slot.number))
            self._states[slot.kind].offsets[slot.number].zero_()
            if slot.kind == "row":
                self._row_events[slot.number] = path.launcher.record_event()

    def prepare(self, n_codebooks: int) -> None:
        """Record every program for codes of `n_codebooks` codebooks. Does nothing on a CPU."""
        if not self._steady.launcher.records:
            return
        nothing = np.zeros((0, n_codebooks), np.int64)
        paths = dict.fromkeys((self._priming, self._steady, self._first))
        for path in paths:
            with path.launcher.active():
                # The largest comes first, because the smaller ones fit into its memory.
                for size in reversed(path.sizes):
                    if self.packs:
                        self._decode_packed(path, [0], [nothing], size)
                    else:
                        for width in reversed(path.chunks):
                            self._decode(path, range(size), [nothing] * size, width)
        priming, row, kept = StateSlot("priming", 0), StateSlot("row", 0), StateSlot("kept", 0)
        with self._priming.launcher.active():
            for source, target in (
                (priming, row),
                *([(priming, kept), (kept, row)] if self.kept else []),
            ):
                self._copy(source, target, 0)
        for path in paths:
            path.launcher.seal()

    def copy(self, source: StateSlot, target: StateSlot, frames: int) -> torch.cuda.Event | None:
        """Copy the state at `source`, which has run `frames` frames, to `target`.

        Returns the event of its completion; None if it is complete.
        """
        launcher = self._priming.launcher
        with launcher.active():
            if target.kind == "row":
                launcher.wait(self._row_events.get(target.number))
            self._copy(source, target, frames)
            event = launcher.record_event()
            if target.kind == "row":
                self._row_events[target.number] = event
        return event

    def prime(
        self, slots: Sequence[int], pieces: Sequence[NDArray[np.int64]], frames: int
    ) -> torch.cuda.Event | None:
        """Run a slice [F <= frames, N] of a recording on each of `slots`; `frames` is one of
        `priming_sizes`.

        Returns the event of its completion; None if it is complete.
        """
        path = self._priming
        with path.launcher.active():
            if self.packs:
                self._decode_packed(path, slots, pieces)
            else:
                self._decode(path, slots, pieces, frames)
            return path.launcher.record_event()

    def launch(self, batch: DecodeBatch, pieces: Sequence[NDArray[np.int64]]) -> SamplesInFlight:
        """Decode the chunks of `batch`, each with its codes [count, N] in `pieces`."""
        rows = [item.request.row for item in batch.items]
        counts = [len(piece) for piece in pieces]
        path = self._first if batch.is_first else self._steady
        assert path.copies is not None  # only priming returns no audio
        with path.launcher.active():
            for row in rows:
                path.launcher.wait(self._row_events.pop(row, None))
            if self.packs:
                samples_CS, power_F = self._decode_packed(path, rows, pieces)
                used = sum(counts)
                results = (
                    samples_CS[None, :, : used * self.codec.config.frame_samples],
                    power_F[None, :used],
                )
            else:
                samples_BCS, power_BF = self._decode(path, rows, pieces, batch.chunk_frames)
                results = samples_BCS[: len(rows)], power_BF[: len(rows)]
            samples, power = path.copies.start(*results)
            path.copies.fence()
        return SamplesInFlight(batch, samples, power)

    def collect(self, flight: SamplesInFlight) -> list[DecodedChunk]:
        """Wait for a launched batch; returns the decoded chunk of each item."""
        frame_samples = self.codec.config.frame_samples
        samples, power = flight.samples.wait().numpy(), flight.power.wait().numpy()
        chunks, first = [], 0
        for i, item in enumerate(flight.batch.items):
            row, begin = (0, first) if self.packs else (i, 0)
            end = begin + item.count
            # Copied, so that the pinned memory can be reused.
            samples_CS = samples[row, :, begin * frame_samples : end * frame_samples].copy()
            chunks.append(DecodedChunk(samples_CS, power[row, begin:end]))
            first = end
        return chunks

    def _copy(self, source: StateSlot, target: StateSlot, frames: int) -> None:
        launcher = self._priming.launcher
        move_3 = launcher.put("move", np.array([source.number, target.number, frames]))
        states = self._states[source.kind], self._states[target.kind]
        launcher.run(("copy", source.kind, target.kind), lambda: states[0].copy(move_3, states[1]))

    def _launching(self, priority: int) -> tuple[Launcher, CopyStream]:
        return Launcher(self._device, priority=priority), CopyStream(self._device, priority)

    def _decode_packed(
        self,
        path: _DecodePath,
        rows: Sequence[int],
        pieces: Sequence[NDArray[np.int64]],
        frames: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Run a piece [F, N] on each row, packed one behind the other and padded at the end to a
        size of the path.

        Returns samples [C, F * frame_samples], the padding included, and the power of each frame
        [F].
        """
        size = path.size(max(frames, sum(map(len, pieces))))
        put = path.launcher.put
        streams, packed_codes = packed_batch(rows, pieces, size, path.streams, path.state.rows)
        streams_3S, codes = put("streams", streams), put("codes", packed_codes)

        def decode() -> tuple[Tensor, Tensor]:
            rows_S, counts_S, firsts_S = streams_3S.unbind(0)
            pack = path.state.pack(
                rows_S, counts_S, firsts_S, frames=size, max_frames=path.chunks[-1]
            )
            samples_CS = self.codec.decode_packed(codes, path.state, pack).contiguous()
            return self._handed_out(samples_CS), samples_CS.square().mean(0).view(size, -1).mean(1)

        return path.launcher.run((path.name, size), decode)

    def _decode(
        self,
        path: _DecodePath,
        rows: Sequence[int],
        pieces: Sequence[NDArray[np.int64]],
        frames: int,
    ) -> tuple[Tensor, Tensor]:
        """Run a piece [F <= frames, N] on each row, padded to `frames`; the batch is padded to a
        size of the path.

        Returns samples [B, C, frames * frame_samples], the padding included, and their power [B,
        frames].
        """
        fixed = self._strict or path.launcher.records
        size = path.size(len(rows)) if fixed else len(rows)
        numbers, padded_codes = chunk_batch(rows, pieces, size, frames, path.state.rows)
        places, codes = (
            path.launcher.put("places", numbers),
            path.launcher.put("codes", padded_codes),
        )

        def decode() -> tuple[Tensor, Tensor]:
            rows_B, counts_B = places.unbind(0)
            samples_BCS = self.codec.decode(codes, path.state, rows_B, counts_B).contiguous()
            # On the device, because on the host it would take longer than the rest of a step.
            power_BF = samples_BCS.square().mean(1).view(size, frames, -1).mean(2)
            return self._handed_out(samples_BCS), power_BF

        return path.launcher.run((path.name, size, frames), decode)

    def _handed_out(self, samples: Tensor) -> Tensor:
        return to_int16_on_device(samples) if self._is_int16 else samples
