"""When the engine takes a speech for a runaway: a talker that never draws its stop, repeats itself or falls silent."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import deque

import numpy as np
from numpy.typing import NDArray

from hocket.config import RunawayPolicy

#: `[pause 3.2s]` in a text asks for that much silence (spec/moss 1.7).
_PAUSE = re.compile(r"\[pause\s+(\d+(?:\.\d+)?)\s*s\]", re.IGNORECASE)


def requested_pause_seconds(text: str) -> float:
    """Seconds of silence that `text` asks for."""
    return sum(float(seconds) for seconds in _PAUSE.findall(text))


def speech_seconds(policy: RunawayPolicy, text: str) -> float:
    """Estimated length of `text` read aloud without hurry, the pauses it asks for included."""
    letters = wide = digits = 0
    for character in _PAUSE.sub(" ", text):
        if unicodedata.east_asian_width(character) in "WF" and character.isalnum():
            wide += 1
        elif unicodedata.category(character)[0] in "NS":
            digits += 1
        else:
            letters += 1
    spoken = (
        letters * policy.seconds_per_letter
        + wide * policy.seconds_per_wide_character
        + digits * policy.seconds_per_digit
    )
    return spoken + requested_pause_seconds(text)


def frame_budget(
    policy: RunawayPolicy, text: str, frame_seconds: float, *, wanted_frames: int | None = None
) -> int | None:
    """Frames after which `text` is taken for a runaway; `None` when the budget is off.

    `wanted_frames` is the length that the request asks for; where it is longer than the estimate, it counts.
    """
    if policy.multiple == 0.0:
        return None
    frames = max(speech_seconds(policy, text) / frame_seconds, wanted_frames or 0)
    return math.ceil(max(policy.multiple * frames, policy.min_seconds / frame_seconds))


class LoopDetector:
    """Notices codes that repeat: `frames` in a row that each equal the one `period` frames before them."""

    __slots__ = ("_frames", "_recent", "_runs")

    #: Longest period looked for: 8 frames are 0.64 s at 12.5 frames a second, a stammered word.
    MAX_PERIOD = 8

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._recent: deque[bytes] = deque(maxlen=self.MAX_PERIOD)
        self._runs = [0] * self.MAX_PERIOD

    @classmethod
    def of(cls, policy: RunawayPolicy, frame_seconds: float) -> LoopDetector | None:
        """The detector that `policy` asks for; None when it is off."""
        if policy.loop_seconds == 0.0:
            return None
        return cls(math.ceil(policy.loop_seconds / frame_seconds))

    def saw(self, codes_N: NDArray[np.int64]) -> bool:
        """Take the next frame; True when the loop has lasted long enough."""
        frame = codes_N.tobytes()
        for back, earlier in enumerate(self._recent):
            self._runs[back] = self._runs[back] + 1 if earlier == frame else 0
        self._recent.appendleft(frame)
        return max(self._runs) >= self._frames


class SilenceDetector:
    """Notices audio that stays below a level for longer than any pause that the text asks for."""

    __slots__ = ("_level", "_limit_seconds", "_silent_seconds")

    def __init__(self, limit_seconds: float, level: float) -> None:
        self._limit_seconds = limit_seconds
        self._level = level
        self._silent_seconds = 0.0

    @classmethod
    def of(cls, policy: RunawayPolicy, text: str) -> SilenceDetector | None:
        """The detector that `policy` asks for; None when it is off."""
        if policy.silence_seconds == 0.0:
            return None
        return cls(policy.silence_seconds + requested_pause_seconds(text), policy.silence_rms)

    def heard(self, samples_CS: NDArray[np.float32], sample_rate: int) -> bool:
        """Take the next chunk; True when the silence has lasted long enough."""
        if samples_CS.size and float(np.sqrt(np.mean(np.square(samples_CS, dtype=np.float64)))) >= self._level:
            self._silent_seconds = 0.0
        else:
            self._silent_seconds += samples_CS.shape[1] / sample_rate
        return self._silent_seconds >= self._limit_seconds
