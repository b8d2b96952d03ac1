"""How good the codec is: held-out sentences spoken by the teacher, coded and judged.

    python -m training.evaluate speak --teacher TEACHER --sentences 50 --out REFERENCES
    python -m training.evaluate codec --references REFERENCES --codec CHECKPOINT --out REPORT.json [--wavs DIR]

The sentences are Harvard sentences, which no training text contains; half of them are spoken by the default voice, half
by the voices that training never heard. The report has one row for the teacher's own audio and one per number of
codebooks.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.models.moss_codec.codec import MossCodec
from training.export import load_codec
from training.judges import Likeness, Listener, Recogniser, Wave, error_rates, to_judge_rate
from training.losses import SpectralLoss
from training.make_data import CONFIG_FILE, PACK, VOICES, DataConfig, espeak, write_wav
from training.teacher import SAMPLE_RATE, Line, Teacher, read_voices, style_row
from training.text import HARVARD

DEFAULT_VOICE = "af_heart"


def speak(teacher_dir: Path, sentences: int, out: Path) -> None:
    """REFERENCES: `N.wav`-like int16 arrays in one file, and who said what."""
    texts = HARVARD.read_text(encoding="utf-8").splitlines()
    texts = texts[:: len(texts) // sentences][:sentences]
    voices = read_voices(teacher_dir / VOICES)
    names = [DEFAULT_VOICE, *DataConfig.load().held_out_voices]
    # The default voice every other time, the held-out ones in turn in between.
    cast = [names[0] if i % 2 == 0 else names[1 + i // 2 % (len(names) - 1)] for i in range(len(texts))]
    phonemes = {accent: espeak(texts, accent) for accent in ("en-us", "en-gb")}
    lines = []
    for i, name in enumerate(cast):
        spoken = phonemes["en-gb" if name.startswith("b") else "en-us"][i]
        lines.append(Line(spoken, style_row(voices[name], len(spoken)), 1.0))
    teacher = Teacher(teacher_dir / PACK, teacher_dir / CONFIG_FILE, torch.device("cpu"))
    waves = {str(s.index): s.samples for s in teacher.speak(lines, batch_frames=1000)}
    out.mkdir(parents=True, exist_ok=True)
    np.savez(out / "waves.npz", allow_pickle=False, **waves)
    (out / "lines.json").write_text(json.dumps([{"text": t, "voice": v} for t, v in zip(texts, cast, strict=True)]))


class Panel:
    """All judges on one set of recordings against the originals."""

    def __init__(self, lines: list[dict[str, str]], originals: list[Wave]) -> None:
        self.lines, self.originals = lines, originals
        self.recogniser, self.listener, self.likeness = Recogniser(), Listener(), Likeness()
        self.spectral = SpectralLoss(SAMPLE_RATE)
        self.embeddings = [self.likeness.embed(to_judge_rate(wave_S, SAMPLE_RATE)) for wave_S in originals]

    def judge(self, waves: list[Wave]) -> dict[str, Any]:
        said = [self.recogniser.normal(line["text"]) for line in self.lines]
        judged = [to_judge_rate(wave_S, SAMPLE_RATE) for wave_S in waves]
        heard = [self.recogniser.words(wave_S) for wave_S in judged]
        default = [i for i, line in enumerate(self.lines) if line["voice"] == DEFAULT_VOICE]
        others = [i for i in range(len(waves)) if i not in default]
        report: dict[str, Any] = {}
        for name, part in (("default", default), ("held_out", others)):
            wer, cer = error_rates([said[i] for i in part], [heard[i] for i in part])
            spectra = [self._spectra(waves[i], self.originals[i]) for i in part]
            figures = {
                "wer": wer,
                "cer": cer,
                "mos": np.mean([self.listener.opinion(judged[i]) for i in part]),
                "likeness": np.mean([self.likeness.embed(judged[i]) @ self.embeddings[i] for i in part]),
                "mel": np.mean([mel for mel, _ in spectra]),
                "stft": np.mean([stft for _, stft in spectra]),
            }
            report[name] = {key: round(float(value), 4) for key, value in figures.items()}
        report["heard"] = [
            {"said": said[i], "heard": heard[i]} for i in range(len(waves)) if said[i].split() != heard[i].split()
        ]
        return report

    def _spectra(self, wave_S: Wave, original_S: Wave) -> tuple[float, float]:
        mel, stft = self.spectral(torch.from_numpy(wave_S)[None], torch.from_numpy(original_S)[None])
        return float(mel), float(stft)


def reconstruct(codec: MossCodec, wave_S: Wave, codebooks: int) -> Wave:
    return codec.decode_whole(codec.encode_whole(torch.from_numpy(wave_S)[None], codebooks))[0].numpy()


def evaluate(references: Path, checkpoint: Path, out: Path, wavs: Path | None) -> None:
    lines = json.loads((references / "lines.json").read_text())
    codec = load_codec(checkpoint, torch.device("cpu"))
    archive = np.load(references / "waves.npz")
    originals = []
    for i in range(len(lines)):
        wave_S = archive[str(i)].astype(np.float32) / 32768
        originals.append(wave_S[: len(wave_S) // codec.config.frame_samples * codec.config.frame_samples])
    panel = Panel(lines, originals)
    report = {"teacher": panel.judge(originals)}
    _show("teacher", report["teacher"])
    for codebooks in sorted({codec.config.n_codebooks, *range(4, codec.config.n_codebooks, 2)}, reverse=True):
        start = time.monotonic()
        waves = [reconstruct(codec, wave_S, codebooks) for wave_S in originals]
        seconds = time.monotonic() - start
        row = panel.judge(waves)
        row["coding_rtf"] = round(seconds / sum(len(w) / SAMPLE_RATE for w in originals), 4)
        report[f"{codebooks} codebooks"] = row
        _show(f"{codebooks} codebooks", row)
        if wavs is not None and codebooks == codec.config.n_codebooks:
            wavs.mkdir(parents=True, exist_ok=True)
            for i in range(min(6, len(waves))):
                write_wav(wavs / f"{i}-original.wav", _pcm(originals[i]))
                write_wav(wavs / f"{i}-coded.wav", _pcm(waves[i]))
    out.write_text(json.dumps(report, indent=1) + "\n")


def _pcm(wave_S: Wave) -> NDArray[np.int16]:
    return (wave_S.clip(-1, 1) * 32767).astype(np.int16)


def _show(name: str, row: dict[str, Any]) -> None:
    for part in ("default", "held_out"):
        figures = "  ".join(f"{key} {value:.3f}" for key, value in row[part].items())
        print(f"{name:14s} {part:9s} {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speaking = commands.add_parser("speak")
    speaking.add_argument("--teacher", type=Path, required=True)
    speaking.add_argument("--sentences", type=int, default=50)
    speaking.add_argument("--out", type=Path, required=True)
    judging = commands.add_parser("codec")
    judging.add_argument("--references", type=Path, required=True)
    judging.add_argument("--codec", type=Path, required=True)
    judging.add_argument("--out", type=Path, required=True)
    judging.add_argument("--wavs", type=Path, default=None)
    args = parser.parse_args()
    if args.command == "speak":
        speak(args.teacher, args.sentences, args.out)
    else:
        evaluate(args.references, args.codec, args.out, args.wavs)


if __name__ == "__main__":
    main()
