"""Sampling parameters of running requests, on the device."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.engine.runners.device import bits_of, floats_of
from hocket.kernels.types import DrawArgs, DrawParams
from hocket.models.sampling import ResolvedSampling, SamplingBatch

#: Whether a parameter is an integer, in the order of `DrawParams` and of `DrawArgs`.
_IS_INTEGER = {field.name: isinstance(field.default, int) for field in fields(DrawParams)}
_INTEGERS = [name for name, is_integer in _IS_INTEGER.items() if is_integer]
_FLOATS = [name for name, is_integer in _IS_INTEGER.items() if not is_integer]
#: A row has parameters for three kinds of draws (see `SamplingBatch`), then its seed and
#: min_frames.
_DRAWS = 3
_FLOAT_ROWS = _DRAWS * len(_FLOATS)
_INTEGER_ROWS = _DRAWS * len(_INTEGERS) + 2

#: Device memory of a row.
ROW_BYTES = _FLOAT_ROWS * torch.float32.itemsize + _INTEGER_ROWS * torch.int64.itemsize
#: Length of a row's packed numbers.
ROW_NUMBERS = _FLOAT_ROWS + _INTEGER_ROWS


class SamplingState:
    """Parameters of `rows` rows in two tensors, so that a batch takes two gathers."""

    def __init__(self, rows: int, device: torch.device) -> None:
        #: [_FLOAT_ROWS, rows]
        self._floats_FR = torch.ones(_FLOAT_ROWS, rows, device=device)
        #: [_INTEGER_ROWS, rows]
        self._integers_IR = torch.zeros(_INTEGER_ROWS, rows, dtype=torch.int64, device=device)
        #: Kept on the host, so that a batch without a penalty needs no history.
        self._has_penalty_R = np.zeros(rows, np.bool_)
        #: The last batch and its rows; the set of running rows seldom changes between frames.
        self._newest: tuple[tuple[int, ...], SamplingBatch] | None = None

    @property
    def nbytes(self) -> int:
        return self._floats_FR.nbytes + self._integers_IR.nbytes

    def start(
        self, row: int, sampling: ResolvedSampling, seed: int, min_frames: int
    ) -> NDArray[np.int64]:
        """Claim `row` on the host and return its packed numbers [ROW_NUMBERS] for `write`."""
        draws = (sampling.codes, sampling.predicted, sampling.stop)
        self._has_penalty_R[row] = sampling.codes.repetition_penalty != 1
        self._newest = None
        floats = [getattr(draw, name) for draw in draws for name in _FLOATS]
        integers = [getattr(draw, name) for draw in draws for name in _INTEGERS]
        return np.concatenate([bits_of(floats), np.array([*integers, seed, min_frames], np.int64)])

    def write(self, row_1: Tensor, numbers: Tensor) -> None:
        """Overwrite row `row_1` (int64 [1]) with the numbers of `start`."""
        floats_F, integers_I = numbers[:_FLOAT_ROWS], numbers[_FLOAT_ROWS:]
        self._floats_FR.index_copy_(1, row_1, floats_of(floats_F).float()[:, None])
        self._integers_IR.index_copy_(1, row_1, integers_I[:, None])

    def any_penalty(self, rows: NDArray[np.int64]) -> bool:
        """Whether a repetition penalty applies to any of `rows`."""
        return bool(self._has_penalty_R[rows].any())

    def batch(self, rows_B: Tensor, rows: tuple[int, ...] | None = None) -> SamplingBatch:
        """The parameters of `rows_B` (int64 [B]); `rows` are the same on the host, if known."""
        if rows is None:
            return self._batch(rows_B)
        if self._newest is None or self._newest[0] != rows:
            self._newest = rows, self._batch(rows_B)
        return self._newest[1]

    def _batch(self, rows_B: Tensor) -> SamplingBatch:
        floats = iter(self._floats_FR.index_select(1, rows_B).unbind(0))
        integers = iter(self._integers_IR.index_select(1, rows_B).unbind(0))
        codes, predicted, stop = (
            DrawArgs(
                *(next(integers if is_integer else floats) for is_integer in _IS_INTEGER.values())
            )
            for _ in range(_DRAWS)
        )
        seed_B, min_frames_B = integers
        return SamplingBatch(codes, predicted, stop, seed_B, min_frames_B)
