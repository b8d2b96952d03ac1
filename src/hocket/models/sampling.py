"""Sampling parameters, from those of one request to those of a batch on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from hocket.core import Sampling, SamplingFields
from hocket.errors import InvalidRequestError, Template
from hocket.kernels.reference.philox import FrameNoise
from hocket.kernels.types import DrawArgs, DrawParams

#: Prefix of the fields for a predictor's draws.
_PREDICTOR = "predictor_"
_NAMES = [field.name for field in fields(DrawParams)]
#: Temperatures up to this one are 0 on the device, as float32.
_ZERO = 2.0**-150


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """How one request draws its frames, with all values set."""

    #: For all codes, or for code 0 when a predictor draws the others.
    codes: DrawParams
    #: For the codes that a predictor draws; None: all codes are drawn alike.
    predictor: DrawParams | None = None
    #: Temperature of the stop decision; greedy codes make it greedy as well.
    stop_temperature: float = 1.0
    #: Default cap on the frames of a request; None: the engine's limit alone.
    max_frames: int | None = None

    @property
    def predicted(self) -> DrawParams:
        """Parameters of the codes after the first, with or without a predictor."""
        return self.predictor or self.codes

    @property
    def stop(self) -> DrawParams:
        """Parameters of the stop decision, in which no choice is cut off."""
        return DrawParams(
            temperature=self.stop_temperature if self.codes.temperature > _ZERO else 0.0
        )

    def recommended(self, file: SamplingFields) -> ResolvedSampling:
        """These values, overridden by those that a checkpoint's file gives."""
        return self._replaced(_given(file))

    def overridden_by(self, request: Sampling) -> ResolvedSampling:
        """These values, overridden by those that `request` gives.

        Greedy codes make a predictor greedy too, unless `predictor_temperature` is given. Raises
        InvalidRequestError for a parameter that this family does not have.
        """
        given = _given(request)
        if self.predictor is None:
            for name in given:
                if name.startswith(_PREDICTOR):
                    raise InvalidRequestError(
                        Template(
                            "this model draws all codes alike, so it has no {param}; leave it out"
                        ),
                        param=name,
                    )
        elif request.temperature == 0.0:
            given.setdefault("predictor_temperature", 0.0)
        return self._replaced(given, request.stop_temperature)

    def _replaced(
        self, given: Mapping[str, Any], stop_temperature: float = 1.0
    ) -> ResolvedSampling:
        predictor = None if self.predictor is None else _replaced(self.predictor, given, _PREDICTOR)
        return ResolvedSampling(
            _replaced(self.codes, given), predictor, stop_temperature, self.max_frames
        )


def _given(sampling: SamplingFields) -> dict[str, Any]:
    return {name: value for name, value in vars(sampling).items() if value is not None}


def _replaced(params: DrawParams, given: Mapping[str, Any], prefix: str = "") -> DrawParams:
    changes = {name: given[prefix + name] for name in _NAMES if prefix + name in given}
    return replace(params, **changes) if changes else params


@dataclass(frozen=True, slots=True, eq=False)
class SamplingBatch:
    """Sampling parameters of B rows, for each kind of draw that a frame has."""

    #: For all codes, or for code 0 when a predictor draws the others.
    codes: DrawArgs
    #: For the codes that a predictor draws.
    predicted: DrawArgs
    #: For the stop decision of families that draw it separately.
    stop: DrawArgs
    #: int64 [B], 0 .. 2**63 - 1: the Philox key.
    seed_B: Tensor
    #: int64 [B]: frames that a row must have before it may stop.
    min_frames_B: Tensor

    def noise(self, frame_B: Tensor, slots: int) -> FrameNoise:
        """The noise of the rows' frames `frame_B` (int64 [B]), in `slots` slots."""
        return FrameNoise(self.seed_B, frame_B, slots)
