"""Players, judges, percentiles, intervals, conditions and comparisons on numbers worked out by
hand.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.bench.dataset import Item
from hocket.bench.judge.decode import DecodedAudio
from hocket.bench.judge.outcome import Limits, Outcome, check_together, judge
from hocket.bench.judge.playback import play
from hocket.bench.load.prometheus import _parse, difference, first_audio
from hocket.bench.report.compare import compare, differences
from hocket.bench.report.conditions import Condition
from hocket.bench.report.statistics import counted, figures_of, timeline_of
from hocket.errors import ConfigError


def test_a_player_that_starts_at_once_stands_still_when_it_runs_dry() -> None:
    # A second of audio at 0, one at 1.5 (0.5 s late), one at 2 (in time), the last at 5 (1.5 s
    # late).
    marks = [(0.0, 1.0), (1.5, 2.0), (2.0, 3.0), (5.0, 3.5)]
    playback = play(marks, 0.0)
    assert playback.began_at == 0.0
    assert playback.stalls == ((1.0, 0.5), (3.5, 1.5))
    assert playback.stalled_seconds == 2.0
    assert playback.longest_stall_seconds == 1.5


def test_a_start_buffer_forgives_and_delays() -> None:
    marks = [(0.0, 0.1), (0.4, 1.0), (1.2, 2.0)]
    assert play(marks, 0.0).stalled_seconds == pytest.approx(0.3)
    buffered = play(marks, 0.5)
    assert buffered.began_at == 0.4
    assert buffered.stalls == ()
    # A buffer longer than the answer: playback starts with all of it.
    assert play(marks, 10.0).began_at == 1.2


def test_nothing_at_first_is_no_audio_yet() -> None:
    assert play([(0.0, 0.0), (1.0, 0.5)], 0.0).began_at == 1.0


def outcome(
    index: int = 0, text: str = "Somebody left a basket of apples on the steps."
) -> Outcome:
    return Outcome(
        index=index,
        item=Item(f"t{index}", text),
        phase="steady",
        due_at=0.0,
        late_ms=0.0,
        ended_at=4.0,
        e2e_ms=4000.0,
    )


def test_first_sound_is_not_the_first_byte() -> None:
    samples = np.zeros((1, 30_000), np.float32)
    samples[:, 12_000:] = 0.3 * np.sin(np.arange(18_000) / 10)
    decoded = DecodedAudio(samples, 10_000, [(10.2, 1.0), (10.9, 2.0), (11.0, 3.0)])
    judged = outcome()
    judge(judged, decoded, 10.0, Limits())
    assert judged.leading_silence_ms == pytest.approx(1200.0)
    assert judged.ttfa_ms == pytest.approx(900.0)
    assert judged.gap_longest_ms == pytest.approx(700.0)
    assert judged.rtf == pytest.approx(4 / 3)
    assert judged.faults == []


def test_a_loud_peak_is_no_clipping_but_a_plateau_is() -> None:
    wave = (0.5 * np.sin(np.arange(30_000) / 20)).astype(np.float32)
    peaks = wave.copy()
    peaks[::100] = 1.0
    flat = np.clip(wave * 3, -1.0, 1.0)
    for samples, expected in ((peaks, set()), (flat, {"clipped"})):
        judged = outcome()
        judge(judged, DecodedAudio(samples[None], 10_000, [(0.1, 3.0)]), 0.0, Limits())
        assert {fault.kind for fault in judged.faults} == expected


def test_an_unusual_pace_is_found_among_others_only() -> None:
    outcomes = [outcome(i) for i in range(6)]
    for i, one in enumerate(outcomes):
        one.seconds, one.digest = (1.6 if i == 3 else 3.4), str(i)
    check_together(outcomes, Limits())
    assert [bool(one.faults) for one in outcomes] == [False, False, False, True, False, False]
    assert outcomes[3].faults[0].kind == "too_short"


def stage(values: list[float], name: str = "8 clients", **more: Any) -> dict[str, Any]:
    requests = [
        {
            "index": i,
            "item": {"text": f"text {i}"},
            "phase": "steady",
            "faults": [],
            "due_at": i * 0.1,
            "ended_at": i * 0.1 + 1.0,
            "seconds": 2.0,
            "marks": [(value, 1.0), (value + 500.0, 2.0)],
            "ttfa_ms": value,
            "e2e_ms": value + 500.0,
            "rtf": 0.5,
            "still_ms": 0.0 if i % 4 else 50.0,
            **more,
        }
        for i, value in enumerate(values)
    ]
    length = len(values) * 0.1 + 1.0
    return {
        "name": name,
        "requests": requests,
        "timeline": timeline_of(requests, (0.0, length), length),
    }


def test_figures_and_their_intervals() -> None:
    random = np.random.default_rng(1)
    values = list(random.normal(200.0, 20.0, 400))
    figures = figures_of(stage(values), seed=0)
    assert figures["ttfa_mean_ms"].value == pytest.approx(np.mean(values))
    assert figures["ttfa_p95_ms"].value == pytest.approx(np.percentile(values, 95))
    # The standard error of the mean is 1 ms.
    assert figures["ttfa_mean_ms"].high - figures["ttfa_mean_ms"].low == pytest.approx(
        2 * 1.96, rel=0.25
    )
    assert figures["underrun_free"].value == 0.75
    assert figures["audio_s_per_s"].value == pytest.approx(800.0 / 41.0, rel=0.01)
    assert figures["requests_per_s_full"].value == pytest.approx(400 / 41.0)
    assert figures["failures"].value == 0


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    random, inside = np.random.default_rng(2), 0
    for _ in range(60):
        figure = figures_of(stage(list(random.exponential(100.0, 60))), seed=3)["ttfa_mean_ms"]
        inside += figure.low <= 100.0 <= figure.high
    assert 48 <= inside <= 60


def test_failed_answers_leave_the_latencies_and_late_ones_stay() -> None:
    one = stage([100.0] * 8)
    one["requests"][0]["faults"] = [{"kind": "silent", "detail": ""}]
    one["requests"][0]["ttfa_ms"] = 9000.0
    one["requests"][1]["faults"] = [{"kind": "stalled", "detail": ""}]
    one["requests"][1]["ttfa_ms"] = 8000.0
    figures = figures_of(one, seed=0)
    assert figures["failures"].value == 2
    assert figures["fault_silent"].value == 1
    assert figures["ttfa_mean_ms"].value == pytest.approx((6 * 100 + 8000) / 7)


def test_error_rates_are_of_all_words_and_not_means_of_rates() -> None:
    one = stage([100.0, 100.0])
    one["requests"][0] |= {"word_errors": 1, "words": 1, "character_errors": 3, "characters": 3}
    one["requests"][1] |= {"word_errors": 0, "words": 9, "character_errors": 0, "characters": 27}
    figures = figures_of(one, seed=0)
    assert figures["wer"].value == pytest.approx(0.1)
    assert figures["cer"].value == pytest.approx(0.1)


def test_steady_requests_count_where_there_are_any() -> None:
    one = stage([1.0, 2.0, 3.0])
    one["requests"][0]["phase"] = "fill"
    assert [request["ttfa_ms"] for request in counted(one["requests"])] == [2.0, 3.0]
    for request in one["requests"]:
        request["phase"] = "drain"
    assert len(counted(one["requests"])) == 3


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("ttfa_p95_ms > 200", 200.0, False),
        (" ttfa_p95_ms>=200 ", 200.0, True),
        ("underrun_free < 0.99", 0.5, True),
        ("rtf_p50 <= 1e-1", 0.2, False),
    ],
)
def test_conditions(text: str, value: float, holds: bool) -> None:
    assert Condition.parse(text).holds(value) is holds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ttfa",
        "1 > ttfa",
        "__import__('os') > 1",
        "a.b > 1",
        "ttfa_p95_ms > 200 or 1",
        "ttfa == 3",
    ],
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(ConfigError, match="--fail-if"):
        Condition.parse(text)


def test_an_unknown_figure_is_told_with_its_neighbours() -> None:
    with pytest.raises(ConfigError, match="ttfa_p95_ms"):
        Condition.parse("tfa_p95_ms > 3").check_known(["ttfa_p95_ms", "rtf_p50"])


def report(stage_: dict[str, Any]) -> dict[str, Any]:
    return {
        "stages": [stage_],
        "host": {"cpu": "x", "gpus": []},
        "wishes": {"delivery": "raw", "format": "pcm", "dialect": "hocket"},
        "seeds": {"order_and_arrivals": 0},
    }


def test_a_comparison_tells_a_difference_from_noise() -> None:
    random = np.random.default_rng(4)
    before = report(stage(list(random.normal(200.0, 30.0, 200))))
    again = report(stage(list(random.normal(200.0, 30.0, 200))))
    slower = report(stage(list(random.normal(240.0, 30.0, 200))))
    assert compare(before, again)["8 clients"]["ttfa_mean_ms"].verdict == "noise"
    found = compare(before, slower)["8 clients"]["ttfa_mean_ms"]
    assert found.verdict == "worse"
    assert found.low < 1.2 < found.high
    assert compare(slower, before)["8 clients"]["ttfa_mean_ms"].verdict == "better"


def test_a_report_compared_with_itself_is_noise_throughout() -> None:
    one = report(stage(list(np.random.default_rng(5).normal(200.0, 30.0, 100))))
    assert {ratio.verdict for ratio in compare(one, copy.deepcopy(one))["8 clients"].values()} == {
        "noise"
    }
    assert differences(one, one) == []


def test_reports_of_other_loads_or_circumstances() -> None:
    one, other = report(stage([1.0] * 9)), report(stage([1.0] * 9, "16 clients"))
    with pytest.raises(ConfigError, match="no load in common"):
        compare(one, other)
    other["wishes"]["format"] = "mp3"
    assert differences(one, other) == ["format: pcm against mp3"]


def test_scrapes_are_subtracted() -> None:
    def page(count: int, slow: int) -> str:
        return (
            "# TYPE hocket_requests_total counter\n"
            f'hocket_requests_total{{route="a"}} {count}\nhocket_requests_total{{route="b"}} 1\n'
            "# TYPE hocket_first_audio_seconds histogram\n"
            f'hocket_first_audio_seconds_bucket{{le="0.1"}} {count - slow}\n'
            f'hocket_first_audio_seconds_bucket{{le="0.3"}} {count}\n'
            f'hocket_first_audio_seconds_bucket{{le="+Inf"}} {count}\n'
            f"hocket_first_audio_seconds_sum {0.05 * count}\nhocket_first_audio_seconds_count "
            f"{count}\n"
        )

    found = difference(_parse(page(10, 10)), _parse(page(30, 20)))
    assert found is not None
    assert found["counters"] == {"hocket_requests": 20.0}
    first = first_audio(found)
    assert first is not None
    # Of 20 new requests, 10 took less than 100 ms and 10 between that and 300.
    assert first["count"] == 20.0
    assert first["mean"] == pytest.approx(50.0)
    assert first["p50"] == pytest.approx(100.0)
    assert first["p95"] == pytest.approx(280.0)
    assert difference(None, _parse("")) is None


def test_paths_are_not_in_the_figures(tmp_path: Path) -> None:
    item = Item("a", "text", reference=tmp_path / "voice.wav")
    one = outcome()
    one.item = item
    assert one.as_json()["item"]["reference"] == "voice.wav"
