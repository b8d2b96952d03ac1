"""A closed or open loop of speech requests from processes of their own, and its figures.

Audio is raw PCM, and the clock is read when the bytes arrive, in the socket's callback. Streams are
played as a listener would: from the first byte on, without a buffer.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvloop

from hocket.bench.http import Target, send

_TIMEOUT_SECONDS = 300.0
#: A pause that a listener hears.
_PAUSE_SECONDS = 0.010
#: Requests of the report that say when they were late.
_KEPT_LATE = 60

#: The body of request i.
Body = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Served:
    """One request and its answer; times in seconds of `perf_counter`, which all processes share."""

    index: int
    sent: float
    #: Arrival of the first audio, and of the last.
    first: float
    last: float
    #: Time for which the listener heard nothing in the middle.
    still: float
    audio_bytes: int
    #: (time, bytes until then).
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """Requests that start within `seconds` behind `warm_seconds` count."""

    seconds: float
    warm_seconds: float = 6.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the processes send. With `rate` requests start at that many a second, otherwise each of
    `clients` sends its next one when the last has ended; `requests` is the most in all.
    """

    url: str
    bytes_per_second: int
    clients: int
    rate: float | None = None
    requests: int | None = None
    path: str = "/v1/audio/speech"


def run(plan: Plan, body: Body, window: Window, processes: int = 4) -> list[Served]:
    """Send until the window has passed or the requests are spent; answers in order of start.

    Processes are forked, so that `body` may be any function.
    """
    count = max(1, min(processes, plan.clients))
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[list[Served]] = context.Queue()
    started = time.perf_counter() + 0.5
    workers = [
        context.Process(target=_process, args=(plan, body, window, k, count, started, queue))
        for k in range(count)
    ]
    for worker in workers:
        worker.start()
    served = [one for _ in workers for one in queue.get()]
    for worker in workers:
        worker.join()
    return sorted(served, key=lambda one: one.sent)


def _process(
    plan: Plan,
    body: Body,
    window: Window,
    k: int,
    count: int,
    started: float,
    queue: multiprocessing.Queue[list[Served]],
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        queue.put(runner.run(_share(plan, body, window, k, count, started)))


async def _share(
    plan: Plan, body: Body, window: Window, k: int, count: int, started: float
) -> list[Served]:
    """What process `k` of `count` sends: every count-th request."""
    served: list[Served] = []
    target = Target.parse(plan.url)
    numbers = iter(range(k, plan.requests if plan.requests is not None else 10**9, count))
    end = started + window.warm_seconds + window.seconds

    async def one(index: int) -> None:
        served.append(await _speak(target, plan, index, body(index)))

    async def client() -> None:
        for index in numbers:
            if time.perf_counter() >= end:
                return
            await one(index)

    await asyncio.sleep(max(0.0, started - time.perf_counter()))
    if plan.rate is None:
        share = plan.clients // count + (k < plan.clients % count)
        await asyncio.gather(*(client() for _ in range(share)))
        return served
    tasks = []
    for index in numbers:
        due = started + index / plan.rate
        if due >= end:
            break
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(index)))
    await asyncio.gather(*tasks)
    return served


async def _speak(target: Target, plan: Plan, index: int, body: bytes) -> Served:
    headers = {"Content-Type": "application/json"}
    answer = await send(target, "POST", plan.path, headers, body, _TIMEOUT_SECONDS)
    if answer.broken is not None or answer.status != 200 or not answer.arrivals:
        text = answer.detail if answer.broken else answer.body[:200].decode("utf-8", "replace")
        now = answer.ended_at
        return Served(index, answer.sent_at, now, now, 0.0, 0, error=f"{answer.status} {text}")
    first = answer.arrivals[0][0]
    return Served(
        index,
        answer.sent_at,
        first,
        answer.arrivals[-1][0],
        _still(answer.arrivals, plan.bytes_per_second),
        answer.arrivals[-1][1],
        answer.arrivals,
    )


def _still(arrivals: Sequence[tuple[float, int]], bytes_per_second: int) -> float:
    """Seconds for which a player without a buffer was dry between first and last byte."""
    still, began = 0.0, arrivals[0][0]
    have = 0
    for at, total in arrivals:
        dry_at = began + still + have / bytes_per_second
        if have and at > dry_at:
            still += at - dry_at
        have = total
    return still


def figures(served: Sequence[Served], plan: Plan, window: Window) -> dict[str, Any]:
    """The figures of the window. Requests that started in it count for times and pauses, bytes that
    arrived in it for throughput. Failures are counted over the whole run.
    """
    good = [one for one in served if not one.error]
    bad = [one for one in served if one.error]
    if not good:
        return {"requests": 0, "errors": len(bad), "first_error": bad[0].error if bad else ""}
    origin = served[0].sent
    begin = origin + window.warm_seconds
    end = min(begin + window.seconds, max(one.last for one in good))
    inside = [one for one in good if begin <= one.sent < end] or good
    first_ms = 1e3 * np.array([one.first - one.sent for one in inside])
    late = sorted(inside, key=lambda one: one.sent - one.first)[:_KEPT_LATE]
    return {
        "clients": plan.clients,
        "rate": plan.rate,
        "window_s": round(end - begin, 2),
        "requests": len(inside),
        "errors": len(bad),
        "first_error": bad[0].error if bad else "",
        "requests_per_s": round(len(inside) / (end - begin), 2),
        "audio_s_per_s": round(
            _bytes_in(good, begin, end) / plan.bytes_per_second / (end - begin), 1
        ),
        "first_audio_ms": {
            "mean": round(float(first_ms.mean()), 1),
            **{f"p{q}": round(float(np.percentile(first_ms, q)), 1) for q in (50, 95, 99)},
            "max": round(float(first_ms.max()), 1),
        },
        "underrun_free": round(float(np.mean([one.still < _PAUSE_SECONDS for one in inside])), 5),
        "still_ms_max": round(1e3 * max(one.still for one in inside), 1),
        "still_at_s": [
            [round(one.sent - begin, 2), round(1e3 * one.still)]
            for one in inside
            if one.still >= _PAUSE_SECONDS
        ][:_KEPT_LATE],
        "late_at_s": sorted(
            [round(one.sent - begin, 2), round(1e3 * (one.first - one.sent))] for one in late
        ),
    }


def _bytes_in(served: Sequence[Served], begin: float, end: float) -> int:
    total = 0
    for one in served:
        before = 0
        for at, until in one.arrivals:
            if begin <= at < end:
                total += until - before
            before = until
    return total
