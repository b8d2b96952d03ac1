"""The HTTP fields that Qwen3-TTS reads, and the 400s for what a checkpoint does not take."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from hocket.audio.io import FORMATS, decode_audio, encode_audio
from hocket.checkpoint.voices import ONLY_DEFAULT, load_voices
from hocket.core import EncodedReference, EngineInfo, Sampling, SpeechRequest
from hocket.engine.intake import check_fields
from hocket.models.qwen3_tts.config import Qwen3TtsConfig
from hocket.models.qwen3_tts.prompt import Qwen3TtsPrompt
from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from hocket.server.voice_store import VoiceStore
from hocket.text.tokenizer import TextTokenizer
from hocket.worker.stream import SpeechStream
from tests.support import paths
from tests.support.fake_engine import RATE, FakePool
from tests.support.loopback import on_loopback

GOLDEN = paths.GOLDEN / "qwen3_tts"
#: A recording of 0.6 s at half of full scale, far from what levelling would make of it.
SAMPLES = np.full((1, int(0.6 * RATE)), 0.5, np.float32) * np.sign(
    np.sin(np.arange(int(0.6 * RATE)))
).astype(np.float32)
RECORDING = encode_audio(FORMATS[".wav"], SAMPLES, RATE)
REF_AUDIO = "data:audio/wav;base64," + base64.b64encode(RECORDING).decode()


@dataclass
class Qwen3Engine(FakePool):
    """A fake that refuses the same requests as the checkpoint `name`."""

    name: str = "base_1b7"

    @cached_property
    def config(self) -> Qwen3TtsConfig:
        return Qwen3TtsConfig.from_dict(
            json.loads((GOLDEN / self.name / "config.json").read_text())
        )

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, voice_traits=self.config.voice_traits)

    async def submit(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> SpeechStream:
        prompt = Qwen3TtsPrompt(self.config, TextTokenizer.load(GOLDEN / self.name))
        check_fields(request, prompt.takes)
        prompt.needs(request)
        return await super().submit(
            request, request_id=request_id, priority=priority, streaming=streaming
        )


@contextmanager
def serving(name: str, folder: Path) -> Iterator[tuple[Qwen3Engine, httpx.Client]]:
    engine = Qwen3Engine(name=name, voice_size=64)
    config = engine.config
    voices = load_voices(
        GOLDEN / name,
        n_vq=config.n_vq,
        codebook_sizes=config.audio_codebook_sizes,
        speakers=config.speakers,
    )
    app = create_app(engine, ServerSettings(), VoiceStore(folder / "voices", voices))
    with on_loopback(app) as address, httpx.Client(base_url=address, timeout=20) as client:
        yield engine, client


def speak(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(
        "/v1/audio/speech",
        json={"input": "Hello.", "response_format": "pcm", "stream": False} | fields,
    )


def asked(engine: Qwen3Engine, http: httpx.Client, **fields: Any) -> SpeechRequest:
    answer = speak(http, **fields)
    assert answer.status_code == 200, answer.text
    return engine.requests[-1]


def refused(http: httpx.Client, param: str, words: str, **fields: Any) -> None:
    answer = speak(http, **fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_custom_voice(tmp_path: Path) -> None:
    with serving("custom_1b7", tmp_path) as (engine, http):
        listed = [voice["name"] for voice in http.get("/v1/audio/voices").json()["voices"]]
        assert listed == ["default", *sorted(engine.config.speakers)]
        fields = {
            "voice": "Vivian",
            "task_type": "CustomVoice",
            "language": "Chinese",
            "instructions": "Angry.",
        }
        request = asked(engine, http, **fields)
        assert (request.voice, request.task_type) == ("vivian", "CustomVoice")
        assert (request.language, request.instruction, request.references) == (
            "Chinese",
            "Angry.",
            (),
        )
        assert asked(engine, http, voice="ryan", language="Auto").language is None
        refused(http, "voice", "needs a voice; it has aiden")
        refused(http, "voice", "no voice 'nobody'", voice="nobody")
        refused(
            http,
            "task_type",
            "is for CustomVoice",
            voice="ryan",
            task_type="VoiceDesign",
            instructions="Old.",
        )
        refused(http, "language", "knows auto, chinese", voice="ryan", language="Klingon")
        refused(http, "ref_audio", "takes no reference", ref_audio=REF_AUDIO)
        refused(http, "tokens", "does not know tokens", voice="ryan", tokens=5)


def test_how_the_text_is_read_and_later_codes_are_drawn(tmp_path: Path) -> None:
    with serving("custom_1b7", tmp_path) as (engine, http):
        plain = asked(engine, http, voice="ryan")
        assert plain.streaming_text is None
        assert plain.sampling == Sampling()
        for fields in (
            {"predictor_temperature": 0.7, "predictor_top_p": 0.9, "predictor_top_k": 30},
            {"subtalker_temperature": 0.7, "subtalker_top_p": 0.9, "subtalker_top_k": 30},
        ):
            request = asked(
                engine, http, voice="ryan", streaming_text=True, temperature=0.5, **fields
            )
            assert request.streaming_text is True
            assert request.sampling == Sampling(
                temperature=0.5, predictor_temperature=0.7, predictor_top_p=0.9, predictor_top_k=30
            )
        refused(
            http,
            "subtalker_top_p",
            "subtalker_top_p must be greater than 0 (got 0.0)",
            voice="ryan",
            subtalker_top_p=0.0,
        )
        refused(
            http,
            "streaming_text",
            "streaming_text must be true or false",
            voice="ryan",
            streaming_text="yes",
        )


def test_voice_design(tmp_path: Path) -> None:
    with serving("design_1b7", tmp_path) as (engine, http):
        request = asked(
            engine, http, task_type="VoiceDesign", instructions="An old man.", voice="default"
        )
        assert (request.voice, request.instruction, request.task_type) == (
            None,
            "An old man.",
            "VoiceDesign",
        )
        refused(http, "ref_audio", "takes no reference", ref_audio=REF_AUDIO)
        refused(http, "voice", "no voice 'vivian'", voice="vivian")
        refused(http, "speaker", "no voice 'vivian'", speaker="vivian")


def test_base(tmp_path: Path) -> None:
    with serving("base_1b7", tmp_path) as (engine, http):
        alone = asked(engine, http, ref_audio=REF_AUDIO, task_type="Base")
        assert (len(alone.references), alone.reference_text, alone.task_type) == (1, None, "Base")
        assert (
            asked(engine, http, ref_audio=REF_AUDIO, ref_text="Words.").reference_text == "Words."
        )
        mode = {"ref_audio": REF_AUDIO, "x_vector_only_mode": True, "ref_text": "Words."}
        assert asked(engine, http, **mode).reference_text is None
        refused(
            http,
            "x_vector_only_mode",
            "needs reference_text",
            ref_audio=REF_AUDIO,
            x_vector_only_mode=False,
        )
        refused(http, "x_vector_only_mode", "there is none", x_vector_only_mode=True)
        refused(http, "reference_audio", "voice of one recording, got 0")
        refused(
            http, "instructions", "takes no instruction", ref_audio=REF_AUDIO, instructions="Sad."
        )


def test_an_uploaded_voice_is_hot_at_once(tmp_path: Path) -> None:
    """Codes and speaker vector are stored; this family does not level recordings."""
    with serving("base_1b7", tmp_path) as (engine, http):
        form = {"name": "anna", "consent": "yes", "ref_text": "Words."}
        upload = http.post(
            "/v1/audio/voices", data=form, files={"audio_sample": ("a.wav", RECORDING, "audio/wav")}
        )
        assert upload.status_code == 200, upload.text
        (recording,) = engine.recordings
        assert np.allclose(recording.samples, SAMPLES, atol=1e-3)
        request = asked(engine, http, voice="anna")
        (reference,) = request.references
        assert isinstance(reference, EncodedReference)
        encoded = engine.encoded(recording)
        assert encoded.codes is not None
        assert encoded.voice is not None
        np.testing.assert_array_equal(reference.codes, encoded.codes)
        np.testing.assert_array_equal(reference.voice, encoded.voice)
        assert request.reference_text == "Words."
        # For another model, or an upgrade that reads recordings differently, it is the recording.
        engine.described = replace(engine.described, reference_id="another")
        (reference,) = asked(engine, http, voice="anna").references
        assert isinstance(reference, bytes)
        audio = decode_audio(reference, max_bytes=2**20, max_seconds=1.0)
        assert np.allclose(audio.samples, SAMPLES, atol=1e-3)


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("custom_1b7", {"voice": "ryan"}),
        ("design_1b7", {"instructions": "Old."}),
        ("design_1b7", {"ref_audio": REF_AUDIO}),
    ],
)
def test_x_vector_only_mode_is_for_recordings(
    tmp_path: Path, name: str, fields: dict[str, str], value: bool
) -> None:
    with serving(name, tmp_path) as (engine, http):
        refused(
            http, "x_vector_only_mode", "checkpoint takes none", x_vector_only_mode=value, **fields
        )
        assert not engine.requests


def test_x_vector_only_mode_in_another_family(tmp_path: Path) -> None:
    """It chooses between cloning and continuing the recording; without effect it is an error."""
    engine = FakePool()
    app = create_app(engine, ServerSettings(), VoiceStore(tmp_path / "voices", ONLY_DEFAULT))
    words = {"ref_audio": REF_AUDIO, "ref_text": "Words."}
    with on_loopback(app) as address, httpx.Client(base_url=address, timeout=20) as http:
        for value in (True, False):
            refused(http, "x_vector_only_mode", "there is none", x_vector_only_mode=value)
        refused(
            http,
            "x_vector_only_mode",
            "needs reference_text",
            ref_audio=REF_AUDIO,
            x_vector_only_mode=False,
        )
        assert not engine.requests
        for value, spoken in ((True, None), (False, "Words.")):
            assert speak(http, x_vector_only_mode=value, **words).status_code == 200
            assert engine.requests[-1].reference_text == spoken


@pytest.mark.parametrize(
    "fields", [{"task_type": "CustomVoice"}, {"task_type": "Base", "ref_audio": REF_AUDIO}]
)
def test_another_family_gets_no_task_type(tmp_path: Path, fields: dict[str, str]) -> None:
    """The server checks it only for consistency with the other fields."""
    engine = FakePool()
    app = create_app(engine, ServerSettings(), VoiceStore(tmp_path / "voices", ONLY_DEFAULT))
    with on_loopback(app) as address, httpx.Client(base_url=address, timeout=20) as http:
        assert speak(http, **fields).status_code == 200
    assert engine.requests[-1].task_type is None
