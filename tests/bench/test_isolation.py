"""Leaks between requests are found by words, and by seeds without a recogniser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hocket.bench.dataset import load_dataset
from hocket.bench.dialects import find_dialect
from hocket.bench.http import Target
from hocket.bench.isolation import By, bench_isolation, print_isolation
from hocket.bench.judge.asr import load_recogniser
from hocket.bench.load.generator import Load
from hocket.bench.load.run_config import RunConfig
from hocket.errors import ConfigError
from tests.support.faulty_server import FaultyServer, faulty_server


def run_config(url: str, count: int = 12) -> RunConfig:
    return RunConfig(
        target=Target.parse(url),
        dialect=find_dialect("hocket"),
        items=load_dataset("plain", None)[:count],
        loads=[Load(count, clients=6)],
        warmup=0,
        recogniser=load_recogniser(url, model="tones", api_key=None),
    )


@pytest.mark.parametrize("by", ["words", "seed"])
def test_everybody_gets_their_own(by: By) -> None:
    server = FaultyServer(seconds_per_chunk=0.01)
    with faulty_server(server) as url:
        report = bench_isolation(run_config(url), by)
    assert report["verdict"] == "isolated"
    assert report["counts"] == {"own": 12}
    assert report["most_open"] == server.max_open == 6
    assert min(row["likeness_own"] for row in report["answers"]) > 0.99
    assert print_isolation(report).endswith("PASS")


def test_swapped_answers_are_found_and_told_apart() -> None:
    with faulty_server(FaultyServer(swaps=True)) as url:
        report = bench_isolation(run_config(url), "words")
    assert report["verdict"] == "leak"
    # The first answer has a text of no request; the last request's text is in no answer.
    assert report["counts"] == {"other": 11, "unclear": 1}
    for row in report["answers"]:
        if row["verdict"] == "other":
            said = report["answers"][row["nearest_other"]]["text"]
            assert said.lower().strip(".")[:20].replace(",", " ") in row["heard_text"].replace(
                "  ", " "
            )
    assert "LEAK: request" in print_isolation(report)


def test_by_seed_a_leak_under_load_is_found_without_a_recogniser() -> None:
    class LeaksWhenBusy(FaultyServer):
        """Right for a single request; concurrent ones all get the newest request's speech."""

        async def _speech(self, request: dict[str, Any], writer: Any) -> None:
            if self.open_now > 1:
                request = {**request, "input": self.last_text}
            else:
                self.last_text = request["input"]
            await super()._speech(request, writer)

    with faulty_server(LeaksWhenBusy(seconds_per_chunk=0.02)) as url:
        report = bench_isolation(run_config(url), "seed")
    assert report["verdict"] == "leak"
    assert report["counts"]["other"] >= 6


def test_noise_proves_nothing() -> None:
    with faulty_server() as url:
        silent = run_config(url)
        silent = replace(silent, items=[replace(item, voice="silent") for item in silent.items])
        report = bench_isolation(silent, "words")
    assert report["verdict"] == "unproven"
    assert "NOT PROVEN" in print_isolation(report)


def test_failed_requests_are_told() -> None:
    with faulty_server() as url:
        broken = run_config(url, 3)
        broken = replace(
            broken, items=[replace(broken.items[0], voice="status"), *broken.items[1:]]
        )
        report = bench_isolation(broken, "words")
    assert report["counts"] == {"failed": 1, "own": 2}
    assert report["answers"][0]["problem"].startswith("status_500")
    assert report["verdict"] == "unproven"


def test_what_cannot_be_told_apart_or_asked() -> None:
    one = run_config("http://127.0.0.1:1", 1)
    with pytest.raises(ConfigError, match="two different texts"):
        bench_isolation(one, "words")
    with pytest.raises(ConfigError, match="no field for seeds"):
        bench_isolation(
            replace(run_config("http://127.0.0.1:1"), dialect=find_dialect("openai")), "seed"
        )
    with pytest.raises(ConfigError, match="needs a recogniser"):
        bench_isolation(replace(run_config("http://127.0.0.1:1"), recogniser=None), "words")
