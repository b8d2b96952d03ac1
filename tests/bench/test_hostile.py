"""Broken servers, and reports and lists written by hand: a fault or an error, never a crash."""

from __future__ import annotations

import base64
import copy
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

from hocket.bench.dataset import Item, load_dataset
from hocket.bench.faults import ResponseError
from hocket.bench.http import Response, Target, send
from hocket.bench.judge.decode import DecodedAudio, decode_response
from hocket.bench.judge.outcome import Limits, Outcome, judge
from hocket.bench.report.compare import compare, differences
from hocket.bench.report.conditions import Condition
from hocket.bench.report.report import read_report
from hocket.bench.report.statistics import figure_names, figures_of
from hocket.errors import ConfigError
from tests.support.cli_runner import run

RATE = 24_000
NOISE = np.random.default_rng(0).normal(0.0, 3000.0, 2 * RATE).astype("<i2").tobytes()
SECRET = "sk-nobody-may-see-this"


def response(
    body: bytes, content_type: str = "audio/pcm", status: int = 200, **headers: str
) -> Response:
    named = {"content-type": content_type, "x-sample-rate": str(RATE)}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(0.0, 0.0, status, named, [(1.0, len(body))], body, 1.0)


def events(*payloads: bytes) -> Response:
    return response(b"".join(payload + b"\n\n" for payload in payloads), "text/event-stream")


def delta(body: bytes = NOISE, **fields: Any) -> bytes:
    event = {"type": "speech.audio.delta", "audio": base64.b64encode(body).decode(), **fields}
    return b"data: " + json.dumps(event).encode()


def kind_of(found: Response, delivery: Any = "raw") -> str:
    with pytest.raises(ResponseError) as caught:
        decode_response(found, "pcm", delivery)
    return caught.value.fault.kind


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"error": {"message": "the model is still loading"}}', "audio/pcm"),
        (b"<html><body>" + b"busy " * 5000, "audio/pcm"),
        (delta() + b"\n\n", "audio/pcm"),
        (NOISE, "text/html; charset=utf-8"),
        (NOISE, "application/problem+json"),
        (NOISE, "audio/wav"),
        (NOISE, "audio/mpeg"),
    ],
)
def test_text_and_files_are_no_raw_samples(body: bytes, content_type: str) -> None:
    assert kind_of(response(body, content_type)) == "wrong_format"


def test_a_compressed_body_is_no_audio() -> None:
    assert kind_of(response(NOISE, content_encoding="gzip")) == "wrong_format"


def test_headers_without_sense_are_no_facts() -> None:
    assert kind_of(response(NOISE, x_sample_rate="9" * 5000)) == "unknown_rate"
    for seconds in ("nan", "inf", "-inf"):
        assert (
            "seconds"
            not in decode_response(response(NOISE, x_audio_seconds=seconds), "pcm", "raw").facts
        )


@pytest.mark.parametrize(
    ("payloads", "kind"),
    [
        ([b"data: " + b"[" * 100_000], "not_audio"),
        (['data: {"type": "speech.audio.delta", "audio": "äöü"}'.encode()], "not_audio"),
        (
            [delta(), b'data: {"type": "error", "message": "the worker died"}', b"data: [DONE]"],
            "error_event",
        ),
        (
            [delta(), b'event: error\ndata: {"message": "the worker died"}', b"data: [DONE]"],
            "error_event",
        ),
    ],
)
def test_events_that_are_none_or_that_say_something_went_wrong(
    payloads: list[bytes], kind: str
) -> None:
    assert kind_of(events(*payloads), "sse") == kind


@pytest.mark.parametrize("fact", [b"9" * 400, b"NaN", b"1e999", b"true", b'"\\ud800"', b'{"a": 1}'])
def test_events_facts_are_numbers_or_words(fact: bytes) -> None:
    decoded = decode_response(
        events(delta(), b'data: {"type": "speech.audio.done", "audio_seconds": ' + fact + b"}"),
        "pcm",
        "sse",
    )
    assert "seconds" not in decoded.facts
    assert decoded.faults == []


def test_wav_pieces_that_change_their_rate() -> None:
    def piece(rate: int) -> bytes:
        form = (
            b"fmt \x10\0\0\0\x01\0\x01\0"
            + rate.to_bytes(4, "little")
            + (2 * rate).to_bytes(4, "little")
        )
        size = len(NOISE).to_bytes(4, "little")
        return b"RIFF\xff\xff\xff\xffWAVE" + form + b"\x02\0\x10\0data" + size + NOISE

    found = events(delta(piece(48_000)), delta(piece(RATE), finish_reason="stop"))
    assert [fault.kind for fault in decode_response(found, "pcm", "sse").faults] == ["wrong_rate"]


def test_an_errors_text_is_one_line_that_a_terminal_and_a_file_can_take() -> None:
    error = b'{"error": {"message": "\\ud800 \\u001b[31mred\\u202e\\n2"}}'
    with pytest.raises(ResponseError) as caught:
        decode_response(response(error, "application/json", 500), "pcm", "raw")
    assert caught.value.fault.detail.isprintable()
    assert caught.value.fault.detail.encode()
    assert kind_of(response(b"[" * 100_000, "application/json", 500)) == "status_500"


@pytest.mark.parametrize("rate", [8, 11_025, 22_050])
def test_a_sound_at_the_very_end_after_long_silence(rate: int) -> None:
    samples = np.zeros((1, 31 * rate + 1), np.float32)
    samples[0, -1:] = 0.9
    outcome = Outcome(0, Item("a", "text"), "steady", 0.0, 0.0, 2.0)
    judge(outcome, DecodedAudio(samples, rate, [(1.0, samples.shape[1] / rate)]), 0.0, Limits())
    assert outcome.ttfa_ms == pytest.approx(1000.0)


@contextmanager
def server(respond: Callable[[socket.socket, str, bytes], None]) -> Iterator[str]:
    """`respond(connection, path, request)` for each connection, one after another."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def loop() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        request = connection.recv(65536)
                        respond(connection, request.split()[1].decode(), request)
                    except (OSError, IndexError):
                        pass

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def page(body: bytes, status: int = 200, content_type: str = "application/json") -> bytes:
    head = (
        f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: "
        f"{len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_a_body_without_an_end_is_cut_off() -> None:
    def endless(connection: socket.socket, path: str, request: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\n\r\n")
        while True:
            connection.sendall(NOISE)

    with server(endless) as url:
        found = uvloop.run(send(Target.parse(url), "POST", "/", {}, b"", 60.0, 500_000))
    assert found.broken == "too_big"
    assert len(found.body) < 2_000_000


@pytest.mark.parametrize(
    "facts",
    [
        b"[" * 15_000,
        b'{"v": "\\ud800"}',
        b'# TYPE a histogram\na_bucket{x="1"} 3\n',
        f'"{SECRET}"'.encode(),
    ],
)
def test_what_a_server_says_of_itself_does_no_harm(
    facts: bytes, tmp_path: Path, monkeypatch: Any
) -> None:
    def respond(connection: socket.socket, path: str, request: bytes) -> None:
        is_speech = path == "/v1/audio/speech"
        echo = json.dumps({"error": f"wrong key {SECRET}"}).encode()
        connection.sendall(page(echo, 401) if is_speech else page(facts))

    monkeypatch.setenv("HOCKET_API_KEY", SECRET)
    report = tmp_path / "r.json"
    with server(respond) as url:
        done = run(
            *(
                "bench",
                "serve",
                "--base-url",
                url,
                "--no-floor",
                "--requests",
                "2",
                "--warmup",
                "1",
            ),
            *(
                "--json",
                str(report),
                "--html",
                str(tmp_path / "r.html"),
                "--fail-if",
                "ttfa_p95_ms > 1",
            ),
        )
    assert done.code == 1, done.err
    assert "no answer was good" in done.err
    everything = report.read_text(encoding="utf-8") + (tmp_path / "r.html").read_text(
        encoding="utf-8"
    )
    assert SECRET not in everything + done.out + done.err
    assert read_report(report, "serve")["stages"][0]["figures"]["fault_status_401"][0] == 2.0


def test_words_that_nobody_could_judge_still_leave_a_report(tmp_path: Path) -> None:
    def respond(connection: socket.socket, path: str, request: bytes) -> None:
        if path == "/v1/audio/transcriptions":
            connection.sendall(page(b'{"error": "out of memory"}', 500))
        else:
            connection.sendall(page(NOISE, 200, "audio/pcm;rate=24000"))

    report = tmp_path / "r.json"
    with server(respond) as url:
        done = run(
            *(
                "bench",
                "serve",
                "--base-url",
                url,
                "--no-floor",
                "--no-probe",
                "--requests",
                "2",
                "--ignore-length",
            ),
            *("--transcribe", "--recogniser", url, "--json", str(report), "--limit", "1"),
        )
    assert done.code == 1
    assert "the recogniser" in done.err
    assert read_report(report, "serve")["stages"][0]["figures"]["requests"][0] == 2.0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--fail-if", "bogus > 1"], "no figure 'bogus'"),
        (["--fail-if", "fault_silnt > 0"], "no figure 'fault_silnt'"),
        (["--api-key", "schlüssel"], "API key"),
        (["--api-key", "abc\nX: y"], "API key"),
        (["--base-url", "http://a..b:1"], "host"),
        (["--base-url", "http://exämple.invalid"], "ASCII"),
        (["--base-url", "http://127.0.0.1:1/a b"], "ASCII"),
        (["--ramp", ""], "--ramp"),
        (["--json", "same", "--html", "same"], "same file"),
        (["--json", "taken.json"], "not a folder"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_any_load(
    options: list[str], told: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken_audio").touch()
    done = run("bench", "serve", "--base-url", "http://127.0.0.1:1", "--no-floor", *options)
    assert done.code == 2, done.err
    assert told in done.err


def test_a_list_keeps_odd_separators_inside_of_texts_and_counts_lines_as_editors_do(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.wav").touch()
    file = tmp_path / "meta.lst"
    file.write_text("\n1|a|a.wav|one\u2028two\x85three\r\n", encoding="utf-8", newline="")
    assert [item.text for item in load_dataset("seed-tts", tmp_path)] == ["one\u2028two\x85three"]
    file.write_text("\n\n1|a|a.wav\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 3: 3 fields"):
        load_dataset("seed-tts", tmp_path)
    for name in ("a\0.wav", "a" * 5000):
        file.write_text(f"1|a|{name}|text\n", encoding="utf-8")
        with pytest.raises(ConfigError, match="line 1"):
            load_dataset("seed-tts", tmp_path)


def small_report(faults: int = 0) -> dict[str, Any]:
    requests = [
        {
            "phase": "steady",
            "ttfa_ms": 100.0 + i,
            "seconds": 1.0,
            "item": {"text": "a"},
            "faults": [{"kind": "silent", "detail": ""}] if i < faults else [],
        }
        for i in range(40)
    ]
    timeline = {
        "steady_answers": [1] * 20,
        "steady_audio_seconds": [1.0] * 20,
        "steady_bin_seconds": 1.0,
    }
    stage = {"name": "8 clients", "requests": requests, "timeline": {**timeline, "seconds": 20.0}}
    run_config = {"recogniser": "base", "limits": {"buffer_seconds": 0.2}}
    return {"host": {}, "wishes": run_config, "seeds": {"requests": 1}, "stages": [stage]}


def test_a_server_that_fails_more_is_worse_and_other_means_are_told() -> None:
    found = compare(small_report(), small_report(20))["8 clients"]["success_rate"]
    assert (found.verdict, found.ratio) == ("worse", 0.5)
    other = copy.deepcopy(small_report())
    other["wishes"] = {"recogniser": "large", "limits": {"buffer_seconds": 1.0}}
    assert [line.partition(":")[0] for line in differences(small_report(), other)] == [
        "limits",
        "recogniser",
    ]


def test_reports_that_are_not_whole(tmp_path: Path) -> None:
    whole = small_report()
    broken: dict[str, Any]
    for broken in (
        {**whole, "stages": 5},
        {**whole, "stages": [{"name": "8 clients"}]},
        {"host": {}},
    ):
        with pytest.raises(ConfigError, match="not as --json wrote it"):
            compare(whole, broken)
    for text in ("[" * 100_000, '{"hocket_bench": 1, "kind": "serve", "x": NaN}'):
        (tmp_path / "x.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="is not JSON"):
            read_report(tmp_path / "x.json", "serve")


def test_every_figure_has_a_name_that_is_known_beforehand() -> None:
    assert set(figures_of(small_report()["stages"][0], 0)) <= figure_names()
    for name in ("wer", "fault_silent", "fault_status_503"):
        Condition.parse(f"{name} > 0").check_known(figure_names())
