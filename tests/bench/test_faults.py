"""A server with every fault: each is caught and named, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from hocket.bench.dataset import choose, load_dataset
from hocket.bench.dialects import Delivery, find_dialect
from hocket.bench.http import Target
from hocket.bench.judge.asr import load_recogniser
from hocket.bench.judge.outcome import Limits
from hocket.bench.judge.speaking_rate import SpeakingRate
from hocket.bench.load.generator import Load
from hocket.bench.load.run_config import RunConfig
from hocket.bench.serve import bench_serve
from hocket.errors import HocketError
from tests.support.faulty_server import FAULTS, FaultyServer, faulty_server

# Wide enough for a busy machine.
LIMITS = Limits(stall_seconds=2.0, max_silence_seconds=1.0)


def run(
    url: str,
    voices: list[str],
    *,
    delivery: Delivery = "raw",
    response_format: str = "pcm",
    words: bool = False,
    **more: Any,
) -> list[dict[str, Any]]:
    """The report's requests, one for each of `voices`, in order."""
    items = choose(load_dataset("plain", None), seed=None, limit=len(voices), voices=voices)
    run_config = RunConfig(
        target=Target.parse(url),
        dialect=find_dialect("hocket"),
        items=items,
        loads=[Load(len(voices), clients=8)],
        delivery=delivery,
        response_format=response_format,
        timeout_seconds=9.0,
        has_self_check=False,
        recogniser=load_recogniser(url, model="tones", api_key=None) if words else None,
        **{"limits": LIMITS, "warmup": 0, **more},
    )
    (stage,) = bench_serve(run_config)["stages"]
    return sorted(stage["requests"], key=lambda request: int(request["index"]))


def kinds(request: dict[str, Any]) -> set[str]:
    return {fault["kind"] for fault in request["faults"]}


def test_every_fault_is_caught_and_named_and_good_answers_are_good() -> None:
    voices = [*FAULTS, "good", "good", "good", "good"]
    with faulty_server() as url:
        requests = run(url, voices, words=True)
    found = {voice: kinds(request) for voice, request in zip(voices, requests, strict=True)}
    # Half, double, silent or wrongly played audio cannot have the right words either.
    beside = {"half", "silent", "wrong_rate", "wrong_channels", "long_silence", "double"}
    for voice, expected in FAULTS.items():
        assert (
            expected <= found[voice] <= expected | ({"wrong_words"} if voice in beside else set())
        ), (
            voice,
            found[voice],
        )
    for request in requests[-4:]:
        assert request["faults"] == []
        assert request["character_errors"] == 0
        assert request["ttfa_ms"] > 0


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("wav_cut", "wrong_length"),
        ("wav_lies", "wrong_length"),
        ("wav_headers", "headers_inside"),
        ("good", None),
    ],
)
def test_lies_of_wav_headers(fault: str, kind: str | None) -> None:
    with faulty_server() as url:
        (request,) = run(url, [fault], response_format="wav")
    assert (kind in kinds(request)) if kind else not request["faults"]


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("error_event", "error_event"),
        ("unfinished", "unfinished"),
        ("good", None),
        ("wav_events", None),
    ],
)
def test_events(fault: str, kind: str | None) -> None:
    with faulty_server() as url:
        (request,) = run(url, [fault], delivery="sse", words=fault == "good")
    assert kinds(request) == ({kind} if kind else set())
    if kind is None:
        assert request["sample_rate"] == 24_000
        assert len(request["marks"]) == 6


def test_the_very_audio_of_another_text_needs_no_recogniser() -> None:
    with faulty_server() as url:
        requests = run(
            url, ["stranger", "good", "stranger", "good"], limits=Limits(check_length=False)
        )
    assert [kinds(request) for request in requests] == [
        {"same_audio"},
        set(),
        {"same_audio"},
        set(),
    ]
    assert "request 2" in requests[0]["faults"][0]["detail"]


def test_a_rate_that_is_wrong_in_every_answer_is_found_by_the_probe_and_by_what_was_expected() -> (
    None
):
    with faulty_server() as url:
        probed = run(url, ["wrong_rate"] * 3)
        blind = run(url, ["wrong_rate"] * 3, has_probe=False)
        told = run(url, ["wrong_rate"] * 3, has_probe=False, limits=Limits(shape=(24_000, 1)))
    assert all(kinds(request) == {"wrong_rate"} for request in probed + told)
    # An answer alone does not show it; only the probe does.
    assert all(kinds(request) == set() for request in blind)


def test_nobody_there_is_an_error_and_not_a_report_of_failures() -> None:
    with faulty_server() as url:
        pass
    with pytest.raises(HocketError, match="nothing answers at"):
        run(url, ["good"], warmup=1)


def test_the_servers_own_figures_stand_beside() -> None:
    server = FaultyServer()
    with faulty_server(server) as url:
        run_config = RunConfig(
            target=Target.parse(url),
            dialect=find_dialect("hocket"),
            items=load_dataset("short", None),
            loads=[Load(5, clients=2)],
            has_self_check=False,
            has_probe=False,
        )
        (stage,) = bench_serve(run_config)["stages"]
    # Warm-up requests are not included.
    assert stage["server_first_audio_ms"]["count"] == 5
    assert stage["server_first_audio_ms"]["mean"] == pytest.approx(20.0)
    assert len(server.requests) == 7


@pytest.mark.parametrize(
    "text",
    [
        "No.",
        "The tower is 312 metres tall and has 1,665 steps.",
        "雨停了以后，孩子们都跑到院子里去玩。",
    ],
)
def test_half_and_double_of_a_usual_length_differ_from_its_bounds_or_lie_within_them(
    text: str,
) -> None:
    least, most = SpeakingRate().bounds(text)
    assert 0 < least < most
    assert SpeakingRate().bounds(text + text)[1] > most
