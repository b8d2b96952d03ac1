"""Speech from `make_data speech`, whole on the training device: 80 hours are 14 GB of 16-bit
samples.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.make_data import AUDIO, LINES, PHONEMES
from training.teacher import FRAME_SAMPLES, SAMPLE_RATE

#: Phoneme labels per codec frame, at equal distances.
LABELS_PER_FRAME = 3
#: The alphabet of the teacher, its end mark 0 included.
PHONEME_CLASSES = 178
#: Samples copied to the device at a time.
_PIECE_SAMPLES = 2**27


@dataclass(frozen=True, slots=True)
class Segments:
    #: float32 [B, S] in about [-1, 1].
    wave: Tensor
    #: int64 [B, T, 3]: the phonemes in each frame of `frame_samples`.
    labels: Tensor


def complete_lines(folder: Path) -> list[dict[str, Any]]:
    """Utterances of a DATA folder that are written completely; another process may be appending.

    Raises ValueError when there is none.
    """
    # Read first, so that the samples it names are written. Text may contain any line break but \n.
    rows = (folder / LINES).read_bytes().split(b"\n")[:-1]
    samples = (folder / AUDIO).stat().st_size // 2
    samples = min(samples, (folder / PHONEMES).stat().st_size * FRAME_SAMPLES)
    lines = [json.loads(row) for row in rows]
    whole = [line for line in lines if line["start"] + line["samples"] <= samples]
    if not whole:
        raise ValueError(f"{folder} holds no complete utterance yet; run make_data speech")
    return whole


class SpeechBank:
    """Random and fixed segments of one long recording."""

    def __init__(self, pcm_S: Tensor, labels_F: Tensor, *, validation_seconds: float) -> None:
        """int16 samples and uint8 phonemes, one per 25 ms. Their first `validation_seconds` are
        never trained on.
        """
        self.pcm_S, self.labels_F = pcm_S, labels_F
        self.frames = len(labels_F)
        self.validation_frames = int(validation_seconds * SAMPLE_RATE / FRAME_SAMPLES)
        if self.frames < 2 * self.validation_frames:
            raise ValueError(
                f"the data has {60 * self.hours:.1f} minutes; make at least "
                f"{validation_seconds / 30:.0f}"
            )

    @classmethod
    def read(
        cls, folders: Sequence[Path], device: torch.device, *, validation_seconds: float
    ) -> SpeechBank:
        """DATA folders one after another, up to their last complete line; validation comes from the
        first.
        """
        ends = [
            max(line["start"] + line["samples"] for line in complete_lines(folder))
            for folder in folders
        ]
        frames = [end // FRAME_SAMPLES for end in ends]
        pcm_S = torch.empty(sum(frames) * FRAME_SAMPLES, dtype=torch.int16, device=device)
        labels_F = torch.empty(sum(frames), dtype=torch.uint8, device=device)
        first = 0
        for folder, count in zip(folders, frames, strict=True):
            labels = np.fromfile(folder / PHONEMES, np.uint8, count=count)
            labels_F[first : first + count] = torch.from_numpy(labels).to(device)
            audio = np.memmap(folder / AUDIO, np.int16, mode="r")
            for start in range(0, count * FRAME_SAMPLES, _PIECE_SAMPLES):
                piece = np.array(audio[start : min(start + _PIECE_SAMPLES, count * FRAME_SAMPLES)])
                place = first * FRAME_SAMPLES + start
                pcm_S[place : place + len(piece)] = torch.from_numpy(piece).to(device)
            first += count
        return cls(pcm_S, labels_F, validation_seconds=validation_seconds)

    @property
    def hours(self) -> float:
        return len(self.pcm_S) / SAMPLE_RATE / 3600

    def sample(
        self, batch: int, frames: int, frame_samples: int, gain_db: tuple[float, float]
    ) -> Segments:
        """Random training segments of `frames` codec frames, each at a random gain, chosen on the
        device.
        """
        last = self.frames - -(-frames * frame_samples // FRAME_SAMPLES)
        starts_B = torch.randint(self.validation_frames, last, (batch,), device=self.pcm_S.device)
        gain_B1 = torch.empty(batch, 1, device=self.pcm_S.device).uniform_(*gain_db)
        found = self._segments(starts_B, frames, frame_samples)
        return Segments((found.wave * 10 ** (gain_B1 / 20)).clamp(-1, 1), found.labels)

    def validation(self, batch: int, frames: int, frame_samples: int) -> Segments:
        """The same segments at every call, from the part that `sample` never touches."""
        last = self.validation_frames - -(-frames * frame_samples // FRAME_SAMPLES)
        starts_B = torch.linspace(0, last, batch, device=self.pcm_S.device).long()
        return self._segments(starts_B, frames, frame_samples)

    def _segments(self, starts_B: Tensor, frames: int, frame_samples: int) -> Segments:
        device = self.pcm_S.device
        samples_S = torch.arange(frames * frame_samples, device=device)
        wave_BS = self.pcm_S[starts_B[:, None] * FRAME_SAMPLES + samples_S].float() / 32768
        centres_L = (
            (2 * torch.arange(LABELS_PER_FRAME, device=device) + 1)
            * frame_samples
            // (2 * LABELS_PER_FRAME)
        )
        offsets_TL = (
            torch.arange(frames, device=device)[:, None] * frame_samples + centres_L
        ) // FRAME_SAMPLES
        return Segments(wave_BS, self.labels_F[starts_B[:, None, None] + offsets_TL].long())
