"""Speech as written by `make_data speech`, held on the training device whole: 30 hours are 5 GB of 16-bit samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.teacher import FRAME_SAMPLES, SAMPLE_RATE

#: Phoneme labels per codec frame, at equal distances.
LABELS_PER_FRAME = 3
#: The alphabet of the teacher, its end mark 0 included.
PHONEME_CLASSES = 178


@dataclass(frozen=True, slots=True)
class Segments:
    #: float32 [B, S] in about [-1, 1].
    wave: Tensor
    #: int64 [B, T, 3]: the phonemes heard in each frame of `frame_samples`.
    labels: Tensor


class SpeechBank:
    """Random and fixed segments of one long recording."""

    def __init__(self, folder: Path, device: torch.device, *, validation_seconds: float) -> None:
        labels = np.fromfile(folder / "phonemes.u8", np.uint8)
        audio = np.memmap(folder / "audio.i16", np.int16, mode="r")
        # Another process may be appending: only what both files hold is there.
        self.frames = min(len(labels), len(audio) // FRAME_SAMPLES)
        pcm = torch.empty(self.frames * FRAME_SAMPLES, dtype=torch.int16, device=device)
        for part in range(0, len(pcm), 2**27):
            piece = audio[part : min(part + 2**27, len(pcm))]
            pcm[part : part + len(piece)] = torch.from_numpy(np.array(piece)).to(device)
        self.pcm_S = pcm
        self.labels_F = torch.from_numpy(labels[: self.frames]).to(device)
        self.validation_frames = int(validation_seconds * SAMPLE_RATE / FRAME_SAMPLES)
        if self.frames < 2 * self.validation_frames:
            raise ValueError(
                f"{folder} holds {60 * self.hours:.1f} minutes; make at least {validation_seconds / 30:.0f}"
            )

    @property
    def hours(self) -> float:
        return len(self.pcm_S) / SAMPLE_RATE / 3600

    def sample(self, batch: int, frames: int, frame_samples: int, gain_db: tuple[float, float]) -> Segments:
        """Random training segments of `frames` codec frames, each at a random gain."""
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
        centres_L = (2 * torch.arange(LABELS_PER_FRAME, device=device) + 1) * frame_samples // (2 * LABELS_PER_FRAME)
        offsets_TL = (torch.arange(frames, device=device)[:, None] * frame_samples + centres_L) // FRAME_SAMPLES
        return Segments(wave_BS, self.labels_F[starts_B[:, None, None] + offsets_TL].long())
