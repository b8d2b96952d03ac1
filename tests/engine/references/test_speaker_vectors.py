"""Voice vectors: one recording per step, none for requests that have ended; in the engine once per
recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hocket.core import EncodedReference, SpeechRequest
from hocket.engine.references.encoder import ReferenceEncoder
from hocket.errors import HocketError, ReferenceAudioError
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


def encoder(means: Means) -> ReferenceEncoder:
    return ReferenceEncoder(None, means, n_codebooks=1, fixed_batch=False)


def submit(encoder: ReferenceEncoder, samples_CS: NDArray[np.float32]) -> str:
    return encoder.submit(samples_CS, codes=False, voice=True)


def voice_of(encoded: EncodedReference | HocketError) -> list[float]:
    assert isinstance(encoded, EncodedReference)
    assert encoded.codes is None
    assert encoded.voice is not None
    return [float(value) for value in encoded.voice]


def test_one_a_step_and_only_the_wanted() -> None:
    means = Means()
    vectors = encoder(means)
    keys = [submit(vectors, recording(value)) for value in (0.25, 0.5, 0.75)]
    wanted = {keys[0], keys[2]}
    made = vectors.step(wanted)
    assert list(made) == [keys[0]]
    assert voice_of(made[keys[0]]) == [0.25]
    assert not vectors.idle
    assert voice_of(vectors.step(wanted)[keys[2]]) == [0.75]
    assert vectors.idle
    assert vectors.step(wanted) == {}
    with pytest.raises(ReferenceAudioError, match="too short"):
        submit(vectors, recording(0.1, samples=9))
    assert vectors.step(set(keys)) == {}
    assert means.heard == 2


def test_codes_and_vector_come_together() -> None:
    """Codes of a long recording take more steps than its vector."""
    model, codec = tiny_qwen3.talker(), tiny_qwen3.codec()
    both = ReferenceEncoder(codec, model.voice_encoder, n_codebooks=4, fixed_batch=False)
    samples_CS = tiny_qwen3.voice(1, 3.0).samples
    key = both.submit(samples_CS, codes=True, voice=True)
    steps = []
    while not both.idle:
        steps.append(both.step({key}))
    assert len(steps) > 1
    assert all(made == {} for made in steps[:-1])
    made = steps[-1][key]
    assert isinstance(made, EncodedReference)
    assert made.codes is not None
    assert made.codes.shape == (codec.config.reference_frames(samples_CS.shape[1]), 4)
    alone = encoder(Means())
    assert made.voice is not None
    assert made.voice.shape == (model.talker.config.voice_size,)
    assert alone.identity != both.identity


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
