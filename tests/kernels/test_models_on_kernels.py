"""Whole engines on the kernels: on a CPU in the interpreter, which the golden checkpoints are small
enough for.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hocket.config import ChunkPolicy, EngineConfig
from hocket.core import Sampling, Speech, SpeechRequest
from hocket.engine.engine import Engine
from hocket.kernels import ops
from tests.support.paths import GOLDEN

#: The interpreter computes what a mask then hides.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FOLDERS = {
    "moss": (GOLDEN / "local_tiny", GOLDEN / "codec2_tiny"),
    # The interpreter takes minutes for the codec's 1,920 samples a frame;
    # `test_codec_on_kernels.py` has a small one.
    "qwen3": (
        GOLDEN / "qwen3_tts/custom_1b7",
        GOLDEN / "qwen3_tts/base_1b7/speech_tokenizer" if torch.cuda.is_available() else "none",
    ),
}
CONFIG = EngineConfig(
    rows=3,
    page_rows=8,
    max_context_rows=256,
    chunks=ChunkPolicy(
        first_chunk_frames=1, ramp_frames=(2,), steady_chunk_frames=4, min_batch=1, max_wait_ms=0.0
    ),
)


_needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="takes minutes in the interpreter; what is new in it is tested by itself there",
)


def speak(
    family: str, requests: list[SpeechRequest], device: torch.device, **changed: object
) -> list[Speech]:
    model, codec = FOLDERS[family]
    config = CONFIG.model_copy(update=changed)
    return Engine.load(model, codec, device=device.type, config=config).generate_many(requests)


@pytest.fixture
def _kernels_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ops, "column_of", lambda _: "gpu" if torch.is_inference_mode_enabled() else "reference"
    )


def requests(family: str) -> list[SpeechRequest]:
    voice = "default" if family == "moss" else "vivian"
    kinds = [
        Sampling(temperature=0.0),
        Sampling(temperature=1.7, top_k=25, top_p=0.8),
        Sampling(temperature=1.0, top_k=0, top_p=0.95, repetition_penalty=1.2),
    ]
    return [
        SpeechRequest(
            text="Hello.", seed=i, sampling=kind, max_frames=3, min_frames=2 + i % 2, voice=voice
        )
        for i, kind in enumerate(kinds)
    ]


#: More than a minute in the interpreter.
_SLOW = () if torch.cuda.is_available() else (pytest.mark.slow,)


@pytest.mark.parametrize("family", [pytest.param(name, marks=_SLOW) for name in ("moss", "qwen3")])
@pytest.mark.usefixtures("_kernels_everywhere")
def test_kernels_speak_as_plain_pytorch_does(
    family: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = speak(family, requests(family), device)
    monkeypatch.setattr(ops, "column_of", lambda _: "cpu")
    for one, plain in zip(heard, speak(family, requests(family), torch.device("cpu")), strict=True):
        assert len(plain.codes) >= 2
        assert np.array_equal(one.codes, plain.codes)
        np.testing.assert_allclose(one.samples, plain.samples, atol=1e-4, rtol=1e-3)


@_needs_gpu
@pytest.mark.parametrize("family", ["moss", "qwen3"])
@pytest.mark.usefixtures("_kernels_everywhere")
def test_keys_and_values_of_8_bits_speak_as_plain_pytorch_does(
    family: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A CPU's references can do it, though the engine refuses it.
    monkeypatch.setattr("hocket.engine.build.check_fp8_device", lambda *_: None)
    heard = speak(family, requests(family), device, kv_dtype="fp8")
    monkeypatch.setattr(ops, "column_of", lambda _: "cpu")
    plain = speak(family, requests(family), torch.device("cpu"), kv_dtype="fp8")
    for one, other in zip(heard, plain, strict=True):
        assert len(other.codes) >= 2
        assert np.array_equal(one.codes, other.codes)


@_needs_gpu
@pytest.mark.usefixtures("_kernels_everywhere")
def test_packed_chunks_and_joined_prompts_speak_as_plain_pytorch_does(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths that only a GPU runs, since it records programs."""
    voice = np.random.default_rng(0).integers(0, 16, (11, 12))
    some = [
        one.model_copy(update={"reference": (voice,), "reference_text": "So.", "voice": None})
        for one in requests("moss")
    ]
    heard = speak("moss", some, device)
    monkeypatch.undo()
    for one, plain in zip(heard, speak("moss", some, torch.device("cpu")), strict=True):
        assert np.array_equal(one.codes, plain.codes)
        np.testing.assert_allclose(one.samples, plain.samples, atol=1e-4, rtol=1e-3)
