"""How each row draws: the sampling parameters of running requests, on the device."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.engine.runners.device import bits_of, floats_of
from hocket.models.sampling.batch import PredictorSamplingBatch, SamplingBatch
from hocket.models.sampling.params import ResolvedSampling

#: Bytes that a row takes.
ROW_BYTES = 6 * torch.float32.itemsize + 4 * torch.int64.itemsize


#: Numbers that `SamplingRows.write` takes.
ROW_NUMBERS = 10


class SamplingRows:
    """One entry for each of `rows` rows, in two tensors, so that a batch takes two gathers."""

    def __init__(self, rows: int, device: torch.device) -> None:
        #: Temperature, top_p, repetition penalty, stop temperature; the predictor's temperature and top_p.
        self._floats_6R = torch.ones(6, rows, device=device)
        #: Seed, top_k, least frames; the predictor's top_k.
        self._integers_4R = torch.zeros(4, rows, dtype=torch.int64, device=device)
        #: Known to the host, so that a batch without a penalty needs no history.
        self._has_penalty_R = np.zeros(rows, np.bool_)
        #: The newest batch and its rows: the set of running rows seldom changes from one frame to the next.
        self._newest: tuple[tuple[int, ...], SamplingBatch] | None = None

    def start(self, row: int, sampling: ResolvedSampling, seed: int, min_frames: int) -> NDArray[np.int64]:
        """What `write` must put on `row` [ROW_NUMBERS]; the host notes at once what it needs to know."""
        others = sampling.predictor or sampling
        floats = [
            *(sampling.temperature, sampling.top_p, sampling.repetition_penalty, sampling.stop_temperature),
            *(others.temperature, others.top_p),
        ]
        self._has_penalty_R[row] = sampling.repetition_penalty != 1
        self._newest = None
        integers = np.array([seed, sampling.top_k, min_frames, others.top_k], np.int64)
        return np.concatenate([bits_of(floats), integers])

    def write(self, row_1: Tensor, numbers: Tensor) -> None:
        """Overwrite row `row_1` (int64 [1]) with what `start` gave."""
        floats_6, integers_4 = numbers[:6], numbers[6:]
        self._floats_6R.index_copy_(1, row_1, floats_of(floats_6).float()[:, None])
        self._integers_4R.index_copy_(1, row_1, integers_4[:, None])

    def any_penalty(self, rows: NDArray[np.int64]) -> bool:
        """Whether a repetition penalty applies to any of `rows`."""
        return bool(self._has_penalty_R[rows].any())

    def batch(self, rows_B: Tensor, rows: tuple[int, ...] | None = None) -> SamplingBatch:
        """The parameters of `rows_B` (int64 [B]); `rows` are the same on the host, where it knows them."""
        if rows is None:
            return self._batch(rows_B)
        if self._newest is None or self._newest[0] != rows:
            self._newest = rows, self._batch(rows_B)
        return self._newest[1]

    def _batch(self, rows_B: Tensor) -> SamplingBatch:
        floats = self._floats_6R.index_select(1, rows_B)
        temperature_B, top_p_B, penalty_B, stop_temperature_B, *others = floats.unbind(0)
        seed_B, top_k_B, min_frames_B, others_top_k_B = self._integers_4R.index_select(1, rows_B).unbind(0)
        return SamplingBatch(
            temperature_B=temperature_B,
            top_p_B=top_p_B,
            top_k_B=top_k_B,
            repetition_penalty_B=penalty_B,
            stop_temperature_B=stop_temperature_B,
            seed_B=seed_B,
            min_frames_B=min_frames_B,
            predictor=PredictorSamplingBatch(others[0], others[1], others_top_k_B),
        )
