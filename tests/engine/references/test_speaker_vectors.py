"""Voice vectors: once per recording, one recording per step, none for requests that have ended."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hocket.core import SpeechRequest
from hocket.engine.references import speaker_vectors as voice_vectors
from hocket.engine.references.speaker_vectors import VoiceVectors
from hocket.errors import ReferenceAudioError
from tests.support import tiny_qwen3
from tests.support.tiny_engine import EAGER, Listener, engine


class Means:
    """Embeds a recording as its mean, and counts calls."""

    def __init__(self) -> None:
        self.heard = 0

    def parameters(self) -> Iterator[nn.Parameter]:
        yield nn.Parameter(torch.zeros(1))

    def check_length(self, samples: int) -> None:
        if samples < 10:
            raise ReferenceAudioError("too short", param="reference")

    def embed(self, samples_S: Tensor) -> Tensor:
        self.heard += 1
        return samples_S.mean()[None]


def recording(value: float, samples: int = 20) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.full((1, samples), value, np.float32)


def test_a_recording_is_heard_once() -> None:
    encoder = Means()
    vectors = VoiceVectors(encoder)
    key, known = vectors.submit(recording(0.5))
    assert known is None
    assert vectors.submit(recording(0.5)) == (key, None)
    assert vectors.step({key})[key].tolist() == [0.5]
    assert vectors.step({key}) == {}
    again, known = vectors.submit(recording(0.5))
    assert again == key
    assert known is not None
    assert known.tolist() == [0.5]
    assert vectors.submit(recording(0.25))[0] != key
    assert encoder.heard == 1


def test_one_a_step_and_only_the_wanted() -> None:
    vectors = VoiceVectors(Means())
    keys = [vectors.submit(recording(value))[0] for value in (0.1, 0.2, 0.3)]
    wanted = {keys[0], keys[2]}
    assert list(vectors.step(wanted)) == [keys[0]]
    assert list(vectors.step(wanted)) == [keys[2]]
    assert vectors.step(wanted) == {}
    with pytest.raises(ReferenceAudioError, match="too short"):
        vectors.submit(recording(0.1, samples=9))
    assert vectors.step(set(keys)) == {}


def test_the_least_recently_used_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_vectors, "MAX_VECTORS", 2)
    vectors = VoiceVectors(Means())
    for value in (0.1, 0.2):
        vectors.step({vectors.submit(recording(value))[0]})
    assert vectors.submit(recording(0.1))[1] is not None
    vectors.step({vectors.submit(recording(0.3))[0]})
    assert vectors.submit(recording(0.1))[1] is not None
    assert vectors.submit(recording(0.2))[1] is None


def test_in_the_engine() -> None:
    """Two requests with one voice share its vector; a third with another voice does not get its
    pages.
    """
    model = tiny_qwen3.endless_talker()
    listener = Listener(engine(EAGER.model_copy(update={"rows": 3}), model))
    voices = [tiny_qwen3.voice(1, 0.6), tiny_qwen3.voice(1, 0.6), tiny_qwen3.voice(2, 0.6)]
    names = [
        listener.add(SpeechRequest(text="One.", reference=voice, max_frames=3, seed=1))
        for voice in voices
    ]
    encoder = model.voice_encoder
    assert encoder is not None
    with mock.patch.object(encoder, "embed", side_effect=encoder.embed) as embed:
        heard = listener.run()
    assert embed.call_count == 2
    first, second, third = (heard[name].all_codes for name in names)
    assert np.array_equal(first, second)
    assert listener.hidden[names[0], 0] != listener.hidden[names[2], 0]
    assert third.shape == first.shape
