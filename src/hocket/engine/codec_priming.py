"""Codec priming: reference audio that speech continues goes through the codec before the speech
does.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.engine.runners.codec import StateSlot
from hocket.engine.runners.protocols import ChunkRunner
from hocket.engine.scheduling.request import Request, RequestState
from hocket.engine.scheduling.scheduler import Scheduler
from hocket.engine.stats import Meter


@dataclass(slots=True, eq=False)
class _Priming:
    """A request whose recording is on its way through the codec."""

    request: Request
    #: int64 [F, N]: the recording.
    codes_FN: NDArray[np.int64]
    #: `digest` of the codes.
    key: bytes
    #: Frames that the codec has run.
    done: int = 0

    @property
    def is_over(self) -> bool:
        """The request has ended and holds no row any more."""
        return self.request.state is RequestState.FINISHED

    @property
    def left(self) -> int:
        """Frames that the codec has yet to run."""
        return len(self.codes_FN) - self.done


class CodecPrimer:
    """Primes a few recordings at a time, first come first served.

    States that are primed stay in a cache for other requests that continue the same recording.
    """

    def __init__(
        self, runner: ChunkRunner, scheduler: Scheduler, meter: Meter, clock: Callable[[], float]
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._meter = meter
        self._clock = clock
        self._cache = PrimedStateCache(range(runner.kept))
        self._waiting: list[_Priming] = []
        #: By slot.
        self._active: dict[int, _Priming] = {}
        #: End of the newest slice. More slices at a time would only delay chunks that are due.
        self._newest: torch.cuda.Event | None = None
        #: Requests whose state is being copied to their row, and the end of the copy. None of their
        #: chunks is launched before: other chunks of the same batch would wait, too.
        self._handed: list[tuple[torch.cuda.Event | None, _Priming]] = []

    @property
    def busy(self) -> bool:
        """A recording is being primed, waits for a slot, or is being copied to a row."""
        return bool(self._waiting or self._active or self._handed)

    @property
    def done(self) -> bool:
        """`step` has something to do."""
        return self._may_run or any(_is_past(event) for event, _ in self._handed)

    @property
    def _may_run(self) -> bool:
        return bool(self._waiting or self._active) and _is_past(self._newest)

    def start(self, request: Request, codes_FN: NDArray[np.int64]) -> None:
        """Queue the recording of a request that has got a row."""
        self._waiting.append(_Priming(request, codes_FN, digest(codes_FN)))
        self._fill_slots()

    def step(self) -> None:
        """Announce the rows that are primed; then run one slice, unless the last one is still
        running.

        A slice is the next part of the first recording and of those whose next part has the same
        size.
        """
        self._announce()
        if not self._may_run:
            return
        self._active = {
            slot: priming for slot, priming in self._active.items() if not priming.is_over
        }
        self._fill_slots()
        if not self._active:
            return
        self._meter.host()
        self._run_slice()
        self._fill_slots()
        self._meter.decode_seconds += self._meter.lap()

    def _run_slice(self) -> None:
        sizes = {slot: self._size(priming) for slot, priming in self._active.items()}
        first = min(self._active, key=lambda slot: self._active[slot].request.sort_key)
        size = sizes[first]
        chosen = {slot: priming for slot, priming in self._active.items() if sizes[slot] == size}
        parts = [
            priming.codes_FN[priming.done : priming.done + size] for priming in chosen.values()
        ]
        self._newest = self._runner.prime(list(chosen), parts, size)
        for (slot, priming), part in zip(chosen.items(), parts, strict=True):
            priming.done += len(part)
            if priming.left:
                continue
            # Copies follow on the same stream, so the slot is free for the next recording at once.
            del self._active[slot]
            kept = self._cache.place(priming.key)
            if kept is not None:
                self._runner.copy(StateSlot("priming", slot), StateSlot("kept", kept), priming.done)
            self._hand_over(priming, StateSlot("priming", slot))

    def _fill_slots(self) -> None:
        """Serve waiting requests from the cache, and give free slots to the others."""
        waiting, self._waiting = self._waiting, []
        free = [slot for slot in range(self._runner.priming_slots) if slot not in self._active]
        for priming in waiting:
            if priming.is_over:
                continue
            kept = self._cache.find(priming.key)
            if kept is not None:
                priming.done = len(priming.codes_FN)
                self._hand_over(priming, StateSlot("kept", kept))
            elif free and not self._will_be_kept(priming.key):
                slot = free.pop(0)
                self._runner.start(StateSlot("priming", slot))
                self._active[slot] = priming
            else:
                self._waiting.append(priming)

    def _will_be_kept(self, key: bytes) -> bool:
        """Another request is priming the same recording, and the cache will have it."""
        return bool(self._runner.kept) and any(
            key == priming.key for priming in self._active.values()
        )

    def _size(self, priming: _Priming) -> int:
        """The smallest size that finishes the recording, or else the largest."""
        sizes = self._runner.priming_sizes
        return next((size for size in sizes if size >= priming.left), sizes[-1])

    def _hand_over(self, priming: _Priming, source: StateSlot) -> None:
        event = self._runner.copy(source, StateSlot("row", priming.request.row), priming.done)
        self._handed.append((event, priming))
        self._announce()

    def _announce(self) -> None:
        """Tell the scheduler which rows are primed."""
        handed, self._handed = self._handed, []
        for event, priming in handed:
            if not _is_past(event):
                self._handed.append((event, priming))
            elif not priming.is_over:
                self._scheduler.codec_is_ready(priming.request, self._clock())


def _is_past(event: torch.cuda.Event | None) -> bool:
    """None: the work was done at once."""
    return event is None or event.query()  # type: ignore[no-untyped-call]


class PrimedStateCache:
    """Assigns codec states in `slots` to recordings, by the `digest` of their codes; evicts the
    least recently used.

    Priming with five seconds costs the codec as much as decoding five; copying a primed state costs
    a thousandth.
    """

    def __init__(self, slots: Sequence[int]) -> None:
        self._free = list(slots)
        #: Least recently used first.
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()

    def find(self, key: bytes) -> int | None:
        """The slot with the state of this recording."""
        if key not in self._slot_of:
            return None
        self._slot_of.move_to_end(key)
        return self._slot_of[key]

    def place(self, key: bytes) -> int | None:
        """A slot for the state of this recording; None if it has one already, or if there are no
        slots.
        """
        if key in self._slot_of or not (self._free or self._slot_of):
            return None
        slot = self._free.pop() if self._free else self._slot_of.popitem(last=False)[1]
        self._slot_of[key] = slot
        return slot


def digest(codes_FN: NDArray[np.int64]) -> bytes:
    """Identifies a recording by its codes."""
    return hashlib.blake2b(
        repr(codes_FN.shape).encode() + codes_FN.tobytes(), digest_size=16
    ).digest()
