"""Front ends and a real worker process on the golden checkpoints."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import zmq
from safetensors.torch import load_file, save_file

from hocket.audio.io import write_audio
from hocket.config import ChunkPolicy, EngineConfig, RunawayPolicy
from hocket.core import (
    AudioArray,
    AudioChunk,
    EncodedReference,
    PreparedReference,
    Reference,
    Sampling,
    Speech,
    SpeechRequest,
)
from hocket.engine.engine import Engine
from hocket.errors import (
    CapacityError,
    CheckpointError,
    EngineStoppedError,
    HocketError,
    InvalidRequestError,
)
from hocket.models.moss_local.talker import STOP
from hocket.worker import references
from hocket.worker.client import EngineClient, State
from hocket.worker.messages import (
    AskStats,
    Cancel,
    EngineSpec,
    OutMessage,
    decode_to_worker,
    encode,
)
from hocket.worker.stream import SpeechStream

CONFIG = EngineConfig(
    rows=8,
    strict=True,
    max_context_rows=2048,
    runaway=RunawayPolicy(multiple=0, loop_seconds=0, silence_seconds=0),
    chunks=ChunkPolicy(steady_chunk_frames=8),
)
#: Of the codec, in Hz.
SAMPLE_RATE = 300
#: Frame limit for requests to the endless model.
LONG = 1500


@pytest.fixture(scope="module")
def endless(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden talker, except that it never stops: a logit of NaN is never drawn."""
    folder = tmp_path_factory.mktemp("endless") / "model"
    shutil.copytree(golden / "local_tiny", folder)
    weights = load_file(folder / "model.safetensors")
    weights["local_text_lm_head.weight"][STOP] = torch.nan
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def spec(endless: Path, golden: Path) -> EngineSpec:
    return EngineSpec(model=str(endless), codec=str(golden / "codec2_tiny"), config=CONFIG)


@pytest.fixture(scope="module")
def engine(spec: EngineSpec) -> Engine:
    """The same engine in this process."""
    return Engine.load(spec.model, spec.codec, config=spec.config)


@pytest.fixture(scope="module")
def endpoint(spec: EngineSpec) -> Iterator[str]:
    """A worker shared by all tests that leave it intact."""
    with tempfile.TemporaryDirectory(prefix="hocket-test-") as folder:
        address = f"ipc://{folder}/s"
        command = [sys.executable, "-m", "hocket.worker.process", address, spec.model_dump_json()]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            yield address
            process.terminate()
            assert process.wait(10) == 0


def with_client(endpoint: str, body: Callable[[EngineClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with await EngineClient.connect(endpoint) as client:
            await client.wait_ready(30)
            await body(client)

    asyncio.run(run())


def request(
    i: int = 0, frames: int = 30, reference: Reference | None = None, words: str | None = None
) -> SpeechRequest:
    return SpeechRequest(
        text=f"Text number {i}.",
        seed=i,
        max_frames=frames,
        reference=reference,
        reference_text=words,
    )


def tone(seconds: float, rate: int, channels: int = 1) -> AudioArray:
    time_S = np.arange(int(seconds * rate)) / rate
    samples = 0.3 * np.sin(2 * np.pi * 60 * time_S) * np.linspace(0.5, 1, len(time_S))
    return AudioArray(np.tile(samples.astype(np.float32), (channels, 1)), rate)


def streamed(engine: Engine, request: SpeechRequest) -> Speech:
    """Like `generate`, but in the chunks of a stream: with other shapes, the last bits of samples
    are others.
    """
    return joined(list(engine.stream(request)))


async def collect(stream: SpeechStream) -> Speech:
    return joined([chunk async for chunk in stream])


async def reach(client: EngineClient, state: State, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while client.state != state:
            await asyncio.sleep(0.01)


def joined(chunks: list[AudioChunk]) -> Speech:
    end = chunks[-1].end
    assert end is not None
    return Speech(
        np.concatenate([chunk.samples for chunk in chunks], axis=1),
        chunks[-1].sample_rate,
        np.concatenate([chunk.codes for chunk in chunks]),
        end.finish_reason,
        end.seed,
    )


def assert_same(got: Speech, expected: Speech) -> None:
    """Bit for bit."""
    assert (got.finish_reason, got.seed, got.sample_rate) == (
        expected.finish_reason,
        expected.seed,
        expected.sample_rate,
    )
    np.testing.assert_array_equal(got.codes, expected.codes)
    assert got.samples.shape == expected.samples.shape
    assert got.samples.tobytes() == expected.samples.tobytes()


def gone(pid: int) -> bool:
    """Over, whether or not its new parent has noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# ---- a worker that is well


def test_audio_is_that_of_an_engine_in_process(
    endpoint: str, engine: Engine, tmp_path: Path
) -> None:
    recording = tmp_path / "voice.wav"
    audio = tone(1.5, 8000)
    write_audio(recording, audio.samples, audio.sample_rate)
    codes = np.random.default_rng(0).integers(0, 64, (9, 12))
    requests = [
        *(request(i) for i in range(6)),
        request(6, reference=recording),
        request(7, reference=str(recording)),
        request(8, reference=recording.read_bytes()),
        request(9, reference=tone(1.0, 16000, channels=2)),
        request(10, reference=AudioArray(tone(1.0, 300).samples.astype(np.float64), 300)),
        request(11, reference=codes),
        request(12, reference=codes, words="What was said."),
        request(13, reference=recording, words="What was said."),
        SpeechRequest(
            text="Ein Satz.", language="German", instruction="leise", max_frames=9, seed=2**63 - 1,
            sampling=Sampling(temperature=0.7, top_k=5, repetition_penalty=1.3),
        ),
    ]  # fmt: skip
    expected = engine.generate_many(requests)

    async def body(client: EngineClient) -> None:
        got = await asyncio.gather(*map(client.generate, requests))
        streams = [await client.submit(item) for item in requests]
        pieces = await asyncio.gather(*map(collect, streams))
        for i, item in enumerate(requests):
            assert_same(got[i], expected[i])
            assert_same(pieces[i], streamed(engine, item))

    with_client(endpoint, body)


def test_front_ends_with_equal_ids_do_not_mix(endpoint: str, engine: Engine) -> None:
    expected = [streamed(engine, request(1, 60)), streamed(engine, request(2, 40))]

    async def body(client: EngineClient) -> None:
        async with await EngineClient.connect(endpoint) as other:
            await other.wait_ready(5)
            mine = await client.submit(request(1, 60), request_id="x")
            others = await other.submit(request(2, 40), request_id="x")
            with pytest.raises(InvalidRequestError, match="open already"):
                await client.submit(request(3), request_id="x")
            assert (await anext(mine)).request_id == "x"
            speeches = await asyncio.gather(collect(mine), collect(others))
        assert_same(speeches[1], expected[1])
        np.testing.assert_array_equal(
            speeches[0].codes, expected[0].codes[-len(speeches[0].codes) :]
        )
        assert speeches[0].finish_reason == "length"

    with_client(endpoint, body)


def test_cancel_frees_the_row_within_two_steps(endpoint: str, engine: Engine) -> None:
    expected = streamed(engine, request(1, 80))

    async def body(client: EngineClient) -> None:
        other = await client.submit(request(1, 80))
        stream = await client.submit(request(0, LONG))
        for _ in range(3):
            await anext(stream)
        stream.cancel()
        at_cancel = await client.stats()  # travels behind the cancel
        rest = [chunk async for chunk in stream]
        assert rest[-1].end is not None
        assert rest[-1].end.finish_reason == "cancelled"
        # The count when the worker sends the last chunk: the steps in between are those that
        # this request lived.
        while (after := await client.stats()).engine.scheduler.rows_free < CONFIG.rows - 1:
            assert after.engine.steps <= at_cancel.engine.steps + 2
        assert_same(await collect(other), expected)

        async with await client.submit(request(2, LONG)) as left:
            await anext(left)
        await client.drain(5)
        assert (await client.stats()).open_requests == 0

    with_client(endpoint, body)


def test_a_reader_that_sleeps_is_bounded_and_alone_in_it(endpoint: str, engine: Engine) -> None:
    expected = streamed(engine, request(1, 80))

    async def body(_: EngineClient) -> None:
        async with await EngineClient.connect(endpoint, buffer_bytes=5000) as client:
            await client.wait_ready(5)
            slow = await client.submit(request(0, LONG))
            assert_same(await collect(await client.submit(request(1, 80))), expected)
            with pytest.raises(CapacityError, match="not read, the most is 5000"):
                await anext(slow)
            await client.drain(5)
            assert (await client.stats()).engine.scheduler.rows_free == CONFIG.rows

    with_client(endpoint, body)


def test_a_bad_request_fails_as_in_process_and_harms_no_other(
    endpoint: str, engine: Engine, tmp_path: Path
) -> None:
    folder, empty, text = tmp_path / "folder", tmp_path / "empty.wav", tmp_path / "text.wav"
    folder.mkdir()
    empty.touch()
    text.write_text("not audio")
    silence = AudioArray(np.zeros((1, 8000), np.float32), 8000)
    audio = tone(1, 800).samples
    references: list[Any] = [
        *(
            tmp_path / "missing.wav",
            str(tmp_path / "missing.npy"),
            folder,
            empty,
            text,
            b"",
            b"garbage",
        ),
        *(
            silence,
            tone(0.1, 8000),
            tone(61, 300),
            AudioArray(np.full((1, 800), np.nan, np.float32), 800),
        ),
        *(
            np.zeros((3, 12), np.float32),
            np.full((3, 12), -1),
            np.full((3, 12), 64),
            np.zeros((3, 2), np.int64),
        ),
        *(AudioArray(audio.astype(np.int16), 800), AudioArray(audio[0], 800)),
        *(AudioArray(audio, 0), AudioArray(audio, 2**70), AudioArray(audio, 800.5)),  # type: ignore[arg-type]
    ]
    bad = [
        SpeechRequest(text="x", voice="nobody"),
        SpeechRequest(text="x", task_type="Base"),
        SpeechRequest(text="long " * 2000),
        SpeechRequest(text="x", max_frames=4000),
        *(request(reference=reference) for reference in references),
    ]
    expected = streamed(engine, request(1, 80))

    async def body(client: EngineClient) -> None:
        good = await client.submit(request(1, 80))
        for item in bad:
            with pytest.raises(HocketError) as here:
                engine.generate(item)
            with pytest.raises(HocketError) as there:
                await client.generate(item)
            assert (type(there.value), there.value.param) == (type(here.value), here.value.param)
            assert str(there.value) == str(here.value)
        assert_same(await collect(good), expected)

    with_client(endpoint, body)


class Sent:
    """The messages that a client sends from now on."""

    def __init__(self, client: EngineClient) -> None:
        self.bytes = 0
        self.kinds: list[str] = []
        connection = client._connection
        assert connection is not None
        self._send = connection.send
        connection.send = self._note  # type: ignore[method-assign]

    def _note(self, message: OutMessage | Cancel | AskStats) -> None:
        frames = message if isinstance(message, list) else [encode(message)]
        self.bytes += sum(memoryview(frame).nbytes for frame in frames)
        self.kinds.append(type(decode_to_worker(zmq.Frame(frames[0]))).__name__)
        self._send(message)


def test_a_recording_that_was_heard_is_neither_decoded_nor_sent(
    endpoint: str, engine: Engine, tmp_path: Path
) -> None:
    audio = tone(5.0, 24_000)
    write_audio(tmp_path / "voice.wav", audio.samples, audio.sample_rate)
    content = (tmp_path / "voice.wav").read_bytes()
    expected = streamed(engine, request(1, 6, reference=content))

    async def body(client: EngineClient) -> None:
        cold = Sent(client)
        assert_same(await collect(await client.submit(request(1, 6, reference=content))), expected)
        assert cold.kinds == ["Prepare", "Submit"]
        assert cold.bytes > 2 * 5 * SAMPLE_RATE * 4
        for reference in (content, tmp_path / "voice.wav"):
            hot = Sent(client)
            with mock.patch.object(references, "prepare_reference") as prepare:
                stream = await client.submit(request(1, 6, reference=reference))
                assert_same(await collect(stream), expected)
            assert not prepare.called
            assert hot.kinds == ["Submit"]
            assert hot.bytes < 10_000
        stats = await client.stats()
        assert (stats.engine.reference_hits, stats.engine.reference_misses) == (0, 0)

    with_client(endpoint, body)


def test_a_recording_that_is_given_up_leaves_nothing_behind(endpoint: str, engine: Engine) -> None:
    async def body(client: EngineClient) -> None:
        tasks = [
            asyncio.create_task(client.submit(request(1, reference=tone(50.0 + i, 300))))
            for i in range(4)
        ]
        async with asyncio.timeout(20):
            while len(client._recordings) < 4:
                await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(20):
            while (stats := await client.stats()).open_requests or stats.engine.preparing:
                await asyncio.sleep(0.01)
        assert client._recordings == {}
        assert client.open_requests == 0
        assert_same(await client.generate(request(5)), engine.generate(request(5)))

    with_client(endpoint, body)


def test_no_request_ends_the_worker(endpoint: str, engine: Engine) -> None:
    """Requests of all kinds, most of them wrong: each is spoken or refused."""
    random = np.random.default_rng(7)
    audio = [tone(0.6, 8000), tone(0.1, 8000), AudioArray(np.zeros((1, 900), np.float32), 300)]
    voices: list[Any] = [
        *audio,
        b"",
        b"garbage",
        np.zeros((0, 12), np.int64),
        np.full((5, 12), 3),
        np.full((5, 40), 3),
        np.full((5, 12), 2**62),
        EncodedReference(),
        EncodedReference(np.full((5, 12), 10**9)),
        EncodedReference(np.full((2, 2), 1)),
        EncodedReference(None, np.ones(7, np.float32)),
        PreparedReference(np.ones((2, 240), np.float32), SAMPLE_RATE),
        PreparedReference(np.ones((2, 5), np.float32), SAMPLE_RATE),
        PreparedReference(np.ones((1, 240), np.float32), 7),
        "/no/such/file.npy",
        "\0",
        "x" * 5000,
    ]
    fields: dict[str, list[Any]] = {
        "voice": ["nobody", "default", "DEFAULT", "\0", "é" * 40, "\ud800", "{0}{name}"],
        "language": ["German", "{x}", ""],
        "task_type": ["Base", "CustomVoice"],
        "streaming_text": [True],
        "tokens": [1, 10**6],
        "max_frames": [1, 5, 10**6],
        "min_frames": [1, 5, 10**5],
        "seed": [0, 2**63 - 1],
        "text_front": [True, False],
        "reference_text": ["words", "{"],
    }

    async def ask(client: EngineClient, i: int) -> str:
        chosen = {
            name: values[random.integers(len(values))]
            for name, values in fields.items()
            if random.random() < 0.2
        }
        if random.random() < 0.6:
            count = 1 + (random.random() < 0.2)
            chosen["reference"] = [voices[random.integers(len(voices))] for _ in range(count)]
        texts = ["Words.", "x" * 30_000, "\x01", "{}", "👩‍👩‍👧"]
        chosen.setdefault("max_frames", 3)
        try:
            asked = SpeechRequest(text=texts[random.integers(len(texts))], **chosen)
        except ValueError:
            return "not a request"
        try:
            await client.generate(asked)
        except EngineStoppedError:
            raise
        except HocketError:
            return "refused"
        return "spoken"

    async def body(client: EngineClient) -> None:
        pid = client.pid
        outcomes = [await asyncio.gather(*(ask(client, i) for i in range(8))) for _ in range(25)]
        kinds = {kind: sum(row.count(kind) for row in outcomes) for kind in ("spoken", "refused")}
        assert min(kinds.values()) > 10, kinds
        assert client.pid == pid
        assert_same(await client.generate(request(5)), engine.generate(request(5)))

    with_client(endpoint, body)


# ---- workers that end


def test_sigkill_under_load_is_heard_at_once_and_service_comes_back(
    spec: EngineSpec, engine: Engine
) -> None:
    expected = engine.generate(request(5))

    async def fate(stream: SpeechStream) -> float:
        with pytest.raises(EngineStoppedError):
            async for _ in stream:
                pass
        return time.monotonic()

    async def run() -> None:
        async with (
            await EngineClient.start(spec) as client,
            await EngineClient.connect(client.endpoint) as other,
        ):
            assert client.state == "starting"
            with pytest.raises(EngineStoppedError, match="starting"):
                await client.submit(request())
            await client.wait_ready(30)
            first = client.pid
            await other.wait_ready(5)
            streams = [
                await front_end.submit(request(i, LONG))
                for i in range(4)
                for front_end in (client, other)
            ]
            for stream in streams:
                await anext(stream)
            fates = [asyncio.create_task(fate(stream)) for stream in streams]
            await asyncio.sleep(0)
            question = asyncio.create_task(client.stats())
            await asyncio.sleep(0)
            os.kill(first, signal.SIGKILL)
            killed = time.monotonic()
            assert max(await asyncio.gather(*fates)) - killed < 1.0
            await asyncio.gather(question, return_exceptions=True)
            assert client.state == other.state == "down"
            with pytest.raises(EngineStoppedError, match="down"):
                await client.submit(request())

            await client.wait_ready(30)
            second = client.pid
            await other.wait_ready(5)
            assert second != first
            assert not Path(f"/proc/{first}").exists()  # nor a zombie
            for front_end in (client, other):
                assert_same(await front_end.generate(request(5)), expected)

        await client.stop()  # once more does no harm
        assert client.state == "down"
        for pid in (first, second):
            assert not Path(f"/proc/{pid}").exists()
        assert not Path(client.endpoint.removeprefix("ipc://")).parent.exists()

    asyncio.run(run())


def test_a_worker_that_dies_while_it_reads_a_recording(spec: EngineSpec, engine: Engine) -> None:
    """Whoever waits for the recording hears of it at once, and it is read again by the next."""
    asked = request(3, 6, reference=tone(2.0, 300))
    expected = engine.generate(asked)

    async def run() -> None:
        async with await EngineClient.start(spec) as client:
            await client.wait_ready(30)
            os.kill(client.pid, signal.SIGSTOP)
            waiting = [asyncio.create_task(client.generate(asked)) for _ in range(3)]
            async with asyncio.timeout(20):
                while not client._recordings:
                    await asyncio.sleep(0.001)
            os.kill(client.pid, signal.SIGKILL)
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(error, EngineStoppedError)
            assert client.open_requests == 0
            await client.wait_ready(30)
            assert_same(await client.generate(asked), expected)
            assert client.references.misses == 2

    asyncio.run(run())


def test_sigterm_lets_open_requests_finish(spec: EngineSpec, engine: Engine) -> None:
    expected = streamed(engine, request(3, 100))

    async def run() -> None:
        async with await EngineClient.start(spec) as client:
            await client.wait_ready(30)
            folder = Path(client.endpoint.removeprefix("ipc://")).parent
            assert folder.stat().st_mode & 0o777 == 0o700
            speech = asyncio.create_task(collect(await client.submit(request(3, 100))))
            await asyncio.sleep(0.1)
            os.kill(client.pid, signal.SIGTERM)
            await reach(client, "draining", 1)
            with pytest.raises(EngineStoppedError, match="draining"):
                await client.submit(request())
            assert_same(await speech, expected)
            await reach(client, "down", 5)

    asyncio.run(run())


@pytest.mark.slow
def test_workers_are_replaced_when_they_hang_and_when_they_leave(
    spec: EngineSpec, engine: Engine
) -> None:
    expected = engine.generate(request(5))

    async def run() -> None:
        async with await EngineClient.start(spec, hang_seconds=2.0) as client:
            await client.wait_ready(30)
            first = client.pid
            stream = await client.submit(request(0, LONG))
            os.kill(first, signal.SIGSTOP)
            stopped = time.monotonic()
            with pytest.raises(EngineStoppedError):
                async for _ in stream:
                    pass
            assert time.monotonic() - stopped < 4
            await client.wait_ready(30)
            second = client.pid
            assert_same(await client.generate(request(5)), expected)
            # The client was not stopped, so a worker that exits with code 0 is replaced as well.
            os.kill(second, signal.SIGTERM)
            await reach(client, "down", 5)
            await client.wait_ready(30)
            third = client.pid
            assert_same(await client.generate(request(5)), expected)
            assert len({first, second, third}) == 3

    asyncio.run(run())


def test_stop_while_the_worker_loads(spec: EngineSpec) -> None:
    async def run() -> Path:
        client = await EngineClient.start(spec)
        await asyncio.sleep(0.2)
        await client.stop()
        return Path(client.endpoint.removeprefix("ipc://")).parent

    assert not asyncio.run(run()).exists()


def test_a_model_that_does_not_load_says_why(tmp_path: Path) -> None:
    async def run() -> None:
        async with await EngineClient.start(EngineSpec(model=str(tmp_path))) as client:
            with pytest.raises(CheckpointError, match=tmp_path.name):
                await client.wait_ready(30)
            assert client.state == "down"
            with pytest.raises(CheckpointError):
                await client.submit(request())

    asyncio.run(run())


def test_the_worker_leaves_with_its_parent(spec: EngineSpec) -> None:
    script = """
        import asyncio, sys
        from hocket.worker.client import EngineClient, State
        from hocket.core import SpeechRequest
        from hocket.worker.messages import EngineSpec

        async def main():
            client = await EngineClient.start(EngineSpec.model_validate_json(sys.argv[1]))
            await client.wait_ready(30)
            stream = await client.submit(SpeechRequest(text="x", max_frames=1500))
            await anext(stream)
            print(client.pid, client.endpoint, flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script), spec.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        folder = Path(address.removeprefix("ipc://")).parent
        assert folder.exists()
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 2
    while not gone(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone(int(pid))
    assert not folder.exists()
