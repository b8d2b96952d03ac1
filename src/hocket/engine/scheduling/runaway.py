"""Detects runaway speech: a talker that never draws its stop, repeats itself or falls silent."""

from __future__ import annotations

import math
import unicodedata

import numpy as np
from numpy.typing import NDArray

from hocket.config import RunawayPolicy
from hocket.text.pauses import PAUSE

#: Maximum length that counts for all pauses of a text: longer ones are treated as a typo.
MAX_PAUSE_SECONDS = 600.0


def requested_pause_seconds(text: str) -> float:
    """Seconds of silence that `text` asks for."""
    return min(MAX_PAUSE_SECONDS, sum(float(seconds) for seconds in PAUSE.findall(text)))


def speech_seconds(policy: RunawayPolicy, text: str) -> float:
    """Estimated length of `text` read aloud without hurry, including the pauses that it
    asks for.
    """
    letters = wide = digits = 0
    for character in PAUSE.sub(" ", text):
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
    """Frames after which the speech of `text` counts as a runaway; `None` when the budget is off.

    `wanted_frames` is the length that the request asks for; it counts if it is longer than the
    estimate.
    """
    if policy.multiple == 0.0:
        return None
    frames = max(speech_seconds(policy, text) / frame_seconds, wanted_frames or 0)
    return math.ceil(max(policy.multiple * frames, policy.min_seconds / frame_seconds))


class LoopDetector:
    """Detects codes that repeat: `frames` in a row that each equal the one `period` frames before
    them.

    Compares all rows at once, by a hash of each frame, because a comparison in Python would cost
    more than the rest of a step.
    """

    #: Longest period looked for: 8 frames are 0.64 s at 12.5 frames a second, a stammered word.
    MAX_PERIOD = 8

    def __init__(self, rows: int, n_vq: int, frames: int) -> None:
        """`frames` of 0 turns it off."""
        self._frames = frames
        # Odd multipliers, wrapping: two different frames collide once in 2**64, and a loop needs
        # dozens of them in a row.
        self._multipliers_N = (
            np.random.default_rng(0).integers(2**63, size=n_vq, dtype=np.int64) | 1
        )
        self._recent_RP = np.zeros((rows, self.MAX_PERIOD), np.int64)
        self._runs_RP = np.zeros((rows, self.MAX_PERIOD), np.int32)

    def start(self, row: int) -> None:
        """Start a request on `row`."""
        self._recent_RP[row] = 0
        self._runs_RP[row] = 0

    def observe(self, rows_B: NDArray[np.int64], codes_BN: NDArray[np.int64]) -> list[int]:
        """Take the next frame of distinct rows. Returns the indices into `rows_B` whose loop has
        lasted long enough.
        """
        if not self._frames:
            return []
        frame_B1 = (codes_BN @ self._multipliers_N + 1)[:, None]
        recent_BP = self._recent_RP[rows_B]
        self._recent_RP[rows_B] = np.concatenate([frame_B1, recent_BP[:, :-1]], axis=1)
        repeats_BP = recent_BP == frame_B1
        if not repeats_BP.any():  # as in nearly every frame
            self._runs_RP[rows_B] = 0
            return []
        runs_BP = (self._runs_RP[rows_B] + 1) * repeats_BP
        self._runs_RP[rows_B] = runs_BP
        return np.flatnonzero(runs_BP.max(axis=1) >= self._frames).tolist()


class SilenceDetector:
    """Detects audio that stays below a level for longer than any pause that the text asks for.

    Works frame by frame, so the result does not depend on the chunks into which the audio was
    split.
    """

    __slots__ = ("_limit_frames", "_power", "_silent_frames")

    def __init__(self, limit_frames: int, rms: float) -> None:
        self._limit_frames = limit_frames
        self._power = rms * rms
        self._silent_frames = 0

    @classmethod
    def of(cls, policy: RunawayPolicy, text: str, frame_seconds: float) -> SilenceDetector | None:
        """The detector for `policy`; None when it is off."""
        if policy.silence_seconds == 0.0:
            return None
        seconds = policy.silence_seconds + requested_pause_seconds(text)
        return cls(math.ceil(seconds / frame_seconds), policy.silence_rms)

    def observe(self, power_F: NDArray[np.float32]) -> int | None:
        """Take the mean power of the next frames. Returns the number of frames after which the
        silence is too long; None while it is not.
        """
        if power_F.min() >= self._power:  # as nearly always
            self._silent_frames = 0
            return None
        for frame, is_loud in enumerate((power_F >= self._power).tolist()):
            self._silent_frames = 0 if is_loud else self._silent_frames + 1
            if self._silent_frames >= self._limit_frames:
                return frame + 1
        return None
