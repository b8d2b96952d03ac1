"""Built-in voices and the text normalizer over HTTP and the WebSocket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from hocket.audio.io import FORMATS, decode_audio, encode_audio
from hocket.checkpoint.voices import ONLY_DEFAULT, BuiltinVoice
from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from hocket.server.voice_store import VoiceStore
from hocket.text.segment import split_text
from tests.support.fake_engine import RATE, FakePool
from tests.support.loopback import on_loopback

CODES = np.arange(24).reshape(6, 4) % 16
VOICES = {
    **ONLY_DEFAULT,
    "anna": BuiltinVoice("a calm alto", codes=CODES, transcript="The words.", mode="continuation"),
    "bert": BuiltinVoice("a deep bass", codes=CODES + 1, transcript="Other words."),
    "vivian": BuiltinVoice("known to the model", is_speaker=True),
}


@pytest.fixture
def engine() -> FakePool:
    return FakePool(text_front="en")


@pytest.fixture
def http(engine: FakePool, tmp_path: Path) -> Iterator[httpx.Client]:
    settings = ServerSettings(segment_characters=40)
    app = create_app(engine, settings, VoiceStore(tmp_path / "voices", VOICES))
    with on_loopback(app) as address, httpx.Client(base_url=address, timeout=20) as client:
        yield client


def speak(http: httpx.Client, text: str = "Hi.", **fields: object) -> None:
    answer = http.post("/v1/audio/speech", json={"input": text, "response_format": "pcm", **fields})
    assert answer.status_code == 200, answer.text


def test_they_are_listed_and_heard(http: httpx.Client) -> None:
    listed = {voice["name"]: voice for voice in http.get("/v1/audio/voices").json()["voices"]}
    assert list(listed) == list(VOICES)
    assert listed["anna"] == {
        "name": "anna",
        "builtin": True,
        "kind": "builtin",
        "speaker_description": "a calm alto",
        "ref_text": "The words.",
        "preview": True,
    }
    assert not listed["default"]["preview"]
    preview = decode_audio(
        http.get("/v1/audio/voices/Anna/preview").content, max_bytes=10**6, max_seconds=9
    )
    assert (preview.sample_rate, preview.samples.shape[1]) == (RATE, 6 * 1920)
    assert http.get("/v1/audio/voices/default/preview").status_code == 404


def test_a_name_chooses_how_the_model_is_asked(http: httpx.Client, engine: FakePool) -> None:
    speak(http, voice="anna")
    (reference,) = engine.requests[-1].references
    assert np.array_equal(np.asarray(reference), CODES)
    assert engine.requests[-1].reference_text == "The words."
    speak(http, voice="Anna", x_vector_only_mode=True)
    assert engine.requests[-1].reference_text is None
    speak(http, voice={"id": "bert"})
    (reference,) = engine.requests[-1].references
    assert np.array_equal(np.asarray(reference), CODES + 1)
    assert engine.requests[-1].reference_text is None
    speak(http, voice="Vivian")
    assert (engine.requests[-1].voice, engine.requests[-1].references) == ("vivian", ())
    speak(http, voice="default")
    assert (engine.requests[-1].voice, engine.requests[-1].references) == (None, ())
    speak(http, ref_audio="anna", ref_text="My words.")
    assert engine.requests[-1].reference_text == "My words."


@pytest.mark.parametrize("name", ["vivian", "default"])
def test_a_voice_without_a_recording_is_no_reference(http: httpx.Client, name: str) -> None:
    answer = http.post("/v1/audio/speech", json={"input": "Hi.", "ref_audio": name})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ref_audio")
    assert "has no recording; give it as voice" in answer.json()["error"]["message"]


def test_batches_and_the_websocket_know_them(http: httpx.Client, engine: FakePool) -> None:
    items = [
        {"input": "One."},
        {"input": "Two.", "voice": "bert"},
        {"input": "Three.", "voice": "carl"},
    ]
    results = http.post("/v1/audio/speech/batch", json={"voice": "anna", "items": items}).json()[
        "results"
    ]
    assert [result["status"] for result in results] == ["success", "success", "error"]
    assert (
        "there is no voice 'carl'; some are default, anna, bert" in results[2]["error"]["message"]
    )
    assert {request.text: request.reference_text for request in engine.requests} == {
        "One.": "The words.",
        "Two.": None,
    }
    address = str(http.base_url).replace("http", "ws") + "/v1/audio/speech/stream"
    with connect(address) as socket:
        for message in (
            {"type": "start", "voice": "anna"},
            {"type": "text", "text": "Hello."},
            {"type": "flush"},
        ):
            socket.send(json.dumps(message))
        while '"done"' not in str(socket.recv()):
            pass
    assert (engine.requests[-1].text, engine.requests[-1].reference_text) == (
        "Hello.",
        "The words.",
    )


def test_their_names_are_taken(http: httpx.Client) -> None:
    tone = encode_audio(
        FORMATS[".wav"], 0.1 * np.ones((1, RATE), np.float32) * np.sin(np.arange(RATE) / 9), RATE
    )
    answer = http.post(
        "/v1/audio/voices", files={"audio_sample": ("a.wav", tone)}, data={"name": "Anna"}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "name")
    assert (
        "'anna' belongs to a voice that comes with the model" in answer.json()["error"]["message"]
    )
    answer = http.delete("/v1/audio/voices/anna")
    assert answer.status_code == 400
    assert "cannot be deleted" in answer.json()["error"]["message"]


LONG = " ".join(
    f"This is the {i:02}th of many sentences, each as long as the others." for i in range(30)
)


@pytest.mark.parametrize(
    ("of_model", "setting", "most"), [(None, None, 400), (160, None, 160), (160, 300, 300)]
)
def test_pieces_are_as_long_as_the_model_wants_unless_a_setting_says_otherwise(
    tmp_path: Path, of_model: int | None, setting: int | None, most: int
) -> None:
    engine = FakePool(segment_characters=of_model, buffer_bytes=2**24)
    app = create_app(
        engine, ServerSettings(segment_characters=setting), VoiceStore(tmp_path / "voices", VOICES)
    )
    pieces = split_text(LONG, most)
    words = " ".join(["word"] * 500)  # one sentence
    assert max(map(len, pieces)) > most - 64
    with on_loopback(app) as address, httpx.Client(base_url=address, timeout=20) as client:
        speak(client, LONG, max_new_tokens=2000)
        assert [request.text for request in engine.requests] == pieces
        engine.requests.clear()
        with connect(address.replace("http", "ws") + "/v1/audio/speech/stream") as socket:
            for message in ({"type": "start", "text": words}, {"type": "flush"}):
                socket.send(json.dumps(message))
            while '"done"' not in str(socket.recv()):
                pass
        assert [request.text for request in engine.requests] == split_text(words, most)


def test_texts_are_cut_as_written_by_what_they_say(http: httpx.Client, engine: FakePool) -> None:
    """40 letters a segment: the text has no more, but three times as many when it is read out."""
    speak(http, "Dr. Who owes me $1,250.75. Ask St. Paul.")
    assert [request.text for request in engine.requests] == [
        "Dr. Who owes me",
        "$1,250.75.",
        "Ask St. Paul.",
    ]
    engine.requests.clear()
    speak(http, "Dr. Who owes me $1,250.75. Ask St. Paul.", language="German")  # not read out
    assert [request.text for request in engine.requests] == [
        "Dr. Who owes me $1,250.75. Ask St. Paul."
    ]
