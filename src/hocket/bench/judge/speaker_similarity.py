"""Similarity of two speakers, by the angle between embeddings of their recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hocket.bench.judge.asr import RATE
from hocket.bench.optional import need
from hocket.errors import ConfigError, HocketError

Embedding = NDArray[np.float32]


class SpeakerModel(Protocol):
    """Embeds float32 mono audio at 16 kHz as a unit vector."""

    @property
    def name(self) -> str: ...
    def embed(self, mono_S: NDArray[np.float32]) -> Embedding: ...


def load_speaker_model(name: str) -> SpeakerModel:
    """Load "resemblyzer", or an ONNX file that maps float32 [1, S] at 16 kHz to [1, D].

    Raises ConfigError.
    """
    if name == "resemblyzer":
        return _Resemblyzer()
    if name.endswith(".onnx"):
        return _Onnx(Path(name))
    raise ConfigError(f"--speaker-model is {name!r}; use resemblyzer, or the path of an .onnx file")


def similarity(a: Embedding, b: Embedding) -> float:
    """Cosine similarity: 1 for the same direction, 0 for unrelated ones."""
    return float(np.dot(a, b))


class _Resemblyzer:
    name = "resemblyzer"

    def __init__(self) -> None:
        self._package: Any = need("resemblyzer", "--similarity")
        self._encoder = self._package.VoiceEncoder("cpu", verbose=False)

    def embed(self, mono_S: NDArray[np.float32]) -> Embedding:
        wave = self._package.preprocess_wav(mono_S, source_sr=RATE)
        return _unit(self._encoder.embed_utterance(wave))


class _Onnx:
    def __init__(self, path: Path) -> None:
        runtime: Any = need("onnxruntime", "--similarity")
        if not path.is_file():
            raise ConfigError(f"cannot read {str(path)!r}: it is not there")
        try:
            self._session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's own exceptions have no common base
            raise ConfigError(
                f"{str(path)!r} is not an ONNX model ({type(error).__name__})"
            ) from None
        self._input = self._session.get_inputs()[0].name
        self.name = path.name

    def embed(self, mono_S: NDArray[np.float32]) -> Embedding:
        try:
            return _unit(self._session.run(None, {self._input: mono_S[None]})[0])
        except Exception as error:  # as above
            why = type(error).__name__
            raise HocketError(
                f"the speaker model {self.name} does not take float32 [1, S] ({why})"
            ) from None


def _unit(vector: Any) -> Embedding:
    flat = np.asarray(vector, np.float32).reshape(-1)
    return (flat / np.float32(max(float(np.linalg.norm(flat)), 1e-9))).astype(
        np.float32, copy=False
    )
