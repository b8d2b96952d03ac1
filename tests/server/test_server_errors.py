"""Errors of requests that cannot be served: status, field and message, and a server that keeps
running.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import Request
from starlette.exceptions import HTTPException

from hocket.errors import (
    CapacityError,
    EngineStoppedError,
    HocketError,
    InvalidRequestError,
    ReferenceAudioError,
    Template,
)
from hocket.server.app import create_app
from hocket.server.errors import http_error
from hocket.server.settings import ServerSettings
from tests.support.fake_engine import FakePool
from tests.support.loopback import new_store, on_loopback, wait_until

GOOD = {"input": "Good.", "response_format": "pcm"}
JSON = {"content-type": "application/json"}
SPEECH, BATCH = "/v1/audio/speech", "/v1/audio/speech/batch"


@dataclass(frozen=True)
class Bad:
    """A request that is refused."""

    status: int
    param: str | None
    message: str
    body: Any = None
    method: str = "POST"
    path: str = SPEECH
    headers: dict[str, str] = field(default_factory=lambda: JSON)


def speech(status: int, param: str | None, message: str, **fields: Any) -> Bad:
    return Bad(status, param, message, {**GOOD, **fields})


def raw(status: int, message: str, body: bytes, **headers: str) -> Bad:
    return Bad(status, None, message, body, headers=headers or JSON)


TABLE = {
    # ---- the text
    "no input": Bad(400, "input", "input is missing", {"voice": "default"}),
    "empty input": speech(400, "input", "input is empty", input=""),
    "blank input": speech(400, "input", "input is empty", input="   \n"),
    "null input": speech(400, "input", "input must be a string", input=None),
    "number as input": speech(400, "input", r"input must be a string \(got 7\)", input=7),
    "list as input": speech(400, "input", "input must be a string", input=["a"]),
    "punctuation": speech(400, "input", "no letter or digit", input="?!... --"),
    "emoji": speech(400, "input", "no letter or digit", input="\U0001f600 \U0001f44d\U0001f3fd"),
    "zero-width joiners": speech(400, "input", "no letter or digit", input="\u200d\u200d"),
    "byte order mark": speech(400, "input", "no letter or digit", input="\ufeff"),
    "right-to-left marks": speech(400, "input", "no letter or digit", input="\u200f\u202e"),
    "NUL": speech(400, "input", "NUL character", input="a\x00b"),
    "lone surrogate": raw(400, "surrogate|unicode", rb'{"input": "a\ud800b"}'),
    "20,000 characters": speech(
        400, "input", "20000 characters, the most is 10000", input="word " * 4000
    ),
    # ---- sampling and lengths
    "negative seed": speech(400, "seed", r"seed must be at least 0 \(got -1\)", seed=-1),
    "seed of 64 bits": speech(
        400,
        "seed",
        r"seed must be at most 9223372036854775807 \(got 9223372036854775808\)",
        seed=2**63,
    ),
    "seed as a string": speech(400, "seed", "seed must be an integer", seed="7"),
    "fractional seed": speech(400, "seed", r"seed must be an integer \(got 7.5\)", seed=7.5),
    "seed as a boolean": speech(400, "seed", "seed must be an integer", seed=True),
    "speed of 0": speech(400, "speed", r"speed must be at least 0.25 \(got 0\)", speed=0),
    "speed of 100": speech(400, "speed", r"speed must be at most 4 \(got 100\)", speed=100),
    "speed NaN": raw(
        400, r"speed must be a finite number \(got nan\)", b'{"input": "Hi.", "speed": NaN}'
    ),
    "speed infinite": raw(
        400, r"speed must be a finite number \(got inf\)", b'{"input": "Hi.", "speed": 1e999}'
    ),
    "speed as a string": speech(400, "speed", "speed must be a number", speed="fast"),
    "negative temperature": speech(
        400, "temperature", r"temperature must be at least 0 \(got -0.1\)", temperature=-0.1
    ),
    "temperature as a string": speech(
        400, "temperature", "temperature must be a number", temperature="hot"
    ),
    "top_p of 0": speech(400, "top_p", r"top_p must be greater than 0 \(got 0\)", top_p=0),
    "top_p of 2": speech(400, "top_p", r"top_p must be at most 1 \(got 2\)", top_p=2),
    "negative top_k": speech(400, "top_k", r"top_k must be at least 0 \(got -1\)", top_k=-1),
    "fractional top_k": speech(400, "top_k", r"top_k must be an integer \(got 1.5\)", top_k=1.5),
    "penalty of 0": speech(
        400, "repetition_penalty", r"must be greater than 0 \(got 0\)", repetition_penalty=0
    ),
    "no new tokens": speech(
        400, "max_new_tokens", r"max_new_tokens must be at least 1 \(got 0\)", max_new_tokens=0
    ),
    "a billion new tokens": speech(
        400, "max_new_tokens", r"must be at most 1000000 \(got 1000000000\)", max_new_tokens=10**9
    ),
    "a negative minimum length": speech(
        400, "min_new_tokens", r"must be at least 0 \(got -1\)", min_new_tokens=-1
    ),
    "a minimum length above the maximum": speech(
        400,
        "min_new_tokens",
        "10 is above max_new_tokens, which is 9; lower it",
        min_new_tokens=10,
        max_new_tokens=9,
    ),
    "tokens of 0": speech(400, "tokens", r"tokens must be at least 1 \(got 0\)", tokens=0),
    # ---- names
    "unknown format": speech(400, "response_format", "'wav', 'pcm', 'mp3'", response_format="ogg"),
    "format as a list": speech(
        400, "response_format", "response_format must be 'wav', 'pcm'", response_format=["wav"]
    ),
    "unknown stream_format": speech(
        400, "stream_format", "'audio' or 'sse'", stream_format="events"
    ),
    "stream as a string": speech(400, "stream", "stream must be true or false", stream="yes"),
    "whole and streamed": speech(
        400, "stream", "leave out stream_format", stream=False, stream_format="audio"
    ),
    "unknown model": speech(
        404, "model", "'gpt-9' is not served here; use 'hocket-mini'", model="gpt-9"
    ),
    "unknown voice": speech(400, "voice", "default", voice="nobody"),
    "voice as a number": speech(400, "voice", "voice must be a string", voice=7),
    "voice with 300 characters": speech(400, "voice", "256", voice="v" * 300),
    "voice object without id": speech(400, "voice", "voice must be a string", voice={"name": "x"}),
    "unknown task": speech(400, "task_type", "'CustomVoice'", task_type="Sing"),
    "cloning nothing": speech(400, "task_type", "reference_audio", task_type="Base"),
    "designing nothing": speech(400, "task_type", "instructions", task_type="VoiceDesign"),
    "a custom recording": speech(
        400, "task_type", "leave out ref_audio", task_type="CustomVoice", ref_audio="data:,x"
    ),
    "one unknown field": speech(400, "loudness", "loudness: an unknown field", loudness=11),
    "unknown fields": speech(400, "a", "a, b: unknown fields", a=1, b=2),
    "a field of half a character": raw(
        400, r"^\\ud800: an unknown field", rb'{"input": "Hi.", "\ud800": 1}'
    ),
    "an alias twice": speech(
        400, "reference_text", "are the same", ref_text="a", reference_text="b"
    ),
    "NUL in instructions": speech(400, "instructions", "NUL", instructions="a\x00"),
    "language of 300 characters": speech(400, "language", "256", language="x" * 300),
    # ---- references
    "words without a recording": speech(
        400, "ref_text", "ref_text are .* give reference_audio", ref_text="Hello."
    ),
    "broken base64": speech(400, "ref_audio", "base64", ref_audio="data:audio/wav;base64,@@@"),
    "not audio": speech(
        400, "reference_audio", "audio", reference_audio="data:audio/wav;base64,AAAA"
    ),
    "recording as a number": speech(400, "ref_audio", "ref_audio must be a string", ref_audio=7),
    "loopback address": speech(400, "ref_audio", "address", ref_audio="http://127.0.0.1:1/a.wav"),
    "link-local address": speech(
        400, "ref_audio", "address", ref_audio="http://169.254.169.254/latest"
    ),
    "file address": speech(400, "ref_audio", "file", ref_audio="file:///etc/passwd"),
    "ftp address": speech(400, "ref_audio", "ftp", ref_audio="ftp://example.com/a.wav"),
    "unknown uploaded voice": speech(400, "ref_audio", "voice", ref_audio="nobody"),
    # ---- the body
    "no body": raw(400, "not valid JSON", b""),
    "no JSON": raw(400, r"not valid JSON \(line 1, column 2\)", b"{input: 1}"),
    "half JSON": raw(400, "not valid JSON", b'{"input": "Hi'),
    "not UTF-8": raw(400, "not valid JSON", b'{"input": "\xff"}'),
    "deep JSON": raw(400, "not valid JSON", b"[" * 200_000),
    "a list": raw(400, "a JSON array", b"[]"),
    "a string": raw(400, "a JSON string", b'"Hi"'),
    "null": raw(400, "a JSON null", b"null"),
    "plain text": raw(
        415, "'text/plain'; send application/json", b"Hi", **{"content-type": "text/plain"}
    ),
    "a form": raw(
        415,
        "send application/json",
        b"a=b",
        **{"content-type": "application/x-www-form-urlencoded"},
    ),
    "no content type": raw(415, "Content-Type is missing", b"{}", accept="*/*"),
    "50 MB": raw(413, "larger than 1000000 bytes", b'{"input": "' + b"a" * 2_000_000 + b'"}'),
    # ---- addresses and methods
    "unknown address": Bad(404, None, "nothing at this address", GOOD, path="/v1/audio/song"),
    "chat": Bad(404, None, "nothing at this address", GOOD, path="/v1/chat/completions"),
    "GET speech": Bad(405, None, "GET is not for this route; use POST", method="GET"),
    "PUT speech": Bad(405, None, "use POST", GOOD, method="PUT"),
    "DELETE models": Bad(405, None, "use GET", method="DELETE", path="/v1/models"),
    "PUT voices": Bad(
        405, None, "PUT is not for this route; use GET, POST", method="PUT", path="/v1/audio/voices"
    ),
    "POST health": Bad(405, None, "use GET", GOOD, path="/health"),
    # ---- batches
    "no items": Bad(400, "items", "items is missing", {}, path=BATCH),
    "empty items": Bad(400, "items", "at least 1 item", {"items": []}, path=BATCH),
    "65 items": Bad(400, "items", "65 entries, the most is 64", {"items": [GOOD] * 65}, path=BATCH),
    "items of strings": Bad(
        400, "items", r"items\[0\] must be an object", {"items": ["Hi."]}, path=BATCH
    ),
    "unknown output": Bad(
        400, "output", "'json' or 'zip'", {"items": [GOOD], "output": "tar"}, path=BATCH
    ),
    "unknown batch field": Bad(
        400, "volume", "unknown field", {"items": [GOOD], "volume": 1}, path=BATCH
    ),
}
#: With a key in the settings.
KEY_TABLE: dict[str, dict[str, str | bytes]] = {
    "no key": {},
    "wrong key": {"authorization": "Bearer sk-wrong"},
    "longer key": {"authorization": "Bearer sk-right2"},
    "basic scheme": {"authorization": "Basic sk-right"},
    "key of other letters": {"authorization": "Bearer sk-\u00fcber".encode()},
}


def is_error(
    answer: httpx.Response, status: int, param: str | None, message: str, any_param: bool = False
) -> None:
    """One error in OpenAI's shape."""
    document = answer.json()
    assert list(document) == ["error"]
    error = document["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert (answer.status_code, any_param or error["param"] == param) == (status, True), error
    assert re.search(message, error["message"]), error
    assert "\n" not in error["message"]
    assert len(error["message"]) < 400
    assert error["code"]
    assert answer.headers["x-request-id"]


@pytest.fixture(scope="module")
def engine() -> FakePool:
    return FakePool()


@pytest.fixture(scope="module")
def http(engine: FakePool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    settings = ServerSettings(max_body_bytes=1_000_000)
    app = create_app(engine, settings, new_store(tmp_path_factory.mktemp("voices")))
    with on_loopback(app) as address, httpx.Client(base_url=address) as client:
        yield client


def send(http: httpx.Client, bad: Bad) -> httpx.Response:
    content = bad.body if isinstance(bad.body, bytes) else json.dumps(bad.body).encode()
    content = b"" if bad.method in ("GET", "DELETE") else content
    return http.request(bad.method, bad.path, content=content, headers=bad.headers)


@pytest.mark.parametrize("name", TABLE)
def test_a_bad_request_is_refused_and_the_next_good_one_served(
    http: httpx.Client, engine: FakePool, name: str
) -> None:
    bad = TABLE[name]
    before = len(engine.requests)
    answer = send(http, bad)
    is_error(answer, bad.status, bad.param, bad.message, any_param=isinstance(bad.body, bytes))
    assert len(engine.requests) == before
    good = http.post(SPEECH, json=GOOD)
    assert good.status_code == 200
    assert len(good.content) == 2 * 1920 * len(GOOD["input"])
    assert engine.open_requests == 0


def test_the_table_is_long_enough() -> None:
    assert len(TABLE) + len(KEY_TABLE) >= 60


@pytest.mark.parametrize("name", KEY_TABLE)
def test_keys(name: str, tmp_path: Path) -> None:
    app = create_app(
        FakePool(), ServerSettings(api_keys=("sk-right", "sk-other")), new_store(tmp_path)
    )
    with on_loopback(app) as address, httpx.Client(base_url=address) as http:
        refused = http.post(SPEECH, json=GOOD, headers=cast(dict[str, str], KEY_TABLE[name]))
        is_error(refused, 401, None, "Authorization: Bearer KEY")
        assert refused.headers["www-authenticate"] == "Bearer"
        for key in ("sk-right", "sk-other"):
            assert (
                http.post(SPEECH, json=GOOD, headers={"authorization": f"Bearer {key}"}).status_code
                == 200
            )
        for open_path in ("/health", "/version", "/metrics"):
            assert http.get(open_path).status_code == 200
        assert http.get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    ("error", "status", "param", "code"),
    [
        (InvalidRequestError("text is too long", param="text"), 400, "input", "invalid_request"),
        (
            InvalidRequestError(Template("{param} is {asked}", asked=9), param="max_frames"),
            400,
            "max_new_tokens",
            "invalid_request",
        ),
        (
            ReferenceAudioError("the reference is silent", param="reference"),
            400,
            "reference_audio",
            "invalid_request",
        ),
        (CapacityError("rows are used up"), 503, None, "overloaded"),
        (EngineStoppedError("the engine has gone away"), 503, None, "engine_unavailable"),
        (HocketError("something else"), 500, None, "internal_error"),
    ],
)
def test_the_engine_s_errors_get_a_status_and_the_client_s_names(
    tmp_path: Path, error: HocketError, status: int, param: str | None, code: str
) -> None:
    engine = FakePool(error=error)
    with on_loopback(create_app(engine, ServerSettings(), new_store(tmp_path))) as address:
        answer = httpx.post(address + SPEECH, json=GOOD)
        is_error(answer, status, param, "max_new_tokens is 9" if "9" in str(error) else str(error))
        assert answer.json()["error"]["code"] == code
        assert ("retry-after" in answer.headers) == (status == 503)
        engine.error = None
        assert httpx.post(address + SPEECH, json=GOOD).status_code == 200


def test_only_names_of_fields_are_replaced_in_a_message(tmp_path: Path) -> None:
    words = Template(
        "{param} is {asked!r}, and {max_frames} is {limit}", asked="min_frames {text}", limit=7
    )
    engine = FakePool(error=InvalidRequestError(words, param="min_frames"))
    with on_loopback(create_app(engine, ServerSettings(), new_store(tmp_path))) as address:
        error = httpx.post(address + SPEECH, json=GOOD).json()["error"]
        assert error["message"] == "min_new_tokens is 'min_frames {text}', and max_new_tokens is 7"
        engine.error = InvalidRequestError("the word max_frames {x} is the user's", param="text")
        error = httpx.post(address + SPEECH, json=GOOD).json()["error"]
        assert error["message"] == "the word max_frames {x} is the user's"


def test_a_mistake_of_our_own_is_a_500_without_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakePool()
    engine.tone = None  # type: ignore[assignment,method-assign]
    engine.submit = None  # type: ignore[assignment,method-assign]
    with on_loopback(create_app(engine, ServerSettings(), new_store(tmp_path))) as address:
        answer = httpx.post(address + SPEECH, json={**GOOD, "input": "Secret words."})
    is_error(answer, 500, None, r"internal error \(TypeError\)")
    assert "event=internal_error error=TypeError at=synthesis.py:" in caplog.text
    assert "Secret" not in caplog.text


def test_speech_that_ends_before_it_begins_is_no_200(tmp_path: Path) -> None:
    with on_loopback(
        create_app(FakePool(silent=True), ServerSettings(), new_store(tmp_path))
    ) as address:
        for fields in ({}, {"stream": False}, {"stream_format": "sse"}):
            # Sent again it gets another seed, so it may go well: clients' libraries repeat a 5xx by
            # themselves.
            drawn = httpx.post(address + SPEECH, json={**GOOD, **fields, "seed": None})
            is_error(drawn, 500, None, "before its first frame; send the request again")
            assert drawn.json()["error"]["code"] == "no_audio"
            # This one would come to the same each time.
            for fixed in ({"seed": 3}, {"temperature": 0}):
                given = httpx.post(address + SPEECH, json={**GOOD, "seed": None, **fields, **fixed})
                is_error(given, 400, "seed", "before its first frame, as it will each time")
                assert given.json()["error"]["code"] == "no_audio"


def test_unknown_fields_can_be_allowed(tmp_path: Path) -> None:
    with on_loopback(
        create_app(FakePool(), ServerSettings(strict_fields=False), new_store(tmp_path))
    ) as address:
        assert httpx.post(address + SPEECH, json={**GOOD, "loudness": 11}).status_code == 200


def test_an_error_in_the_middle_of_a_stream_is_no_complete_answer(tmp_path: Path) -> None:
    engine = FakePool(error_after=3, frame_seconds=0.01)
    with on_loopback(create_app(engine, ServerSettings(), new_store(tmp_path))) as address:
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            httpx.post(address + SPEECH, json=GOOD)
        events = httpx.post(address + SPEECH, json={**GOOD, "stream_format": "sse"}).text.split(
            "\n\n"
        )
        assert [event.split("\n")[0] for event in events if event] == [
            "event: speech.audio.delta"
        ] * 3 + ["event: speech.audio.error"]
        error = json.loads(events[3].split("data: ")[1])["error"]
        assert error["code"] == "engine_unavailable"
        engine.error_after = None
        assert httpx.post(address + SPEECH, json=GOOD).status_code == 200


def test_a_wrong_method_s_error_needs_nothing_of_the_framework_s() -> None:
    request = Request({"type": "http", "method": "PUT", "path": "/v1/audio/voices", "headers": []})
    error = http_error(HTTPException(405), request, ["GET", "POST"])
    assert (error.http_status, error.code) == (405, "method_not_allowed")
    assert str(error) == "PUT is not for this route; use GET, POST"


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_a_wrong_method_is_told_the_right_ones(http: httpx.Client, method: str) -> None:
    answer = http.request(method, BATCH)
    is_error(answer, 405, None, f"{method} is not for this route; use POST")
    assert answer.headers["allow"] == "POST"
    assert http.put("/v1/audio/voices").headers["allow"] == "GET, POST"
    assert http.put("/health").headers["allow"] == "GET, HEAD"


def test_a_voice_that_is_asked_for_is_a_404_and_one_to_speak_with_a_400(http: httpx.Client) -> None:
    """docs/server.md says which is which. The voices of OpenAI are not known here."""
    for name in ("alloy", "nobody"):
        is_error(http.get(f"/v1/audio/voices/{name}/preview"), 404, "name", "there is no voice")
        is_error(http.delete(f"/v1/audio/voices/{name}"), 404, "name", "there is no voice")
        is_error(http.post(SPEECH, json={**GOOD, "voice": name}), 400, "voice", "there is no voice")
        is_error(
            http.post(SPEECH, json={**GOOD, "ref_audio": name}),
            400,
            "ref_audio",
            "there is no voice",
        )


def test_what_is_polled_is_logged_for_debugging_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="hocket.request")
    paths = [
        "/",
        "/studio/studio.js",
        "/metrics",
        "/health",
        "/health/live",
        "/version",
        "/v1/models",
        "/nothing",
    ]
    with on_loopback(create_app(FakePool(), ServerSettings(), new_store(tmp_path))) as address:
        for path in paths:
            httpx.get(address + path)
        wait_until(lambda: len(caplog.records) >= len(paths))
    levels = [record.levelno for record in caplog.records if record.name == "hocket.request"]
    assert levels == [logging.DEBUG] * 5 + [logging.INFO] * 3
