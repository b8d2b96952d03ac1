"""A simulated player of arriving audio: when it starts, and when it stalls for want of audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Playback:
    """Live playback of one answer, on the clock of the marks."""

    began_at: float
    #: (time, seconds) of each underrun: its start and its duration.
    stalls: tuple[tuple[float, float], ...]

    @property
    def stalled_seconds(self) -> float:
        """Total duration of stalls."""
        return sum(seconds for _, seconds in self.stalls)

    @property
    def longest_stall_seconds(self) -> float:
        """Duration of the longest stall."""
        return max((seconds for _, seconds in self.stalls), default=0.0)


def play(
    marks: Sequence[tuple[float, float]], buffer_seconds: float, *, tolerance: float = 0.001
) -> Playback:
    """Play audio that arrives as `marks` say: (time, seconds by then), growing in both and not
    empty.

    The player starts with `buffer_seconds` of audio, or with all of a shorter answer. After a stall
    it resumes with the next audio. Stalls below `tolerance` seconds, which sound cards bridge, do
    not count.
    """
    total = marks[-1][1]
    needed = min(buffer_seconds, total)
    # Without a start buffer it waits for the first audio.
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
