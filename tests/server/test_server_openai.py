"""Real clients against `hocket serve` as users start it: a process on loopback, with a babbling
model.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import av
import httpx
import numpy as np
import openai
import pytest

from hocket.audio.io import FORMATS, encode_audio
from tests.support.loopback import wait_until

Format = Literal["wav", "pcm", "mp3", "opus", "flac", "aac"]

#: The model goes on for 7.7 s with this seed.
TEXT, SEED = "Hello from a real client.", 45
KEY = "sk-test"
#: Samples of a coding frame at 24 kHz (opus: at 48), by which a body may be longer than it should
#: be.
CODING_FRAMES = {"wav": 1, "pcm": 1, "mp3": 576, "opus": 960, "flac": 1, "aac": 1024}


@contextmanager
def hocket_serve(home: Path, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A ready server: its address and its process."""
    command = [sys.executable, "-W", "error", "-m", "hocket", "serve", "--port", "0", *arguments]
    environment = os.environ | {
        "HOCKET_HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "HOCKET_API_KEY": KEY,
    }
    log = (home / "log").open("w")
    with (
        log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        ) as process,
    ):
        try:
            assert process.stdout is not None
            address = ""
            for line in process.stdout:
                if line.startswith("address"):
                    address = line.split()[1]
                if line.startswith("ready"):
                    break
            assert address, (home / "log").read_text()
            yield address, process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def address(home: Path, babble: Path) -> Iterator[str]:
    settings = (
        "server.model_name=babble",
        "engine.rows=4",
        "engine.max_context_rows=1024",
        "server.drain_seconds=10",
    )
    with hocket_serve(home, str(babble), *(f"--set={setting}" for setting in settings)) as (url, _):
        yield url


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=address, headers={"authorization": f"Bearer {KEY}"}, timeout=60
    ) as made:
        yield made


def seconds_of(body: bytes, response_format: str, rate: int, channels: int) -> float:
    if response_format == "pcm":
        return len(body) / (2 * channels * rate)
    with av.open(io.BytesIO(body), "r") as container:
        (stream,) = container.streams.audio
        samples = sum(frame.samples for frame in container.decode(stream))
        assert (stream.rate, stream.channels) == (rate, channels)
    return samples / rate


# ---- the OpenAI SDK


@pytest.mark.parametrize("response_format", CODING_FRAMES)
def test_the_sdk_whole_and_streaming(client: openai.OpenAI, response_format: Format) -> None:
    def speak(**extra: Any) -> Any:
        return client.audio.speech.with_raw_response.create(
            model="tts-1",
            voice="default",
            input=TEXT,
            response_format=response_format,
            extra_body={"seed": SEED, **extra},
        )

    whole = speak(stream=False)
    rate, channels = int(whole.headers["x-sample-rate"]), int(whole.headers["x-channels"])
    promised = float(whole.headers["x-audio-seconds"])
    assert promised > 0.5
    assert whole.headers["x-finish-reason"] == "stop"
    tolerance = CODING_FRAMES[response_format] / rate
    assert seconds_of(whole.content, response_format, rate, channels) == pytest.approx(
        promised, abs=tolerance
    )
    with client.audio.speech.with_streaming_response.create(
        model="babble",
        voice="default",
        input=TEXT,
        response_format=response_format,
        extra_body={"seed": SEED},
    ) as answer:
        assert "content-length" not in answer.headers
        assert answer.headers["x-seed"] == str(SEED)
        pieces = list(answer.iter_bytes())
    streamed = b"".join(pieces)
    assert len(pieces) > 1
    assert seconds_of(streamed, response_format, rate, channels) == pytest.approx(
        promised, abs=tolerance
    )
    if response_format in ("pcm", "wav"):
        skip = 44 if response_format == "wav" else 0
        levels = [
            np.frombuffer(body[skip:], "<i2").astype(int) for body in (streamed, whole.content)
        ]
        # Chunks of other sizes are summed up in another order, which shows in the last bit of a few
        # samples.
        assert np.abs(levels[0] - levels[1]).max() <= 1


def test_the_sdk_writes_a_file(client: openai.OpenAI, tmp_path: Path) -> None:
    # A seed, since a random one may end the speech before its first frame.
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="default", input=TEXT, extra_body={"seed": 5}
    ) as answer:
        answer.stream_to_file(tmp_path / "speech.mp3")
    with av.open(str(tmp_path / "speech.mp3")) as container:
        assert container.format.name == "mp3"


def test_the_sdk_understands_our_errors(client: openai.OpenAI, address: str) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.audio.speech.create(model="tts-1", voice="nobody", input=TEXT)
    assert (bad.value.param, bad.value.type, bad.value.code) == (
        "voice",
        "invalid_request_error",
        "invalid_request",
    )
    with pytest.raises(openai.NotFoundError):
        client.audio.speech.create(model="gpt-9", voice="default", input=TEXT)
    with (
        pytest.raises(openai.AuthenticationError),
        openai.OpenAI(base_url=f"{address}/v1", api_key="no") as stranger,
    ):
        stranger.audio.speech.create(model="tts-1", voice="default", input=TEXT)
    assert [model.id for model in client.models.list()] == ["babble"]


def test_many_at_once_are_each_their_own(client: openai.OpenAI, address: str) -> None:
    async def run() -> list[bytes]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as many:
            answers = await asyncio.gather(
                *(
                    many.audio.speech.create(
                        model="tts-1",
                        voice="default",
                        input=f"Text number {i % 4}.",
                        response_format="pcm",
                        extra_body={"seed": i % 4, "max_new_tokens": 20},
                    )
                    for i in range(12)
                )
            )
            return [answer.content for answer in answers]

    bodies = asyncio.run(run())
    lengths = [len(body) for body in bodies]
    assert lengths == lengths[:4] * 3
    assert len(set(bodies[:4])) == 4


# ---- curl


def test_curl(address: str, tmp_path: Path) -> None:
    url = f"{address}/v1/audio/speech"
    done = subprocess.run(
        [
            *("curl", "-sS", "--fail-with-body", "-D", "-", "-o", str(tmp_path / "a.wav"), url),
            *("-H", f"Authorization: Bearer {KEY}", "-H", "Content-Type: application/json"),
            *("-d", json.dumps({"input": TEXT, "response_format": "wav", "seed": SEED})),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("HTTP/1.1 200 OK")
    assert "x-sample-rate: 24000" in done.stdout
    body = (tmp_path / "a.wav").read_bytes()
    assert body[:4] + body[8:16] == b"RIFFWAVEfmt "
    assert body[4:8] == body[40:44] == b"\xff\xff\xff\xff"  # a stream's sizes are not known


# ---- voices and the codec, through the real worker


def recording() -> bytes:
    time_S = np.arange(24_000) / 24_000
    tone = 0.3 * np.sin(2 * np.pi * 220 * time_S) * (1 + 0.5 * np.sin(2 * np.pi * 5 * time_S))
    return encode_audio(FORMATS[".wav"], tone.astype(np.float32)[None], 24_000)


def test_an_uploaded_voice_speaks(http: httpx.Client) -> None:
    fields = {"input": TEXT, "seed": SEED, "response_format": "pcm", "max_new_tokens": 10}
    plain = http.post("/v1/audio/speech", json=fields).content
    made = http.post(
        "/v1/audio/voices", files={"audio_sample": ("a.wav", recording())}, data={"name": "tone"}
    )
    assert made.status_code == 200, made.text
    named = http.post("/v1/audio/speech", json={**fields, "voice": "tone"})
    assert named.status_code == 200, named.text
    assert named.content != plain
    # The voice's codes are those of the recording.
    inline = "data:audio/wav;base64," + base64.b64encode(recording()).decode()
    assert (
        http.post("/v1/audio/speech", json={**fields, "ref_audio": "tone"}).content == named.content
    )
    cloned = http.post("/v1/audio/speech", json={**fields, "ref_audio": inline, "voice": "whoever"})
    assert cloned.status_code == 200
    assert http.delete("/v1/audio/voices/tone").status_code == 200
    assert http.post("/v1/audio/speech", json={**fields, "voice": "tone"}).status_code == 400


def test_codes_to_audio_and_back_beside_speech(http: httpx.Client) -> None:
    inline = "data:audio/wav;base64," + base64.b64encode(recording()).decode()
    encoded = http.post("/v1/audio/tokens/encode", json={"audio": inline})
    document = encoded.json()
    assert encoded.status_code == 200, document
    assert (document["frames"], len(document["codes"])) == (13, 13)
    decoded = http.post(
        "/v1/audio/tokens/decode", json={"codes": document["codes"], "response_format": "wav"}
    )
    assert decoded.status_code == 200, decoded.text
    assert seconds_of(decoded.content, "wav", 24_000, 1) == pytest.approx(13 * 0.08)
    wrong = http.post("/v1/audio/tokens/decode", json={"codes": [[10**6]]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "codes")
    many = http.post("/v1/audio/tokens/encode", json={"audio": inline, "codebooks": 999})
    assert (many.status_code, many.json()["error"]["param"]) == (400, "codebooks")


# ---- leaving


def rows_in_use(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    rows = [
        "rows_waiting",
        "rows_prefilling",
        "rows_running",
        "references_preparing",
        "open_requests",
    ]
    return sum(float(numbers[f'hocket_engine{{name="{name}",worker="0"}}']) for name in rows)


def test_40_random_disconnects_leave_no_rows(http: httpx.Client, address: str) -> None:
    draw = random.Random(1)
    url = urlsplit(address)
    content = json.dumps({"input": TEXT * 20, "response_format": "pcm"}).encode()
    head = (
        f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    for _ in range(5):
        sockets = [socket.create_connection((url.hostname, url.port)) for _ in range(8)]
        for each in sockets:
            each.sendall(head.encode() + content)
        for each in sockets:
            time.sleep(draw.random() * 0.05)
            each.close()
    wait_until(lambda: rows_in_use(http) == 0, 10)
    assert http.get("/health").json()["speaking"] == 0
    assert (
        http.post(
            "/v1/audio/speech", json={"input": TEXT, "max_new_tokens": 5, "seed": SEED}
        ).status_code
        == 200
    )


def test_sigterm_lets_open_requests_finish(tmp_path: Path, babble: Path) -> None:
    settings = ("--set=engine.rows=2", "--set=engine.max_context_rows=1024")
    with hocket_serve(tmp_path, str(babble), *settings) as (address, process):
        bodies: list[int] = []
        headers = {"authorization": f"Bearer {KEY}"}

        def speak() -> None:
            fields = {"input": TEXT, "response_format": "pcm", "seed": SEED}
            answer = httpx.post(
                f"{address}/v1/audio/speech", json=fields, headers=headers, timeout=60
            )
            bodies.append(len(answer.content) if answer.status_code == 200 else 0)

        threads = [threading.Thread(target=speak) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: httpx.get(f"{address}/health").json()["waiting"] == 2)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert process.wait(30) == 0
        assert len(bodies) == 4
        assert len(set(bodies)) == 1
        assert bodies[0] > 0
    log = (tmp_path / "log").read_text()
    assert "event=drain" in log
    assert "Traceback" not in log
    assert TEXT not in log


def test_sigterm_lets_a_long_text_finish_all_its_pieces(tmp_path: Path, babble: Path) -> None:
    with hocket_serve(tmp_path, str(babble), "--set=server.segment_characters=40") as (
        address,
        process,
    ):
        fields = {
            "input": "A sentence of some length goes here. " * 6,
            "response_format": "pcm",
            "seed": SEED,
        }
        headers = {"authorization": f"Bearer {KEY}"}
        url = f"{address}/v1/audio/speech"
        whole = httpx.post(url, json=fields, headers=headers, timeout=60).content
        with httpx.stream("POST", url, json=fields, headers=headers, timeout=60) as answer:
            parts = answer.iter_bytes()
            length = len(next(parts))
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(f"{address}/health").json()["draining"])
            refused = httpx.post(url, json=fields, headers=headers, timeout=60)
            length += sum(map(len, parts))
        assert refused.status_code == 503
        assert length == len(whole) > 0
        assert process.wait(30) == 0


def test_two_engines_behind_one_front_end(tmp_path: Path) -> None:
    engines = ("engine.rows=2", "engine.max_context_rows=1024", "engine.strict=true")
    settings = ("--workers=2", *(f"--set={setting}" for setting in engines))
    fields = {
        "input": TEXT,
        "response_format": "pcm",
        "seed": SEED,
        "min_new_tokens": 40,
        "max_new_tokens": 40,
    }
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        hocket_serve(tmp_path, *settings) as (address, process),
        httpx.Client(base_url=address, timeout=120) as http,
    ):

        def speak() -> httpx.Response:
            return httpx.post(
                f"{address}/v1/audio/speech", json=fields, headers=headers, timeout=120
            )

        def workers(name: str) -> list[Any]:
            return [worker[name] for worker in http.get("/health").json()["workers"]]

        assert http.get("/health").json()["rows"] == 4
        with ThreadPoolExecutor(4) as threads:
            speaking = [threads.submit(speak) for _ in range(4)]
            wait_until(lambda: workers("open_requests") == [2, 2], 30)
            bodies = {answer.result().content for answer in speaking}
            assert len(bodies) == 1, "the same seed is another speech in the other engine"
            page = http.get("/metrics").text
            assert {f'hocket_engine{{name="ready",worker="{i}"}} 1.0' for i in range(2)} <= set(
                page.splitlines()
            )

            # One dies: its two requests fail, the other two do not notice, and service goes on.
            victim = int(
                Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
            )
            failed = [threads.submit(failing, speak) for _ in range(4)]
            wait_until(lambda: workers("open_requests") == [2, 2], 30)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: "down" in workers("status"), 30)
            health = http.get("/health")
            assert (health.status_code, health.json()["rows"]) == (200, 2)
            assert sorted(answer.result() for answer in failed) == [False, False, True, True]
            assert speak().content in bodies
        wait_until(lambda: workers("status") == ["ready", "ready"], 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def failing(speak: Callable[[], httpx.Response]) -> bool:
    """Whether the response is not a complete 200."""
    try:
        return speak().status_code != 200
    except httpx.RemoteProtocolError:
        return True
