"""How long a text may speak before the engine takes it for a runaway: a talker that never draws its stop."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Annotated

from pydantic import Field

from hocket.config import PositiveFloat
from hocket.core import StrictModel

#: `[pause 3.2s]` in a text asks for that much silence (spec/moss 1.7).
_PAUSE = re.compile(r"\[pause\s+(\d+(?:\.\d+)?)\s*s\]", re.IGNORECASE)


class RunawayGuard(StrictModel):
    """The frame budget of a text: `multiple` times its plain reading, and no less than `min_seconds`."""

    #: Times the estimated length, which is that of an unhurried reader; 0 turns the budget off.
    multiple: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 4.0
    min_seconds: PositiveFloat = 10.0
    #: 12 letters a second is 130 English words a minute.
    seconds_per_letter: PositiveFloat = 1 / 12
    #: Characters that are syllables or words of their own: Han, kana, Hangul; 4 a second.
    seconds_per_wide_character: PositiveFloat = 0.25
    #: Digits and symbols are read as words: "7" takes as long as "seven".
    seconds_per_digit: PositiveFloat = 0.5

    def speech_seconds(self, text: str) -> float:
        """Estimated length of `text` read aloud without hurry, the pauses it asks for included."""
        pauses = sum(float(seconds) for seconds in _PAUSE.findall(text))
        letters = wide = digits = 0
        for character in _PAUSE.sub(" ", text):
            if unicodedata.east_asian_width(character) in "WF" and character.isalnum():
                wide += 1
            elif unicodedata.category(character)[0] in "NS":
                digits += 1
            else:
                letters += 1
        spoken = (
            letters * self.seconds_per_letter + wide * self.seconds_per_wide_character + digits * self.seconds_per_digit
        )
        return spoken + pauses

    def frame_budget(self, text: str, frame_seconds: float, *, wanted_frames: int | None = None) -> int | None:
        """Frames after which `text` is taken for a runaway; `None` when the budget is off.

        `wanted_frames` is the length that the request asks for; where it is longer than the estimate, it counts.
        """
        if self.multiple == 0.0:
            return None
        frames = max(self.speech_seconds(text) / frame_seconds, wanted_frames or 0)
        return math.ceil(max(self.multiple * frames, self.min_seconds / frame_seconds))
