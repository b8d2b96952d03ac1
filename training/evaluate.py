"""Quality of the codec, and the teacher's recordings of the test texts.

    python -m training.evaluate lengths --teacher TEACHER
    python -m training.evaluate speak --teacher TEACHER --voice af_heart --sentences 100 \
        --out RECORDINGS
    python -m training.evaluate judge --voice af_heart --sentences 100 --recordings RECORDINGS
    python -m training.evaluate codec --recordings RECORDINGS --codec CHECKPOINT \
        --out REPORT.json [--wavs DIR]

`lengths` writes the texts of the tests with the teacher's seconds. `speak` records sentences, and a
reference to clone the voice from; `judge` has the panel judge them, and writes the judgements to
`training/recordings`. `codec` judges recordings of the default voice and of voices that are not in
the training data: the teacher's own, and those decoded from each number of codebooks.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.models.moss_codec.codec import MossCodec
from training.checks import Check, choose_texts, read_checks, write_checks
from training.export import load_codec
from training.judges import RECOGNISERS, Recogniser, Wave
from training.losses import SpectralLoss
from training.make_data import CONFIG_FILE, PACK, VOICES, DataConfig, write_wav
from training.panel import Figures, Judgement, Panel
from training.teacher import SAMPLE_RATE, Teacher, read_voices
from training.teacher_audio import KEPT, REFERENCE_TEXTS, Recordings, lines_of, read_wav
from training.trial import REFERENCE_SECONDS


def load_teacher(folder: Path) -> Teacher:
    return Teacher(
        folder / PACK,
        folder / CONFIG_FILE,
        torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )


def write_lengths(teacher_dir: Path, batch_frames: int) -> None:
    """The texts of all checks with the seconds of the default voice."""
    teacher, voice = load_teacher(teacher_dir), DataConfig.load().default_voice
    style_RD = read_voices(teacher_dir / VOICES)[voice]
    checks = []
    for kind, texts in choose_texts().items():
        seconds = teacher.seconds(lines_of(voice, style_RD, texts), batch_frames=batch_frames)
        checks += [Check(kind, *row) for row in zip(seconds, texts, strict=True)]
    write_checks(checks)


def speak(
    teacher_dir: Path, voices: list[str], sentences: int, out: Path, batch_frames: int
) -> None:
    """Record the first sentences of the checks by every voice, and its reference, unless they are
    there.
    """
    teacher, styles = load_teacher(teacher_dir), read_voices(teacher_dir / VOICES)
    recordings = Recordings(out)
    texts = [check.text for check in read_checks("sentence", sentences)]
    for voice in voices:
        # The words depend on the voice alone, not on those that are recorded with it.
        words = REFERENCE_TEXTS[sorted(styles).index(voice) % len(REFERENCE_TEXTS)]
        new = recordings.speak(
            teacher, voice, styles[voice], [words, *texts], batch_frames=batch_frames
        )
        recordings.write_reference(voice, words)
        print(f"{voice}: {new} new recordings", flush=True)


def judge_recordings(folder: Path, voices: list[str], sentences: int, judge: str) -> None:
    """Judge the recordings, and keep the judgements for `make voice-check`."""
    recordings, panel = Recordings(folder), Panel(Recogniser(judge))
    for voice in voices:
        recordings.target(panel, voice)
        print(
            voice, recordings.judged(panel, voice, read_checks("sentence", sentences)), flush=True
        )
    recordings.keep(KEPT, DataConfig.load().held_out_voices, REFERENCE_SECONDS)


class CodecJudge:
    """The panel and the spectral distance, on recordings against their originals [(voice, text,
    wave)].
    """

    def __init__(self, originals: list[tuple[str, str, Wave]], default_voice: str) -> None:
        self.originals, self.default_voice = originals, default_voice
        self.panel, self._spectral = Panel(Recogniser()), SpectralLoss(SAMPLE_RATE)
        self._of_original: list[Judgement] = []

    def judge(self, waves: list[Wave]) -> dict[str, Any]:
        """Figures of the default voice and of the others; the first call is for the originals
        themselves.
        """
        pairs = zip(self.originals, waves, strict=True)
        judged = [self.panel.judge(text, wave_S, SAMPLE_RATE) for (_, text, _), wave_S in pairs]
        self._of_original = self._of_original or judged
        report: dict[str, Any] = {}
        for name, is_default in (("default", True), ("held_out", False)):
            part = [
                i
                for i, (voice, _, _) in enumerate(self.originals)
                if (voice == self.default_voice) == is_default
            ]
            spectra = [self._spectra(waves[i], self.originals[i][2]) for i in part]
            likeness = [float(judged[i].embedding @ self._of_original[i].embedding) for i in part]
            mel, stft = np.mean(spectra, axis=0)
            means = {"likeness": np.mean(likeness), "mel": mel, "stft": stft}
            rounded = {key: round(float(value), 4) for key, value in means.items()}
            report[name] = asdict(Figures.of([judged[i] for i in part])) | rounded
        report["heard"] = [
            {"said": j.said, "heard": j.heard} for j in judged if j.said.split() != j.heard.split()
        ]
        return report

    def _spectra(self, wave_S: Wave, original_S: Wave) -> tuple[float, float]:
        mel, stft = self._spectral(
            torch.from_numpy(wave_S)[None], torch.from_numpy(original_S)[None]
        )
        return float(mel), float(stft)


def reconstruct(codec: MossCodec, wave_S: Wave, codebooks: int) -> Wave:
    return codec.decode_whole(codec.encode_whole(torch.from_numpy(wave_S)[None], codebooks))[
        0
    ].numpy()


def evaluate(
    recordings: Path, checkpoint: Path, sentences: int, out: Path, wavs: Path | None
) -> None:
    codec, config = load_codec(checkpoint, torch.device("cpu")), DataConfig.load()
    frame = codec.config.frame_samples
    shares = {
        config.default_voice: 1,
        **dict.fromkeys(config.held_out_voices, len(config.held_out_voices)),
    }
    originals = []
    for voice, share in shares.items():
        for check in read_checks("sentence", sentences // share):
            wave_S = read_wav(Recordings(recordings).path(voice, check.text))
            originals.append((voice, check.text, wave_S[: len(wave_S) // frame * frame]))
    judge = CodecJudge(originals, config.default_voice)
    report = {"teacher": judge.judge([wave_S for _, _, wave_S in originals])}
    _show("teacher", report["teacher"])
    for codebooks in sorted(
        {codec.config.n_codebooks, *range(4, codec.config.n_codebooks, 2)}, reverse=True
    ):
        start = time.monotonic()
        waves = [reconstruct(codec, wave_S, codebooks) for _, _, wave_S in originals]
        seconds = time.monotonic() - start
        row = judge.judge(waves)
        row["coding_rtf"] = round(seconds / sum(len(w) / SAMPLE_RATE for w in waves), 4)
        report[f"{codebooks} codebooks"] = row
        _show(f"{codebooks} codebooks", row)
        if wavs is not None and codebooks == codec.config.n_codebooks:
            wavs.mkdir(parents=True, exist_ok=True)
            for i in range(min(6, len(waves))):
                write_wav(wavs / f"{i}-original.wav", _pcm(originals[i][2]))
                write_wav(wavs / f"{i}-coded.wav", _pcm(waves[i]))
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _pcm(wave_S: Wave) -> NDArray[np.int16]:
    return (wave_S.clip(-1, 1) * 32767).astype(np.int16)


def _show(name: str, row: dict[str, Any]) -> None:
    for part in ("default", "held_out"):
        figures = "  ".join(f"{key} {value:.3f}" for key, value in row[part].items())
        print(f"{name:14s} {part:9s} {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    lengths = commands.add_parser("lengths")
    speaking = commands.add_parser("speak")
    for command in (lengths, speaking):
        command.add_argument("--teacher", type=Path, required=True)
        command.add_argument(
            "--batch-frames", type=int, default=1000, help="frames of 25 ms spoken together"
        )
    speaking.add_argument("--out", type=Path, required=True)
    hearing = commands.add_parser("judge")
    hearing.add_argument("--recordings", type=Path, required=True)
    hearing.add_argument("--judge", choices=RECOGNISERS, default="base")
    for command in (speaking, hearing):
        command.add_argument("--voice", action="append", required=True)
        command.add_argument("--sentences", type=int, default=100)
    judging = commands.add_parser("codec")
    judging.add_argument("--recordings", type=Path, required=True)
    judging.add_argument("--sentences", type=int, default=25)
    judging.add_argument("--codec", type=Path, required=True)
    judging.add_argument("--out", type=Path, required=True)
    judging.add_argument("--wavs", type=Path, default=None)
    args = parser.parse_args()
    if args.command == "lengths":
        write_lengths(args.teacher, args.batch_frames)
    elif args.command == "speak":
        speak(args.teacher, args.voice, args.sentences, args.out, args.batch_frames)
    elif args.command == "judge":
        judge_recordings(args.recordings, args.voice, args.sentences, args.judge)
    else:
        evaluate(args.recordings, args.codec, args.sentences, args.out, args.wavs)


if __name__ == "__main__":
    main()
