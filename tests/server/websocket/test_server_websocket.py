"""The WebSocket over loopback, with the `websockets` client and a fake engine."""

from __future__ import annotations

import base64
import io
import json
import re
import socket as sockets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from hocket.core import SampleFormat
from hocket.errors import InvalidRequestError
from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from hocket.server.speech.synthesis import segment_seed
from tests.support.fake_engine import FRAME_SAMPLES, RATE, FakePool
from tests.support.loopback import new_store, on_loopback, wait_until
from tests.support.paths import REPOSITORY

Event = dict[str, Any]
FRAME_BYTES = 2 * FRAME_SAMPLES
PAUSE_BYTES = 2 * round(RATE * 0.15)


@contextmanager
def serving(tmp_path: Path, engine: FakePool, **settings: Any) -> Iterator[str]:
    app = create_app(engine, ServerSettings(**settings), new_store(tmp_path))
    with on_loopback(app) as address:
        yield address.replace("http", "ws") + "/v1/audio/speech/stream"


@pytest.fixture
def engine() -> FakePool:
    return FakePool()


@pytest.fixture
def url(tmp_path: Path, engine: FakePool) -> Iterator[str]:
    with serving(tmp_path, engine) as address:
        yield address


@contextmanager
def session(url: str, **start: Any) -> Iterator[ClientConnection]:
    """A socket with a confirmed `start`."""
    with connect(url) as socket:
        say(socket, "start", **start)
        assert hear(socket)["type"] == "started"
        yield socket


def say(socket: ClientConnection, kind: str, **fields: Any) -> None:
    socket.send(json.dumps({"type": kind, **fields}))


def hear(socket: ClientConnection) -> Event:
    """The next event; it must not be audio."""
    message = socket.recv(timeout=10)
    assert isinstance(message, str), f"{len(message)} bytes of audio"
    event: Event = json.loads(message)
    return event


def hear_until(socket: ClientConnection, kind: str) -> tuple[list[Event], bytes]:
    """The events and the audio up to an event of type `kind`."""
    events: list[Event] = []
    audio = b""
    while not events or events[-1]["type"] != kind:
        message = socket.recv(timeout=10)
        if isinstance(message, bytes):
            audio += message
        else:
            events.append(json.loads(message))
    return events, audio


def bytes_until_closed(socket: ClientConnection) -> int:
    """Number of bytes that still arrive until the server closes."""
    taken = 0
    with suppress(ConnectionClosed):
        while True:
            taken += len(socket.recv(timeout=10))
    return taken


# ---- text in, audio out


def test_one_text(url: str, engine: FakePool) -> None:
    with connect(url) as socket:
        say(
            socket,
            "start",
            seed=7,
            text="Hello there.",
            instructions="calm",
            language="English",
            temperature=0.5,
        )
        started = hear(socket)
        say(socket, "flush")
        events, audio = hear_until(socket, "done")
    assert started.pop("request_id").startswith("req-")
    assert started == {
        "type": "started",
        "model": "hocket-mini",
        "response_format": "pcm",
        "audio": "binary",
        "sample_rate": RATE,
        "channels": 1,
        "seed": 7,
    }
    assert [event["type"] for event in events] == ["sentence", "done"]
    assert events[0]["text"] == "Hello there."
    assert events[0]["index"] == events[0]["utterance"] == events[0]["at_seconds"] == 0
    assert events[1] == {
        "type": "done",
        "utterance": 0,
        "finish_reason": "stop",
        "sentences": 1,
        "seconds": 12 * FRAME_SAMPLES / RATE,
        "seed": 7,
    }
    (request,) = engine.requests
    expected = np.round(engine.tone(request)[0] * 32767)
    assert len(audio) == 12 * FRAME_BYTES
    assert np.abs(np.frombuffer(audio, "<i2") - expected).max() <= 1
    assert (request.language, request.instruction, request.sampling.temperature) == (
        "English",
        "calm",
        0.5,
    )


def test_text_in_pieces_is_cut_at_sentences(url: str, engine: FakePool) -> None:
    with session(url, seed=3) as socket:
        for piece in ("One se", "ntence. Ano", "ther on", "e! And a re", "st"):
            say(socket, "text", text=piece)
        say(socket, "flush")
        events, audio = hear_until(socket, "done")
    texts = ["One sentence.", "Another one!", "And a rest"]
    assert (
        [event["text"] for event in events[:-1]]
        == texts
        == [request.text for request in engine.requests]
    )
    assert [request.seed for request in engine.requests] == [segment_seed(3, i) for i in range(3)]
    assert len(audio) == sum(map(len, texts)) * FRAME_BYTES + 2 * PAUSE_BYTES
    starts = [event["at_seconds"] for event in events[:-1]]
    assert starts == pytest.approx([0, 13 * 0.08 + 0.15, 25 * 0.08 + 0.3])
    assert events[-1]["seconds"] == pytest.approx(len(audio) / 2 / RATE)
    assert len({event["request_id"] for event in events[:-1]}) == 3


def test_scripts_without_spaces(url: str) -> None:
    with session(url) as socket:
        for character in "今日は晴れです。明日は雨でしょう！最後":
            say(socket, "text", text=character)
        say(socket, "flush")
        events, _ = hear_until(socket, "done")
    assert [event["text"] for event in events[:-1]] == [
        "今日は晴れです。",
        "明日は雨でしょう！",
        "最後",
    ]


def test_audio_goes_out_while_text_comes(url: str) -> None:
    with session(url) as socket:
        say(socket, "text", text="First. Second")
        assert hear(socket)["text"] == "First."
        assert isinstance(socket.recv(timeout=10), bytes)
        say(socket, "text", text=" goes on.")
        say(socket, "flush")
        events, _ = hear_until(socket, "done")
    assert [event.get("text") for event in events] == ["Second goes on.", None]


def test_utterances_are_alike_and_numbered(url: str) -> None:
    with session(url, seed=5) as socket:
        heard = []
        for _ in range(2):
            say(socket, "text", text="Same words. Same sound.")
            say(socket, "flush")
            heard.append(hear_until(socket, "done"))
    (first, first_audio), (second, second_audio) = heard
    assert first_audio == second_audio
    assert [event["utterance"] for event in first + second] == [0, 0, 0, 1, 1, 1]


def test_empty_flush_ends_quietly(url: str, engine: FakePool) -> None:
    with session(url) as socket:
        say(socket, "flush")
        assert hear(socket)["seconds"] == 0
        say(socket, "text", text="  \n … 🙂 ")  # nothing that could be spoken
        say(socket, "flush")
        done = hear(socket)
    assert (done["type"], done["finish_reason"], done["sentences"]) == ("done", "stop", 0)
    assert engine.requests == []


@pytest.mark.parametrize("response_format", ["wav", "mp3", "opus", "flac", "aac"])
def test_an_utterance_is_one_file(url: str, response_format: str) -> None:
    with connect(url) as socket:
        say(socket, "start", response_format=response_format, text="A sentence. Another.")
        rate = hear(socket)["sample_rate"]
        say(socket, "flush")
        events, audio = hear_until(socket, "done")
    with av.open(io.BytesIO(audio), "r") as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
        assert container.streams.audio[0].rate == rate
    # Streams cannot say where their last frame ends, so a frame of padding (at most 1152 samples,
    # twice) may follow.
    assert samples / rate == pytest.approx(events[-1]["seconds"], abs=2304 / rate)


def test_base64_and_speed(url: str) -> None:
    with session(url, audio="base64", speed=2.0) as socket:
        say(socket, "text", text="Twice as fast as that.")
        say(socket, "flush")
        events, binary = hear_until(socket, "done")
    audio = b"".join(
        base64.b64decode(event["audio"]) for event in events if event["type"] == "audio"
    )
    assert binary == b""
    assert events[-1]["seconds"] == pytest.approx(22 * 0.08 / 2)
    assert len(audio) / 2 / RATE == pytest.approx(22 * 0.08 / 2, abs=0.02)


def test_start_again_changes_the_voice(url: str, engine: FakePool) -> None:
    with session(url, language="English") as socket:
        say(socket, "text", text="One.")
        say(socket, "start", language="German")
        assert hear(socket)["error"]["param"] == "type"  # not in the middle of an utterance
        say(socket, "flush")
        hear_until(socket, "done")
        say(socket, "start", language="German", text="Zwei.")
        assert hear(socket)["type"] == "started"
        say(socket, "flush")
        hear_until(socket, "done")
    assert [request.language for request in engine.requests] == ["English", "German"]


# ---- cancel, close, disconnect


def test_cancel_is_heard_while_speaking(url: str, engine: FakePool) -> None:
    engine.frame_seconds = 0.1
    with session(url, seed=9) as socket:
        say(
            socket,
            "text",
            text="A sentence that takes eight whole seconds to speak, or even a bit more. Queued. ",
        )
        hear(socket)
        socket.recv(timeout=10)
        began = time.monotonic()
        say(socket, "cancel")
        events, _ = hear_until(socket, "done")
        assert time.monotonic() - began < 3
        assert events[-1]["finish_reason"] == "cancelled"
        assert 0 < events[-1]["seconds"] < 3
        assert (engine.cancelled, engine.open_requests) == (1, 0)
        say(socket, "text", text="Anew.")
        say(socket, "flush")
        events, audio = hear_until(socket, "done")
    assert [event.get("text") for event in events] == [
        "Anew.",
        None,
    ]  # what was queued is forgotten
    assert events[-1]["finish_reason"] == "stop"
    assert len(audio) == 5 * FRAME_BYTES


def test_every_cancel_is_answered(url: str) -> None:
    with session(url) as socket:
        for _ in range(3):
            say(socket, "cancel")
        say(socket, "start", voice="default")
        assert [hear(socket)["type"] for _ in range(4)] == ["done", "done", "done", "started"]


@pytest.mark.parametrize("response_format", ["pcm", "wav"])
def test_an_engine_that_makes_16_bits_sounds_the_same(tmp_path: Path, response_format: str) -> None:
    heard: list[bytes] = []
    formats: tuple[SampleFormat, ...] = ("float32", "int16")
    for samples in formats:
        with (
            serving(tmp_path / samples, FakePool(samples=samples)) as address,
            session(address, seed=3, response_format=response_format) as socket,
        ):
            say(socket, "text", text="One. Two")
            say(socket, "flush")
            heard.append(hear_until(socket, "done")[1])
    assert heard[0] == heard[1]
    assert len(heard[0]) == 7 * FRAME_BYTES + PAUSE_BYTES + (44 if response_format == "wav" else 0)


def test_close_speaks_what_is_left(url: str, engine: FakePool) -> None:
    engine.frame_seconds = 0.01
    with session(url) as socket:
        say(socket, "text", text="One. Two")
        say(socket, "close")
        say(socket, "text", text="too late")
        events, audio = hear_until(socket, "done")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=10)
    assert [event["type"] for event in events if event["type"] != "error"] == [
        "sentence",
        "sentence",
        "done",
    ]
    assert len(audio) == 7 * FRAME_BYTES + PAUSE_BYTES
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000
    assert "".join(request.text for request in engine.requests) == "One.Two"


def test_cancel_after_close_closes_now(url: str, engine: FakePool) -> None:
    engine.frame_seconds = 0.05
    with session(url) as socket:
        say(socket, "text", text="This would take a few seconds if it were spoken to its end.")
        say(socket, "close")
        say(socket, "cancel")
        events, _ = hear_until(socket, "done")
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=10)
    assert events[-1]["finish_reason"] == "cancelled"


@pytest.mark.parametrize("politely", [True, False])
def test_disconnect_cancels_at_once(url: str, engine: FakePool, politely: bool) -> None:
    engine.frame_seconds = 0.05
    with session(url) as socket:
        say(
            socket,
            "text",
            text="This would take many seconds if anybody listened to it until its end. More. ",
        )
        socket.recv(timeout=10)
        assert engine.open_requests == 1
        if politely:
            socket.close()
        else:
            socket.socket.shutdown(sockets.SHUT_RDWR)
        wait_until(lambda: engine.open_requests == 0, seconds=3)  # to its end it would take four
    assert engine.cancelled == 1
    assert len(engine.requests) == 1


# ---- what clients get wrong


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        (b"\x00\x01", None, "binary"),
        ("{", None, "JSON"),
        ("[1]", None, "object"),
        ("{}", "type", "no type"),
        ('{"type": null}', "type", "no type"),
        ('{"type": 3}', "type", "type must be a string"),
        ('{"type": []}', "type", "type must be a string"),
        ('{"type": {}}', "type", "type must be a string"),
        ('{"type": [["start"], {"type": "start"}]}', "type", "type must be a string"),
        ('{"type": {"type": ["session.config"]}}', "type", "type must be a string"),
        ('{"type": ["session.config"], "text": {}}', "type", "type must be a string"),
        ('{"type": true}', "type", "type must be a string"),
        ('{"type": "\\ud800"}', "type", "unknown"),
        ('{"type": "session.update"}', "type", "session.update"),
        ('{"type": "text", "text": "early"}', "type", "start"),
        ('{"type": "start", "voices": "x"}', "voices", "unknown field"),
        ('{"type": "start", "input": "x"}', "input", "unknown field"),
        ('{"type": "start", "temperature": "hot"}', "temperature", "number"),
        ('{"type": "start", "response_format": "ogg"}', "response_format", "pcm"),
        ('{"type": "start", "seed": -1}', "seed", "0"),
        ('{"type": "start", "seed": 1e999}', "seed", "seed must be an integer (got inf)"),
        ('{"type": "start", "speed": NaN}', "speed", "speed must be a finite number (got nan)"),
        (
            '{"type": "start", "speed": ' + "9" * 400 + "}",
            "speed",
            "speed must be a number (got 999",
        ),
        ('{"type": "start", "model": "gpt"}', "model", "hocket-mini"),
        ('{"type": "start", "model": "\\ud800"}', "model", "model must be valid Unicode"),
        ('{"type": "start", "voice": "\\ud800"}', "voice", "voice must be valid Unicode"),
        ('{"type": "start", "voice": []}', "voice", "voice must be a string"),
        (
            '{"type": "start", "voice": {"id": {"id": "default"}}}',
            "voice",
            "voice must be a string",
        ),
        ('{"type": "start", "response_format": {}}', "response_format", "pcm"),
        ('{"type": "start", "audio": []}', "audio", "'binary' or 'base64'"),
        ('{"type": "start", "text": ["Hi."]}', "text", "text must be a string"),
        ('{"type": "start", "\\ud800": 1}', "\\ud800", "unknown field"),
        ('{"type": "start", "text": "a\\u0000"}', "text", "NUL"),
        ('{"type": "start", "text": "a\\ud83d"}', "text", "surrogate"),
    ],
)
def test_a_bad_message_is_named_and_forgiven(
    url: str, message: str | bytes, param: str | None, words: str
) -> None:
    with connect(url) as socket:
        socket.send(message)
        event = hear(socket)
        assert (event["type"], event["fatal"], event["error"]["param"]) == ("error", False, param)
        assert words in event["error"]["message"]
        assert event["error"]["type"] == "invalid_request_error"
        say(socket, "start", text="Well.")
        say(socket, "flush")
        assert hear(socket)["type"] == "started"
        _, audio = hear_until(socket, "done")
    assert len(audio) == 5 * FRAME_BYTES


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"type": "text"}, "text"),
        ({"type": "text", "text": 1}, "text"),
        ({"type": "text", "text": "x", "voice": "y"}, "voice"),
        ({"type": "flush", "now": True}, "now"),
        ({"type": "cancel", "id": 1}, "id"),
    ],
)
def test_a_bad_message_changes_nothing(url: str, message: Event, param: str) -> None:
    with session(url, text="Well, ") as socket:
        socket.send(json.dumps(message))
        assert hear(socket)["error"]["param"] == param
        say(socket, "text", text="then.")
        say(socket, "flush")
        events, _ = hear_until(socket, "done")
    assert events[0]["text"] == "Well, then."


def test_a_seed_without_speech_is_not_to_be_tried_again(url: str, engine: FakePool) -> None:
    """All utterances of a session have its seed, drawn or given, so a repetition gives the same
    speech.
    """
    engine.silent = True
    for start in ({}, {"seed": 3}, {"temperature": 0.0}):
        with session(url, **start) as socket:
            for _ in range(2):
                say(socket, "text", text="Hello there.")
                say(socket, "flush")
                events, audio = hear_until(socket, "done")
                error = events[0]["error"]
                assert (error["code"], error["type"], error["param"]) == (
                    "no_audio",
                    "invalid_request_error",
                    "seed",
                )
                assert "as it will each time; try another seed or text" in error["message"]
                assert (events[-1]["finish_reason"], audio) == ("error", b"")
            first, again = engine.requests[-2:]
            assert first.seed == again.seed
            engine.silent = False  # another seed, as was said
            say(socket, "start", seed=4, text="Hello there.")
            say(socket, "flush")
            assert hear_until(socket, "done")[0][-1]["finish_reason"] == "stop"
            engine.silent = True


def test_sessions_draw_seeds_of_their_own(url: str) -> None:
    seeds = []
    for _ in range(3):
        with connect(url) as socket:
            for _ in range(2):
                say(socket, "start")
                seeds.append(hear(socket)["seed"])
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_an_engine_error_ends_the_utterance_only(url: str, engine: FakePool) -> None:
    engine.error = InvalidRequestError("the language is unknown; leave it out", param="language")
    with session(url) as socket:
        say(socket, "text", text="One. Two. Three. ")
        assert hear(socket)["error"]["param"] == "language"
        engine.error = None
        say(socket, "text", text="Four. ")
        say(socket, "flush")
        done = hear(socket)
        assert (done["type"], done["finish_reason"]) == ("done", "error")
        say(socket, "text", text="Five.")
        say(socket, "flush")
        events, _ = hear_until(socket, "done")
    assert [request.text for request in engine.requests] == ["Five."]
    assert events[-1]["finish_reason"] == "stop"


def test_no_engine(url: str, engine: FakePool) -> None:
    engine.state = "down"
    with connect(url) as socket:
        say(socket, "start")
        assert hear(socket)["error"]["code"] == "engine_unavailable"
        engine.state = "ready"
        say(socket, "start")
        assert hear(socket)["type"] == "started"


# ---- limits


def test_too_much_text_is_refused_and_the_rest_spoken(tmp_path: Path, engine: FakePool) -> None:
    engine.frame_seconds = 0.02
    with (
        serving(tmp_path, engine, max_characters=60, segment_characters=40) as url,
        session(url) as socket,
    ):
        say(socket, "text", text="Thirty characters are in here. " * 1)
        say(socket, "text", text="Thirty more of them are in it. Th")
        say(socket, "text", text="is is far too much to take in, so it is refused and only it.")
        events, _ = hear_until(socket, "error")
        assert events[-1]["error"]["param"] == "text"
        assert "60" in events[-1]["error"]["message"]
        say(socket, "cancel")
        hear_until(socket, "done")
        say(socket, "text", text="Now there is room.")
        say(socket, "flush")
        events, _ = hear_until(socket, "done")
        assert events[0]["text"] == "Now there is room."


def test_floods_of_flushes_are_refused(tmp_path: Path, engine: FakePool) -> None:
    engine.prefill_seconds = 5.0
    with serving(tmp_path, engine) as url, session(url, text="Long. More") as socket:
        wait_until(lambda: engine.requests)
        for _ in range(1001):
            say(socket, "flush")
        say(socket, "cancel")
        events, _ = hear_until(socket, "done")
        assert [event["type"] for event in events] == [
            "error",
            "error",
            "done",
        ]  # 1001 and "More" for 1000 places
        assert events[-1]["finish_reason"] == "cancelled"


def test_no_place_is_an_error_and_the_socket_stays(tmp_path: Path) -> None:
    engine = FakePool(rows=1, frame_seconds=0.05)
    with (
        serving(tmp_path, engine, max_queue=0) as url,
        session(url) as first,
        session(url) as second,
    ):
        say(first, "text", text="This one speaks for quite a while, and does not stop. So")
        hear(first)
        say(second, "text", text="Refused.")
        say(second, "flush")
        assert hear(second)["error"]["code"] == "overloaded"
        assert hear(second)["finish_reason"] == "error"
        say(first, "cancel")
        hear_until(first, "done")
        say(second, "text", text="Taken.")
        say(second, "flush")
        events, _ = hear_until(second, "done")
        assert events[-1]["finish_reason"] == "stop"


def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    engine = FakePool(frame_seconds=1e-4, channels=2, buffer_bytes=2**30)
    with serving(tmp_path, engine, stall_seconds=0.2, segment_characters=9000) as url:
        with connect(url, max_queue=1) as deaf:
            say(deaf, "start", text="A" * 9000)
            say(deaf, "flush")
            wait_until(lambda: engine.cancelled, 60)
            with session(url) as other:
                say(other, "text", text="Unaffected.")
                say(other, "flush")
                hear_until(other, "done")
            taken = bytes_until_closed(deaf)
            assert deaf.close_code == 1013
        # What loopback's own buffers hold, up to 10 MB, of 69.
        assert taken < 20e6
        assert engine.open_requests == 0


@pytest.mark.parametrize("begun", [False, True])
def test_silence_is_ended(tmp_path: Path, engine: FakePool, begun: bool) -> None:
    with serving(tmp_path, engine, socket_idle_seconds=0.2) as url, connect(url) as socket:
        if begun:
            say(socket, "start", text="Said. And waits")
        events, _ = hear_until(socket, "error")
        assert events[-1]["error"]["code"] == "idle_timeout"
        assert events[-1]["fatal"]
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=10)
    assert engine.open_requests == 0


def test_speaking_is_not_silence(tmp_path: Path) -> None:
    engine = FakePool(frame_seconds=0.05)
    with serving(tmp_path, engine, socket_idle_seconds=0.2) as url, session(url) as socket:
        say(socket, "text", text="This takes a second.")
        say(socket, "flush")
        events, _ = hear_until(socket, "done")
    assert [event["type"] for event in events] == ["sentence", "done"]


def test_a_message_has_the_size_of_a_body_at_most(tmp_path: Path, engine: FakePool) -> None:
    with serving(tmp_path, engine, max_body_bytes=1000) as url, session(url) as socket:
        say(socket, "text", text="a" * 900)
        say(socket, "text", text="a" * 1000)
        bytes_until_closed(socket)  # the first text may have been answered before
        assert socket.close_code == 1009


def test_keys(tmp_path: Path, engine: FakePool) -> None:
    with serving(tmp_path, engine, api_keys=("secret",)) as url:
        with pytest.raises(InvalidStatus), connect(url):
            pass
        with pytest.raises(InvalidStatus), connect(f"{url}?api_key=wrong"):
            pass
        with session(f"{url}?api_key=secret"):
            pass
        with connect(url, additional_headers={"Authorization": "Bearer secret"}) as socket:
            say(socket, "start")
            assert hear(socket)["type"] == "started"


def test_the_documented_client_works(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPOSITORY / "docs" / "websocket.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code.replace("ws://127.0.0.1:8000/v1/audio/speech/stream", url), {})
    assert (tmp_path / "hello.pcm").stat().st_size == len(
        "Hello there.How are you?"
    ) * FRAME_BYTES + PAUSE_BYTES


# ---- vLLM-Omni's words


def test_a_client_of_vllm_omni_gets_a_file_for_each_sentence(url: str, engine: FakePool) -> None:
    with connect(url) as socket:
        say(socket, "session.config", speaker="default", seed=7, response_format="wav")
        say(socket, "input.text", text="Hello there. And")
        say(socket, "input.text", text=" more.")
        say(socket, "input.done")
        messages: list[Any] = []
        while (
            not messages
            or not isinstance(messages[-1], dict)
            or messages[-1]["type"] != "session.done"
        ):
            message = socket.recv(timeout=10)
            messages.append(message if isinstance(message, bytes) else json.loads(message))
        say(socket, "session.close")
        assert bytes_until_closed(socket) == 0
    place = [{"utterance_index": 0, "sentence_index": i} for i in range(2)]
    audio_format = {"format": "wav", "sample_rate": RATE, "channels": 1}
    files = [message for message in messages if isinstance(message, bytes)]
    texts = ["Hello there.", "And more."]
    assert messages == [
        {"type": "audio.start", **place[0], "sentence_text": texts[0], **audio_format},
        files[0],
        {"type": "audio.done", **place[0], "total_bytes": len(files[0]), "error": False},
        {"type": "audio.start", **place[1], "sentence_text": texts[1], **audio_format},
        files[1],
        {"type": "audio.done", **place[1], "total_bytes": len(files[1]), "error": False},
        {
            "type": "session.done",
            "utterance_index": 0,
            "total_sentences": 2,
            "finish_reason": "stop",
            "seed": 7,
        },
    ]
    for file, text in zip(files, texts, strict=True):  # exact sizes, as this is not a stream
        assert int.from_bytes(file[40:44], "little") == len(file) - 44 == len(text) * FRAME_BYTES
    assert [request.seed for request in engine.requests] == [segment_seed(7, i) for i in range(2)]


def test_a_client_of_vllm_omni_hears_pcm_as_it_is_made(url: str, engine: FakePool) -> None:
    engine.frame_seconds = 0.02
    with connect(url) as socket:
        say(socket, "session.config", stream_audio=True, response_format="pcm")
        say(socket, "input.text", text="One sentence. Another one! Third")
        events, audio = hear_until(socket, "audio.start")
        assert not audio
        more, audio = hear_until(
            socket, "audio.start"
        )  # of the second, before the text is complete
        assert [event["type"] for event in (*events, *more)] == [
            "audio.start",
            "audio.done",
            "audio.start",
        ]
        assert len(audio) == more[0]["total_bytes"] == 13 * FRAME_BYTES
        say(socket, "input.done")
        more, audio = hear_until(socket, "session.done")
        assert [event["type"] for event in more] == [
            "audio.done",
            "audio.start",
            "audio.done",
            "session.done",
        ]
        sizes = [event["total_bytes"] for event in more if event["type"] == "audio.done"]
        assert sizes == [12 * FRAME_BYTES + PAUSE_BYTES, 5 * FRAME_BYTES + PAUSE_BYTES]
        assert len(audio) == sum(sizes)
        assert more[-1]["total_sentences"] == 3
        # The configuration stays; an empty utterance is one, too.
        say(socket, "input.done")
        assert hear(socket)["total_sentences"] == 0
        say(socket, "input.text", text="Again.")
        say(socket, "input.done")
        more, _ = hear_until(socket, "session.done")
        assert [event["utterance_index"] for event in more] == [2, 2, 2]


def test_an_utterance_as_one_sentence_when_its_text_is_complete(url: str, engine: FakePool) -> None:
    with connect(url) as socket:
        say(
            socket,
            "session.config",
            stream_audio=True,
            response_format="pcm",
            split_granularity="none",
        )
        for piece in ("One sentence. Ano", "ther one! "):
            say(socket, "input.text", text=piece)
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.2)
        assert not engine.requests
        say(socket, "input.done")
        events, _ = hear_until(socket, "session.done")
    assert events[0]["sentence_text"] == "One sentence. Another one! "
    assert events[-1]["total_sentences"] == 1
    assert [request.text for request in engine.requests] == ["One sentence. Another one!"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"voice": "nobody"}, "nobody"),
        ({"stream_audio": True}, "stream_audio needs pcm"),
        ({"word_timestamps": True}, "word_timestamps"),
        ({"split_granularity": "clause"}, "'none' or 'sentence'"),
        ({"audio": "base64"}, "audio"),
        ({"loudness": 11}, "loudness"),
    ],
)
def test_what_vllm_omni_has_and_we_do_not_is_an_error_in_its_words(
    url: str, config: dict[str, Any], message: str
) -> None:
    with connect(url) as socket:
        say(socket, "session.config", **config)
        error = hear(socket)
        assert error["type"] == "error"
        assert message in error["message"] == error["error"]["message"]
        assert error["fatal"] is False
        say(socket, "session.config", stream_audio=True, response_format="pcm")
        say(socket, "input.text", text="Good.")
        say(socket, "input.done")
        assert hear_until(socket, "session.done")[0][-1]["total_sentences"] == 1


def test_a_failed_sentence_ends_in_vllm_omni_s_words_too(url: str, engine: FakePool) -> None:
    engine.error_after = 3
    with connect(url) as socket:
        say(socket, "session.config", stream_audio=True, response_format="pcm")
        say(socket, "input.text", text="It breaks.")
        say(socket, "input.done")
        events, audio = hear_until(socket, "session.done")
    assert [event["type"] for event in events] == [
        "audio.start",
        "error",
        "audio.done",
        "session.done",
    ]
    assert events[2]["error"] is True
    assert events[2]["total_bytes"] == len(audio) == 3 * FRAME_BYTES


def test_text_before_a_configuration_is_an_error_in_vllm_omni_s_words(url: str) -> None:
    with connect(url) as socket:
        say(socket, "input.text", text="Too early.")
        assert "comes too early" in hear(socket)["message"]
        say(socket, "start")  # ours are still understood
        assert hear(socket)["type"] == "started"
