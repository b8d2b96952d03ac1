"""How each row draws: the sampling parameters of running requests, on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hocket.core import ResolvedSampling
from hocket.models.sampling import PredictorSamplingBatch, SamplingBatch

#: Bytes that a row takes.
ROW_BYTES = 6 * torch.float32.itemsize + 4 * torch.int64.itemsize


class SamplingRows:
    """One entry for each of `rows` rows, in two tensors, so that a batch takes two gathers."""

    def __init__(self, rows: int, device: torch.device) -> None:
        #: Temperature, top_p, repetition penalty, stop temperature; the predictor's temperature and top_p.
        self._floats_R6 = torch.ones(rows, 6, device=device)
        #: Seed, top_k, least frames; the predictor's top_k.
        self._integers_R4 = torch.zeros(rows, 4, dtype=torch.int64, device=device)
        #: Known to the host, so that a batch without a penalty needs no history.
        self._has_penalty_R = [False] * rows
        #: The newest batch and its rows: the set of running rows seldom changes from one frame to the next.
        self._newest: tuple[tuple[int, ...], SamplingBatch] | None = None

    def start(self, row: int, sampling: ResolvedSampling, seed: int, min_frames: int) -> None:
        """Overwrite `row`."""
        others = sampling.predictor or sampling
        self._floats_R6[row] = torch.tensor(
            [
                *(sampling.temperature, sampling.top_p, sampling.repetition_penalty, sampling.stop_temperature),
                *(others.temperature, others.top_p),
            ]
        )
        self._integers_R4[row] = torch.tensor([seed, sampling.top_k, min_frames, others.top_k])
        self._has_penalty_R[row] = sampling.repetition_penalty != 1
        self._newest = None

    def any_penalty(self, rows: Sequence[int]) -> bool:
        """Whether a repetition penalty applies to any of `rows`."""
        return any(self._has_penalty_R[row] for row in rows)

    def batch(self, rows: Sequence[int], rows_B: Tensor) -> SamplingBatch:
        """The parameters of `rows`, which `rows_B` (int64 [B]) has on the device."""
        key = tuple(rows)
        if self._newest is None or self._newest[0] != key:
            self._newest = key, self._batch(rows_B)
        return self._newest[1]

    def _batch(self, rows_B: Tensor) -> SamplingBatch:
        temperature_B, top_p_B, penalty_B, stop_temperature_B, *others = self._floats_R6[rows_B].unbind(1)
        seed_B, top_k_B, min_frames_B, others_top_k_B = self._integers_R4[rows_B].unbind(1)
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
