"""The draws of one frame: every code and the stop decision of B rows, each with the noise of its own slot."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from hocket.kernels import ops
from hocket.kernels.reference.philox import uniforms
from hocket.kernels.reference.sampling import draw
from hocket.models.sampling.batch import SamplingBatch


class FrameDraws:
    """Draws of B rows in their frames `frame_B` (int64), with noise of `slots` slots: a kernel each on a GPU."""

    def __init__(self, sampling: SamplingBatch, frame_B: Tensor, slots: int) -> None:
        self._sampling = sampling
        self._frame_B = frame_B
        self._u_BK = None if ops.column_of(frame_B.device) == "gpu" else uniforms(sampling.seed_B, frame_B, slots)

    def stop(self, logits_BV: Tensor, slot: int) -> Tensor:
        """int64 [B]: greedy where the codes are greedy, else drawn at the stop temperature with nothing cut off."""
        sampling = self._sampling
        if self._u_BK is not None:
            return draw(logits_BV, self._u_BK[:, slot], sampling.stop, None)
        return ops.draw(logits_BV, *sampling.stop_parameters, None, None, sampling.seed_B, self._frame_B, slot)

    def code(self, logits_BV: Tensor, slot: int, seen_BV: Tensor | None) -> Tensor:
        """int64 [B] by the rows' rules for codes; `seen_BV` (bool) are those that the repetition penalty applies to."""
        sampling = self._sampling
        if self._u_BK is not None:
            return draw(logits_BV, self._u_BK[:, slot], sampling.codes, seen_BV)
        penalty_B = None if seen_BV is None else sampling.repetition_penalty_B
        rules = (sampling.temperature_B, sampling.top_p_B, sampling.top_k_B, penalty_B, seen_BV)
        return ops.draw(logits_BV, *rules, sampling.seed_B, self._frame_B, slot)

    def code_and_row(
        self, logits_BV: Tensor, slot: int, seen_BV: Tensor | None, table_VD: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`code`, and the rows [B, D] of `table_VD` that the codes name."""
        sampling = self._sampling
        if self._u_BK is not None:
            code_B = self.code(logits_BV, slot, seen_BV)
            return code_B, F.embedding(code_B, table_VD)
        penalty_B = None if seen_BV is None else sampling.repetition_penalty_B
        rules = (sampling.temperature_B, sampling.top_p_B, sampling.top_k_B, penalty_B, seen_BV)
        return ops.draw_and_embed(logits_BV, *rules, sampling.seed_B, self._frame_B, slot, table_VD)

    def predicted_and_row(self, logits_BV: Tensor, slot: int, table_VD: Tensor) -> tuple[Tensor, Tensor]:
        """A code int64 [B] by the rules for those that a predictor draws, and its rows [B, D] of `table_VD`."""
        sampling = self._sampling
        if self._u_BK is not None:
            code_B = draw(logits_BV, self._u_BK[:, slot], sampling.predicted, None)
            return code_B, F.embedding(code_B, table_VD)
        others = sampling.predictor or sampling
        rules = (others.temperature_B, others.top_p_B, others.top_k_B, None, None)
        return ops.draw_and_embed(logits_BV, *rules, sampling.seed_B, self._frame_B, slot, table_VD)
