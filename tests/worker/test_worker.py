"""The worker's loop around the fake engine, on a thread of this process."""

from __future__ import annotations

import asyncio
import logging
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import zmq

from hocket.core import (
    AudioChunk,
    EngineInfo,
    PreparedReference,
    RequestEnd,
    Samples,
    SpeechRequest,
    Timings,
)
from hocket.errors import CapacityError, EngineStoppedError, HocketError, ReferenceAudioError
from hocket.worker.client import EngineClient
from hocket.worker.messages import (
    VERSION,
    Heartbeat,
    Hello,
    Ready,
    Stopped,
    decode_from_worker,
    encode,
    submit_message,
)
from tests.support.fake_engine import FakeEngine
from tests.support.served_worker import Served, serving

SECRET = "what the user wrote"


def digits(request: SpeechRequest) -> int:
    """The text is the number of chunks, or "full"."""
    if request.text == "full":
        raise CapacityError("no room")
    return int(request.text)


def countdown(info: EngineInfo, request: SpeechRequest, first: int, count: int) -> Samples:
    """Every sample says how many chunks are still to come."""
    return np.full((info.channels, 24), int(request.text) - first - 1, info.samples)


def new_engine(**settings: Any) -> FakeEngine:
    """Stereo, in chunks of 24 samples, for any number of requests."""
    shape: dict[str, Any] = {
        "rows": 1000,
        "channels": 2,
        "sample_rate": 300,
        "frame_samples": 24,
        "length": digits,
    }
    return FakeEngine(**shape | settings)


def with_client(
    served: Served, body: Callable[[EngineClient], Awaitable[None]], hang_seconds: float = 30.0
) -> None:
    async def run() -> None:
        async with await EngineClient.connect(served.endpoint, hang_seconds=hang_seconds) as client:
            await client.wait_ready(5)
            await body(client)

    asyncio.run(run())


def test_an_idle_worker_answers_at_once_and_does_not_spin() -> None:
    async def body(client: EngineClient) -> None:
        await asyncio.sleep(0.1)
        before = served.cpu_seconds()
        await asyncio.sleep(1.0)
        assert served.cpu_seconds() - before < 0.02
        taken = []
        for _ in range(50):
            await asyncio.sleep(0.01)
            started = time.perf_counter()
            async with await client.submit(SpeechRequest(text="1")) as stream:
                await anext(stream)
                taken.append(time.perf_counter() - started)
        # There and back, through two threads that share one interpreter.
        assert statistics.median(taken) < 0.003

    with serving(new_engine()) as served:
        with_client(served, body)


@pytest.mark.parametrize("how", ["raises", "ends its requests"])
def test_a_broken_engine_ends_all_requests_and_the_process(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine()

    def breaks() -> None:
        if engine.steps < 3:
            return
        if how == "raises":
            raise RuntimeError(SECRET)
        failure = EngineStoppedError("the engine has stopped")
        failure.__cause__ = RuntimeError(SECRET)
        last = AudioChunk("", np.zeros((2, 0), np.float32), 300, np.zeros((0, 12), np.int64))
        engine.step = lambda: [  # type: ignore[method-assign]
            AudioChunk(
                name, last.samples, 300, last.codes, RequestEnd("error", 1, Timings(), failure)
            )
            for name in engine.speaking
        ]

    engine.before_step = breaks

    async def body(client: EngineClient) -> None:
        streams = [await client.submit(SpeechRequest(text="1000000")) for _ in range(5)]
        for stream in streams:
            with pytest.raises(EngineStoppedError):
                async for _ in stream:
                    pass
        await asyncio.sleep(0.05)
        assert client.state == "down"

    with caplog.at_level(logging.INFO), serving(engine) as served:
        with_client(served, body)
        served.thread.join(5)
    assert served.code == 70
    (record,) = caplog.records
    assert "error=RuntimeError" in record.getMessage()
    assert SECRET not in caplog.text


def test_a_request_that_trips_over_a_bug_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def body(client: EngineClient) -> None:
        good = await client.submit(SpeechRequest(text="200"))
        bad = await client.submit(SpeechRequest(text=SECRET))  # int() of it raises
        full = await client.submit(SpeechRequest(text="full"))
        with pytest.raises(HocketError, match="internal error") as caught:
            await anext(bad)
        assert type(caught.value) is HocketError
        with pytest.raises(CapacityError, match="no room"):
            await anext(full)
        assert len([chunk async for chunk in good]) == 201

    with caplog.at_level(logging.INFO), serving(new_engine()) as served:
        with_client(served, body)
    assert served.code == 0
    assert len(caplog.records) == 1
    assert SECRET not in caplog.text


def recording(samples: int = 240) -> PreparedReference:
    return PreparedReference(np.full((2, samples), 0.5, np.float32), 300)


def test_recordings_are_read_beside_speech_and_may_be_refused_or_given_up() -> None:
    engine, block = new_engine(voice_size=8), threading.Event()

    def hold() -> None:
        block.wait(10)

    async def body(client: EngineClient) -> None:
        encoded = await client.prepare(recording())
        assert encoded.codes is not None
        assert encoded.codes.shape == (10, 4)
        assert encoded.voice is not None
        assert encoded.voice.tolist() == [0.5] * 8
        engine.error = ReferenceAudioError("a reference is too short", param="reference")
        with pytest.raises(ReferenceAudioError, match="too short") as caught:
            await client.prepare(recording())
        assert caught.value.param == "reference"
        engine.error = None
        # Given up before it is opened, and while the engine reads it.
        engine.before_step = hold
        stream = await client.submit(SpeechRequest(text="5"))
        waiting = [asyncio.create_task(client.prepare(recording())) for _ in range(3)]
        await asyncio.sleep(0.05)
        for task in waiting[:2]:
            task.cancel()
        await asyncio.gather(*waiting[:2], return_exceptions=True)
        engine.before_step = lambda: None
        block.set()
        assert (await waiting[2]).codes is not None
        assert len([chunk async for chunk in stream]) == 6
        stats = await client.stats()
        assert stats.open_requests == 0
        assert served.worker._owners == {}
        assert served.worker._preparations == set()

    with serving(engine) as served:
        with_client(served, body)
    assert served.code == 0


def test_an_engine_that_stops_while_it_reads_a_recording_ends_the_process() -> None:
    engine = new_engine(error=EngineStoppedError("the engine has stopped"))

    async def body(client: EngineClient) -> None:
        waiting = [asyncio.create_task(client.prepare(recording())) for _ in range(2)]
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, EngineStoppedError)
        assert client.open_requests == 0

    with serving(engine) as served:
        with_client(served, body)
    assert served.code == 70


def test_drain_finishes_what_is_open_and_takes_nothing_new() -> None:
    engine = new_engine(before_step=lambda: time.sleep(0.002))

    async def body(client: EngineClient) -> None:
        stream = await client.submit(SpeechRequest(text="300"))
        await anext(stream)
        served.worker.drain()
        await asyncio.sleep(0.1)
        assert client.state == "draining"
        with pytest.raises(EngineStoppedError, match="draining"):
            await client.submit(SpeechRequest(text="1"))
        chunks = [chunk async for chunk in stream]
        assert len(chunks) == 300
        assert chunks[-1].end is not None

    with serving(engine, drain_seconds=30) as served:
        with_client(served, body)
    assert served.code == 0


def test_a_request_that_crosses_the_drain_is_rejected() -> None:
    engine = new_engine(before_step=lambda: time.sleep(0.2))

    async def body(client: EngineClient) -> None:
        stream = await client.submit(SpeechRequest(text="3"))
        await anext(stream)
        served.worker.drain()
        late = await client.submit(
            SpeechRequest(text="1")
        )  # the worker is in a step: the client does not know yet
        with pytest.raises(EngineStoppedError, match="about to stop"):
            await anext(late)
        assert len([chunk async for chunk in stream]) == 3

    with serving(engine, drain_seconds=30) as served:
        with_client(served, body)


def test_drain_has_a_limit() -> None:
    engine = new_engine(before_step=lambda: time.sleep(0.002))

    async def body(client: EngineClient) -> None:
        stream = await client.submit(SpeechRequest(text="1000000"))
        await anext(stream)
        started = time.monotonic()
        served.worker.drain()
        with pytest.raises(EngineStoppedError):
            async for _ in stream:
                pass
        assert 0.2 < time.monotonic() - started < 2

    with serving(engine, drain_seconds=0.3) as served:
        with_client(served, body)
    assert served.code == 0


def test_a_hanging_worker_is_given_up() -> None:
    hanging = threading.Event()

    async def body(client: EngineClient) -> None:
        stream = await client.submit(SpeechRequest(text="1"))
        started = time.monotonic()
        with pytest.raises(EngineStoppedError, match="did not answer"):
            await anext(stream)
        assert time.monotonic() - started < 3
        assert client.state == "down"
        hanging.set()
        await client.wait_ready(5)
        assert len([chunk async for chunk in await client.submit(SpeechRequest(text="1"))]) == 2

    with serving(new_engine(before_step=lambda: _ignore(hanging.wait(10)))) as served:
        with_client(served, body, hang_seconds=1.0)


def _ignore(_: object) -> None:
    pass


def test_a_front_end_that_does_not_read_loses_its_requests_and_hears_why() -> None:
    engine = new_engine(frame_samples=2400)

    async def body(client: EngineClient) -> None:
        silent = served.context.socket(zmq.DEALER)
        silent.set_hwm(10)
        silent.connect(served.endpoint)
        silent.send(encode(Hello(VERSION)))
        message = submit_message("x", SpeechRequest(text="1000000"), [], priority=0, streaming=True)
        silent.send_multipart(message)
        while not (await client.stats()).open_requests:
            await asyncio.sleep(0.01)
        stream = await client.submit(SpeechRequest(text="3000"))
        assert len([chunk async for chunk in stream]) == 3001
        async with asyncio.timeout(10):
            while (await client.stats()).front_ends > 1:
                await asyncio.sleep(0.01)
        assert (await client.stats()).open_requests == 0
        for _ in range(10_000):
            assert silent.poll(3000)
            last = decode_from_worker(silent.recv_multipart(copy=False)[0])
            if isinstance(last, Stopped):
                break
        assert isinstance(last, Stopped)
        silent.close(linger=0)

    with serving(engine) as served:
        with_client(served, body)


def test_a_front_end_that_goes_away_is_forgotten() -> None:
    async def body(client: EngineClient) -> None:
        other = await EngineClient.connect(served.endpoint)
        await other.wait_ready(5)
        await other.submit(SpeechRequest(text="1000000000"))
        async with asyncio.timeout(10):  # the two have connections of their own
            while not (await client.stats()).open_requests:
                await asyncio.sleep(0.01)
        await other.stop()
        async with asyncio.timeout(10):
            while (stats := await client.stats()).open_requests:
                await asyncio.sleep(0.01)
        assert stats.front_ends == 1
        assert stats.engine.scheduler.running == 0

    with serving(new_engine(frame_samples=1, before_step=lambda: time.sleep(0.001))) as served:
        with_client(served, body)


@pytest.mark.parametrize("greeting", [encode(Hello(VERSION + 1)), b"\xc1", b""])
def test_a_front_end_of_another_version_is_refused(greeting: bytes) -> None:
    with serving(new_engine()) as served:
        stranger = served.context.socket(zmq.DEALER)
        stranger.connect(served.endpoint)
        stranger.send(greeting)
        assert stranger.poll(3000)
        answer = decode_from_worker(stranger.recv(copy=False))
        assert isinstance(answer, Stopped)
        assert "run the same Hocket at both ends" in str(answer.error.error())
        stranger.close(linger=0)


def test_an_idle_worker_gives_signs_of_life() -> None:
    with serving(new_engine()) as served:
        socket = served.context.socket(zmq.DEALER)
        socket.connect(served.endpoint)
        socket.send(encode(Hello(VERSION)))
        seen = []
        for _ in range(4):
            assert socket.poll(1000)
            seen.append(type(decode_from_worker(socket.recv(copy=False))))
        assert seen == [Ready, Heartbeat, Heartbeat, Heartbeat]
        socket.close(linger=0)


def test_16_bit_samples_arrive_as_such() -> None:
    async def body(client: EngineClient) -> None:
        assert client.info.samples == "int16"
        speech = await client.generate(SpeechRequest(text="3"))
        assert speech.samples.dtype == np.int16
        assert speech.samples[0, ::24].tolist() == [2, 1, 0]

    with serving(new_engine(samples="int16", sound=countdown)) as served:
        with_client(served, body)


def test_requests_that_were_cancelled_before_they_were_opened_cost_nothing() -> None:
    """Where steps are slow, arrivals pile up: those that have left by then must not be worked off
    one by one.
    """
    engine = new_engine(before_step=lambda: time.sleep(0.2), add_seconds=0.02)

    async def body(client: EngineClient) -> None:
        running = await client.submit(SpeechRequest(text="12"))
        await anext(running)
        before = engine.steps
        streams = [await client.submit(SpeechRequest(text="1000")) for _ in range(60)]
        for stream in streams:
            stream.cancel()
        for stream in streams:
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].end is not None
            assert chunks[-1].end.finish_reason == "cancelled"
        assert engine.steps - before <= 3
        assert len(engine.requests) < 10
        assert len([chunk async for chunk in running]) == 12
        assert (await client.stats()).open_requests == 0

    with serving(engine) as served:
        with_client(served, body)


def test_a_burst_is_opened_in_few_steps_however_slow_they_are() -> None:
    engine = new_engine(before_step=lambda: time.sleep(0.3), add_seconds=0.002)

    async def body(client: EngineClient) -> None:
        running = await client.submit(SpeechRequest(text="20"))
        await anext(running)
        streams = [await client.submit(SpeechRequest(text="1000")) for _ in range(40)]
        stats = await client.stats()  # overtakes them
        assert stats.open_requests == 41
        # A tenth of 0.3 s opens some 14 of them at a time, where 5 ms would open 2.
        steps = 0
        while engine.open_requests < 41:
            await anext(running)
            steps += 1
        assert steps <= 10
        for stream in streams:
            stream.cancel()

    with serving(engine) as served:
        with_client(served, body)


def test_more_than_may_wait_are_refused_at_once() -> None:
    engine = new_engine(
        before_step=lambda: time.sleep(0.2),
        max_waiting=5,
        add_seconds=0.01,
    )

    async def body(client: EngineClient) -> None:
        running = await client.submit(SpeechRequest(text="5"))
        await anext(running)
        streams = [await client.submit(SpeechRequest(text="1")) for _ in range(30)]
        refused = 0
        for stream in streams:
            try:
                async for _ in stream:
                    pass
            except CapacityError:
                refused += 1
        assert 10 < refused < 30

    with serving(engine) as served:
        with_client(served, body)
