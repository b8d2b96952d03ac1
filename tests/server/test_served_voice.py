"""A running server as the engine of a voice's trial: what it streams is what is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from training.served import ServedEngine

from hocket import AudioArray, Sampling, SpeechRequest
from hocket.audio.io import decode_audio
from hocket.checkpoint.voices import ONLY_DEFAULT
from hocket.errors import EngineStoppedError
from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from tests.support.fake_engine import FRAME_SAMPLES, RATE, FakePool
from tests.support.loopback import new_store, on_loopback


@pytest.fixture
def engine() -> FakePool:
    return FakePool()


@pytest.fixture
def served(engine: FakePool, tmp_path: Path) -> Iterator[ServedEngine]:
    app = create_app(engine, ServerSettings(), new_store(tmp_path))
    with on_loopback(app) as address, httpx.Client(base_url=address, timeout=20) as client:
        yield ServedEngine(address, client)


def test_speech_comes_in_the_order_of_the_requests_with_all_that_a_trial_asks(
    served: ServedEngine, engine: FakePool
) -> None:
    texts = ["Hello.", "A longer line.", "No"]
    speeches = served.generate_many(
        SpeechRequest(text=text, voice="default", seed=7 + i, sampling=Sampling(temperature=0.0))
        for i, text in enumerate(texts)
    )
    assert [speech.samples.shape for speech in speeches] == [
        (1, FRAME_SAMPLES * len(text)) for text in texts
    ]
    assert [(s.sample_rate, s.finish_reason, s.seed) for s in speeches] == [
        (RATE, "stop", 7 + i) for i in range(3)
    ]
    assert all(np.abs(speech.samples).max() > 0.01 for speech in speeches)
    assert {request.text for request in engine.requests} == set(texts)
    assert all(request.sampling.temperature == 0.0 for request in engine.requests)
    assert served.voices == ONLY_DEFAULT


def test_a_recording_and_its_words_are_sent_along(served: ServedEngine, engine: FakePool) -> None:
    recording = AudioArray(np.asarray(np.sin(np.arange(RATE) / 20)[None] / 2, np.float32), RATE)
    (speech,) = served.generate_many(
        [SpeechRequest(text="Hi", reference=recording, reference_text="one two", seed=1)]
    )
    assert speech.finish_reason == "stop"
    (request,) = engine.requests
    assert request.reference_text == "one two"
    (reference,) = request.references
    assert isinstance(reference, bytes)
    sent = decode_audio(reference, max_bytes=len(reference), max_seconds=10.0)
    np.testing.assert_allclose(sent.samples, recording.samples, atol=1e-4)


def test_what_goes_wrong_is_told(served: ServedEngine, engine: FakePool) -> None:
    engine.error = EngineStoppedError("the engine is gone")
    with pytest.raises(SystemExit, match="the server says 5"):
        served.generate_many([SpeechRequest(text="Hi", seed=1)])
    engine.error, engine.error_after = None, 1
    with pytest.raises(SystemExit, match="ended early"):
        served.generate_many([SpeechRequest(text="Hello there", seed=1)])
    with pytest.raises(TypeError, match="AudioArray"):
        served.generate_many([SpeechRequest(text="Hi", reference=Path("a.wav"), seed=1)])
