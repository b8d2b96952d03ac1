"""Several HTTP processes of one server: limits, voices and metrics are one, and a process that dies
takes along only its own.

A process is reached by stopping the others while a client connects: all listen on one socket.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import msgspec
import numpy as np
import pytest

from hocket.audio.io import FORMATS, encode_audio
from hocket.audio.reference_cache import ReferenceCache
from hocket.checkpoint.voices import ONLY_DEFAULT
from hocket.config import ReferenceCacheConfig
from hocket.errors import ConfigError, EngineStoppedError, HocketError
from hocket.server.admission import Admission
from hocket.server.errors import ApiError
from hocket.server.processes.channel import Answer, GiveBack, Refusal, Start, Take, ToParent
from hocket.server.processes.remote import Parent
from hocket.server.processes.supervisor import HttpProcesses
from hocket.server.settings import Profile, ServerSettings
from tests.server.test_server_openai import KEY, SEED, hocket_serve
from tests.support.fake_engine import FakeEngine
from tests.support.loopback import wait_until
from tests.support.served_worker import serving

SPEECH, VOICES = "/v1/audio/speech", "/v1/audio/voices"


class Server:
    """Two HTTP processes around a worker of this process, with their parent on a thread."""

    def __init__(self, folder: Path, endpoint: str, settings: ServerSettings) -> None:
        self.settings = settings
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        (folder / "metrics").mkdir()
        self._start = Start(
            settings=settings.model_dump_json(),
            model_name="fake",
            voices_folder=str(folder / "voices"),
            voices=dict(ONLY_DEFAULT),
            endpoints=[endpoint],
            reference_cache="{}",
            metrics_folder=str(folder / "metrics"),
            number=0,
        )
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        async def run() -> None:
            self.admission = Admission(self.settings)
            self.processes = HttpProcesses(
                2,
                self.listener,
                self._start,
                self.admission,
                ReferenceCache(ReferenceCacheConfig()),
                close_seconds=7,
            )
            running = asyncio.create_task(self.processes.serve())
            await self.processes.wait_ready()
            self._ready.set()
            await running

        self._loop.run_until_complete(run())

    def __enter__(self) -> Server:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(lambda: self.processes.end(at_once=False))
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._loop.close()
        self.listener.close()


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    """An engine whose requests do not begin by themselves."""
    return FakeEngine(rows=4, prefill_seconds=1000)


@pytest.fixture(scope="module")
def server(engine: FakeEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    settings = ServerSettings(max_queue=2, api_keys=("a", "b"), max_open_per_key=5)
    with serving(engine) as worker, Server(folder, worker.endpoint, settings) as made:
        yield made


@contextmanager
def clients(port: int, pids: list[int], pid: int, count: int = 1) -> Iterator[list[HTTPConnection]]:
    """Connections that the process `pid` of `pids` has accepted."""
    others = [other for other in pids if other != pid]
    made = [HTTPConnection("127.0.0.1", port, timeout=30) for _ in range(count)]
    for other in others:
        os.kill(other, signal.SIGSTOP)
    try:
        for client in made:
            client.request("GET", "/health/live")
            assert client.getresponse().read() == b'{"live":true}'
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)
    try:
        yield list(made)
    finally:
        for client in made:
            client.close()


def ask(client: HTTPConnection, key: str = KEY, **fields: Any) -> None:
    body = {"input": "x" * 5, "response_format": "pcm", **fields}
    client.request("POST", SPEECH, json.dumps(body), _headers(key))


def get(client: HTTPConnection, path: str, method: str = "GET") -> str:
    client.request(method, path, headers=_headers("a"))
    return client.getresponse().read().decode()


def _headers(key: str) -> dict[str, str]:
    return {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}


def answered(asked: list[HTTPConnection]) -> list[HTTPConnection]:
    """Those with something to read."""
    readable = select.select([client.sock for client in asked], [], [], 0)[0]
    return [client for client in asked if client.sock in readable]


def is_open(server: Server, count: int) -> bool:
    return server.admission.open == count


def knows_six(client: HTTPConnection) -> bool:
    """Its process has heard of six requests at the worker."""
    return bool(health(client)["workers"][0]["open_requests"] == 6)


def is_draining(client: HTTPConnection) -> bool:
    return bool(health(client)["status"] == "draining")


def has_read(client: HTTPConnection) -> bool:
    """Its page has one recording that was read and two that were known."""
    counts = [metric(client, f'hocket_references{{name="{name}"}}') for name in ("misses", "hits")]
    return counts == [1, 2]


def error_of(client: HTTPConnection) -> str:
    """Code of the refusal that comes next."""
    refusal = client.getresponse()
    assert 1 <= int(refusal.headers["retry-after"]) <= 60
    return str(json.loads(refusal.read())["error"]["code"])


def health(client: HTTPConnection) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(get(client, "/health")))


def metric(client: HTTPConnection, name: str) -> float:
    lines = get(client, "/metrics").splitlines()
    (value,) = [line.split()[-1] for line in lines if line.startswith(f"{name} ")]
    return float(value)


def recording() -> bytes:
    sound = np.random.default_rng(0).normal(0, 0.1, (1, 24_000)).astype(np.float32)
    return encode_audio(FORMATS[".wav"], sound, 24_000)


def upload(client: HTTPConnection, name: str) -> str:
    form = httpx.Request(
        "POST",
        "http://localhost" + VOICES,
        data={"name": name},
        files={"audio_sample": ("a.wav", recording())},
    )
    headers = {"Authorization": "Bearer a", "Content-Type": form.headers["content-type"]}
    client.request("POST", VOICES, form.read(), headers)
    return client.getresponse().read().decode()


def test_voices_are_seen_by_all_at_once(server: Server) -> None:
    pids = server.processes.pids
    with (
        clients(server.port, pids, pids[0]) as (one,),
        clients(server.port, pids, pids[1]) as (other,),
    ):
        assert '"success":true' in upload(one, "anna")
        for client in (other, one):
            assert '"anna"' in get(client, VOICES)
        assert '"success":true' in get(other, f"{VOICES}/anna", "DELETE")
        for client in (other, one):
            assert '"anna"' not in get(client, VOICES)


def test_a_recording_is_read_once_for_all(server: Server, engine: FakeEngine) -> None:
    pids = server.processes.pids
    address = "data:audio/wav;base64," + base64.b64encode(recording()).decode()
    engine.prefill_seconds = 0
    with (
        clients(server.port, pids, pids[0]) as (one,),
        clients(server.port, pids, pids[1]) as (other,),
    ):
        for client in (one, other, other):
            ask(client, "a", reference_audio=address)
            assert len(client.getresponse().read()) == 2 * 1920 * 5
        for client in (one, other):
            wait_until(partial(has_read, client))
    engine.prefill_seconds = 1000


def test_limits_hold_across_processes_and_slots_come_back(
    server: Server, engine: FakeEngine
) -> None:
    pids = server.processes.pids
    first, second = pids
    refusals = f'hocket_requests_total{{route="{SPEECH}",status="503"}}'
    with (
        clients(server.port, pids, first, 10) as left,
        clients(server.port, pids, second, 10) as right,
    ):
        look, other_look = left.pop(), right.pop()
        # One key gets five places, wherever it asks: three here, two there.
        mine = [left.pop(), right.pop(), left.pop(), right.pop(), left.pop()]
        for count, client in enumerate(mine, 1):
            ask(client, "a")
            wait_until(partial(is_open, server, count))
        for client in (left[-1], right[-1]):
            ask(client, "a")
            assert error_of(client) == "rate_limit_exceeded"
        # The last place is for one of the twelve that come at once.
        late = left + right
        assert len(late) == 13
        for client in late:
            ask(client, "b")
        wait_until(lambda: len(answered(late)) == 12)
        refused = answered(late)
        assert {error_of(client) for client in refused} == {"overloaded"}
        (last,) = set(late) - set(refused)
        wait_until(lambda: engine.open_requests == 6)
        for client in (look, other_look):
            assert metric(client, "hocket_open_requests") == 6
            assert metric(client, "hocket_refused_requests") == 14
            assert metric(client, refusals) == 12
            wait_until(partial(knows_six, client))
            document = health(client)
            assert (document["speaking"], document["waiting"], document["rows"]) == (4, 2, 4)
        assert not answered([*mine, last])

        # A process that dies gives back what it held; its counts stay, others' requests go on.
        os.kill(first, signal.SIGKILL)
        kept = [client for client in (*mine, last) if client in [mine[1], mine[3], *right]]
        wait_until(lambda: server.admission.open == engine.open_requests == len(kept))
        assert metric(other_look, "hocket_open_requests") == len(kept)
        assert metric(other_look, refusals) == 12
        wait_until(lambda: len(set(server.processes.pids) - {first}) == 2)
        assert not answered(kept)
    wait_until(lambda: is_open(server, 0) and engine.open_requests == 0)
    (new,) = set(server.processes.pids) - {second}
    engine.prefill_seconds = 0
    with clients(server.port, server.processes.pids, new) as (client,):
        wait_until(lambda: health(client)["ready"])
        ask(client, "a")
        assert len(client.getresponse().read()) == 2 * 1920 * 5
        assert metric(client, refusals) == 12
        assert metric(client, refusals.replace("503", "200")) == 4
        assert has_read(client)


def test_a_process_that_cannot_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    start = Start(
        settings=ServerSettings().model_dump_json(),
        model_name="fake",
        voices_folder=str(file),
        voices={},
        endpoints=[],
        reference_cache="{}",
        metrics_folder=str(tmp_path),
        number=0,
    )

    def failure(start: Start) -> HocketError:
        async def run() -> None:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                admission = Admission(ServerSettings())
                await HttpProcesses(
                    2,
                    listener,
                    start,
                    admission,
                    ReferenceCache(ReferenceCacheConfig()),
                    close_seconds=1,
                ).serve()

        with pytest.raises(HocketError) as caught:
            asyncio.run(run())
        return caught.value

    error = failure(start)
    assert isinstance(error, ConfigError)
    assert "the folder of voices" in str(error)
    assert file.exists()  # where the others count stays
    monkeypatch.setattr(sys, "executable", "false")
    error = failure(start)
    assert isinstance(error, EngineStoppedError)
    assert "an HTTP process ended with code 1 before it served" in str(error)


def test_a_question_that_is_cancelled_holds_no_slot() -> None:
    async def run() -> None:
        sent: list[ToParent] = []
        slots = Parent(sent.append)

        async def hold() -> None:
            async with slots.slot("a", 4):
                raise AssertionError("it was cancelled")

        task = asyncio.create_task(hold())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sent == [Take(1, "a", 4), GiveBack(1)]
        slots.on_answer(Answer(1, None))
        refused = asyncio.create_task(slots.check("a", 4))
        await asyncio.sleep(0)
        refusal = Refusal(429, "no", "rate_limit_exceeded", 3)
        slots.on_answer(
            msgspec.msgpack.decode(msgspec.msgpack.encode(Answer(2, refusal)), type=Answer)
        )
        with pytest.raises(ApiError, match="no") as caught:
            await refused
        assert (caught.value.http_status, caught.value.retry_after_seconds) == (429, 3)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("device", "gpus", "wanted", "cores", "processes"),
    [
        ("cpu", None, None, 64, 1),
        ("cpu", None, 3, 2, 3),
        ("cuda", None, None, 64, 1),
        ("cuda", 8, None, 4, 1),
        ("cuda", 8, None, 16, 2),
        ("cuda", 8, None, 192, 8),
    ],
)
def test_how_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    gpus: int | None,
    wanted: int | None,
    cores: int,
    processes: int,
) -> None:
    monkeypatch.setattr("hocket.server.settings.usable_cores", lambda: cores)
    profile = Profile(device=device, gpus=gpus, server=ServerSettings(http_workers=wanted))
    assert profile.http_processes == processes


def test_a_process_ends_with_its_parent() -> None:
    ours, theirs = socket.socketpair()
    with theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        descriptors = (theirs.fileno(), listener.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "hocket.server.processes.process", *map(str, descriptors)],
            pass_fds=descriptors,
        )
    ours.close()
    assert process.wait(30) == 1


# ---- hocket serve


def children(pid: int) -> list[int]:
    """The HTTP processes of `hocket serve`."""
    ids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(each)
        for each in ids
        if b"server.processes" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]


def speak(client: HTTPConnection) -> Any:
    """Ask for 7.7 s of speech and read its beginning."""
    ask(client, input="Hello from a real client.", seed=SEED)
    answer = client.getresponse()
    assert answer.read(100)
    return answer


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_one_drain_for_all(babble: Path, tmp_path: Path) -> None:
    settings = ("--set=engine.rows=4", "--set=engine.max_context_rows=1024", "--http-workers=2")
    with hocket_serve(tmp_path, str(babble), *settings) as (address, process):
        pids, port = children(process.pid), urlsplit(address).port
        assert port is not None
        assert len(pids) == 2
        assert KEY.encode() not in b"".join(
            Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids
        )
        with (
            clients(port, pids, pids[0], 2) as (one, one_idle),
            clients(port, pids, pids[1], 2) as (other, other_idle),
        ):
            ending, answer = speak(one), speak(other)
            for pid in (process.pid, *pids):  # as a service manager does
                os.kill(pid, signal.SIGTERM)
            for idle in (one_idle, other_idle):
                wait_until(partial(is_draining, idle))
                ask(idle)
                assert error_of(idle) == "engine_unavailable"
            os.kill(pids[0], signal.SIGKILL)
            assert len(answer.read()) > 48_000
            assert process.wait(10) == 0
            ending.close()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_second_signal_ends_all_at_once(babble: Path, tmp_path: Path) -> None:
    settings = ("--set=engine.rows=4", "--set=engine.max_context_rows=1024", "--http-workers=2")
    with hocket_serve(tmp_path, str(babble), *settings, "--set=server.drain_seconds=60") as served:
        address, process = served
        pids, port = children(process.pid), urlsplit(address).port
        assert port is not None
        with (
            clients(port, pids, pids[0]) as (client,),
            clients(port, pids, pids[1]) as (idle,),
        ):
            answer = speak(client)
            process.send_signal(signal.SIGINT)
            wait_until(lambda: is_draining(idle))
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
            answer.close()
        assert "Traceback" not in (tmp_path / "log").read_text()
