"""What a recording that came before costs the front end, beside a named voice.

    python -m benchmarks.host.recording_overhead [--requests 200] [--seconds 5]

Prints one JSON line: processor time of the front end's process for a request with an uploaded
voice, and for one with the same recording inline, a 24 kHz WAV as a data: address. Requests of
both kinds take turns in blocks, so that both see the same machine. A worker in a process of its own
runs a fake engine; the client has another.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import uvloop
import zmq
from tests.support.fake_engine import FakeEngine, silence

from hocket.audio.io import FORMATS, encode_audio
from hocket.bench.environment import cores, cpu_name, python_version
from hocket.checkpoint.voices import ONLY_DEFAULT
from hocket.server.app import create_app
from hocket.server.serve import uvicorn_server
from hocket.server.settings import ServerSettings
from hocket.server.voice_store import VoiceStore
from hocket.worker.pool import EnginePool

BLOCK = 20
RATE = 48_000


def work(endpoint: str) -> None:
    """A worker with a fake engine, until it is killed."""
    from hocket.worker.worker import Worker, open_socket

    engine = FakeEngine(
        rows=64,
        channels=2,
        sample_rate=RATE,
        frame_samples=3840,
        length=lambda request: 1,
        sound=silence,
    )
    with zmq.Context() as context, open_socket(context, endpoint) as socket:
        Worker(engine, socket).run()


def recording(seconds: float) -> bytes:
    samples_CS = 0.1 * np.random.default_rng(0).standard_normal((1, round(24_000 * seconds)))
    return encode_audio(FORMATS[".wav"], samples_CS.astype(np.float32), 24_000)


def ask(port: int, seconds: float) -> None:
    """Send the requests that standard input names, one a line; answer each block with a line."""
    audio = recording(seconds)
    inline = "data:audio/wav;base64," + base64.b64encode(audio).decode()
    bodies = {
        name: json.dumps({"input": "Hello.", "response_format": "pcm"} | fields).encode()
        for name, fields in {
            "named": {"voice": "anna"},
            "inline": {"reference_audio": inline, "reference_text": "words"},
        }.items()
    }
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for line in sys.stdin:
        for _ in range(BLOCK):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/audio/speech", bodies[line.strip()], headers)
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, content
        print("done", flush=True)


async def measure(requests: int, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="hocket-") as name:
        folder = Path(name)
        endpoint = f"ipc://{folder}/s"
        worker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.host.recording_overhead", "--work", endpoint]
        )
        try:
            async with await EnginePool.connect([endpoint], 0) as pool:
                info = await pool.wait_ready(60)
                settings = ServerSettings(port=0)
                voices = VoiceStore(folder / "voices", ONLY_DEFAULT)
                audio = recording(seconds)
                prepared = await pool.read(audio)
                encoded = await pool.prepare(prepared)
                draft = voices.draft("anna", len(audio), transcript="words")
                voices.save(draft, prepared, encoded, info.reference_id)
                server = uvicorn_server(create_app(pool, settings, voices), settings)
                server.config.port = 0
                serving = asyncio.create_task(server.serve())
                while not server.started:
                    await asyncio.sleep(0.01)
                port = server.servers[0].sockets[0].getsockname()[1]
                found = await asyncio.to_thread(_drive, port, requests, seconds)
                server.should_exit = server.force_exit = True
                await serving
                return found
        finally:
            worker.kill()
            worker.wait()


def _drive(port: int, requests: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.host.recording_overhead", "--ask", str(port)]
    client = subprocess.Popen(
        [*command, "--seconds", str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdin is not None
    assert client.stdout is not None

    def block(kind: str) -> float:
        assert client.stdin is not None
        assert client.stdout is not None
        started = time.process_time()
        client.stdin.write(f"{kind}\n")
        client.stdin.flush()
        assert client.stdout.readline() == "done\n"
        return time.process_time() - started

    taken: dict[str, list[float]] = {"named": [], "inline": []}
    for kind in taken:
        block(kind)
    for _ in range(max(1, requests // BLOCK)):
        for kind, times in taken.items():
            times.append(block(kind) / BLOCK)
    client.stdin.close()
    client.wait()
    return {f"{kind}_ms": round(1e3 * float(np.median(times)), 3) for kind, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--work")
    parser.add_argument("--ask", type=int)
    given = parser.parse_args()
    if given.work is not None:
        work(given.work)
        return
    if given.ask is not None:
        ask(given.ask, given.seconds)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(given.requests, given.seconds))
    named, inline = found["named_ms"], found["inline_ms"]
    more = {"more_ms": round(inline - named, 3), "ratio": round(inline / named, 2)}
    machine = {"cpu": cpu_name(), "cores": cores(), "python": python_version()}
    print(json.dumps(found | more | machine))


if __name__ == "__main__":
    main()
