"""The load of one stage: closed (who has an answer asks again) or open (requests come when they come)."""

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

#: How often the generator looks whether it is late itself.
_NAP_SECONDS = 0.01

#: Ask for request i.
Send = Callable[[int], Awaitable[Response]]
Arrivals = Literal["poisson", "constant"]
ARRIVALS: tuple[Arrivals, ...] = ("poisson", "constant")


@dataclass(frozen=True, slots=True)
class Load:
    """One stage: `requests` of them, by `clients` in a closed loop or at `rate` a second in an open one."""

    requests: int
    clients: int | None = None
    rate: float | None = None
    arrivals: Arrivals = "poisson"

    @property
    def name(self) -> str:
        """As tables say it."""
        if self.rate is not None:
            return f"{self.rate:g}/s {self.arrivals}"
        return "1 client" if self.clients == 1 else f"{self.clients} clients"


@dataclass(slots=True)
class SentRequest:
    """One request of a stage. `due` is when it should have begun, on the clock of the answer."""

    index: int
    due: float
    response: Response
    phase: Phase = "steady"


@dataclass(slots=True)
class StageRun:
    """What happened. Times are `perf_counter` seconds."""

    began: float
    ended: float = 0.0
    sent: list[SentRequest] = field(default_factory=list)
    #: Of this process: seconds of processor time, and how late its event loop woke up, in seconds.
    cpu_seconds: float = 0.0
    lags: list[float] = field(default_factory=list)
    #: Requests that were open at a time.
    max_open: int = 0

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def window(self) -> tuple[float, float]:
        """From the first steady request's begin to that of the last one: all this time the load was on."""
        steady = [one.due for one in self.sent if one.phase == "steady"]
        return (min(steady), max(steady)) if len(steady) > 1 else (self.began, self.ended)


def parse_arrivals(name: str) -> Arrivals:
    """Raises ConfigError."""
    for arrivals in ARRIVALS:
        if arrivals == name:
            return arrivals
    raise ConfigError(f"--arrivals is {name!r}; use poisson or constant", param="arrivals")


def parse_ramp(text: str, requests: int | None, arrivals: Arrivals) -> list[Load]:
    """ "1,2,4" are clients, "1/s,2/s" are rates. Without `requests`, each stage has enough for a steady state.

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
        if not (0.0 < value <= 1e5) or (is_rate and unit != "s") or (not is_rate and value != int(value)):
            raise ConfigError(f"--ramp {part!r}: give clients (1,2,4) or rates (1/s,2/s)", param="ramp")
        if is_rate:
            loads.append(Load(requests or max(20, round(30 * value)), rate=value, arrivals=arrivals))
        else:
            loads.append(Load(requests or max(8, 6 * int(value)), clients=int(value)))
    return loads


def due_seconds(load: Load, seed: int) -> NDArray[np.float64]:
    """When each request of an open loop is due, from its begin; the first one at once."""
    assert load.rate is not None
    gaps = np.full(load.requests, 1.0 / load.rate)
    if load.arrivals == "poisson":
        gaps = np.random.default_rng(seed).exponential(1.0 / load.rate, load.requests)
    return np.cumsum(gaps) - gaps[0]


def max_open(spans: Iterable[tuple[float, float]]) -> int:
    """Requests that were open at a time, of (begin, end) each; one that ends as another begins is no longer open."""
    changes = sorted(change for begin, end in spans for change in ((begin, 1), (end, -1)))
    return int(np.cumsum([change for _, change in changes]).max())


def edge_requests(open_at_a_time: int, requests: int) -> int:
    """How many of the first requests are filling, and of the last ones draining, where so many are open at a time.

    By order of their begin: to leave out those that end late would favour short ones. At least half stay in.
    """
    return min(open_at_a_time, requests // 4)


async def run_stage(load: Load, send: Send, seed: int, progress: Callable[[int], None] = lambda _: None) -> StageRun:
    """Ask for requests 0 .. requests - 1, and time them."""
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
    """Asks, and counts what is open."""

    def __init__(self, run: StageRun, send: Send, progress: Callable[[int], None]) -> None:
        self.run = run
        self._send, self._progress = send, progress
        self._open = 0

    async def one(self, index: int, due: float | None = None) -> None:
        """Request `index`, due now or at `due`."""
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
        await asyncio.sleep(_NAP_SECONDS)
        lags.append(time.perf_counter() - before - _NAP_SECONDS)


def _mark_phases(run: StageRun) -> None:
    edge = edge_requests(run.max_open, len(run.sent))
    for i, one in enumerate(run.sent):
        one.phase = "fill" if i < edge else "drain" if i >= len(run.sent) - edge else "steady"
