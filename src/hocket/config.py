"""Settings: frozen, strict, with units in their names. The only file that reads the environment."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field

from hocket.core import StrictModel

PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1)]


class ReferenceLimits(StrictModel):
    """What a reference recording may be, checked before any model work."""

    min_seconds: PositiveFloat = 0.5
    max_seconds: PositiveFloat = 60.0
    #: Root mean square under which a recording counts as silent (1e-4 is -80 dB of full scale).
    min_rms: PositiveFloat = 1e-4
    max_file_bytes: PositiveInt = 64 * 2**20


class EngineConfig(StrictModel):
    """How an engine uses its machine."""

    #: Longest sequence, prompt and speech together; the model's own limit applies as well.
    max_context_rows: PositiveInt = 8192
    #: Positions a K/V page holds.
    page_rows: PositiveInt = 32
    #: Prompt rows computed at a time.
    prefill_chunk_rows: PositiveInt = 512
    #: Default cap on new frames of a request (12.5 frames a second: 4096 are five and a half minutes; spec/moss 1.5).
    max_frames: PositiveInt = 4096
    #: Frames in the first, second, … audio chunk; the last value repeats. Small first for a quick start.
    chunk_frames: tuple[PositiveInt, ...] = (1, 2, 4, 8)
    reference: ReferenceLimits = ReferenceLimits()


class Environment(StrictModel):
    """The environment variables that Hocket itself reads."""

    #: Set by users of the Hugging Face hub (`HF_HUB_OFFLINE`) to forbid downloads; only reported in messages here.
    hub_offline: bool

    @classmethod
    def read(cls) -> Environment:
        return cls(hub_offline=os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"})
