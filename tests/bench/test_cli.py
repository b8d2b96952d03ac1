"""The commands: reports on disk, exit codes, and no secret in any of them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hocket.bench.environment import command_line
from hocket.bench.optional import _COMMANDS as COMMANDS
from hocket.bench.report.__main__ import main as page_command
from tests.support.cli_runner import Done, run
from tests.support.faulty_server import FaultyServer, faulty_server, speak, wav
from tests.support.paths import GOLDEN, REPOSITORY

SECRET = "a-key-that-nobody-may-see"
#: A dataset that `write_references` makes.
REFERENCES = ("--dataset", "jsonl", "texts.jsonl")


@pytest.fixture(scope="module")
def server() -> FaultyServer:
    return FaultyServer(seconds_per_chunk=0.005)


@pytest.fixture(scope="module")
def url(server: FaultyServer) -> Iterator[str]:
    with faulty_server(server) as address:
        yield address


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOCKET_API_KEY", raising=False)


def bench(url: str, *more: str) -> Done:
    return run(
        "bench",
        "serve",
        "--base-url",
        url,
        "--no-floor",
        "--requests",
        "12",
        "--clients",
        "3",
        *more,
    )


def read(name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(Path(name).read_text(encoding="utf-8"))
    return report


def write_references(*names: str) -> None:
    """Two texts with recordings of these names, in turn."""
    for name in names:
        Path(f"{name}.wav").write_bytes(wav(speak(name)))
    lines = [
        {"text": f"text number {i}", "reference": f"{names[i % len(names)]}.wav"} for i in range(2)
    ]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


def test_a_report_has_all_that_is_needed_to_repeat_it(url: str, server: FaultyServer) -> None:
    server.headers.clear()
    done = bench(
        url,
        "--api-key",
        SECRET,
        "--json",
        "r.json",
        "--html",
        "r.html",
        "--request-seed",
        "5",
        "--seed",
        "3",
    )
    assert done.code == 0, done.err
    assert "audio seconds a second" in done.out
    assert "failed answers" in done.out
    report, page = read("r.json"), Path("r.html").read_text(encoding="utf-8")
    assert {header["authorization"] for header in server.headers} == {f"Bearer {SECRET}"}
    assert SECRET not in json.dumps(report) + page + done.out + done.err
    assert report["seeds"] == {"order_and_arrivals": 3, "requests": 5}
    assert report["host"]["versions"]["hocket"]
    assert report["host"]["cores"] >= 1
    assert report["probe"] == {"sample_rate": 24_000, "channels": 1}
    (stage,) = report["stages"]
    assert stage["figures"]["failures"][0] == 0
    assert len(stage["requests"]) == 12
    assert sorted(request["index"] for request in stage["requests"]) == list(range(12))
    assert sorted(request["seed"] for request in server.requests[-12:]) == list(range(5, 17))


def test_the_key_is_taken_from_the_environment(
    url: str, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOCKET_API_KEY", SECRET)
    server.headers.clear()
    assert bench(url, "--json", "r.json").code == 0
    assert server.headers[-1]["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in Path("r.json").read_text(encoding="utf-8")


def test_the_command_is_kept_without_its_secrets() -> None:
    shown = command_line(
        ["bench", "--api-key", SECRET, f"--recogniser-api-key={SECRET}", "--seed", "3"]
    )
    assert shown == "hocket bench --api-key '***' '--recogniser-api-key=***' --seed 3"


def test_the_page_is_one_file_that_no_text_can_break_out_of(url: str, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script> <!-- spoken words that are long enough to be said"
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": evil}) + "\n", encoding="utf-8")
    done = run(
        "bench",
        "serve",
        "--base-url",
        url,
        "--dataset",
        "jsonl",
        "t.jsonl",
        "--no-floor",
        "--html",
        "r.html",
    )
    assert done.code == 0, done.err
    page = Path("r.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 1
    assert "<!--" not in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "@import" not in page
    data = re.search(r"const report = (\{.*\});\n", page)
    assert data is not None
    assert json.loads(data[1])["stages"][0]["requests"][0]["item"]["text"] == evil


def test_a_page_is_made_again_from_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["report", str(REPOSITORY / "docs/bench-serve.json"), "made.html"]
    )
    page_command()
    data = re.search(r"const report = (\{.*\});\n", Path("made.html").read_text(encoding="utf-8"))
    assert data is not None
    report = json.loads((REPOSITORY / "docs/bench-serve.json").read_text(encoding="utf-8"))
    assert json.loads(data[1]) == report
    kept = [
        request["audio_file"]
        for stage in report["stages"]
        for request in stage["requests"]
        if "audio_file" in request
    ]
    assert kept
    assert all((REPOSITORY / "docs" / name).is_file() for name in kept)


def test_failed_answers_are_listed_and_can_be_heard(url: str) -> None:
    done = bench(url, "--voice", "good,clipped,empty", "--json", "r.json")
    assert done.code == 0
    assert "FAIL: 3 clients: 8 of 12 answers" in done.out
    assert "clipped: samples held at full scale" in done.out
    kept = {
        request["audio_file"]
        for request in read("r.json")["stages"][0]["requests"]
        if "audio_file" in request
    }
    assert len(kept) == 4
    assert {str(path) for path in Path("r_audio").iterdir()} == kept


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("failures > 0", 1),
        ("failures > 8", 0),
        ("fault_silent > 0", 0),
        ("fault_clipped >= 4", 1),
        ("ttfa_p95_ms > 0", 1),
    ],
)
def test_conditions_decide_the_exit_code(url: str, condition: str, code: int) -> None:
    done = bench(url, "--voice", "good,clipped,empty", "--fail-if", condition)
    assert done.code == code
    assert ("FAILED: 3 clients: " + condition in done.err) == (code == 1)


@pytest.mark.parametrize(("most", "code"), [(7, 1), (8, 0)])
def test_statuses_of_all_numbers_can_be_a_condition(url: str, most: int, code: int) -> None:
    done = bench(
        url,
        "--voice",
        "good,status,busy",
        "--fail-if",
        f"fault_status > {most}",
        "--json",
        "r.json",
    )
    assert done.code == code
    figures = read("r.json")["stages"][0]["figures"]
    assert {name: figures[name][0] for name in figures if name.startswith("fault_")} == {
        "fault_status": 8,
        "fault_status_500": 4,
        "fault_status_503": 4,
    }
    # Each answer is listed once.
    assert [
        line.split(":")[0].split() for line in done.out.splitlines() if "an HTTP status" in line
    ] == [
        ["4", "status_500"],
        ["4", "status_503"],
    ]


def test_when_no_answer_is_good_the_run_fails_by_itself(url: str) -> None:
    done = bench(url, "--voice", "status")
    assert done.code == 1
    assert "no answer was good" in done.err


def test_ramps_and_open_loops(url: str) -> None:
    done = run(
        *(
            "bench",
            "serve",
            "--base-url",
            url,
            "--no-floor",
            "--requests",
            "8",
            "--ramp",
            "1,4,50/s",
            "--json",
            "r.json",
        ),
        *("--arrivals", "constant"),
    )
    assert done.code == 0, done.err
    assert [stage["name"] for stage in read("r.json")["stages"]] == [
        "1 client",
        "4 clients",
        "50/s constant",
    ]


def test_words_are_counted_by_a_recogniser_behind_an_address(url: str) -> None:
    done = bench(
        url,
        "--transcribe",
        "--recogniser",
        url,
        "--voice",
        "good,good,stranger",
        "--json",
        "r.json",
    )
    assert done.code == 0, done.err
    report = read("r.json")
    assert report["wishes"]["recogniser"] == f"whisper-1 at {url}"
    figures = report["stages"][0]["figures"]
    assert figures["fault_wrong_words"][0] == 4
    assert 0.1 < figures["cer"][0] < 1.0  # the other texts' words are in it
    assert "worst words, request" in done.out
    assert sum("audio_file" in request for request in report["stages"][0]["requests"]) == 4


def test_comparing(url: str) -> None:
    assert bench(url, "--json", "a.json").code == 0
    assert bench(url, "--json", "b.json").code == 0
    done = run("bench", "compare", "a.json", "a.json", "--json")
    assert done.code == 0
    verdicts = {ratio["verdict"] for ratio in json.loads(done.out)["stages"]["3 clients"].values()}
    assert verdicts == {"noise"}
    table = run("bench", "compare", "a.json", "b.json")
    assert table.code == 0
    assert "ttfa_p95_ms" in table.out
    slow = read("b.json")
    for request in slow["stages"][0]["requests"]:
        request["ttfa_ms"] = 10 * request["ttfa_ms"] + 1000
    Path("c.json").write_text(json.dumps(slow), encoding="utf-8")
    worse = run("bench", "compare", "a.json", "c.json", "--fail-if", "ttfa_p50_ms > 1.1")
    assert worse.code == 1
    assert "FAILED: 3 clients: ttfa_p50_ms > 1.1, it is" in worse.err
    # Noise never fails a run.
    assert run("bench", "compare", "a.json", "a.json", "--fail-if", "ttfa_p50_ms > 0.5").code == 0


def test_isolation_by_its_exit_code(url: str) -> None:
    arguments = (
        "bench",
        "isolation",
        "--base-url",
        url,
        "--recogniser",
        url,
        "--clients",
        "6",
        "--limit",
        "10",
    )
    done = run(*arguments, "--dataset", "plain", "--json", "i.json")
    assert (done.code, done.out.splitlines()[-1]) == (0, "PASS"), done.err
    assert read("i.json")["verdict"] == "isolated"
    with faulty_server(FaultyServer(swaps=True)) as leaking:
        leak = run(
            "bench",
            "isolation",
            "--base-url",
            leaking,
            "--recogniser",
            url,
            "--clients",
            "6",
            "--limit",
            "10",
        )
    assert leak.code == 1
    assert "LEAK" in leak.out
    unproven = run(*arguments, "--voice", "silent")
    assert unproven.code == 3


def test_the_engine_by_itself() -> None:
    done = run(
        *(
            "bench",
            "engine",
            "--model",
            str(GOLDEN / "local_tiny"),
            "--codec",
            str(GOLDEN / "codec2_tiny"),
        ),
        *("--random-weights", "--clients", "2", "--requests", "3"),
    )
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert figures["clients"] == figures["rows"] == 2
    assert figures["command"].startswith("hocket bench engine --model")
    assert "audio seconds a second" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--clients", "2", "--rate", "3"), "give one of --clients, --rate and --ramp"),
        (("--dialect", "nobody"), "--dialect is 'nobody'"),
        (("--delivery", "smoke"), "--delivery is 'smoke'"),
        (("--dialect", "kokoro-fastapi", "--delivery", "sse"), "no --delivery sse"),
        (("--format", "ogg"), "--format is 'ogg'"),
        (("--dataset", "plane"), "--dataset 'plane' is not known"),
        (("--arrivals", "sometimes"), "--arrivals is"),
        (("--fail-if", "ttfa"), "--fail-if 'ttfa'"),
        (("--expect", "stereo"), "--expect is"),
        (("--body", "[1]"), "--body is not a JSON object"),
        (("--json", "no/such/folder/r.json"), "does not exist"),
        (("--transcribe", "--recogniser", "/"), "is not a faster-whisper model"),
        ((*REFERENCES, "--similarity", "--speaker-model", "x"), "--speaker-model is 'x'"),
        (("--similarity",), "--similarity needs a dataset with reference recordings"),
        (
            (*REFERENCES, "--similarity", "--no-references"),
            "--similarity needs a dataset with reference recordings",
        ),
        (("--dialect", "openai", "--request-seed", "1"), "--dialect openai has no field for seeds"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_sent(
    arguments: tuple[str, ...], message: str
) -> None:
    write_references("one")
    done = run("bench", "serve", "--base-url", "http://127.0.0.1:9", *arguments)
    assert message in done.error
    assert done.code == 2


ALONE = [
    ("serve", "--min-similarity", "0.7", "--similarity"),
    ("serve", "--speaker-model", "resemblyzer", "--similarity"),
    ("serve", "--max-cer", "0.1", "--transcribe"),
    ("serve", "--recogniser", "base", "--transcribe"),
    ("serve", "--recogniser-model", "whisper-1", "--transcribe"),
    ("serve", "--recogniser-api-key", "key", "--transcribe"),
    ("serve", "--pcm-channels", "1", "--pcm-rate"),
    ("serve", "--arrivals", "poisson", "--rate"),
    ("serve", "--keep-audio", "10", "--json or --html"),
    ("isolation", "--speaker-model", "resemblyzer", "--similarity"),
    ("isolation", "--recogniser-model", "whisper-1", "--recogniser http"),
    ("isolation", "--recogniser-api-key", "key", "--recogniser http"),
    ("isolation", "--pcm-channels", "1", "--pcm-rate"),
]


@pytest.mark.parametrize(("command", "option", "value", "partner"), ALONE)
def test_an_option_that_does_nothing_alone_is_told_what_to_add(
    command: str, option: str, value: str, partner: str
) -> None:
    done = run("bench", command, "--base-url", "http://127.0.0.1:9", option, value)
    assert f"{option} does nothing without {partner}" in done.error
    assert done.code == 2


def test_a_recogniser_does_nothing_by_seed() -> None:
    done = run(
        "bench",
        "isolation",
        "--base-url",
        "http://127.0.0.1:9",
        "--by",
        "seed",
        "--recogniser",
        "base",
    )
    assert "--recogniser does nothing without --by words" in done.error


def test_options_beside_their_partners_are_taken(url: str) -> None:
    done = bench(
        *(
            url,
            "--voice",
            "good,good,stranger",
            "--json",
            "r.json",
            "--keep-audio",
            "1",
            "--pcm-rate",
            "8000",
        ),
        *(
            "--pcm-channels",
            "2",
            "--transcribe",
            "--recogniser",
            url,
            "--recogniser-model",
            "m",
            "--max-cer",
            "0.97",
        ),
    )
    assert done.code == 0, done.err
    report = read("r.json")
    assert "fault_wrong_words" not in report["stages"][0]["figures"]
    told = {name: report["wishes"][name] for name in ("max_cer", "raw_shape", "recogniser")}
    assert told == {"max_cer": 0.97, "raw_shape": [8000, 2], "recogniser": f"m at {url}"}
    defaults = bench(url, "--json", "r.json", "--transcribe", "--recogniser", url)
    assert defaults.code == 0, defaults.err
    told = {name: read("r.json")["wishes"][name] for name in ("max_cer", "raw_shape", "recogniser")}
    assert told == {"max_cer": 0.5, "raw_shape": None, "recogniser": f"whisper-1 at {url}"}


def test_voices_are_not_compared_to_one_reference_alone() -> None:
    write_references("one")
    done = run(
        "bench", "isolation", "--base-url", "http://127.0.0.1:9", *REFERENCES, "--similarity"
    )
    assert (
        "--similarity needs a dataset with reference recordings, at least 2 different ones"
        in done.error
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--clients", "1", "--open-loop", "3"), "give one of --clients and --open-loop"),
        (("--set", "server.port=1"), "--set server.port"),
        (("--set", "workers=1"), "--set workers"),
        (("--set", "model=other"), "--set model"),
        (("--set", "codec=other"), "--set codec"),
        (("--set", "engine.runaway.multiple=3"), "--set engine.runaway.multiple"),
        (("--set", "engine.rws=3"), "did you mean engine.rows?"),
    ],
)
def test_mistakes_about_the_engine(arguments: tuple[str, ...], message: str) -> None:
    done = run("bench", "engine", "--model", "nobody/knows-this", *arguments)
    assert message in done.error
    assert done.code == 2


def test_the_page_names_every_command_that_brings_a_package() -> None:
    page = (REPOSITORY / "docs" / "bench.md").read_text(encoding="utf-8")
    assert [command for command in set(COMMANDS.values()) if command not in page] == []
    assert "everything else comes with Hocket" not in page


def test_a_missing_package_is_told_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    monkeypatch.setitem(sys.modules, "resemblyzer", None)
    done = run("bench", "serve", "--base-url", "http://127.0.0.1:9", "--transcribe")
    assert (
        "--transcribe needs faster-whisper, which is not installed; run: pip install "
        "'hocket[bench]'" in done.error
    )
    write_references("one")
    done = run("bench", "serve", "--base-url", "http://127.0.0.1:9", *REFERENCES, "--similarity")
    assert "pip install --no-deps resemblyzer" in done.error
