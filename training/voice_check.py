"""Quality of a voice: the product speaks texts that are not in the training data, and judges
listen.

    python -m training.voice_check                         # everything, with the built-in model
    python -m training.voice_check --sentences 10 --max-wer 0.2 --max-rtf 0.5
    python -m training.voice_check --model FOLDER --targets --json report.json
    python -m training.voice_check --server http://127.0.0.1:8000 --voices
    python -m training.voice_check --reference me.wav --texts mine.txt

Prints a table of the voices and one of the figures with their bounds; exits with 1 where a bound
does not hold. The teacher's own speech was judged beforehand (`training/recordings`); voices
outside the training data are cloned.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from hocket import Engine, Sampling
from hocket.audio.reference import prepare_audio
from hocket.bench.environment import cores, cpu_name
from hocket.checkpoint.voices import DEFAULT_VOICE
from hocket.config import EngineConfig
from hocket.models.registry import builtin_model
from training.checks import Check, read_checks
from training.judges import RECOGNISERS, Recogniser
from training.make_data import DataConfig
from training.panel import Panel
from training.served import ServedEngine
from training.teacher import SAMPLE_RATE
from training.teacher_audio import KEPT, Recordings
from training.trial import Result, Speaker, Trial


@dataclass(frozen=True, slots=True)
class Bound:
    figure: str
    #: The product's goal.
    target: float
    is_minimum: bool = False

    def holds(self, value: float, limit: float) -> bool:
        return value >= limit if self.is_minimum else value <= limit


#: By option: `--max-KEY` or `--min-KEY`.
BOUNDS = {
    "wer": Bound("WER, default voice", 0.08),
    "cer": Bound("CER, default voice", 0.05),
    "voices-wer": Bound("WER, other built-in voices, mean", 0.12),
    "clone-wer": Bound("WER, cloned voices, mean", 0.20),
    "picked": Bound("right voice picked, built-in voices, mean", 0.95, is_minimum=True),
    "mos-loss": Bound("predicted MOS below the teacher's, default voice", 0.7),
    "stops": Bound("natural stops, share of texts of 1 to 40 words", 1.0, is_minimum=True),
    "longest": Bound("longest of them / the teacher's", 2.5),
    "words": Bound("single words recognised of 20", 18, is_minimum=True),
    "longest-word": Bound("longest single word, s", 2.0),
    "rtf": Bound("RTF, one stream", 0.25),
    "batch-rtf": Bound("RTF of each of eight streams", 0.6),
    "first-audio-ms": Bound("first audio, median, ms", 250),
    "megabytes": Bound("checkpoint on disk, MB", 60),
}
_WIDTH = 110
#: Texts for every clone of a voice outside the training data.
_CLONE_SENTENCES = 30
_PARTS = ("voices", "single-words", "stops", "speed", "codec-only")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default=None, help="checkpoint folder or hub id; the built-in one if left out"
    )
    parser.add_argument("--codec", default=None)
    parser.add_argument(
        "--server", default=None, help="listen to what this running server streams: its address"
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--greedy", action="store_true", help="the most likely code, always")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first request; the next ones count up"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument(
        "--texts", type=Path, default=None, help="say the lines of this file instead"
    )
    parser.add_argument("--voice", action="append", default=None, help="only these built-in voices")
    parser.add_argument(
        "--reference", type=Path, default=None, help="a recording to clone, and nothing else"
    )
    parser.add_argument("--reference-text", default=None, help="its words; it is continued then")
    parser.add_argument(
        "--recordings", type=Path, default=KEPT, help="the teacher's, written by `evaluate speak`"
    )
    parser.add_argument("--judge", choices=RECOGNISERS, default="base")
    parser.add_argument("--json", type=Path, default=None)
    for part in _PARTS:
        parser.add_argument(
            f"--{part}", action="store_true", help="only this (and others asked for)"
        )
    parser.add_argument(
        "--targets", action="store_true", help="every bound that is not given is the product's goal"
    )
    for key, bound in BOUNDS.items():
        flag = f"--{'min' if bound.is_minimum else 'max'}-{key}"
        parser.add_argument(flag, dest=f"bound_{key}", type=float, default=None, help=bound.figure)
    args = parser.parse_args(arguments)
    if args.codec_only and args.recordings == KEPT:
        parser.error("--codec-only needs --recordings, the teacher's speech that the codec codes")
    if args.reference_text is not None and args.reference is None:
        parser.error("--reference-text needs --reference, the recording whose words it holds")
    return args


def chosen_parts(args: argparse.Namespace) -> set[str]:
    asked = {part for part in _PARTS if getattr(args, part.replace("-", "_"))}
    if args.reference is not None or args.texts is not None:
        asked.add("voices")
    return asked or set(_PARTS) - {"codec-only"} - ({"speed"} if args.server is not None else set())


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all requested parts, in one report."""
    torch.set_num_threads(args.threads)
    engine: Engine | ServedEngine
    if args.server is None:
        engine = Engine.load(
            args.model, args.codec, dtype=args.dtype, config=EngineConfig(rows=args.rows)
        )
    else:
        engine = ServedEngine(args.server)
    trial = Trial(
        engine,
        Panel(Recogniser(args.judge, args.threads)),
        sampling=Sampling(temperature=0.0) if args.greedy else Sampling(),
        seed=args.seed,
        recordings=Recordings(args.recordings) if args.recordings.is_dir() else None,
    )
    parts = chosen_parts(args)
    report: dict[str, Any] = {"settings": _settings(args), "machine": _machine()}
    default = Speaker(DEFAULT_VOICE, "default", {})
    # Speed comes first, before the judges warm the machine up.
    if "speed" in parts:
        report["speed"] = trial.speed(default)
    if "single-words" in parts:
        report["words"] = trial.words(default)
    if "stops" in parts:
        report["lengths"] = trial.lengths(default)
    checks = read_checks("sentence", args.sentences)
    results: list[Result] = []
    if "voices" in parts:
        results += _voices(trial, args, checks)
    if "codec-only" in parts:
        results.append(trial.codec(DataConfig.load().default_voice, checks))
    report["voices"] = [asdict(result) for result in results]
    report["figures"] = figures(results, report) | _size(args)
    return report


def _voices(trial: Trial, args: argparse.Namespace, checks: list[Check]) -> list[Result]:
    if args.texts is not None:
        lines = args.texts.read_text(encoding="utf-8").splitlines()
        checks = [Check("sentence", 0.0, line) for line in lines if line.strip()]
    builtin = trial.builtin()
    if args.reference is not None:
        wave_S = prepare_audio(args.reference, sample_rate=SAMPLE_RATE, channels=1)[0]
        tried = [(trial.clone("reference", wave_S, SAMPLE_RATE, args.reference_text, None), checks)]
    else:
        tried = [
            (speaker, checks)
            for speaker in builtin
            if args.voice is None or speaker.name in args.voice
        ]
        if args.voice is None:
            clones = trial.held_out(DataConfig.load().held_out_voices)
            tried += [(speaker, checks[:_CLONE_SENTENCES]) for speaker in clones]
    results = []
    for speaker, texts in tried:
        results.append(trial.judge(speaker, texts, builtin))
        print(f"{speaker.name}: WER {results[-1].figures.wer:.1%}", file=sys.stderr, flush=True)
    return results


def figures(results: list[Result], report: dict[str, Any]) -> dict[str, float]:
    """The measured figures that bounds refer to, by their keys."""
    found: dict[str, float] = {}
    by_kind = {
        kind: [r for r in results if r.kind == kind] for kind in ("default", "built-in", "clone")
    }
    for result in by_kind["default"]:
        found |= {"wer": result.figures.wer, "cer": result.figures.cer}
        if result.teacher is not None:
            found["mos-loss"] = round(result.teacher.mos - result.figures.mos, 3)
    for kind, key in (("built-in", "voices-wer"), ("clone", "clone-wer")):
        if by_kind[kind]:
            found[key] = round(statistics.fmean(r.figures.wer for r in by_kind[kind]), 4)
    picked = [r.picked for r in by_kind["default"] + by_kind["built-in"] if r.picked is not None]
    if picked:
        found["picked"] = round(statistics.fmean(picked), 3)
    if "lengths" in report:
        lengths = report["lengths"]
        found |= {"stops": lengths["stops"] / lengths["texts"], "longest": lengths["longest"]}
    if "words" in report:
        found |= {
            "words": report["words"]["recognised"],
            "longest-word": report["words"]["longest_seconds"],
        }
    if "speed" in report:
        speed = report["speed"]
        found |= {
            "rtf": speed["rtf"],
            "batch-rtf": speed["batch_rtf"],
            "first-audio-ms": speed["first_audio_ms"],
        }
    return found


def broken(measured: dict[str, float], args: argparse.Namespace) -> list[str]:
    """Violated bounds, and requested bounds whose figure was not measured."""
    wrong = []
    for key, bound in BOUNDS.items():
        limit = limit_of(key, args)
        if limit is None:
            continue
        if key in measured:
            if not bound.holds(measured[key], limit):
                wrong.append(
                    f"{bound.figure} is {measured[key]:g}, "
                    f"{'least' if bound.is_minimum else 'most'} {limit:g}"
                )
        elif getattr(args, f"bound_{key}") is not None or is_whole(args):
            wrong.append(f"{bound.figure} was not measured")
    return wrong


def is_whole(args: argparse.Namespace) -> bool:
    """Whether all parts run, so that every bound can be measured."""
    narrowed = (args.server, args.voice, args.reference, args.texts)
    return chosen_parts(args) == set(_PARTS) - {"codec-only"} and all(
        wish is None for wish in narrowed
    )


def limit_of(key: str, args: argparse.Namespace) -> float | None:
    given: float | None = getattr(args, f"bound_{key}")
    return BOUNDS[key].target if given is None and args.targets else given


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {
        key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()
    }


def _machine() -> dict[str, Any]:
    load = round(os.getloadavg()[0], 2)
    return {"processor": cpu_name(), "cores": cores(), "load": load, "torch": torch.__version__}


def _size(args: argparse.Namespace) -> dict[str, float]:
    """Size of the checkpoint folder, with its codec and voices."""
    folder = builtin_model() if args.model is None else Path(args.model)
    if args.server is not None or not folder.is_dir():
        return {}
    return {
        "megabytes": round(
            sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 1
        )
    }


# ---- printing


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def print_voices(report: dict[str, Any], console: Console) -> None:
    table = Table(title=f"{report['settings']['judge']} listens; in brackets the teacher")
    for column in (
        "voice",
        "WER %",
        "CER %",
        "MOS",
        "likeness",
        "right voice %",
        "stops",
        "longest x",
    ):
        table.add_column(column, justify="left" if column == "voice" else "right")
    for voice in report["voices"]:
        own, teacher = voice["figures"], voice["teacher"] or {}
        beside = {key: f" ({_percent(teacher[key])})" if teacher else "" for key in ("wer", "cer")}
        table.add_row(
            voice["name"],
            _percent(own["wer"]) + beside["wer"],
            _percent(own["cer"]) + beside["cer"],
            f"{own['mos']:.2f}" + (f" ({teacher['mos']:.2f})" if teacher else ""),
            "" if voice["likeness"] is None else f"{voice['likeness']:.2f}",
            _percent(voice["picked"]),
            f"{voice['stops']}/{voice['utterances']}",
            "" if voice["longest"] is None else f"{voice['longest']:.2f}",
        )
    console.print(table)


def print_figures(report: dict[str, Any], args: argparse.Namespace, console: Console) -> None:
    table = Table(title=f"{report['machine']['cores']} cores, load {report['machine']['load']}")
    for column in ("figure", "measured", "bound", "holds"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for key, bound in BOUNDS.items():
        value, limit = report["figures"].get(key), limit_of(key, args)
        if value is None and limit is None:
            continue
        sign = "≥" if bound.is_minimum else "≤"
        holds = (
            "" if value is None or limit is None else "yes" if bound.holds(value, limit) else "NO"
        )
        table.add_row(
            bound.figure,
            "-" if value is None else f"{value:g}",
            "" if limit is None else f"{sign} {limit:g}",
            holds,
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    report = run(args)
    # A file is at most as wide as a page, and at least as wide as the table.
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    if report["voices"]:
        print_voices(report, console)
    print_figures(report, args, console)
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    wrong = broken(report["figures"], args)
    for line in wrong:
        print(f"voice-check: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
