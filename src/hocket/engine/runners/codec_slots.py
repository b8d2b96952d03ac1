"""Where codec streams are, and in what sizes they are worked on."""

from __future__ import annotations

from typing import Literal, NamedTuple

#: Streams of every codec batch in strict mode (see `talker_runner.STRICT_ROWS`).
STRICT_STREAMS = {"cpu": 8, "cuda": 32}
#: Frames of every strict pack but of first chunks: 11 ms, at four fifths of the throughput of 480 (H200).
STRICT_FRAMES = 256
#: Recordings that are heard at a time, and in pieces of how many frames; none: as speech is decoded. On a GPU one call
#: for a whole recording of 5 s takes not much longer than one for a single frame.
HEARING_SLOTS = {"cpu": 1, "cuda": 4}
HEARING_SIZES = {"cpu": (), "cuda": (16, 32, 48, 64, 80)}


def hearing_sizes(device: str, max_chunk_frames: int) -> tuple[int, ...]:
    """In pieces of how many frames a recording is heard, on a kind of device."""
    return HEARING_SIZES[device] or (max_chunk_frames,)


class Place(NamedTuple):
    """Where a stream's state is: on a request's row, being built up from a recording, or kept for later requests."""

    kind: Literal["row", "hearing", "kept"]
    number: int
