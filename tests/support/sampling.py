"""Sampling parameters of a batch, as the engine makes them of its requests'."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hocket.engine.runners.sampling_state import SamplingState
from hocket.models.sampling import ResolvedSampling, SamplingBatch


def sampling_batch(
    rows: Sequence[ResolvedSampling],
    *,
    first_seed: int = 0,
    min_frames: Sequence[int] | None = None,
) -> SamplingBatch:
    """The parameters of `rows`, whose seeds count from `first_seed`."""
    state = SamplingState(len(rows), torch.device("cpu"))
    for row, sampling in enumerate(rows):
        numbers = state.start(
            row, sampling, first_seed + row, 0 if min_frames is None else min_frames[row]
        )
        state.write(torch.tensor([row]), torch.from_numpy(numbers))
    return state.batch(torch.arange(len(rows)))
