"""The scheduler's nouns: one request's state, and the batches that go to the runners. Plain data,
no torch.

"Rows" are K/V rows: the prompt's rows first, then one row per launched frame. `Request.row` is the
request's slot.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hocket.core import FinishReason

#: `Request.row` of a request without a row.
NO_ROW = -1


class RequestState(enum.Enum):
    #: In the queue, without pages. A preempted request is here too, and still has its row.
    WAITING = "waiting"
    #: Has a row and pages; some K/V rows are still to be computed.
    PREFILL = "prefill"
    #: Launches a frame per step.
    RUNNING = "running"
    #: Its finish reason is known; work in flight and undecoded audio are still to be collected.
    ENDING = "ending"
    #: Holds nothing.
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """The scheduler's record of a request. Only the scheduler and its decode queue write to it
    after construction.
    """

    # Set at construction
    id: str
    #: Higher priorities are served first.
    priority: int
    #: Number of the request among all that were added; it orders requests of one priority.
    arrival: int
    #: int64 [prompt_rows, 1 + n_vq].
    prompt: NDArray[np.int64] = field(repr=False)
    max_frames: int
    #: False: the audio is wanted as a whole, so chunks are steady and deadlines are loose.
    streaming: bool
    #: Prefix digests of the prompt's full pages.
    digests: tuple[bytes, ...] = field(repr=False)
    #: Seconds on the caller's clock, as are all `*_at` fields.
    added_at: float
    #: K/V rows of the prompt, and of the prompt with all frames.
    prompt_rows: int = field(init=False)
    max_rows: int = field(init=False)

    # Talker
    state: RequestState = RequestState.WAITING
    row: int = NO_ROW
    pages: list[int] = field(default_factory=list)
    #: K/V rows that fit into the pages.
    capacity_rows: int = 0
    #: Rows whose K/V has been launched: prompt rows, then frames.
    computed_rows: int = 0
    #: Frames launched, frames whose stop flag was read back, and frames that count: those before
    #: the stop.
    launched: int = 0
    collected: int = 0
    frames: int = 0
    finish_reason: FinishReason | None = None
    preemptions: int = 0

    # Codec
    #: False until the codec is primed with the recording that this request continues; nothing is
    #: decoded before.
    codec_ready: bool = True
    #: Frames handed to the codec, and frames whose audio has come back.
    sent: int = 0
    decoded: int = 0
    #: Index in the ramp of chunk sizes, and the size there: with this many undecoded frames the
    #: request is ready.
    stage: int = 0
    chunk_frames: int = 0
    #: The time at which the undecoded frames became a chunk; NaN before.
    ready_at: float = math.nan
    #: Start of playback as if it had never run dry: the time of the first audio, moved on by every
    #: underrun.
    play_start: float = math.nan
    #: Longest underrun.
    late_seconds: float = 0.0

    # Times
    admitted_at: float = math.nan
    prefilled_at: float = math.nan
    first_audio_at: float = math.nan

    def __post_init__(self) -> None:
        self.prompt_rows = len(self.prompt)
        self.max_rows = self.prompt_rows + self.max_frames

    @property
    def sort_key(self) -> tuple[int, int]:
        """Service order: higher priority first, then earlier arrival."""
        return (-self.priority, self.arrival)

    @property
    def wants_audio(self) -> bool:
        """False once undecoded frames are of no use."""
        return self.finish_reason not in ("cancelled", "error")


@dataclass(frozen=True, slots=True)
class PrefillItem:
    """Compute rows `start .. start + count` of a request: all of them prompt rows, or all of them
    frames.

    `start` is on a page boundary, or at the first frame. Rows from `prompt_rows` on are frames that
    were generated before a preemption.
    """

    request: Request
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Launch one frame of each request, in service order."""

    requests: list[Request]
    #: int64 [3, B]: for each request its row, the index of the frame, which keys its randomness,
    #: and the K/V row that the frame writes.
    frame_index_3B: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeItem:
    """Decode frames `start .. start + count` of a request."""

    request: Request
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Chunks to decode together: packed, or each padded to `chunk_frames`, one of the policy's
    sizes.
    """

    items: list[DecodeItem]
    chunk_frames: int
    #: First chunks only; they are decoded beside other batches.
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot. Counters run from the start of the scheduler."""

    waiting: int
    prefilling: int
    running: int
    ending: int
    rows_free: int
    pages_free: int
    #: Pages without owners that the prefix cache keeps.
    pages_kept: int
    prefix_hit_rows: int
    prefix_miss_rows: int
    prefix_evictions: int
    preemptions: int
    underruns: int
