"""Recordings over HTTP, on the golden checkpoints: one that was heard before costs no decoding, no
encoding and no samples on the wire, whichever way it comes, and sounds the same.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.server
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
import zmq

from hocket.audio.io import FORMATS, encode_audio
from hocket.audio.reference import prepare_reference
from hocket.config import EngineConfig
from hocket.engine.engine import Engine
from hocket.engine.references.encoder import ReferenceEncoder
from hocket.server.app import create_app
from hocket.server.settings import FetchPolicy, ServerSettings
from hocket.worker import references
from hocket.worker.connection import Connection
from hocket.worker.messages import Hello, OutMessage, decode_to_worker
from hocket.worker.pool import EnginePool
from hocket.worker.worker import Worker, open_socket
from tests.support import tiny_engine, tiny_qwen3
from tests.support.loopback import new_store

CONFIG = tiny_engine.STRICT.model_copy(update={"rows": 4})
RECORDING = encode_audio(FORMATS[".wav"], tiny_qwen3.voice(1, 5.0).samples, tiny_qwen3.SAMPLE_RATE)
INLINE = "data:audio/wav;base64," + base64.b64encode(RECORDING).decode()


def moss(config: EngineConfig) -> Engine:
    return tiny_engine.engine(config, tiny_engine.endless_talker())


def qwen3(config: EngineConfig) -> Engine:
    return tiny_engine.engine(config, tiny_qwen3.endless_talker())


FAMILIES: list[Callable[[EngineConfig], Engine]] = [moss, qwen3]


class Counted:
    """What a request has cost so far."""

    def __init__(self) -> None:
        self.decoded = 0
        self.encoded = 0
        self.kinds: list[str] = []
        self.sent_bytes = 0

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count at the decoder, at the engine's encoder, and on the wire."""
        send, submit = Connection.send, ReferenceEncoder.submit

        def count_sent(connection: Connection, message: Any) -> None:
            if isinstance(message, list):
                self._note(message)
            send(connection, message)

        def count_decoded(*given: Any, **more: Any) -> Any:
            self.decoded += 1
            return prepare_reference(*given, **more)

        def count_encoded(*given: Any, **more: Any) -> Any:
            self.encoded += 1
            return submit(*given, **more)

        with (
            mock.patch.object(Connection, "send", count_sent),
            mock.patch.object(references, "prepare_reference", count_decoded),
            mock.patch.object(ReferenceEncoder, "submit", count_encoded),
        ):
            yield

    def _note(self, message: OutMessage) -> None:
        header = decode_to_worker(zmq.Frame(message[0]))
        if isinstance(header, Hello):
            return
        self.kinds.append(type(header).__name__)
        self.sent_bytes += sum(memoryview(frame).nbytes for frame in message)

    def take(self) -> tuple[int, int, list[str], int]:
        """Since the last call: decoded, encoded, messages, bytes."""
        taken = self.decoded, self.encoded, self.kinds, self.sent_bytes
        self.decoded, self.encoded, self.kinds, self.sent_bytes = 0, 0, [], 0
        return taken


@contextlib.contextmanager
def working(engine: Engine) -> Iterator[str]:
    """A worker on a thread; its endpoint."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with tempfile.TemporaryDirectory(prefix="hocket-test-") as folder:
        endpoint = f"ipc://{folder}/s"
        socket = open_socket(context, endpoint)
        worker = Worker(engine, socket, drain_seconds=0.0)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield endpoint
        finally:
            worker.drain()
            thread.join(20)
            socket.close(linger=0)
            context.destroy(linger=0)
            assert not thread.is_alive()


@contextlib.contextmanager
def web_server(content: bytes) -> Iterator[str]:
    """Serves `content` at an address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # its name is the library's
            self.send_response(200)
            self.send_header("Content-Type", "audio/wav")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/voice.wav"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def with_server(
    engine: Engine, folder: Path, body: Callable[[httpx.AsyncClient], Awaitable[None]]
) -> None:
    """An app around a worker with `engine`; its voices are in `folder`, as are its files."""
    fetch = FetchPolicy(allow_urls=True, allow_private=True, files_folder=folder)

    async def run(endpoint: str) -> None:
        async with await EnginePool.connect([endpoint], 0) as pool:
            await pool.wait_ready(20)
            app = create_app(pool, ServerSettings(fetch=fetch), new_store(folder))
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost", timeout=60
            ) as client:
                await body(client)

    with working(engine) as endpoint:
        asyncio.run(run(endpoint))


async def spoken(client: httpx.AsyncClient, **fields: Any) -> bytes:
    body = {"input": "Hello.", "response_format": "pcm", "stream": False, "seed": 1}
    answer = await client.post("/v1/audio/speech", json=body | {"max_new_tokens": 6} | fields)
    assert answer.status_code == 200, answer.text
    assert answer.content
    return answer.content


async def upload(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.post(
        "/v1/audio/voices",
        data={"name": name, "ref_text": "one voice"},
        files={"audio_sample": ("a.wav", RECORDING, "audio/wav")},
    )
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recording_is_prepared_once_whichever_way_it_comes(
    family: Callable[[EngineConfig], Engine], tmp_path: Path
) -> None:
    (tmp_path / "voice.wav").write_bytes(RECORDING)
    counted = Counted()

    async def body(client: httpx.AsyncClient) -> None:
        first = await spoken(client, reference_audio=INLINE, reference_text="one voice")
        decoded, encoded, kinds, sent_bytes = counted.take()
        assert (decoded, encoded, kinds) == (1, 1, ["Prepare", "Submit"])
        for source in (INLINE, address, "file:voice.wav", "voice.wav/../voice.wav"):
            again = await spoken(client, reference_audio=source, reference_text="one voice")
            decoded, encoded, kinds, hot_bytes = counted.take()
            assert (decoded, encoded, kinds) == (0, 0, ["Submit"]), source
            assert hot_bytes < sent_bytes / 2
            assert hot_bytes < 12_000
            assert again == first
        alone = await spoken(client, reference_audio=INLINE)
        assert counted.take()[:3] == (0, 0, ["Submit"])
        assert alone != first
        page = (await client.get("/metrics")).text
        counted.take()
        assert 'hocket_references{name="hits"} 5.0' in page
        assert 'hocket_references{name="misses"} 1.0' in page
        # At the same time, two new ones.
        other = encode_audio(FORMATS[".wav"], tiny_qwen3.voice(2, 2.0).samples, 24_000)
        (tmp_path / "other.wav").write_bytes(other)
        same = await asyncio.gather(
            *(spoken(client, reference_audio="file:other.wav") for _ in range(6))
        )
        assert len(set(same)) == 1
        decoded, encoded, kinds, _ = counted.take()
        assert (decoded, encoded, kinds.count("Prepare")) == (1, 1, 1)

    with web_server(RECORDING) as address, counted.counting():
        with_server(family(CONFIG), tmp_path, body)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_upload_is_hot_at_once_and_after_a_change_after_one_preparation(
    family: Callable[[EngineConfig], Engine], tmp_path: Path
) -> None:
    counted = Counted()
    heard: list[bytes] = []

    async def new(client: httpx.AsyncClient) -> None:
        await upload(client, "anna")
        assert counted.take()[1:3] == (1, ["Prepare"])
        for _ in range(2):
            heard.append(await spoken(client, voice="anna"))
            decoded, encoded, kinds, sent_bytes = counted.take()
            assert (decoded, encoded, kinds) == (0, 0, ["Submit"])
            assert sent_bytes < 12_000
        heard.append(await spoken(client, reference_audio="anna"))
        assert counted.take()[:3] == (0, 0, ["Submit"])
        heard.append(await spoken(client, reference_audio=INLINE, reference_text="one voice"))
        assert counted.take()[:3] == (1, 1, ["Prepare", "Submit"])

    async def changed(client: httpx.AsyncClient) -> None:
        for expected in ((1, 1, ["Prepare", "Submit"]), (0, 0, ["Submit"]), (0, 0, ["Submit"])):
            await spoken(client, voice="anna")
            assert counted.take()[:3] == expected

    async def restarted(client: httpx.AsyncClient) -> None:
        heard.append(await spoken(client, voice="anna"))
        assert counted.take()[:3] == (0, 0, ["Submit"])

    with counted.counting():
        with_server(family(CONFIG), tmp_path, new)
        with_server(family(CONFIG.model_copy(update={"strict": False})), tmp_path, changed)
        with_server(family(CONFIG), tmp_path, restarted)
    assert len(set(heard)) == 1, "named, given by name, inline, and after a restart"


@pytest.mark.parametrize("family", FAMILIES)
def test_refusals_are_the_same_cold_and_hot(
    family: Callable[[EngineConfig], Engine], tmp_path: Path
) -> None:
    async def refused(client: httpx.AsyncClient, **fields: Any) -> tuple[int, str, str]:
        answer = await client.post("/v1/audio/speech", json={"input": "Hello."} | fields)
        error = answer.json()["error"]
        return answer.status_code, error["param"], error["message"]

    async def body(client: httpx.AsyncClient) -> None:
        short = encode_audio(FORMATS[".wav"], tiny_qwen3.voice(1, 0.1).samples, 24_000)
        silent = encode_audio(FORMATS[".wav"], 0 * tiny_qwen3.voice(1, 1.0).samples, 24_000)
        for content, words in ((short, "lasts 0.10 s"), (silent, "is silent"), (b"no", "not an")):
            address = "data:audio/wav;base64," + base64.b64encode(content).decode()
            answers = [await refused(client, ref_audio=address) for _ in range(2)]
            assert answers[0] == answers[1]
            assert answers[0][:2] == (400, "ref_audio")
            assert words in answers[0][2]
        # What the model refuses is the same, too, when the recording is known.
        cold = await refused(client, ref_audio=INLINE, max_new_tokens=100_000)
        hot = await refused(client, ref_audio=INLINE, max_new_tokens=100_000)
        assert cold == hot
        assert cold[:2] == (400, "max_new_tokens")

    with_server(family(CONFIG), tmp_path, body)
