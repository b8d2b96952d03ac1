"""Several real worker processes behind one front end, on the golden checkpoints."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from hocket.config import ChunkPolicy, EngineConfig, RunawayPolicy
from hocket.core import AudioArray, AudioChunk, SpeechRequest
from hocket.engine.engine import Engine
from hocket.errors import CheckpointError, EngineStoppedError
from hocket.worker.messages import EngineSpec
from hocket.worker.pool import EnginePool
from hocket.worker.stream import SpeechStream
from tests.support.fake_engine import FakeEngine
from tests.support.served_worker import serving

CONFIG = EngineConfig(
    rows=4,
    strict=True,
    max_context_rows=2048,
    runaway=RunawayPolicy(multiple=0, loop_seconds=0, silence_seconds=0),
    chunks=ChunkPolicy(steady_chunk_frames=8),
)
#: Frame limit for requests that are cancelled.
LONG = 1500


@pytest.fixture(scope="module")
def spec(golden: Path) -> EngineSpec:
    return EngineSpec(
        model=str(golden / "local_tiny"),
        codec=str(golden / "codec2_tiny"),
        config=CONFIG,
        workers=2,
        drain_seconds=0,
    )


def request(i: int, frames: int = 12) -> SpeechRequest:
    """A request for exactly `frames` frames."""
    return SpeechRequest(text=f"Text number {i}.", seed=i, min_frames=frames, max_frames=frames)


def opened(pool: EnginePool) -> list[int]:
    return [worker.open_requests for worker in pool.workers]


async def codes_of(stream: SpeechStream) -> bytes:
    chunks: list[AudioChunk] = [chunk async for chunk in stream]
    return np.concatenate([chunk.codes for chunk in chunks]).tobytes()


def test_requests_spread_and_each_is_its_own(spec: EngineSpec) -> None:
    alone = Engine.load(spec.model, spec.codec, config=CONFIG)
    expected = [alone.generate(request(i)).codes.tobytes() for i in range(10)]

    async def run() -> None:
        async with await EnginePool.start([spec, spec]) as pool:
            assert pool.state == "starting"
            with pytest.raises(EngineStoppedError, match="starting"):
                await pool.submit(request(0))
            info = await pool.wait_ready(60)
            assert (info.rows, info.max_waiting) == (2 * CONFIG.rows, 2 * CONFIG.max_waiting)
            assert [(worker.state, worker.rows) for worker in pool.workers] == [
                ("ready", CONFIG.rows)
            ] * 2
            streams = [await pool.submit(request(i)) for i in range(10)]
            assert opened(pool) == [5, 5]
            assert await asyncio.gather(*map(codes_of, streams)) == expected
            assert opened(pool) == [0, 0]
            # The one that has less to do gets the next, however many the other was given before.
            long = [await pool.submit(request(i, LONG)) for i in range(3)]
            (busy,) = [i for i, count in enumerate(opened(pool)) if count == 2]
            extra = await pool.submit(request(3, LONG))
            assert opened(pool) == [2, 2]
            for stream in (*long, extra):
                stream.cancel()
            assert await pool.drain(20)
            stats = await pool.stats()
            assert len(stats) == 2
            for numbers in stats:
                assert numbers is not None
                assert numbers.engine.steps > 0
                assert numbers.open_requests == 0
                assert numbers.engine.scheduler.rows_free == CONFIG.rows
            assert busy in (0, 1)
            assert str(pool.state) == "draining"

    asyncio.run(run())


def test_codes_and_audio_are_converted_by_any(spec: EngineSpec) -> None:
    codes = np.random.default_rng(0).integers(0, 32, (9, 12))

    async def run() -> None:
        async with await EnginePool.start([spec, spec]) as pool:
            await pool.wait_ready(60)
            first, second = await asyncio.gather(pool.decode(codes), pool.decode(codes))
            np.testing.assert_array_equal(first, second)
            encoded = await asyncio.gather(pool.encode(first), pool.encode(first))
            np.testing.assert_array_equal(*encoded)
            assert all(numbers is not None for numbers in await pool.stats())

    asyncio.run(run())


def test_all_workers_know_what_one_has_read(spec: EngineSpec) -> None:
    samples = 0.1 * np.random.default_rng(0).standard_normal((1, 8000))
    voice = AudioArray(samples.astype(np.float32), 8000)
    asked = [request(i).model_copy(update={"reference": (voice,)}) for i in range(6)]
    alone = Engine.load(spec.model, spec.codec, config=CONFIG)
    expected = [alone.generate(one).codes.tobytes() for one in asked]

    async def run() -> None:
        async with await EnginePool.start([spec, spec]) as pool:
            await pool.wait_ready(60)
            streams = await asyncio.gather(*map(pool.submit, asked))
            assert opened(pool) == [3, 3]
            assert await asyncio.gather(*map(codes_of, streams)) == expected
            assert pool.reference_counts == (5, 1)
            for numbers in await pool.stats():
                assert numbers is not None
                assert numbers.engine.reference_misses == 0

    asyncio.run(run())


def test_a_worker_that_dies_takes_only_its_own_requests_along(spec: EngineSpec) -> None:
    async def run() -> None:
        async with await EnginePool.start([spec, spec]) as pool:
            await pool.wait_ready(60)
            streams = [await pool.submit(request(i, 600)) for i in range(4)]
            for stream in streams:
                await anext(stream)
            victim = pool._clients[0].pid
            mine = list(pool._clients[0]._streams.values())
            others = [stream for stream in streams if stream not in mine]
            assert len(mine) == len(others) == 2
            os.kill(victim, signal.SIGKILL)
            for stream in mine:
                with pytest.raises(EngineStoppedError):
                    await codes_of(stream)
            # Service goes on, with the rows that are left.
            assert (pool.state, pool.info.rows) == ("ready", CONFIG.rows)
            assert [worker.state for worker in pool.workers] == ["down", "ready"]
            assert (await pool.stats())[0] is None
            late = [await pool.submit(request(i)) for i in range(3)]
            for stream in (*others, *late):
                assert await codes_of(stream)
            # And the other comes back.
            await pool.wait_ready(60)
            assert pool.info.rows == 2 * CONFIG.rows
            assert pool._clients[0].pid != victim

    asyncio.run(run())


def test_one_that_cannot_load_is_the_error_of_all(spec: EngineSpec, tmp_path: Path) -> None:
    broken = spec.model_copy(update={"model": str(tmp_path)})

    async def run() -> None:
        async with await EnginePool.start([spec, broken]) as pool:
            with pytest.raises(CheckpointError, match=tmp_path.name):
                await pool.wait_ready(60)

    asyncio.run(run())


def test_stopping_leaves_nothing_behind(spec: EngineSpec) -> None:
    async def run() -> tuple[list[int], list[Path]]:
        pool = await EnginePool.start([spec, spec])
        await pool.wait_ready(60)
        pids = [client.pid for client in pool._clients]
        folders = [Path(client.endpoint.removeprefix("ipc://")).parent for client in pool._clients]
        await pool.submit(request(0, LONG))
        await pool.stop()
        assert pool.state == "down"
        return pids, folders

    pids, folders = asyncio.run(run())
    assert len(set(pids)) == len(set(folders)) == 2
    for pid, folder in zip(pids, folders, strict=True):
        assert not Path(f"/proc/{pid}").exists()
        assert not folder.exists()


def test_several_front_ends_share_the_workers_out() -> None:
    def endless() -> FakeEngine:
        return FakeEngine(rows=1000, prefill_seconds=1000)

    async def heard(pool: EnginePool, opened: list[int]) -> None:
        """Wait until `pool` knows of all requests."""
        async with asyncio.timeout(10):
            while [worker.open_requests for worker in pool.workers] != opened:
                await asyncio.sleep(0.01)

    async def run(endpoints: list[str]) -> None:
        async with (
            await EnginePool.connect(endpoints, 0) as first,
            await EnginePool.connect(endpoints, 1) as second,
        ):
            for pool in (first, second):
                await pool.wait_ready(10)
            for _ in range(6):
                await first._clients[0].submit(request(0))
            for pool in (first, second):
                await heard(pool, [6, 0])
            # Each front end takes the other to do the same, and begins with another among equals:
            # after three each the workers have equally many.
            for pool in (first, second):
                for _ in range(4):
                    await pool.submit(request(0))
            for pool in (first, second):
                await heard(pool, [7, 7])
                assert [client.load for client in pool._clients] == [7, 7]

    with serving(endless()) as one, serving(endless()) as other:
        asyncio.run(run([one.endpoint, other.endpoint]))
