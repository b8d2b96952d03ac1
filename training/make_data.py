"""Training data: texts → phonemes (CPU, with espeak) and phonemes → teacher speech (GPU, without
espeak).

    python -m training.make_data pack     --pack kokoro.pack.xz --voices voices.npz \
        --config config.json --out TEACHER
    python -m training.make_data phonemes --out lines.jsonl.xz
    python -m training.make_data speech   --lines lines.jsonl.xz --teacher TEACHER --out DATA \
        --hours 30 --minutes 4

`speech` appends to three files in DATA, so that a reader may read at any time and a crash loses
nothing: `audio.i16` (24 kHz mono), `phonemes.u8` (the phoneme id spoken in each 25 ms) and
`lines.jsonl` (kind, text, voice, speed, place). Several processes keep a large GPU busy: give each
`--shard K --shards N` and a DATA folder of its own.
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import shutil
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.core import StrictModel
from training.teacher import (
    SAMPLE_RATE,
    Line,
    Spoken,
    Teacher,
    read_voices,
    shrink_pack,
    style_row,
    thin_voices,
)
from training.text import TextConfig, training_texts

CONFIG = Path(__file__).parent / "configs" / "data.json"
#: Files of a TEACHER folder.
PACK, VOICES, CONFIG_FILE = "teacher.pack.xz", "voices.npz", "kokoro_config.json"
#: Files of a DATA folder.
AUDIO, PHONEMES, LINES = "audio.i16", "phonemes.u8", "lines.jsonl"
_LISTENING_LINES = 6
_ESPEAK_LINES = 500


class DataConfig(StrictModel):
    seed: int
    texts: TextConfig
    #: Speaks `default_share` of the utterances, alone and at speed 1.
    default_voice: str
    default_share: float
    #: Voices that no training utterance uses, not even in a blend: they test cloning.
    held_out_voices: tuple[str, ...]
    #: Relative frequencies of voices other than 1.
    favourite_voices: dict[str, float]
    #: Share of the others spoken by blends. A blend is a new speaker; there are `blends` of them,
    #: so that each has many utterances.
    blend_fraction: float
    blends: int
    blend_voices: tuple[int, int]
    speed_range: tuple[float, float]
    #: Share of utterances at speed 1.
    plain_speed_fraction: float
    #: Lines planned together; more of them make larger groups of equal length.
    round_lines: int
    #: 25 ms frames per teacher batch.
    batch_frames: int

    @classmethod
    def load(cls, path: Path = CONFIG) -> DataConfig:
        return cls.model_validate_json(path.read_text(encoding="utf-8"))


def espeak(texts: list[str], accent: str) -> list[str]:
    """Phonemes with stress marks and punctuation; `accent` is espeak's name, such as "en-us"."""
    import espeakng_loader
    from phonemizer.backend import EspeakBackend
    from phonemizer.backend.espeak.wrapper import EspeakWrapper

    EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
    EspeakWrapper.set_library(espeakng_loader.get_library_path())
    backend = EspeakBackend(accent, preserve_punctuation=True, with_stress=True)
    # The stop of a title would become a pause.
    plain = [re.sub(r"\b(Mr|Mrs|Ms|Dr|St)\.", r"\1", text) for text in texts]
    phonemes: list[str] = []
    # Restoring punctuation takes time that grows faster than the list.
    for start in range(0, len(plain), _ESPEAK_LINES):
        phonemes += backend.phonemize(plain[start : start + _ESPEAK_LINES], strip=True)
    return phonemes


def write_phonemes(config: DataConfig, out: Path) -> None:
    """Every training line with its American and British phonemes, as xz-compressed JSON lines."""
    lines = training_texts(config.texts, config.seed)
    texts = [line.text for line in lines]
    rows = zip(lines, espeak(texts, "en-us"), espeak(texts, "en-gb"), strict=True)
    with lzma.open(out, "wt", encoding="utf-8", preset=9) as file:
        for line, american, british in rows:
            row = {"kind": line.kind, "text": line.text, "us": american, "gb": british}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(
        f"{len(texts)} lines, {sum(map(len, texts)):,} characters, {out.stat().st_size:,} bytes in "
        f"{out}"
    )


class Casting:
    """Chooses a voice for each line (the default one, another one or a blend), and its speed."""

    def __init__(self, config: DataConfig, voices: dict[str, NDArray[np.float32]]) -> None:
        self.config = config
        self.voices = {
            name: voice for name, voice in voices.items() if name not in config.held_out_voices
        }
        weights = np.array([config.favourite_voices.get(name, 1.0) for name in self.voices])
        self._probability = weights / weights.sum()
        # Every process has the same blends: a speaker is known by its weights.
        rng = np.random.default_rng(config.seed)
        self.blends = [self._blend(rng) for _ in range(config.blends)]

    def _blend(self, rng: np.random.Generator) -> dict[str, float]:
        names, (least, most) = list(self.voices), self.config.blend_voices
        count = int(rng.integers(least, most + 1))
        picked = rng.choice(len(names), size=count, replace=False)
        shares = np.sort(rng.dirichlet(np.full(count, 2.0)))[::-1]
        return {names[i]: round(float(share), 3) for i, share in zip(picked, shares, strict=True)}

    def choose(self, rng: np.random.Generator) -> tuple[dict[str, float], float]:
        """Voice weights that sum to 1, heaviest first, and a speed."""
        config, names = self.config, list(self.voices)
        if rng.random() < config.default_share:
            return {config.default_voice: 1.0}, 1.0
        if rng.random() < config.blend_fraction:
            blend = self.blends[int(rng.integers(len(self.blends)))]
        else:
            blend = {names[int(rng.choice(len(names), p=self._probability))]: 1.0}
        speed = (
            1.0
            if rng.random() < config.plain_speed_fraction
            else round(float(rng.uniform(*config.speed_range)), 3)
        )
        return blend, speed

    def line(self, texts: dict[str, str], blend: dict[str, float], speed: float) -> Line:
        """A teacher line; the heaviest voice decides the accent (its name starts with "b" if
        British).
        """
        phonemes = texts["gb" if next(iter(blend)).startswith("b") else "us"]
        styles = [
            share * style_row(self.voices[name], len(phonemes)) for name, share in blend.items()
        ]
        return Line(phonemes, np.sum(styles, axis=0, dtype=np.float32), speed)


def _spoken_seconds(phonemes: str) -> float:
    """Estimated duration of the teacher's speech (fitted on it)."""
    return 0.6 + 0.062 * len(phonemes)


def _passes(lines: list[dict[str, str]], rng: np.random.Generator) -> Iterator[dict[str, str]]:
    """Yield the lines endlessly, shuffled anew in each pass."""
    while True:
        for i in rng.permutation(len(lines)):
            yield lines[i]


def _rounds(
    lines: list[dict[str, str]], shares: dict[str, float], size: int, rng: np.random.Generator
) -> Iterator[list[dict[str, str]]]:
    """Yield rounds of about `size` lines in which each kind has its share of the seconds."""
    by_kind = {kind: [line for line in lines if line["kind"] == kind] for kind in shares}
    rate = {
        k: shares[k] / np.mean([_spoken_seconds(line["us"]) for line in by_kind[k]]) for k in shares
    }
    counts = {kind: max(1, round(size * rate[kind] / sum(rate.values()))) for kind in shares}
    supply = {kind: _passes(by_kind[kind], rng) for kind in shares}
    while True:
        yield [next(supply[kind]) for kind, count in counts.items() for _ in range(count)]


def write_wav(path: Path, samples: NDArray[np.int16]) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(samples.astype("<i2").tobytes())


def write_speech(
    config: DataConfig,
    *,
    lines: Path,
    shard: tuple[int, int],
    teacher_dir: Path,
    out: Path,
    hours: float,
    minutes: float,
    listen: Path | None,
) -> None:
    """Speak until `hours` of audio exist in `out` or `minutes` have passed; `listen` gets a short
    WAV file.

    `shard` (k, n) takes every n-th line from the k-th on.
    """
    start = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with lzma.open(lines, "rt", encoding="utf-8") as file:
        texts = [json.loads(row) for row in file][shard[0] :: shard[1]]
    casting = Casting(config, read_voices(teacher_dir / VOICES))
    teacher = Teacher(teacher_dir / PACK, teacher_dir / CONFIG_FILE, device)
    print(f"teacher ready after {time.monotonic() - start:.1f} s on {device}", flush=True)

    out.mkdir(parents=True, exist_ok=True)
    done = (out / AUDIO).stat().st_size // 2 if (out / AUDIO).exists() else 0
    # A resumed run must not repeat the voices of the one before.
    rng = np.random.default_rng([config.seed, shard[0], done])
    first, wanted = done, int(hours * 3600 * SAMPLE_RATE)
    heard: list[NDArray[np.int16]] = []
    with (
        (out / AUDIO).open("ab") as audio,
        (out / PHONEMES).open("ab") as phonemes,
        (out / LINES).open("a", encoding="utf-8") as index,
    ):
        for part in _rounds(texts, config.texts.shares, config.round_lines, rng):
            for spoken, place in _speak_round(config, part, casting, teacher, rng):
                audio.write(spoken.samples.tobytes())
                phonemes.write(spoken.phonemes.tobytes())
                line = {"start": done, "samples": len(spoken.samples)} | place
                index.write(json.dumps(line, ensure_ascii=False) + "\n")
                done += len(spoken.samples)
                if len(heard) < _LISTENING_LINES:
                    heard.append(spoken.samples)
            seconds = time.monotonic() - start
            rate = (done - first) / SAMPLE_RATE / seconds
            print(
                f"{seconds:.1f} s: {done / SAMPLE_RATE / 3600:.2f} h, {rate:.0f} x real time",
                flush=True,
            )
            if done >= wanted or seconds > 60 * minutes:
                break
    if listen is not None and heard:
        write_wav(listen, np.concatenate(heard))


def _speak_round(
    config: DataConfig,
    part: list[dict[str, str]],
    casting: Casting,
    teacher: Teacher,
    rng: np.random.Generator,
) -> list[tuple[Spoken, dict[str, Any]]]:
    """The lines of a round in random order, each with its text, voice and speed.

    The teacher returns lines by length, and neighbours should differ.
    """
    cast = [casting.choose(rng) for _ in part]
    planned = [casting.line(text, *choice) for text, choice in zip(part, cast, strict=True)]
    spoken = list(teacher.speak(planned, batch_frames=config.batch_frames))
    places = [
        {key: part[s.index][key] for key in ("kind", "text")}
        | {"voice": cast[s.index][0], "speed": cast[s.index][1]}
        for s in spoken
    ]
    return [(spoken[i], places[i]) for i in rng.permutation(len(spoken))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    pack = commands.add_parser("pack", help="a TEACHER folder small enough to travel")
    for name in ("--pack", "--voices", "--config", "--out"):
        pack.add_argument(name, type=Path, required=True)
    phonemes = commands.add_parser("phonemes", help="texts to phonemes")
    phonemes.add_argument("--out", type=Path, required=True)
    speech = commands.add_parser("speech", help="phonemes to speech")
    speech.add_argument("--config", type=Path, default=CONFIG)
    speech.add_argument("--lines", type=Path, required=True)
    speech.add_argument(
        "--shard", type=int, default=0, help="speak every SHARDS-th line from the SHARD-th on"
    )
    speech.add_argument("--shards", type=int, default=1)
    speech.add_argument("--teacher", type=Path, required=True, help="folder written by `pack`")
    speech.add_argument("--out", type=Path, required=True)
    speech.add_argument("--hours", type=float, required=True)
    speech.add_argument("--minutes", type=float, default=1e9)
    speech.add_argument(
        "--listen", type=Path, default=None, help="a short WAV file of what was spoken"
    )
    args = parser.parse_args()
    if args.command == "pack":
        args.out.mkdir(parents=True, exist_ok=True)
        shrink_pack(args.pack, args.out / PACK)
        thin_voices(args.voices, args.out / VOICES)
        shutil.copyfile(args.config, args.out / CONFIG_FILE)
    elif args.command == "phonemes":
        write_phonemes(DataConfig.load(), args.out)
    else:
        write_speech(
            DataConfig.load(args.config),
            lines=args.lines,
            shard=(args.shard, args.shards),
            teacher_dir=args.teacher,
            out=args.out,
            hours=args.hours,
            minutes=args.minutes,
            listen=args.listen,
        )


if __name__ == "__main__":
    main()
