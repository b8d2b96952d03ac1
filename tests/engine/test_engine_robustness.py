"""No request can harm the others, whatever it contains."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hocket import AudioArray, Engine, Sampling, Speech, SpeechRequest
from hocket.audio.io import resample
from hocket.config import EngineConfig, ReferenceLimits
from hocket.core import AudioChunk, PromptRows
from hocket.errors import HocketError, InvalidRequestError, ReferenceAudioError


def engine(golden: Path, **settings: object) -> Engine:
    config = EngineConfig.model_validate({"rows": 4, "max_context_rows": 512} | settings)
    return Engine.load(golden / "local_tiny", golden / "codec2_tiny", config=config)


def noise(samples: int, channels: int = 2, seed: int = 0) -> AudioArray:
    wave = np.random.default_rng(seed).normal(0, 0.1, (channels, samples)).astype(np.float32)
    return AudioArray(wave, 300)


def run(subject: Engine) -> list[AudioChunk]:
    chunks: list[AudioChunk] = []
    for _ in range(2000):
        chunks += subject.step()
        if subject.idle:
            return chunks
    raise AssertionError("the engine never became idle")


VICTIM = SpeechRequest(text="Good morning.", seed=3, sampling=Sampling(temperature=0.0))


def alone(golden: Path) -> NDArray[np.int64]:
    return engine(golden).generate(VICTIM).codes


def test_an_endless_pause_is_a_long_one_and_ends_nobody(golden: Path) -> None:
    subject = engine(golden)
    victim = subject.add(VICTIM)
    subject.add(SpeechRequest(text=f"hi [pause {'9' * 400}s]", reference=noise(600), max_frames=3))
    codes = [chunk.codes for chunk in run(subject) if chunk.request_id == victim]
    assert np.array_equal(np.concatenate(codes), alone(golden))


def test_a_mistake_of_ours_ends_only_the_request_that_met_it(
    golden: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subject = engine(golden)
    victim = subject.add(VICTIM)
    other = subject.add(SpeechRequest(text="poisoned", reference=noise(600)))
    builder = subject.parts.prompt
    build = builder.build

    def fail(request: SpeechRequest, *references: Any) -> PromptRows:
        if request.text == "poisoned":
            raise ZeroDivisionError("secret words")
        return build(request, *references)

    monkeypatch.setattr(builder, "build", fail)
    chunks = run(subject)
    ends = {chunk.request_id: chunk.end for chunk in chunks if chunk.end is not None}
    end = ends[other]
    assert end is not None
    assert end.finish_reason == "error"
    assert "ZeroDivisionError" in str(end.error)
    assert "secret" not in str(end.error)
    assert "ZeroDivisionError" in caplog.text
    assert "secret" not in caplog.text
    codes = [chunk.codes for chunk in chunks if chunk.request_id == victim]
    assert np.array_equal(np.concatenate(codes), alone(golden))


def test_a_reference_without_a_whole_frame_is_refused_before_it_is_queued(golden: Path) -> None:
    subject = engine(golden, reference=ReferenceLimits(min_seconds=0.01))
    with pytest.raises(ReferenceAudioError, match="shorter than one frame"):
        subject.add(SpeechRequest(text="Hi.", reference=noise(20)))
    assert subject.idle


def test_references_that_cannot_fit_are_refused_before_they_are_encoded(golden: Path) -> None:
    subject = engine(golden)
    with pytest.raises(InvalidRequestError, match="references have 600 frames"):
        subject.add(
            SpeechRequest(text="Hi.", reference=[noise(300 * 12, seed=i) for i in range(4)])
        )
    assert subject.idle
    assert subject.stats().reference_misses == 0


def test_odd_rates_are_resampled_in_bounded_time() -> None:
    """A minute from 191999 Hz once took 86 s: 48,000 phases, none of which repeats."""
    wave = np.random.default_rng(0).normal(0, 0.1, (2, 191_999 * 10)).astype(np.float32)
    started = time.perf_counter()
    assert resample(wave, 191_999, 48_000).shape == (2, 480_000)
    assert time.perf_counter() - started < 10


def test_several_threads_take_turns(golden: Path) -> None:
    subject = engine(golden)
    requests = [SpeechRequest(text=f"Number {i}.", seed=i, max_frames=12) for i in range(8)]
    expected = [engine(golden).generate(request).codes for request in requests]
    results: dict[int, Speech] = {}

    def speak(i: int) -> None:
        results[i] = subject.generate(requests[i])

    threads = [Thread(target=speak, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for i in range(8):
        assert np.array_equal(results[i].codes, expected[i]), i


@pytest.mark.parametrize("nonsense", ["hello", None, 5])
def test_what_is_no_request_is_refused(golden: Path, nonsense: object) -> None:
    with pytest.raises(InvalidRequestError, match="is a SpeechRequest, not a"):
        engine(golden).generate(nonsense)  # type: ignore[arg-type]
    assert issubclass(InvalidRequestError, HocketError)
