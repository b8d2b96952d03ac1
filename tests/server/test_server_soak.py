"""Clients connect and leave at random, then overload the server: nothing leaks, no stream is cut
off.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.server.test_server_openai import KEY, hocket_serve

CONNECTIONS, ROWS, QUEUE = 200, 50, 50
COME_AND_GO_SECONDS, OVERLOAD_SECONDS = 60.0, 30.0
#: Long enough to touch all of a row's rings and most of the K/V pages, which count as memory only
#: then.
WARM_FRAMES = 150
FRAME_BYTES = 2 * 1920
TEXT = "Hello from a real client."
#: Of each process, after it has been busy for a while. A leak of one chunk (0.1 MB) a speech would
#: be hundreds.
GROWTH_BYTES = 32 * 2**20
#: Goal for a refusal.
REFUSAL_SECONDS = 0.05


@dataclass
class Tally:
    """Counts of the requests' outcomes."""

    outcomes: Counter[str] = field(default_factory=Counter)
    #: From before the connection to the end of the answer, of refused ones.
    refused_ms: list[float] = field(default_factory=list)
    #: How late a task woke up meanwhile that slept for 10 ms: what the machine itself adds to every
    #: wait.
    lags_ms: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def resident_bytes(process: int) -> dict[int, int]:
    """Resources of the front end and of its worker, by process id."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    status = Path(f"/proc/{process}/status").read_text()
    (own,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    sizes = {process: int(own) * 1024}
    for child in children:
        sizes |= resident_bytes(int(child))
    return sizes


async def ask(port: int, frames: int, tally: Tally, patience_seconds: float | None = None) -> str:
    """One request for `frames` frames over its own connection; an impatient client leaves early."""
    fields = {
        "input": TEXT,
        "response_format": "pcm",
        "min_new_tokens": frames,
        "max_new_tokens": frames,
    }
    body = json.dumps(fields).encode()
    started = time.perf_counter()
    # Plain sockets: HTTP libraries leave some open when they are interrupted.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Authorization: Bearer %b\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (KEY.encode(), len(body), body)
    )
    try:
        async with asyncio.timeout(patience_seconds):
            answer = await reader.read()
    except TimeoutError:
        return "left"
    finally:
        writer.transport.abort()
    seconds = time.perf_counter() - started
    head, _, content = answer.partition(b"\r\n\r\n")
    status = head[9:12].decode()
    if status == "503" and b"no audio within" not in content:
        assert b"\r\nretry-after: " in head.lower()
        tally.refused_ms.append(1e3 * seconds)
    elif status != "200" or unchunked_bytes(content) != frames * FRAME_BYTES:
        tally.lost.append(
            f"{status} after {seconds:.1f} s, {unchunked_bytes(content)} of {frames * FRAME_BYTES} "
            "bytes"
        )
    return status


def unchunked_bytes(content: bytes) -> int:
    """Length of a chunked body; -1 for an incomplete one."""
    length = 0
    while True:
        size, separator, content = content.partition(b"\r\n")
        if not separator:
            return -1
        if size == b"0":
            return length
        length += int(size, 16)
        content = content[int(size, 16) + 2 :]


async def come_and_go(port: int, seed: int, until: float, tally: Tally) -> None:
    """Some clients read to the end, most leave at any moment."""
    chance = random.Random(seed)
    while time.monotonic() < until:
        patience = chance.choice([0.1, 0.5, 2.0, 5.0, 20.0]) * chance.random()
        outcome = await ask(port, chance.randint(1, 10), tally, patience)
        tally.outcomes[outcome] += 1
        if outcome == "503":
            await asyncio.sleep(1.0)  # as it was told to


async def insist(port: int, seed: int, until: float, tally: Tally) -> None:
    """All clients read to the end; refused ones retry far too soon."""
    chance = random.Random(seed)
    while time.monotonic() < until:
        outcome = await ask(port, chance.randint(1, 10), tally)
        tally.outcomes[outcome] += 1
        if outcome == "503":
            await asyncio.sleep(0.2 + 0.3 * chance.random())


async def watch_lags(tally: Tally) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(0.01)
        tally.lags_ms.append(1e3 * (time.perf_counter() - started) - 10)


async def crowd(
    address: str, seconds: float, behave: Callable[[int, int, float, Tally], Awaitable[None]]
) -> Tally:
    tally = Tally()
    until, port = time.monotonic() + seconds, int(address.rpartition(":")[2])
    lagging = asyncio.create_task(watch_lags(tally))
    await asyncio.gather(*(behave(port, seed, until, tally) for seed in range(CONNECTIONS)))
    lagging.cancel()
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        await eventually(lambda: is_quiet(client))
    return tally


async def warm_up(address: str) -> None:
    """Run every row long enough to have touched all of its memory."""
    port, tally = int(address.rpartition(":")[2]), Tally()
    await asyncio.gather(*(ask(port, WARM_FRAMES, tally) for _ in range(ROWS)))


async def is_quiet(client: httpx.AsyncClient) -> bool:
    """Wait until no row is held, here or in the engine."""
    page = (await client.get("/metrics")).text
    numbers = dict(
        re.findall(r'^hocket_engine\{name="(\w+)",worker="0"\} (\S+)', page, re.MULTILINE)
    )
    (here,) = re.findall(r"^hocket_open_requests (\S+)", page, re.MULTILINE)
    held = [
        here,
        *(
            numbers[name]
            for name in ("open_requests", "rows_waiting", "rows_prefilling", "rows_running")
        ),
    ]
    return set(map(float, held)) == {0.0} and float(numbers["rows_free"]) == ROWS


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "requests without a client still hold rows"
        await asyncio.sleep(0.05)


def percentiles(values: list[float]) -> str:
    return ", ".join(f"p{q} {np.percentile(values, q):.1f}" for q in (50, 95, 99))


@pytest.mark.slow
def test_crowds_leave_nothing_behind(tmp_path: Path) -> None:
    settings = (f"engine.rows={ROWS}", "engine.max_context_rows=320", f"server.max_queue={QUEUE}")
    with hocket_serve(tmp_path, *(f"--set={setting}" for setting in settings)) as (
        address,
        process,
    ):
        asyncio.run(warm_up(address))
        asyncio.run(
            crowd(address, COME_AND_GO_SECONDS / 6, come_and_go)
        )  # whatever is made once is there then
        before = resident_bytes(process.pid)
        left = asyncio.run(crowd(address, COME_AND_GO_SECONDS, come_and_go))
        between = resident_bytes(process.pid)
        overload = asyncio.run(crowd(address, OVERLOAD_SECONDS, insist))
        after = resident_bytes(process.pid)
        for name, tally in (("come and go", left), ("overload", overload)):
            print(f"\n{name}: {dict(tally.outcomes)}")
            print(
                f"  refused after ms: {percentiles(tally.refused_ms or [0.0])}; lag ms: "
                f"{percentiles(tally.lags_ms)}"
            )
        growth = [
            {pid: (now[pid] - before[pid]) / 2**20 for pid in before} for now in (between, after)
        ]
        print(
            "  MiB more than before, front end and worker:",
            [[f"{v:+.1f}" for v in each.values()] for each in growth],
        )

        assert before.keys() == after.keys(), "a process was replaced"
        assert not left.lost
        assert not overload.lost
        assert set(left.outcomes) <= {"200", "503", "left"}
        assert min(left.outcomes["200"], left.outcomes["left"]) > 20, left.outcomes
        assert set(overload.outcomes) == {"200", "503"}
        assert overload.outcomes.total() >= 3 * overload.outcomes["200"], "that was no overload"
        # By the server's own clock: what clients measure depends on who else wants the machine's
        # cores.
        refusals = re.findall(r" status=503 .* seconds=(\S+)", (tmp_path / "log").read_text())
        assert len(refusals) > 100
        assert np.percentile([float(seconds) for seconds in refusals], 95) < REFUSAL_SECONDS
        assert max(max(each.values()) for each in growth) < GROWTH_BYTES / 2**20
