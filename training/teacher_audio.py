"""Recordings of the teacher, judged beside the trained voice.

    FOLDER/VOICE/ID.wav              a text of the tests (`Recordings.path`)
    FOLDER/VOICE/judged-JUDGE.json   judgements of the panel, by ID
    FOLDER/VOICE/target.json         unit vector of the speaker
    FOLDER/VOICE/reference.wav       recording for cloning the voice; its words are in reference.txt

`training/recordings` has only the inputs of `make voice-check`: judgements, vectors, and short
references of voices that are not in the training data.
"""

from __future__ import annotations

import hashlib
import json
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.checks import Check
from training.judges import Wave
from training.make_data import espeak, write_wav
from training.panel import Figures, Judgement, Panel, centroid
from training.teacher import SAMPLE_RATE, Line, Teacher, style_row

KEPT = Path(__file__).parent / "recordings"
#: Words of a reference: six to eight seconds, and no sentence of a test.
REFERENCE_TEXTS = (
    "The market opens early on Saturday, and by noon most of the fresh bread and the good cheese "
    "are gone.",
    "When the rain finally stopped, we walked along the river and talked about everything except "
    "the journey.",
    "My brother keeps three old radios in the kitchen, and every morning he tunes each of them to "
    "another station.",
    "You will find the blue envelope under the lamp, next to a photograph of the house where I "
    "was born.",
)
#: Number of recordings for the vector of a speaker.
_TARGET_RECORDINGS = 10
_NOBODY = np.empty(0, np.float32)


def read_wav(path: Path) -> Wave:
    """float32 [S] at the teacher's rate."""
    with wave.open(str(path)) as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, SAMPLE_RATE):
            raise ValueError(
                f"{path} is not 16-bit mono at {SAMPLE_RATE} Hz; delete it and have it spoken again"
            )
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return np.asarray(samples / 32768, np.float32)


def lines_of(voice: str, style_RD: NDArray[np.float32], texts: list[str]) -> list[Line]:
    """Teacher lines at speed 1; British voices have names that start with "b"."""
    phonemes = espeak(texts, "en-gb" if voice.startswith("b") else "en-us")
    return [Line(spoken, style_row(style_RD, len(spoken)), 1.0) for spoken in phonemes]


class Recordings:
    """A folder as described above; derived files are made once and kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, voice: str, text: str) -> Path:
        """The path of a text's recording, whether or not it exists."""
        return self.folder / voice / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.wav"

    def find(self, name: str) -> str | None:
        """The teacher's voice that a built-in voice is called after: `emma` after `bf_emma`."""
        voices = sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        return next(
            (voice for voice in voices if voice == name or voice.endswith(f"_{name}")), None
        )

    # ---- made by the teacher

    def speak(
        self,
        teacher: Teacher,
        voice: str,
        style_RD: NDArray[np.float32],
        texts: list[str],
        *,
        batch_frames: int,
    ) -> int:
        """Record those of `texts` that are missing; returns how many."""
        missing = [text for text in dict.fromkeys(texts) if not self.path(voice, text).exists()]
        (self.folder / voice).mkdir(parents=True, exist_ok=True)
        lines = lines_of(voice, style_RD, missing) if missing else []
        for spoken in teacher.speak(lines, batch_frames=batch_frames):
            write_wav(self.path(voice, missing[spoken.index]), spoken.samples)
        return len(missing)

    def write_reference(self, voice: str, text: str) -> None:
        """Make the recording of `text` the reference of the voice."""
        (self.folder / voice / "reference.wav").write_bytes(self.path(voice, text).read_bytes())
        (self.folder / voice / "reference.txt").write_text(f"{text}\n", encoding="utf-8")

    def reference(self, voice: str) -> Wave | None:
        path = self.folder / voice / "reference.wav"
        return read_wav(path) if path.exists() else None

    # ---- judged by the panel

    def judged(self, panel: Panel, voice: str, checks: Sequence[Check]) -> Figures | None:
        """Judgement of the recordings of all `checks`; None if one is missing."""
        path = self.folder / voice / f"judged-{panel.recogniser.name}.json"
        known: dict[str, dict[str, Any]] = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        )
        wavs = {self.path(voice, check.text): check.text for check in checks}
        new = {wav: text for wav, text in wavs.items() if wav.stem not in known}
        if not all(wav.exists() for wav in new):
            return None
        for wav, text in new.items():
            known[wav.stem] = panel.judge(text, read_wav(wav), SAMPLE_RATE).row()
        if new:
            path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        return Figures.of([Judgement(**known[wav.stem], embedding=_NOBODY) for wav in wavs])

    def target(self, panel: Panel, voice: str) -> Wave | None:
        """Unit vector of the voice; None without recordings."""
        path = self.folder / voice / "target.json"
        if not path.exists():
            wavs = sorted((self.folder / voice).glob("*.wav"))[:_TARGET_RECORDINGS]
            if not wavs:
                return None
            middle = centroid([panel.embed(read_wav(wav), SAMPLE_RATE) for wav in wavs])
            path.write_text(
                json.dumps([round(float(value), 5) for value in middle]) + "\n", encoding="utf-8"
            )
        return np.array(json.loads(path.read_text(encoding="utf-8")), np.float32)

    def keep(self, target: Path, references: Sequence[str], seconds: float) -> None:
        """Copy the inputs of `make voice-check` to `target`: all judgements, and the beginning of
        some references.
        """
        for folder in sorted(path for path in self.folder.iterdir() if path.is_dir()):
            files = {path.name: path.read_bytes() for path in folder.glob("*.json")}
            reference_S = self.reference(folder.name) if folder.name in references else None
            if files or reference_S is not None:
                (target / folder.name).mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (target / folder.name / name).write_bytes(content)
            if reference_S is not None:
                beginning_S = reference_S[: int(seconds * SAMPLE_RATE)]
                write_wav(
                    target / folder.name / "reference.wav",
                    np.round(beginning_S * 32768).astype(np.int16),
                )
