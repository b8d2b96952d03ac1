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


class Environment(StrictModel):
    """The environment variables that Hocket itself reads."""

    #: Set by users of the Hugging Face hub (`HF_HUB_OFFLINE`) to forbid downloads; only reported in messages here.
    hub_offline: bool

    @classmethod
    def read(cls) -> Environment:
        return cls(hub_offline=os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"})
