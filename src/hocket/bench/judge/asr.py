"""Recognisers: faster-whisper on this machine, or a server with OpenAI's `POST
/v1/audio/transcriptions`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import httpx
import numpy as np
from numpy.typing import NDArray

from hocket.audio.io import FORMATS, encode_audio, resample, to_float32
from hocket.bench.faults import one_line
from hocket.bench.http import Target, bearer, without_key
from hocket.bench.judge.decode import error_text
from hocket.bench.judge.wer import LANGUAGE_CODES
from hocket.bench.optional import need
from hocket.core import Samples
from hocket.errors import ConfigError, HocketError

RATE = 16_000
_TIMEOUT_SECONDS = 120.0
_HTTP_OK = 200
_MAX_CHARACTERS = 20_000


class Recogniser(Protocol):
    """Transcribes float32 mono audio at 16 kHz."""

    @property
    def name(self) -> str: ...
    @property
    def workers(self) -> int:
        """Number of concurrent calls that it takes."""

    def words(self, mono_S: NDArray[np.float32], language: str | None) -> str:
        """Transcribe; `language` is an English name. Raises HocketError."""


def load_recogniser(name: str, *, model: str, api_key: str | None) -> Recogniser:
    """Load the recogniser `name`: an address, or the folder or name ("base") of a faster-whisper
    model.

    Raises ConfigError.
    """
    if name.startswith(("http://", "https://")):
        return _Endpoint(name, model, api_key)
    return _FasterWhisper(name)


def to_recogniser(samples_CS: Samples, sample_rate: int) -> NDArray[np.float32]:
    """Mix down to mono, and resample to 16 kHz."""
    mono_S = to_float32(samples_CS).mean(axis=0, dtype=np.float32)
    return mono_S if sample_rate == RATE else resample(mono_S[None], sample_rate, RATE)[0]


class _FasterWhisper:
    """Decodes greedily and without context, so that each answer is judged by itself."""

    workers = 1

    def __init__(self, name: str) -> None:
        whisper: Any = need("faster_whisper", "--transcribe")
        is_folder = Path(name).is_dir()
        try:
            self._model = whisper.WhisperModel(
                name, device="cpu", compute_type="int8", cpu_threads=os.cpu_count() or 0
            )
        except Exception as error:  # the library passes on errors of downloads and of file formats
            what = "is not a faster-whisper model" if is_folder else "cannot be fetched"
            reason = str(error).partition("\n")[0][:120]
            raise ConfigError(
                f"the recogniser {name!r} {what} ({reason}); give --recogniser a folder that "
                "holds one, or an address"
            ) from None
        self.name = f"faster-whisper {Path(name).name}"

    def words(self, mono_S: NDArray[np.float32], language: str | None) -> str:
        segments, _ = self._model.transcribe(
            mono_S,
            language=None if language is None else LANGUAGE_CODES.get(language),
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)


class _Endpoint:
    workers = 4

    def __init__(self, url: str, model: str, api_key: str | None) -> None:
        self._url = Target.parse(url).url + "/v1/audio/transcriptions"
        self._model = model
        self._api_key = api_key
        self._client = httpx.Client(timeout=_TIMEOUT_SECONDS, headers=bearer(api_key))
        self.name = f"{model} at {Target.parse(url).url}"

    def words(self, mono_S: NDArray[np.float32], language: str | None) -> str:
        wav = encode_audio(FORMATS[".wav"], mono_S[None], RATE)
        fields = {"model": self._model, "response_format": "json", "temperature": "0"}
        if language in LANGUAGE_CODES:
            fields["language"] = LANGUAGE_CODES[language]
        try:
            response = self._client.post(
                self._url, data=fields, files={"file": ("speech.wav", wav, "audio/wav")}
            )
            text = response.json().get("text") if response.status_code == _HTTP_OK else None
        except (httpx.HTTPError, ValueError, AttributeError, RecursionError) as error:
            raise HocketError(
                f"the recogniser at {self._url} did not answer ({type(error).__name__})"
            ) from None
        if not isinstance(text, str):
            said = without_key(error_text(response.content), self._api_key)
            raise HocketError(f"the recogniser answered {response.status_code}: {said}")
        return one_line(text, _MAX_CHARACTERS)
