"""The new tokens of many streams, as attention over rings takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of S streams one behind the other, in frames of `tokens_per_frame` tokens.

    int64 [S] each, in frames: the stream's ring, how much it has seen before, how much it has now, and where in the
    pack that begins: these ascend from 0, and what is between one stream's end and the next one's beginning, or the
    pack's end, is of no stream.
    """

    rows_S: Tensor
    starts_S: Tensor
    counts_S: Tensor
    firsts_S: Tensor
    tokens_per_frame: int
    #: Most frames of a stream.
    max_frames: int

    @classmethod
    def even(cls, rows_S: Tensor, starts_S: Tensor, frames: int) -> Chunks:
        """Of `frames` frames each."""
        firsts_S = torch.arange(0, frames * len(rows_S), frames, device=rows_S.device)
        return cls(rows_S, starts_S, torch.full_like(rows_S, frames), firsts_S, 1, frames)

    @property
    def device(self) -> torch.device:
        return self.rows_S.device

    def most_tokens(self, pack_tokens: int) -> int:
        """Most tokens of a stream in a pack of so many."""
        return min(self.max_frames * self.tokens_per_frame, pack_tokens)
