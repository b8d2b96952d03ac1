"""The benchmark over HTTP: its checkpoint loads and speaks, and its clock is right."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from benchmarks.gpu import http_load, random_checkpoint
from benchmarks.gpu.http_load import Plan, Served, Window, figures

from hocket import Engine, SpeechRequest
from tests.support.paths import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "golden"


def test_a_random_checkpoint_loads_and_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dimensions = {
        name: json.loads((GOLDEN / folder / "config.json").read_text())
        for name, folder in (("talker", "local_tiny"), ("codec", "codec2_tiny"))
    }
    file = tmp_path / "dimensions.json"
    file.write_text(json.dumps(dimensions))
    monkeypatch.setattr(
        random_checkpoint, "known_dimensions", lambda: {random_checkpoint.MODEL: file}
    )
    talker, codec = random_checkpoint.write_random_checkpoint(
        tmp_path / "checkpoint", GOLDEN / "local_tiny"
    )
    engine = Engine.load(talker, codec, device="cpu", dtype="float32", rows=1)
    speech = engine.generate(SpeechRequest(text="word", min_frames=5, max_frames=5, seed=1))
    assert speech.finish_reason == "length"
    assert len(speech.codes) == 5


def test_a_stream_stands_still_while_its_player_is_dry() -> None:
    second = 100  # bytes
    # One second arrives, is played until 1.0, and the next one comes at 1.4; the last is in time.
    arrivals = [(10.0, second), (11.4, 2 * second), (11.9, 3 * second)]
    assert math.isclose(http_load._still(arrivals, second), 0.4)


def test_the_window_leaves_out_what_started_before() -> None:
    plan = Plan("http://127.0.0.1:1", 100, clients=2)
    served = [
        Served(i, sent=float(i), first=i + (5.0 if i == 0 else 0.1), last=i + 1.0, still=0.0,
               audio_bytes=100, arrivals=[(i + 0.1, 50), (i + 1.0, 100)])
        for i in range(10)
    ]  # fmt: skip
    found = figures(served, plan, Window(4.0, warm_seconds=2.0))
    assert found["requests"] == 4
    assert found["first_audio_ms"]["max"] == 100.0
    assert found["audio_s_per_s"] == 1.0
    assert found["underrun_free"] == 1.0
