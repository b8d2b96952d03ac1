"""An error names a field as the client wrote it, on every route, wherever the mistake is found."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from hocket.audio.io import FORMATS, encode_audio
from hocket.core import SpeechRequest
from hocket.errors import InvalidRequestError
from hocket.kernels.types import DrawParams
from hocket.models.sampling import ResolvedSampling
from hocket.server.app import create_app
from hocket.server.schemas import ALIASES
from hocket.server.settings import ServerSettings
from hocket.worker.stream import SpeechStream
from tests.support.fake_engine import RATE, FakePool
from tests.support.loopback import new_store, on_loopback

SPEECH = "/v1/audio/speech"
#: Shorter than the engine's minimum.
SHORT = (
    "data:audio/wav;base64,"
    + base64.b64encode(
        encode_audio(FORMATS[".wav"], np.full((1, 2400), 0.5, np.float32), RATE)
    ).decode()
)
Fields = dict[str, Any]


class OneDrawEngine(FakePool):
    """Draws all codes alike, as MOSS does."""

    async def submit(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> SpeechStream:
        ResolvedSampling(DrawParams()).overridden_by(request.sampling)
        return await super().submit(
            request, request_id=request_id, priority=priority, streaming=streaming
        )


@pytest.fixture(scope="module")
def engine() -> OneDrawEngine:
    return OneDrawEngine()


@pytest.fixture(scope="module")
def address(engine: OneDrawEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with on_loopback(
        create_app(engine, ServerSettings(), new_store(tmp_path_factory.mktemp("voices")))
    ) as found:
        yield found


def plain_error(address: str, fields: Fields) -> Fields:
    answer = httpx.post(address + SPEECH, json={"input": "Hi."} | fields)
    assert answer.status_code == 400, answer.text
    return dict(answer.json()["error"])


def item_error(address: str, fields: Fields) -> Fields:
    return _only_error(
        httpx.post(f"{address}{SPEECH}/batch", json={"items": [{"input": "Hi."} | fields]})
    )


def default_error(address: str, fields: Fields) -> Fields:
    return _only_error(
        httpx.post(f"{address}{SPEECH}/batch", json={"items": [{"input": "Hi."}]} | fields)
    )


def socket_error(address: str, fields: Fields) -> Fields:
    with connect(f"{address.replace('http', 'ws')}{SPEECH}/stream") as socket:
        for message in ({"type": "start", "text": "Hi."} | fields, {"type": "flush"}):
            socket.send(json.dumps(message))
        while (event := json.loads(socket.recv(timeout=10)))["type"] != "error":
            assert event["type"] == "started"
        return dict(event["error"])


def _only_error(answer: httpx.Response) -> Fields:
    if answer.status_code == 400:
        return dict(answer.json()["error"])
    (result,) = answer.json()["results"]
    return dict(result["error"])


@pytest.mark.parametrize("ask", [plain_error, item_error, default_error, socket_error])
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("subtalker_temperature", 0.5, "so it has no subtalker_temperature; leave"),
        ("subtalker_top_p", 0.5, "so it has no subtalker_top_p; leave"),
        ("subtalker_top_k", 5, "so it has no subtalker_top_k; leave"),
        ("subtalker_top_k", -1, "subtalker_top_k must be at least 0 (got -1)"),
        ("ref_audio", "nobody", "there is no voice"),
        ("ref_audio", "default", "ref_audio: the voice 'default' has no recording"),
        ("ref_audio", "ftp://example.com/a.wav", "ftp"),
        ("ref_audio", SHORT, "0.10 s"),
        ("ref_audio", 7, "ref_audio must be a string (got 7)"),
        ("ref_text", "Words.", "ref_text are the words"),
        ("speaker", "nobody", "there is no voice"),
        ("speaker", 7, "speaker must be a string (got 7)"),
    ],
)
def test_an_alias_or_our_name_is_named_as_it_was_written(
    address: str, ask: Callable[[str, Fields], Fields], name: str, value: object, words: str
) -> None:
    for written in (name, ALIASES[name]):
        error = ask(address, {written: value})
        assert error["param"] == written, error
        wanted = words if name == "speaker" else words.replace(name, written)
        assert wanted.replace("speaker must", f"{written} must") in error["message"], error
        other = ({name, ALIASES[name]} - {written}).pop()
        if name != "speaker":  # a voice is what its field holds, whatever the field is called
            assert other not in error["message"]


def test_a_rule_between_fields_names_them_as_they_were_written(address: str) -> None:
    fields = {"task_type": "CustomVoice", "ref_audio": "nobody"}
    for ask in (plain_error, item_error, socket_error):
        error = ask(address, fields)
        assert (error["param"], "leave out ref_audio" in error["message"]) == ("task_type", True)


def test_an_alias_that_a_route_does_not_know_is_named_as_it_was_written(address: str) -> None:
    answer = httpx.post(
        f"{address}/v1/audio/tokens/encode", json={"audio": "data:,x", "speaker": "anna"}
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "speaker")
    assert error["message"].startswith("speaker: an unknown field")


def test_the_text_is_called_as_on_the_route(address: str, engine: OneDrawEngine) -> None:
    engine.error = InvalidRequestError(
        "the text has no token of its own; give some words", param="text"
    )
    try:
        assert [ask(address, {})["param"] for ask in (plain_error, item_error, socket_error)] == [
            "input",
            "input",
            "text",
        ]
    finally:
        engine.error = None
