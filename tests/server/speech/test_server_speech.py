"""Speech over HTTP with an engine in process: the engine's requests, and every form of response."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from hocket.audio.io import FORMATS, decode_audio, encode_audio
from hocket.core import EncodedReference, SampleFormat
from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from hocket.server.speech.synthesis import segment_seed
from tests.support.fake_engine import FRAME_SAMPLES, PROMPT_ROWS, RATE, FakePool
from tests.support.loopback import new_store, on_loopback, wait_until

SPEECH = "/v1/audio/speech"
HELLO = {"input": "Hello, world.", "response_format": "pcm", "seed": 7}
TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "aac": "audio/aac",
}
#: Samples of a frame of the coding at 24 kHz (opus: at 48): a body plays less than that longer than
#: what is in it, and aac, which cannot say where the audio begins, another frame.
CODING_FRAMES = {"wav": 1, "pcm": 1, "mp3": 576, "opus": 960, "flac": 1, "aac": 1024}


@contextmanager
def serving(engine: FakePool, tmp: Path, **settings: Any) -> Iterator[httpx.Client]:
    app = create_app(engine, ServerSettings(**settings), new_store(tmp))
    with on_loopback(app) as address, httpx.Client(base_url=address, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def engine() -> FakePool:
    return FakePool()


@pytest.fixture(scope="module")
def http(engine: FakePool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(engine, tmp_path_factory.mktemp("speech")) as client:
        yield client


def speak(http: httpx.Client, **fields: Any) -> httpx.Response:
    answer = http.post(SPEECH, json={**HELLO, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "text/event-stream"
    blocks = [block.split("\n") for block in answer.text.split("\n\n") if block]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
    return events


def audio_of(events: list[dict[str, Any]]) -> bytes:
    assert [event["type"] for event in events] == ["speech.audio.delta"] * (len(events) - 1) + [
        "speech.audio.done"
    ]
    return b"".join(base64.b64decode(event["audio"]) for event in events[:-1])


def recording(seconds: float = 1.0) -> bytes:
    time_S = np.arange(int(RATE * seconds)) / RATE
    return encode_audio(
        FORMATS[".wav"], (0.3 * np.sin(2000 * time_S)).astype(np.float32)[None], RATE
    )


def decoded(body: bytes, response_format: str, rate: int) -> NDArray[np.float32]:
    if response_format == "pcm":
        return (np.frombuffer(body, "<i2") / np.float32(32768)).astype(np.float32)[None]
    with av.open(io.BytesIO(body), "r") as container:
        stream = container.streams.audio[0]
        assert stream.rate == rate
        frames = [frame.to_ndarray() for frame in container.decode(stream)]
    return np.concatenate(frames, axis=1)


# ---- forms of the answer


@pytest.mark.parametrize("response_format", TYPES)
@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_every_format_in_every_form(http: httpx.Client, response_format: str, speed: float) -> None:
    fields = {"response_format": response_format, "speed": speed}
    whole, streamed = speak(http, **fields, stream=False), speak(http, **fields)
    events = events_of(speak(http, **fields, stream_format="sse"))
    for answer in (whole, streamed):
        assert answer.headers["content-type"].partition(";")[0] == TYPES[response_format]
        assert answer.headers["x-channels"] == "1"
        assert answer.headers["x-seed"] == "7"
        assert answer.headers["x-request-id"]
        assert int(answer.headers["x-sample-rate"]) == (
            48_000 if response_format == "opus" else RATE
        )
    assert int(whole.headers["content-length"]) == len(whole.content)
    assert whole.headers["x-finish-reason"] == "stop"
    rate = int(whole.headers["x-sample-rate"])
    expected = len(HELLO["input"]) * FRAME_SAMPLES / RATE / speed  # type: ignore[arg-type]
    stated = float(whole.headers["x-audio-seconds"])
    assert stated == pytest.approx(
        decoded(whole.content, response_format, rate).shape[-1] / rate, abs=1 / RATE
    )
    extra = CODING_FRAMES["aac"] / RATE if response_format == "aac" else 0.0
    assert stated - extra == pytest.approx(expected, abs=max(extra, 1 / RATE))
    assert (
        audio_of(events) == streamed.content or response_format == "opus"
    )  # an ogg stream has a random number
    for body in (whole.content, streamed.content, audio_of(events)):
        samples = decoded(body, response_format, rate)
        assert (
            abs(samples.shape[1] / rate - expected - extra) <= CODING_FRAMES[response_format] / rate
        )
        assert samples.std() > 0.05 or samples.dtype != np.float32
    done = events[-1]
    assert done["audio_seconds"] == pytest.approx(stated, abs=1 / RATE)
    assert (done["seed"], done["finish_reason"], done["sample_rate"], done["channels"]) == (
        7,
        "stop",
        rate,
        1,
    )
    assert done["usage"] == {
        "input_tokens": PROMPT_ROWS,
        "output_tokens": 13,
        "total_tokens": PROMPT_ROWS + 13,
    }


@pytest.mark.parametrize("channels", [1, 2])
def test_streamed_and_whole_payloads_are_the_same_bytes(tmp_path: Path, channels: int) -> None:
    engine = FakePool(channels=channels)
    with serving(engine, tmp_path) as http:
        pcm, wav = speak(http), speak(http, response_format="wav")
        assert pcm.content == speak(http, stream=False).content
        assert (
            wav.content[44:]
            == speak(http, response_format="wav", stream=False).content[44:]
            == pcm.content
        )
        assert wav.headers["x-channels"] == str(channels)
        tone = engine.tone(engine.requests[0])
        assert (
            np.abs(decoded(pcm.content, "pcm", RATE).reshape(-1, channels).T - tone).max()
            <= 1 / 32768
        )


def test_a_stream_begins_with_the_first_audio(tmp_path: Path) -> None:
    engine = FakePool(prefill_seconds=0.1, frame_seconds=0.05)
    with serving(engine, tmp_path) as http, http.stream("POST", SPEECH, json=HELLO) as answer:
        pieces = list(answer.iter_raw())
        assert answer.headers["transfer-encoding"] == "chunked"
    assert [len(piece) for piece in pieces] == [2 * FRAME_SAMPLES] * 13


@pytest.mark.parametrize(
    ("fields", "sse"),
    [({}, False), ({"stream": True}, True), ({"stream": True, "stream_format": "audio"}, False)],
)
def test_what_stream_means(http: httpx.Client, fields: dict[str, Any], sse: bool) -> None:
    assert (speak(http, **fields).headers["content-type"] == "text/event-stream") == sse


def test_the_default_format_is_openai_s(http: httpx.Client) -> None:
    assert http.post(SPEECH, json={"input": "Hi."}).headers["content-type"] == "audio/mpeg"


# ---- what the engine is asked


def test_every_field_reaches_the_engine(http: httpx.Client, engine: FakePool) -> None:
    speak(
        http,
        model="tts-1",
        voice={"id": "default"},
        language="German",
        instructions="leise",
        temperature=0.5,
        top_p=0.9,
        top_k=20,
        repetition_penalty=1.1,
        max_new_tokens=50,
        min_new_tokens=4,
        tokens=13,
        seed=0,
    )
    request = engine.requests[-1]
    assert request.model_dump(exclude={"sampling"}, exclude_defaults=True) == {
        "text": "Hello, world.",
        "language": "German",
        "instruction": "leise",
        "tokens": 13,
        "reference": (),
        "seed": 0,
        "max_frames": 50,
        "min_frames": 4,
    }
    wanted = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "stop_temperature": 1.0,
    }
    assert request.sampling.model_dump(exclude_none=True) == wanted


def test_a_seed_is_drawn_reported_and_repeats(http: httpx.Client, engine: FakePool) -> None:
    first = speak(http, seed=None)
    assert engine.requests[-1].seed == int(first.headers["x-seed"]) < 2**53
    assert speak(http, seed=int(first.headers["x-seed"])).content == first.content
    assert speak(http, seed=None).headers["x-seed"] != first.headers["x-seed"]
    assert speak(http, seed=2**63 - 1).headers["x-seed"] == str(2**63 - 1)


@pytest.mark.parametrize("language", ["Auto", "auto", " AUTO "])
def test_auto_is_no_language(http: httpx.Client, engine: FakePool, language: str) -> None:
    before = len(engine.requests)
    speak(http, language=language)
    assert [request.language for request in engine.requests[before:]] == [None]


# ---- long texts


def test_a_long_text_is_spoken_in_pieces_and_joined(tmp_path: Path) -> None:
    engine = FakePool()
    text = " ".join(f"This is sentence number {i}, and it is one of many." for i in range(20))
    with serving(engine, tmp_path, segment_characters=120, segment_pause_ms=100.0) as http:
        answer = speak(http, input=text, stream=False)
    texts = [request.text for request in engine.requests]
    assert len(texts) > 5
    assert all(len(piece) <= 120 for piece in texts)
    assert " ".join(texts) == text
    assert [request.seed for request in engine.requests] == [
        segment_seed(7, i) for i in range(len(texts))
    ]
    assert len({request.seed for request in engine.requests}) == len(texts)
    assert engine.requests[0].seed == 7
    assert engine.most_running == 1
    pause = np.zeros((1, RATE // 10), np.float32)
    expected = [pause]
    for request in engine.requests:
        expected += [engine.tone(request), pause]
    heard = decoded(answer.content, "pcm", RATE)
    assert np.abs(heard - np.concatenate(expected[1:-1], axis=1)).max() <= 1 / 32768


@pytest.mark.parametrize("form", [{}, {"stream": False}], ids=["streamed", "whole"])
@pytest.mark.parametrize("response_format", TYPES)
def test_an_engine_that_makes_16_bits_gives_the_same_audio(
    tmp_path: Path, response_format: str, form: dict[str, bool]
) -> None:
    text = " ".join(f"This is sentence number {i}." for i in range(4))
    bodies: list[bytes] = []
    formats: tuple[SampleFormat, ...] = ("float32", "int16")
    for samples in formats:
        engine = FakePool(samples=samples, channels=2)
        with serving(
            engine, tmp_path / samples, segment_characters=30, segment_pause_ms=100.0
        ) as http:
            answers = [
                speak(http, input=text, response_format=response_format, speed=speed, **form)
                for speed in (1.0, 1.5)
            ]
        assert len(engine.requests) > 2
        bodies.append(answers[0].content)
        seconds = (
            sum(len(request.text) for request in engine.requests) / 2 * FRAME_SAMPLES / RATE
            + 0.1 * 3
        )
        if response_format == "pcm":
            assert len(answers[0].content) == round(4 * seconds * RATE)
            assert len(answers[1].content) == 4 * round(seconds * RATE / 1.5)
            faster = np.frombuffer(answers[1].content, "<i2")
            assert 5000 < np.abs(faster).max() < 20000
    if response_format in ("pcm", "wav", "flac"):
        assert bodies[0] == bodies[1]
    else:  # rounding changes what a coder makes of it, inaudibly
        heard = [decode_audio(body, max_bytes=2**24, max_seconds=60).samples for body in bodies]
        assert np.sqrt(np.mean(np.square(heard[0] - heard[1]))) < 1e-2 * np.sqrt(
            np.mean(np.square(heard[0]))
        )


def test_limits_are_shared_by_the_pieces(tmp_path: Path) -> None:
    engine = FakePool()
    text = "One two three four. Five six seven eight. Nine ten eleven twelve."
    with serving(engine, tmp_path, segment_characters=22) as http:
        answer = speak(http, input=text, max_new_tokens=30, tokens=60, stream=False)
        assert answer.headers["x-finish-reason"] == "length"
        assert [request.max_frames for request in engine.requests] == [30, 11]
        assert [request.tokens for request in engine.requests] == [18, 20]


# ---- voices


def data_uri(data: bytes) -> str:
    return "data:audio/wav;base64," + base64.b64encode(data).decode()


def test_an_inline_reference_goes_before_a_voice_s_name(
    http: httpx.Client, engine: FakePool
) -> None:
    speak(
        http,
        ref_audio=data_uri(recording()),
        ref_text="The words.",
        voice="vivian",
        task_type="Base",
    )
    request = engine.requests[-1]
    assert request.references == (recording(),)
    assert request.reference_text == "The words."
    speak(http, ref_audio=data_uri(recording()), ref_text="The words.", x_vector_only_mode=True)
    assert (engine.requests[-1].references, engine.requests[-1].reference_text) == (
        (recording(),),
        None,
    )


def upload(http: httpx.Client, name: str, data: bytes, **fields: str) -> httpx.Response:
    return http.post(
        "/v1/audio/voices", files={"audio_sample": ("a.wav", data)}, data={"name": name, **fields}
    )


def test_a_voice_from_upload_to_deletion(tmp_path: Path) -> None:
    engine = FakePool()
    with serving(engine, tmp_path) as http:
        answer = upload(
            http,
            "Anna",
            recording(),
            ref_text="The words.",
            consent="yes",
            speaker_description="warm",
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["voice"]["name"] == "anna"
    with serving(engine, tmp_path) as http:  # a restart
        voices = {voice["name"]: voice for voice in http.get("/v1/audio/voices").json()["voices"]}
        assert list(voices) == ["default", "anna"]
        assert [voice["builtin"] for voice in voices.values()] == [True, False]
        assert (voices["anna"]["ref_text"], voices["anna"]["speaker_description"]) == (
            "The words.",
            "warm",
        )
        for fields in ({"voice": "anna"}, {"voice": {"id": "Anna"}}, {"ref_audio": "anna"}):
            speak(http, **fields)
            request = engine.requests[-1]
            (reference,) = request.references
            assert isinstance(reference, EncodedReference)
            heard = engine.recordings[0]
            np.testing.assert_array_equal(reference.codes, engine.encoded(heard).codes)
            assert request.reference_text == "The words."
        quiet = encode_audio(FORMATS[".wav"], np.zeros((1, RATE), np.float32), RATE)
        for content, words in (
            (b"RIFF but no audio", "cut short"),
            (b"<html>not found</html>" * 40, "not an audio file"),
            (recording(0.1), "lasts 0.10 s"),
            (recording(61.0), "the limit is 1048576"),
            (quiet, "is silent"),
        ):
            error = upload(http, "anna", content).json()["error"]
            assert (error["param"], words in error["message"]) == ("audio_sample", True), error
        assert http.get("/v1/audio/voices").json()["voices"][-1]["ref_text"] == "The words."
        preview = decode_audio(
            http.get("/v1/audio/voices/anna/preview").content, max_bytes=10**6, max_seconds=9
        )
        assert preview.seconds == 1.0
        assert http.delete("/v1/audio/voices/anna").json() == {"success": True, "name": "anna"}
        assert http.delete("/v1/audio/voices/anna").status_code == 404
        assert http.get("/v1/audio/voices/anna/preview").status_code == 404
        assert http.delete("/v1/audio/voices/default").status_code == 400


@pytest.mark.parametrize(
    ("fields", "files", "param", "message"),
    [
        ({"name": "x"}, None, "audio_sample", "audio_sample is missing"),
        ({}, {"audio_sample": b"x"}, "name", "name is missing"),
        ({"name": "../x"}, {"audio_sample": b"x"}, "name", "no voice name"),
        ({"name": "n" * 300}, {"audio_sample": b"x"}, "name", "64 bytes"),
        ({"name": "\U0001f600"}, {"audio_sample": b"x"}, "name", "no voice name"),
        ({"name": "default"}, {"audio_sample": b"x"}, "name", "comes with the model"),
        ({"name": "x", "pitch": "9"}, {"audio_sample": b"x"}, "pitch", "unknown field"),
        ({"name": "x"}, {"audio_sample": b"x" * 11 * 2**20}, "audio_sample", "limit is 10485760"),
    ],
)
def test_bad_uploads(
    http: httpx.Client, fields: dict[str, str], files: Any, param: str, message: str
) -> None:
    answer = http.post("/v1/audio/voices", data=fields, files=files)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert re.search(message, answer.json()["error"]["message"])
    assert [voice["name"] for voice in http.get("/v1/audio/voices").json()["voices"]] == ["default"]


# ---- batches and the codec


def test_a_batch_of_good_and_bad_items(tmp_path: Path) -> None:
    engine = FakePool(rows=3)
    items: list[dict[str, Any]] = [{"input": f"Item {i}.", "seed": i} for i in range(6)]
    items += [
        {"input": ""},
        {"input": "Hi.", "voice": "nobody"},
        {"input": "Hi.", "stream": True},
        {"volume": 1},
    ]
    items += [{"input": "Hi.", "ref_text": "x"}, {"input": "Hi.", "response_format": "flac"}]
    with serving(engine, tmp_path, batch_concurrency=3) as http:
        answer = http.post(
            f"{SPEECH}/batch", json={"items": items, "response_format": "pcm", "language": "German"}
        )
        document = answer.json()
        assert answer.status_code == 200, document
        assert (document["total"], document["succeeded"], document["failed"]) == (12, 7, 5)
        results = document["results"]
        assert [result["index"] for result in results] == list(range(12))
        assert [result["status"] == "success" for result in results] == [True] * 6 + [False] * 5 + [
            True
        ]
        params = [result["error"]["param"] for result in results[6:11]]
        assert params == ["input", "voice", "stream", "volume", "ref_text"]
        for i, result in enumerate(results[:6]):
            single = speak(http, **items[i], language="German")
            assert base64.b64decode(result["audio_data"]) == single.content
            assert (result["seed"], result["finish_reason"]) == (i, "stop")
        assert results[11]["media_type"] == "audio/flac"
        assert all(request.language == "German" for request in engine.requests)
        assert engine.most_running == 3

        packed = http.post(
            f"{SPEECH}/batch", json={"items": items[:7], "response_format": "wav", "output": "zip"}
        )
        assert packed.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
            listed = json.loads(archive.read("results.json"))
            assert archive.namelist() == ["results.json", *(f"{i:03d}.wav" for i in range(6))]
            assert listed["results"][6]["error"]["param"] == "input"
            wav = speak(http, **items[5], response_format="wav", stream=False).content
            assert archive.read(listed["results"][5]["file"]) == wav


def test_what_a_batch_says_for_its_items(tmp_path: Path) -> None:
    """A voice's fields alone, whether unknown ones are errors or not; what an item brings counts
    for its task.
    """
    engine = FakePool()
    item = {"input": "Hi.", "seed": 1}
    for strict in (True, False):
        with serving(engine, tmp_path, strict_fields=strict) as http:
            for name, value in {"seed": 7, "input": "Ho.", "stream": True}.items():
                answer = http.post(
                    f"{SPEECH}/batch", json={"items": [item, {"input": "Hi."}], name: value}
                )
                assert answer.status_code == (400 if strict else 200)
                if strict:
                    assert answer.json()["error"]["param"] == name
                else:
                    assert answer.json()["succeeded"] == 2
                    assert 7 not in [request.seed for request in engine.requests]
    with serving(engine, tmp_path) as http:
        items = [item | {"ref_audio": data_uri(recording())}, item]
        results = http.post(f"{SPEECH}/batch", json={"items": items, "task_type": "Base"}).json()[
            "results"
        ]
        assert [result["status"] for result in results] == ["success", "error"]
        assert results[1]["error"]["param"] == "task_type"


def test_the_codec_as_a_service(http: httpx.Client) -> None:
    answer = http.post(
        "/v1/audio/tokens/encode", json={"audio": data_uri(recording()), "codebooks": 3}
    )
    document = answer.json()
    assert answer.status_code == 200, document
    assert (document["frames"], document["codebooks"], document["sample_rate"]) == (13, 3, RATE)
    back = http.post(
        "/v1/audio/tokens/decode", json={"codes": document["codes"], "response_format": "pcm"}
    )
    assert len(back.content) == 2 * 13 * FRAME_SAMPLES
    assert float(back.headers["x-audio-seconds"]) == pytest.approx(13 * 0.08)
    for path, fields, param in [
        ("encode", {"audio": data_uri(b"no audio")}, "audio"),
        ("encode", {"audio": data_uri(recording()), "codebooks": 0}, "codebooks"),
        ("decode", {"codes": [[1, 2], [3]]}, "codes"),
        ("decode", {"codes": []}, "codes"),
        ("decode", {"codes": [[-1]]}, "codes"),
        ("decode", {"codes": [[1]] * 7501}, "codes"),
        ("decode", {"codes": "abc"}, "codes"),
    ]:
        bad = http.post(f"/v1/audio/tokens/{path}", json=fields)
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, param)


# ---- about the server


def test_models_version_and_documentation(http: httpx.Client) -> None:
    assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["hocket-mini"]
    assert http.get("/version").json()["model"] == "hocket-mini"
    document = http.get("/openapi.json").json()
    assert set(document["paths"]) >= {
        SPEECH,
        f"{SPEECH}/batch",
        "/v1/audio/voices",
        "/v1/models",
        "/health",
    }
    schemas = document["components"]["schemas"]
    assert {"input", "voice", "reference_audio", "seed"} <= set(schemas["SpeechBody"]["properties"])
    referred = {
        name.rpartition("/")[2] for name in re.findall(r'"\$ref": "([^"]+)"', json.dumps(document))
    }
    assert (
        {"SpeechBody", "BatchBody", "EncodeBody", "DecodeBody", "Error"} <= referred <= set(schemas)
    )
    assert "422" not in json.dumps(document["paths"][SPEECH])
    for path in ("/docs", "/"):
        assert http.get(path).status_code == 200


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    with serving(FakePool(late_seconds=0.5), tmp_path) as http:
        speak(http)
        speak(http, stream=False)
        assert http.post(SPEECH, json={}).status_code == 400
        # An answer is counted when it is over, which its reader may know before the server does.
        wait_until(lambda: 'status="400"' in http.get("/metrics").text)
        lines = set(http.get("/metrics").text.splitlines())
    for line in (
        'hocket_requests_total{route="/v1/audio/speech",status="200"} 2.0',
        'hocket_requests_total{route="/v1/audio/speech",status="400"} 1.0',
        'hocket_errors_total{code="invalid_request"} 1.0',
        'hocket_finished_total{reason="stop"} 2.0',
        "hocket_first_audio_seconds_count 1.0",
        "hocket_chunk_lateness_seconds_sum 1.0",
        "hocket_underruns_total 2.0",
        "hocket_frames_total 26.0",
        "hocket_rtf_count 2.0",
        "hocket_ready 1.0",
        'hocket_engine{name="rows_running",worker="0"} 0.0',
        'hocket_engine{name="ready",worker="0"} 1.0',
    ):
        assert line in lines, line
    assert any(line.startswith("hocket_audio_seconds_total 2.08") for line in lines)


def test_a_request_is_one_line_of_log_without_its_text(
    http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hocket.request"):
        speak(http, input="Nobody logs this.", instructions="or that")
        http.get("/nowhere?secret=1")
        wait_until(lambda: "path=none" in caplog.text)
    spoken, lost = [record.message for record in caplog.records if record.name == "hocket.request"]
    assert re.fullmatch(
        r"event=request id=req-\w+ method=POST path=/v1/audio/speech status=200 model=hocket-mini "
        r"frames=17 "
        r"audio_seconds=1\.36 first_audio_ms=[\d.]+ rtf=[\d.]+ seconds=[\d.]+ reason=stop",
        spoken,
    )
    assert "path=none status=404" in lost
    assert not {"Nobody", "that", "nowhere", "secret"} & set(re.findall(r"\w+", caplog.text))


def test_a_plain_request_id_is_kept(http: httpx.Client) -> None:
    for given, kept in (("my-id_7", True), ("a b", False), ("x" * 200, False), ("a=b", False)):
        assert (
            http.get("/version", headers={"x-request-id": given}).headers["x-request-id"] == given
        ) == kept


def test_head_on_health(http: httpx.Client) -> None:
    assert http.head("/health").status_code == 200
    assert http.get("/health/live").status_code == 200
