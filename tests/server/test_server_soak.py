"""Listeners come and go at random, four times as many as can be spoken to: nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from test_server_openai import KEY, SEED, TEXT, hocket_serve

CONNECTIONS, ROWS, SECONDS = 200, 50, 20.0
#: Of each process, between a warm server and the end. A leak of one chunk (1 MB) a speech would be hundreds.
GROWTH_BYTES = 64 * 2**20


def resident_bytes(process: int) -> int:
    """Of a process and its children: the front end and its worker."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    status = Path(f"/proc/{process}/status").read_text()
    (own,) = re.findall(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return int(own) * 1024 + sum(resident_bytes(int(child)) for child in children)


async def come_and_go(port: int, seed: int, until: float, outcomes: Counter[str]) -> None:
    """One connection after the other: some are heard to their end, most are left at any moment."""
    chance = random.Random(seed)
    while time.monotonic() < until:
        fields = {"input": TEXT, "response_format": "pcm", "seed": SEED}
        body = json.dumps(fields | {"max_new_tokens": chance.randint(1, 10)}).encode()
        # Plain sockets: HTTP libraries leave some open when they are interrupted.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer %b\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (KEY.encode(), len(body), body)
        )
        try:
            async with asyncio.timeout(chance.choice([0.1, 0.5, 2.0, 5.0, 10.0]) * chance.random()):
                answer = await reader.read()
        except TimeoutError:
            outcomes["left"] += 1
        else:
            status = answer[9:12].decode()
            outcomes[status] += 1
            if status == "503":
                assert b"\r\nretry-after: " in answer.lower()
                await asyncio.sleep(1.0)  # as it was told to
        finally:
            writer.transport.abort()


async def crowd(address: str, seconds: float) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    until, port = time.monotonic() + seconds, int(address.rpartition(":")[2])
    await asyncio.gather(*(come_and_go(port, seed, until, outcomes) for seed in range(CONNECTIONS)))
    async with httpx.AsyncClient(base_url=address, timeout=20) as client:
        await eventually(lambda: is_quiet(client))
    return outcomes


async def is_quiet(client: httpx.AsyncClient) -> bool:
    """No row is held, here or in the engine."""
    page = (await client.get("/metrics")).text
    numbers = dict(re.findall(r'^hocket_engine\{name="(\w+)"\} (\S+)', page, re.MULTILINE))
    (here,) = re.findall(r"^hocket_open_requests (\S+)", page, re.MULTILINE)
    held = [here, *(numbers[name] for name in ("open_requests", "rows_waiting", "rows_prefilling", "rows_running"))]
    return set(map(float, held)) == {0.0} and float(numbers["rows_free"]) == ROWS


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "requests that nobody listens to still hold rows"
        await asyncio.sleep(0.05)


@pytest.mark.slow
def test_a_crowd_that_comes_and_goes_leaves_nothing_behind(tmp_path: Path, babble: Path) -> None:
    settings = (f"engine.rows={ROWS}", "engine.max_context_rows=512", "server.max_queue=50")
    with hocket_serve(tmp_path, str(babble), *(f"--set={setting}" for setting in settings)) as (address, process):
        asyncio.run(crowd(address, SECONDS / 4))  # whatever is made once is there then
        before = resident_bytes(process.pid)
        outcomes = asyncio.run(crowd(address, SECONDS))
        growth = resident_bytes(process.pid) - before
        assert growth < GROWTH_BYTES, f"{growth / 2**20:.0f} MiB more than before"
        assert set(outcomes) <= {"200", "503", "left"}
        assert min(outcomes["200"], outcomes["left"]) > 20, outcomes
        print(f"\n{dict(outcomes)}, {growth / 2**20:+.1f} MiB")
