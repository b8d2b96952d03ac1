"""Sampling parameters as a talker takes them: a family's recommendations, with a request's wishes over them."""

from __future__ import annotations

from dataclasses import dataclass

from hocket.core import Sampling
from hocket.errors import InvalidRequestError, Template


@dataclass(frozen=True, slots=True)
class PredictorSampling:
    """How the codes after the first are drawn, where they are drawn in a way of their own."""

    temperature: float
    top_p: float
    top_k: int


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling parameters with the model's recommendations filled in; temperature 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    stop_temperature: float = 1.0
    #: None: all codes are drawn alike.
    predictor: PredictorSampling | None = None
    #: The most frames where a request does not say; None: the engine's limit alone.
    max_frames: int | None = None

    def overridden_by(self, wish: Sampling) -> ResolvedSampling:
        """These values, with every one that `wish` gives replaced by it.

        Raises InvalidRequestError when it gives one that this family does not have.
        """
        return ResolvedSampling(
            temperature=self.temperature if wish.temperature is None else wish.temperature,
            top_p=self.top_p if wish.top_p is None else wish.top_p,
            top_k=self.top_k if wish.top_k is None else wish.top_k,
            repetition_penalty=(
                self.repetition_penalty if wish.repetition_penalty is None else wish.repetition_penalty
            ),
            stop_temperature=wish.stop_temperature,
            predictor=self._predictor_overridden_by(wish),
            max_frames=self.max_frames,
        )

    def _predictor_overridden_by(self, wish: Sampling) -> PredictorSampling | None:
        if self.predictor is None:
            for name in ("predictor_temperature", "predictor_top_p", "predictor_top_k"):
                if getattr(wish, name) is not None:
                    raise InvalidRequestError(
                        Template("this model draws all codes alike, so it has no {param}; leave it out"), param=name
                    )
            return None
        temperature = wish.predictor_temperature
        if temperature is None:
            temperature = 0.0 if wish.temperature == 0.0 else self.predictor.temperature
        return PredictorSampling(
            temperature=temperature,
            top_p=self.predictor.top_p if wish.predictor_top_p is None else wish.predictor_top_p,
            top_k=self.predictor.top_k if wish.predictor_top_k is None else wish.predictor_top_k,
        )
