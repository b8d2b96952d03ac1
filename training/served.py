"""A running server as the engine of a trial: the same requests over HTTP, as streams."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np

from hocket import AudioArray, Speech, SpeechRequest
from hocket.audio.io import FORMATS, encode_audio
from hocket.checkpoint.voices import BuiltinVoice, Voices

#: Concurrent requests.
_CONCURRENT = 8
_TIMEOUT_SECONDS = 600.0
_SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty")


class ServedEngine:
    """Speaks by `POST /v1/audio/speech`, as server-sent events with raw samples."""

    #: A server does not expose the streams of its codec.
    conversions = None

    def __init__(self, url: str, client: httpx.Client | None = None) -> None:
        self._client = client or httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS)

    @property
    def voices(self) -> Voices:
        """The voices of the model."""
        answer = self._client.get("/v1/audio/voices").raise_for_status()
        entries = [entry for entry in answer.json()["voices"] if entry.get("builtin")]
        return {
            entry["name"]: BuiltinVoice(entry["speaker_description"] or entry["name"])
            for entry in entries
        }

    def generate_many(self, requests: Iterable[SpeechRequest]) -> list[Speech]:
        """Send a few requests at a time; results are in order."""
        with ThreadPoolExecutor(_CONCURRENT) as pool:
            return list(pool.map(self._speak, requests))

    def _speak(self, request: SpeechRequest) -> Speech:
        pieces, done = [], None
        with self._client.stream("POST", "/v1/audio/speech", json=_body(request)) as answer:
            if answer.is_error:
                raise SystemExit(
                    f"the server says {answer.status_code}: {answer.read().decode()[:500]}"
                )
            for line in answer.iter_lines():
                event = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if event.get("type") == "speech.audio.delta":
                    pieces.append(base64.b64decode(event["audio"]))
                elif event.get("type") == "speech.audio.done":
                    done = event
        if done is None:
            raise SystemExit("the server's answer ended early; look into its log")
        samples_SC = np.frombuffer(b"".join(pieces), "<i2").reshape(-1, done["channels"])
        samples_CS = np.asarray(samples_SC.T / 32768, np.float32)
        return Speech(
            samples_CS,
            done["sample_rate"],
            np.zeros((0, 0), np.int64),
            done["finish_reason"],
            done["seed"],
        )


def _body(request: SpeechRequest) -> dict[str, Any]:
    body = {
        "input": request.text,
        "seed": request.seed,
        "response_format": "pcm",
        "stream_format": "sse",
    }
    body |= request.sampling.model_dump(include=set(_SAMPLING), exclude_none=True)
    if request.voice is not None:
        body["voice"] = request.voice
    for reference in request.references:
        if not isinstance(reference, AudioArray):
            raise TypeError("a served voice is cloned from an AudioArray")
        wav = encode_audio(FORMATS[".wav"], reference.samples, reference.sample_rate)
        body["reference_audio"] = "data:audio/wav;base64," + base64.b64encode(wav).decode()
    if request.reference_text is not None:
        body["reference_text"] = request.reference_text
    return body
