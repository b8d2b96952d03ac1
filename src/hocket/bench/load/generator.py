"""The load of one stage: a closed loop of clients, or an open loop with arrivals at a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hocket.bench.http import Response
from hocket.bench.judge.outcome import Phase
from hocket.errors import ConfigError

#: Interval in which the generator measures its own lateness.
_TICK_SECONDS = 0.01

#: Sends request i.
Send = Callable[[int], Awaitable[Response]]
Arrivals = Literal["poisson", "constant"]
ARRIVALS: tuple[Arrivals, ...] = ("poisson", "constant")


@dataclass(frozen=True, slots=True)
class Load:
    """One stage: `requests` in a closed loop of `clients`, or in an open loop at `rate` a
    second.
    """

    requests: int
    clients: int | None = None
    rate: float | None = None
    arrivals: Arrivals = "poisson"

    @property
    def name(self) -> str:
        """Label in tables."""
        if self.rate is not None:
            return f"{self.rate:g}/s {self.arrivals}"
        return "1 client" if self.clients == 1 else f"{self.clients} clients"


@dataclass(slots=True)
class SentRequest:
    """One request of a stage and its response. `due` is its scheduled start, on the response's
    clock.
    """

    index: int
    due: float
    response: Response
    phase: Phase = "steady"


@dataclass(slots=True)
class StageRun:
    """The record of a stage. Times are `perf_counter` seconds."""

    began: float
    ended: float = 0.0
    sent: list[SentRequest] = field(default_factory=list)
    #: Processor time of this process, and delays of its event loop, in seconds.
    cpu_seconds: float = 0.0
    lags: list[float] = field(default_factory=list)
    #: Largest number of concurrent requests.
    max_open: int = 0

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def window(self) -> tuple[float, float]:
        """From the start of the first steady request to that of the last one, under full load
        throughout.
        """
        steady = [one.due for one in self.sent if one.phase == "steady"]
        return (min(steady), max(steady)) if len(steady) > 1 else (self.began, self.ended)


def parse_arrivals(name: str) -> Arrivals:
    """Check `--arrivals`. Raises ConfigError."""
    for arrivals in ARRIVALS:
        if arrivals == name:
            return arrivals
    raise ConfigError(f"--arrivals is {name!r}; use poisson or constant", param="arrivals")


def parse_ramp(text: str, requests: int | None, arrivals: Arrivals) -> list[Load]:
    """Parse "1,2,4" (clients) or "1/s,2/s" (rates). Without `requests`, each stage has enough for a
    steady state.

    Raises ConfigError.
    """
    loads = []
    for part in text.split(","):
        number, slash, unit = part.strip().partition("/")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        is_rate = slash == "/"
        if (
            not (0.0 < value <= 1e5)
            or (is_rate and unit != "s")
            or (not is_rate and value != int(value))
        ):
            raise ConfigError(
                f"--ramp {part!r}: give clients (1,2,4) or rates (1/s,2/s)", param="ramp"
            )
        if is_rate:
            loads.append(
                Load(requests or max(20, round(30 * value)), rate=value, arrivals=arrivals)
            )
        else:
            loads.append(Load(requests or max(8, 6 * int(value)), clients=int(value)))
    return loads


def due_seconds(load: Load, seed: int) -> NDArray[np.float64]:
    """Due times of an open loop, from its start; the first request is due at once."""
    assert load.rate is not None
    gaps = np.full(load.requests, 1.0 / load.rate)
    if load.arrivals == "poisson":
        gaps = np.random.default_rng(seed).exponential(1.0 / load.rate, load.requests)
    return np.cumsum(gaps) - gaps[0]


def max_open(spans: Iterable[tuple[float, float]]) -> int:
    """Largest number of overlapping (begin, end) spans; a span that ends as another begins does not
    overlap it.
    """
    changes = sorted(change for begin, end in spans for change in ((begin, 1), (end, -1)))
    return int(np.cumsum([change for _, change in changes]).max())


def edge_requests(open_at_a_time: int, requests: int) -> int:
    """Number of requests that fill the server at first, and that drain it in the end.

    They are taken by order of their start: excluding those that end late would favour short ones.
    At least half of the requests stay steady.
    """
    return min(open_at_a_time, requests // 4)


async def run_stage(
    load: Load, send: Send, seed: int, progress: Callable[[int], None] = lambda _: None
) -> StageRun:
    """Send requests 0 .. requests - 1, and time them."""
    run = StageRun(began=time.perf_counter())
    cpu = time.process_time()
    watch = asyncio.create_task(_watch(run.lags))
    counter = _Counter(run, send, progress)
    try:
        if load.rate is None:
            await _closed(load, counter)
        else:
            await _open(load, counter, seed)
    finally:
        watch.cancel()
    run.ended = time.perf_counter()
    run.cpu_seconds = time.process_time() - cpu
    run.sent.sort(key=lambda one: one.due)
    _mark_phases(run)
    return run


class _Counter:
    """Sends requests, and counts the open ones."""

    def __init__(self, run: StageRun, send: Send, progress: Callable[[int], None]) -> None:
        self.run = run
        self._send, self._progress = send, progress
        self._open = 0

    async def one(self, index: int, due: float | None = None) -> None:
        """Send request `index`, due now or at `due`."""
        self._open += 1
        self.run.max_open = max(self.run.max_open, self._open)
        response = await self._send(index)
        self._open -= 1
        self.run.sent.append(SentRequest(index, response.sent_at if due is None else due, response))
        self._progress(len(self.run.sent))


async def _closed(load: Load, counter: _Counter) -> None:
    numbers = iter(range(load.requests))

    async def client() -> None:
        for number in numbers:
            await counter.one(number)

    assert load.clients is not None
    await asyncio.gather(*(client() for _ in range(min(load.clients, load.requests))))


async def _open(load: Load, counter: _Counter, seed: int) -> None:
    due = counter.run.began + due_seconds(load, seed)
    tasks = []
    for i in range(load.requests):
        await asyncio.sleep(max(0.0, float(due[i]) - time.perf_counter()))
        tasks.append(asyncio.create_task(counter.one(i, float(due[i]))))
    await asyncio.gather(*tasks)


async def _watch(lags: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(_TICK_SECONDS)
        lags.append(time.perf_counter() - before - _TICK_SECONDS)


def _mark_phases(run: StageRun) -> None:
    edge = edge_requests(run.max_open, len(run.sent))
    for i, one in enumerate(run.sent):
        one.phase = "fill" if i < edge else "drain" if i >= len(run.sent) - edge else "steady"
