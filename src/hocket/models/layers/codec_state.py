"""State of codec streams, indexed by row: rings of keys and values, tails of convolutions, and the
number of frames that each row has seen (sources: MOSS 2.6, sources: Qwen3 9).

A ring holds `context + max chunk` positions, position p in slot p mod capacity. A chunk's keys are
written first and then read back with the context before them, so any chunking gives exactly the
whole-sequence result. The surplus of one chunk also makes padding free: positions that a row writes
past its valid count land on slots whose old positions are at least `context` before the row's next
token. No later query sees those, and the padding itself is overwritten before it could be read.

A stream begins where its row's offset is 0; the row's old contents are never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hocket.errors import InvalidRequestError
from hocket.kernels import ops
from hocket.kernels.types import Packed, RingWindow

Direction = Literal["encoder", "decoder"]


@dataclass(frozen=True, slots=True)
class RingSpec:
    """The shape of one transformer stage's rings."""

    layers: int
    kv_heads: int
    head_dim: int
    #: A query sees this many keys, itself included.
    context_tokens: int
    tokens_per_frame: int

    def capacity(self, max_chunk_frames: int) -> int:
        """Positions that a ring holds."""
        return self.context_tokens + max_chunk_frames * self.tokens_per_frame

    def nbytes(self, rows: int, max_chunk_frames: int, dtype: torch.dtype) -> int:
        """Bytes of the keys and values of all layers."""
        positions = rows * self.capacity(max_chunk_frames)
        return 2 * self.layers * positions * self.kv_heads * self.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The layout of a codec's streams, whatever their number."""

    #: One entry per stage of the chain; None for a stage that remembers no keys.
    rings: tuple[RingSpec | None, ...]
    #: Elements that one stream's convolutions remember.
    tail_elements: int
    dtype: torch.dtype

    def nbytes(self, rows: int, max_chunk_frames: int) -> int:
        """Bytes of the state of `rows` streams."""
        rings = sum(
            ring.nbytes(rows, max_chunk_frames, self.dtype)
            for ring in self.rings
            if ring is not None
        )
        return rings + rows * self.tail_elements * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class RingKV:
    """Keys (after RoPE) and values of one layer, [rows, capacity, kv_heads, head_dim] each."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class StageRings:
    """The rings of one transformer stage."""

    context: int
    tokens_per_frame: int
    capacity: int
    #: [2, layers, rows, capacity, kv_heads, head_dim]: keys and values.
    storage: Tensor
    #: Views of `storage`.
    layers: tuple[RingKV, ...]

    @classmethod
    def allocate(
        cls,
        spec: RingSpec,
        rows: int,
        max_chunk_frames: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> StageRings:
        capacity = spec.capacity(max_chunk_frames)
        shape = (2, spec.layers, rows, capacity, spec.kv_heads, spec.head_dim)
        storage = torch.empty(shape, dtype=dtype, device=device)
        layers = tuple(RingKV(keys, values) for keys, values in zip(*storage, strict=True))
        return cls(spec.context_tokens, spec.tokens_per_frame, capacity, storage, layers)

    def copy(self, move_3: Tensor, target: StageRings) -> None:
        """See `CodecState.copy`."""
        ops.copy_rings(self.storage, move_3, target.storage, self.context, self.tokens_per_frame)

    def window(self, pack: Packed) -> RingWindow:
        """The pack's view of these rings."""
        return RingWindow(pack, self.tokens_per_frame, self.context, self.capacity)


# The tensors of a `CodecState` with R rows; C = context + max chunk is a ring's capacity in tokens.
#
#   name       dtype  shape               meaning
#   stages[i]  spec   [2, L, R, C, H, D]  keys (after RoPE) and values of stage i (`.storage`)
#   tails      spec   [R, E]              last inputs of each convolution, in the layout's order
#   offsets    int64  [R]                 frames that the row's stream has seen
#
# A new stream sets its offset to 0 (`reset`) and never reads what is older than that.


@dataclass(frozen=True, slots=True)
class CodecState:
    """The state of streams of the encoder or the decoder, one stream a row."""

    direction: Direction
    max_chunk_frames: int
    #: One entry per stage of the chain; None for a stage without attention.
    stages: tuple[StageRings | None, ...]
    #: [rows, E]: the last inputs of every convolution, one after another, in the codec's order.
    tails: Tensor
    #: int64 [rows]: valid frames seen so far.
    offsets: Tensor

    @classmethod
    def allocate(
        cls,
        direction: Direction,
        spec: StateSpec,
        rows: int,
        max_chunk_frames: int,
        device: torch.device,
    ) -> CodecState:
        """Raises InvalidRequestError when `rows` or `max_chunk_frames` is not positive."""
        if rows < 1 or max_chunk_frames < 1:
            raise InvalidRequestError(
                f"a codec state needs at least one row and one frame per chunk, got {rows} and "
                f"{max_chunk_frames}"
            )
        stages = tuple(
            None
            if ring is None
            else StageRings.allocate(ring, rows, max_chunk_frames, spec.dtype, device)
            for ring in spec.rings
        )
        tails = torch.empty(rows, spec.tail_elements, dtype=spec.dtype, device=device)
        return cls(
            direction,
            max_chunk_frames,
            stages,
            tails,
            torch.zeros(rows, dtype=torch.int64, device=device),
        )

    @property
    def rows(self) -> int:
        return self.offsets.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all rings and tails."""
        return self.tails.nbytes + sum(
            stage.storage.nbytes for stage in self.stages if stage is not None
        )

    def reset(self, rows_B: Tensor) -> None:
        """Starts new streams on these rows. Old keys and tails stay in memory, never read."""
        self.offsets.index_fill_(0, rows_B, 0)

    def copy(self, move_3: Tensor, target: CodecState) -> None:
        """Makes a stream on a row of `target` go on where one of these is.

        `move_3` is int64: the row, the target's row, and how many frames the stream has seen. The
        two may have rings of different sizes: what a next chunk can look back over is copied,
        position by position.
        """
        row_1, target_row_1, frames_1 = (move_3[i : i + 1] for i in range(3))
        for rings, target_rings in zip(self.stages, target.stages, strict=True):
            if rings is not None and target_rings is not None:
                rings.copy(move_3, target_rings)
        if self.tails.shape[1]:
            target.tails.index_copy_(0, target_row_1, self.tails.index_select(0, row_1))
        target.offsets.index_copy_(0, target_row_1, frames_1)

    def pack(
        self, rows_S: Tensor, counts_S: Tensor, firsts_S: Tensor, frames: int, max_frames: int
    ) -> Packed:
        """The next chunks of these streams, packed; `advance` counts them afterwards."""
        return Packed(rows_S, self.offsets[rows_S], counts_S, firsts_S, frames, max_frames)

    def padded(self, rows_B: Tensor, counts_B: Tensor | None, frames: int) -> Packed:
        """The next chunks of these streams, each of `counts_B` frames (None: all) padded to
        `frames`.
        """
        return Packed.padded(rows_B, self.offsets[rows_B], counts_B, frames)

    def advance(self, rows_B: Tensor, frames: Tensor | int) -> None:
        """Counts `frames` valid frames ([B] or one number) on distinct rows.

        Rows that count none may be at work elsewhere at the same time: additions are atomic.
        """
        added_B = frames if isinstance(frames, Tensor) else torch.full_like(rows_B, frames)
        self.offsets.index_add_(0, rows_B, added_B)

    def check_call(
        self, direction: Direction, batch: int, frames: int, rows_B: Tensor, counts_B: Tensor | None
    ) -> None:
        """Raises InvalidRequestError when a call does not fit this state.

        Values are checked where reading them does not make the caller wait for a device.
        """
        if direction != self.direction:
            raise InvalidRequestError(
                f"this state belongs to the {self.direction}, not to the {direction}"
            )
        if not 1 <= frames <= self.max_chunk_frames:
            raise InvalidRequestError(
                f"a chunk must have 1 .. {self.max_chunk_frames} frames (the state's limit), got "
                f"{frames}"
            )
        for name, tensor in (("rows", rows_B), ("counts", counts_B)):
            if tensor is not None and (tensor.shape != (batch,) or tensor.dtype != torch.int64):
                raise InvalidRequestError(
                    f"{name} must be int64 [{batch}], got {tensor.dtype} {list(tensor.shape)}"
                )
        if rows_B.device.type != "cpu":
            return
        rows = rows_B.tolist()
        if len(set(rows)) != batch or min(rows) < 0 or max(rows) >= self.rows:
            raise InvalidRequestError(
                f"rows must be distinct numbers 0 .. {self.rows - 1}, got {rows}"
            )
        if counts_B is not None and not all(0 <= count <= frames for count in counts_B.tolist()):
            raise InvalidRequestError(f"counts must be 0 .. {frames}, got {counts_B.tolist()}")
