"""A player of arriving audio: when it begins, and when it stands still because nothing is there to play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Playback:
    """How one answer would have sounded, live. Times are those of the marks."""

    began_at: float
    #: (time, seconds) of each underrun: when the player ran dry, and for how long.
    stalls: tuple[tuple[float, float], ...]

    @property
    def stalled_seconds(self) -> float:
        """Standing still altogether."""
        return sum(seconds for _, seconds in self.stalls)

    @property
    def longest_stall_seconds(self) -> float:
        """Standing still at a time."""
        return max((seconds for _, seconds in self.stalls), default=0.0)


def play(marks: Sequence[tuple[float, float]], buffer_seconds: float, *, tolerance: float = 0.001) -> Playback:
    """Play audio that is there as `marks` say, (time, seconds by then), growing in both and not empty.

    The player begins once `buffer_seconds` are there, or all there is. It goes on as soon as anything comes. Standing
    still for less than `tolerance` seconds is none: below what sound cards buffer.
    """
    total = marks[-1][1]
    needed = min(buffer_seconds, total)
    # With nothing wanted in front, the first audio is what it waits for.
    began_at = next(at for at, there in marks if there >= needed and there > 0.0)
    stalls, start, there = [], began_at, 0.0
    for at, seconds in marks:
        if at > began_at and seconds > there:
            dry_at = start + there
            if at - dry_at > tolerance:
                stalls.append((dry_at, at - dry_at))
                start += at - dry_at
        there = max(there, seconds)
    return Playback(began_at, tuple(stalls))
