"""`hocket bench isolation`: does every concurrent request get its own words, in its own voice?

Many different texts are requested at once, and each answer is matched to the most similar text.
Where a server honours seeds, `--by seed` needs no recogniser: each request is sent alone first, and
its answer in the crowd must be most similar to that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import uvloop
from numpy.typing import NDArray

from hocket.bench.environment import command_line, host_facts, now
from hocket.bench.faults import ResponseError
from hocket.bench.http import without_key
from hocket.bench.judge.asr import RATE, to_recogniser
from hocket.bench.judge.speaker_similarity import similarity
from hocket.bench.judge.wer import normal
from hocket.bench.load.client import BenchClient
from hocket.bench.load.generator import Load, StageRun, run_stage
from hocket.bench.load.postprocess import embed_file
from hocket.bench.load.run_config import RunConfig
from hocket.bench.load.self_check import generator_load
from hocket.bench.optional import need
from hocket.errors import ConfigError
from hocket.progress import progress_bar

By = Literal["words", "seed"]
WAYS: tuple[By, ...] = ("words", "seed")
Verdict = Literal["own", "other", "unclear"]

#: An answer that is less similar to its nearest text was not understood.
_UNDERSTOOD = 0.5
#: Own and nearest other text must differ by this, or the match is inconclusive.
_MARGIN = 0.1
#: Recognisers mishear some texts; this share of answers must match its own request.
_PROVEN = 0.9
#: Audio is compared by its level in windows of this length, which rounding does not change.
_ENVELOPE_SECONDS = 0.02


def bench_isolation(config: RunConfig, by: By) -> dict[str, Any]:
    """Send all requests, and report a verdict for each answer. Raises ConfigError, HocketError."""
    texts = [item.text for item in config.items]
    if len(set(texts)) < 2:
        raise ConfigError("isolation needs at least two different texts; give --dataset with more")
    if by == "words" and config.recogniser is None:
        raise ConfigError("isolation by words needs a recogniser; give --recogniser, or --by seed")
    if by == "seed":
        config = replace(config, request_seed=config.request_seed or 0)
        if config.dialect.seed is None:
            raise ConfigError(
                f"--dialect {config.dialect.name} has no field for seeds; use --by words"
            )
    with (
        TemporaryDirectory(prefix="hocket-bench-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_isolation(config, by, Path(folder)))


async def _isolation(config: RunConfig, by: By, folder: Path) -> dict[str, Any]:
    crowd = BenchClient(config, folder / "crowd")
    await crowd.warm_up()
    count, clients = len(config.items), config.loads[0].clients
    alone: list[NDArray[np.float32] | None] = []
    if by == "seed":
        client = BenchClient(config, folder / "alone")
        run = await _send_all(config, client, Load(count, clients=1))
        alone = [audio for audio, _ in await asyncio.to_thread(_audio_of, client, run)]
    run = await _send_all(config, crowd, Load(count, clients=clients))
    decoded = await asyncio.to_thread(_audio_of, crowd, run)
    audio = [samples for samples, _ in decoded]
    texts: list[str] | None = None
    if by == "words":
        texts = await asyncio.to_thread(_recognise, config, audio)
        likeness = _words_likeness(config, texts)
    else:
        likeness = await asyncio.to_thread(_audio_likeness, audio, alone)
    rows = _rows(config, likeness, decoded, texts)
    if config.speaker_model is not None:
        await asyncio.to_thread(_match_voices, config, audio, rows)
    server = await crowd.server_facts()
    return without_key(_report(config, by, run, rows, server), config.api_key)


def _rows(
    config: RunConfig,
    likeness: NDArray[np.float64],
    decoded: Sequence[tuple[NDArray[np.float32] | None, str]],
    texts: Sequence[str] | None,
) -> list[dict[str, Any]]:
    """One row for each answer: similarity to its own request and to the next best, and the
    verdict.
    """
    said = [item.text for item in config.items]
    rows = []
    for i, item in enumerate(config.items):
        nearest = max(
            (j for j, text in enumerate(said) if text != item.text), key=lambda j: likeness[i, j]
        )
        own, other = float(likeness[i, i]), float(likeness[i, nearest])
        row = {
            "index": i,
            "id": item.id,
            "voice": item.voice,
            "text": item.text,
            "heard_text": None if texts is None else texts[i],
            "verdict": "failed" if decoded[i][0] is None else _verdict(own, other),
            "likeness_own": round(own, 3),
            "nearest_other": nearest,
            "likeness_other": round(other, 3),
            "problem": decoded[i][1],
        }
        rows.append({name: value for name, value in row.items() if value not in (None, "")})
    return rows


def parse_by(name: str) -> By:
    """Check `--by`. Raises ConfigError."""
    for by in WAYS:
        if by == name:
            return by
    raise ConfigError(f"--by is {name!r}; use words or seed", param="by")


def print_isolation(report: dict[str, Any]) -> str:
    """The counts, then a line for every answer that does not match its own request."""
    counts = report["counts"]
    shown = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    lines = [
        f"{report['requests']} answers, {report['most_open']} at a time, by {report['by']}: {shown}"
    ]
    for row in report["answers"]:
        if row["verdict"] == "other":
            lines.append(
                f"  LEAK: request {row['index']} got the speech of request {row['nearest_other']}"
            )
        elif row["verdict"] == "failed":
            lines.append(f"  request {row['index']} failed: {row['problem']}")
        if row.get("voice_verdict") == "other":
            voice = row["voice_match"]
            lines.append(
                f"  LEAK: request {row['index']} was spoken in the voice of request {voice}"
            )
    if counts.get("unclear"):
        lines.append("  unclear: not similar enough to any text; this proves nothing either way")
    lines.append({"isolated": "PASS", "leak": "FAIL", "unproven": "NOT PROVEN"}[report["verdict"]])
    return "\n".join(lines)


async def _send_all(config: RunConfig, client: BenchClient, load: Load) -> StageRun:
    bodies = [client.body(i) for i in range(load.requests)]
    with progress_bar(load.requests) as show:
        run = await run_stage(load, lambda i: client.send(i, bodies[i]), config.seed, show)
    await client.written()
    return run


def _audio_of(client: BenchClient, run: StageRun) -> list[tuple[NDArray[np.float32] | None, str]]:
    """In order of the requests: mono audio at 16 kHz, or None and the fault."""
    found: list[tuple[NDArray[np.float32] | None, str]] = []
    for one in sorted(run.sent, key=lambda one: one.index):
        try:
            decoded = client.decode(one.index, one.response)
            found.append((to_recogniser(decoded.samples, decoded.sample_rate), ""))
        except ResponseError as error:
            found.append((None, f"{error.fault.kind} {error.fault.detail}".strip()))
    return found


def _recognise(config: RunConfig, audio: Sequence[NDArray[np.float32] | None]) -> list[str]:
    recogniser = config.recogniser
    assert recogniser is not None
    return [
        "" if samples is None else recogniser.words(samples, item.language)
        for samples, item in zip(audio, config.items, strict=True)
    ]


def _words_likeness(config: RunConfig, decoded: Sequence[str]) -> NDArray[np.float64]:
    """Similarity [answer, text]: 1 where all characters agree, 0 where none does."""
    distance: Any = need(
        "rapidfuzz", "hocket bench isolation"
    ).distance.Levenshtein.normalized_similarity
    rows = [
        [
            distance(
                normal(item.text, item.language).replace(" ", ""),
                normal(text, item.language).replace(" ", ""),
            )
            for item in config.items
        ]
        for text in decoded
    ]
    return np.array(rows, np.float64)


def _audio_likeness(
    audio: Sequence[NDArray[np.float32] | None], alone: Sequence[NDArray[np.float32] | None]
) -> NDArray[np.float64]:
    """Correlation of loudness envelopes [answer, answer alone], over the longer of the two."""
    crowd = [_envelope(samples) for samples in audio]
    single = [_envelope(samples) for samples in alone]
    return np.array([[_correlation(one, other) for other in single] for one in crowd], np.float64)


def _envelope(samples_S: NDArray[np.float32] | None) -> NDArray[np.float64]:
    if samples_S is None:
        return np.zeros(1)
    width = round(RATE * _ENVELOPE_SECONDS)
    power = (
        np.square(np.pad(samples_S, (0, -len(samples_S) % width)).astype(np.float64))
        .reshape(-1, width)
        .mean(axis=1)
    )
    return np.log10(power + 1e-8) + 8.0


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    size = max(len(a), len(b))
    x, y = np.pad(a, (0, size - len(a))), np.pad(b, (0, size - len(b)))
    x, y = x - x.mean(), y - y.mean()
    return float(np.dot(x, y) / max(float(np.linalg.norm(x) * np.linalg.norm(y)), 1e-12))


def _verdict(own: float, other: float) -> Verdict:
    """The verdict on an answer, from its similarity to its own text and to the nearest other
    one.
    """
    if max(own, other) < _UNDERSTOOD or abs(own - other) < _MARGIN:
        return "unclear"
    return "own" if own > other else "other"


def _match_voices(
    config: RunConfig, audio: Sequence[NDArray[np.float32] | None], rows: list[dict[str, Any]]
) -> None:
    """Note the reference voice that each answer is most similar to."""
    model = config.speaker_model
    assert model is not None
    references = {
        item.reference: i for i, item in enumerate(config.items) if item.reference is not None
    }
    assert len(references) > 1, "a single voice always matches itself"
    known = {path: embed_file(model, path) for path in references if path is not None}
    for row, item, samples in zip(rows, config.items, audio, strict=True):
        if samples is None or item.reference is None:
            continue
        voice = model.embed(samples)
        likeness = {path: similarity(voice, embedding) for path, embedding in known.items()}
        nearest = max(likeness, key=lambda path: likeness[path])
        row["voice_likeness_own"] = round(likeness[item.reference], 3)
        row["voice_match"] = references[nearest]
        row["voice_verdict"] = "own" if nearest == item.reference else "unclear"
        if likeness[nearest] - likeness[item.reference] > _MARGIN:
            row["voice_verdict"] = "other"


def _report(
    config: RunConfig, by: By, run: StageRun, rows: list[dict[str, Any]], server: dict[str, Any]
) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
    leaks = any("other" in (row["verdict"], row.get("voice_verdict")) for row in rows)
    proven = counts.get("own", 0) >= _PROVEN * len(rows)
    return {
        "hocket_bench": 1,
        "kind": "isolation",
        "date": now(),
        "command": command_line(),
        "host": host_facts(),
        "server": server,
        "wishes": config.as_json(),
        "by": by,
        "requests": len(rows),
        "most_open": run.max_open,
        "seconds": round(run.seconds, 3),
        "generator": generator_load(run),
        "counts": counts,
        "verdict": "leak" if leaks else "isolated" if proven else "unproven",
        "answers": rows,
    }
