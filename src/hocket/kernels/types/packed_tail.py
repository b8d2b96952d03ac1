"""What convolutions of packed chunks know of the streams that the chunks belong to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedTail:
    """Chunks of S streams, one behind the other, F frames; and what each stream's convolution has seen before.

    Streams without a chunk are padding, and belong to others: nothing of theirs is written.
    """

    #: [R, P, C]: the last P inputs of one convolution, by row; channels contiguous, one input behind the other.
    tails_RPC: Tensor
    #: Of the convolution's inputs.
    tokens_per_frame: int
    #: int64 [S] each: the row, how many frames, and where in the pack they begin.
    rows_S: Tensor
    counts_S: Tensor
    firsts_S: Tensor
    #: int64 [F] each: the row of the frame's stream (-1: padding), its place in the chunk, and in the stream.
    frame_rows_F: Tensor
    frame_places_F: Tensor
    frame_positions_F: Tensor

    @property
    def frames(self) -> tuple[Tensor, Tensor, Tensor]:
        """What is known of each frame."""
        return self.frame_rows_F, self.frame_places_F, self.frame_positions_F
