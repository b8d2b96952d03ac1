"""How the rows of a batch draw their frames."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hocket.kernels.reference.philox import FrameNoise
from hocket.kernels.types.draw import DrawArgs


@dataclass(frozen=True, slots=True, eq=False)
class SamplingBatch:
    """Sampling parameters of B rows, for each kind of draw that a frame has."""

    #: For all codes, or for code 0 when a predictor draws the others.
    codes: DrawArgs
    #: For the codes that a predictor draws.
    predicted: DrawArgs
    #: For the decision to stop, where a family draws it by itself.
    stop: DrawArgs
    #: int64 [B], 0 .. 2**63 - 1: the Philox key.
    seed_B: Tensor
    #: int64 [B]: frames that a row must have before it may stop.
    min_frames_B: Tensor

    def noise(self, frame_B: Tensor, slots: int) -> FrameNoise:
        """The noise of the rows' frames `frame_B` (int64 [B]), in `slots` slots."""
        return FrameNoise(self.seed_B, frame_B, slots)
