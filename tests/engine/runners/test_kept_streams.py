"""Primed codec states are kept for the next request that continues the same recording."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.config import EngineConfig
from hocket.core import SpeechRequest
from hocket.engine.codec_priming import PrimedStateCache, digest
from hocket.engine.runners.codec import CodecRunner
from tests.support.tiny_engine import STRICT, Listener, engine, patient_talker

VOICES = [np.random.default_rng(i).integers(0, 16, (18 + i, 12)) for i in range(3)]


def requests() -> list[SpeechRequest]:
    return [
        SpeechRequest(
            text=f"Text {i}.",
            reference=VOICES[i % 3],
            reference_text="So.",
            seed=i,
            max_frames=9,
            min_frames=3,
        )
        for i in range(12)
    ]


def hear(config: EngineConfig) -> tuple[Listener, list[bytes], int]:
    listener = Listener(engine(config, patient_talker()))
    runner = listener.engine.parts.codec
    assert isinstance(runner, CodecRunner)
    primed = 0
    hear = runner.prime

    def counting(
        slots: Sequence[int], pieces: Sequence[NDArray[np.int64]], frames: int
    ) -> torch.cuda.Event | None:
        nonlocal primed
        primed += sum(map(len, pieces))
        return hear(slots, pieces, frames)

    runner.prime = counting  # type: ignore[method-assign]
    names = []
    for request in requests():
        names.append(listener.add(request))
        for _ in range(4):
            listener.step()
    listener.run()
    return listener, [listener.heard[name].all_samples.tobytes() for name in names], primed


def test_speech_is_the_same_and_recordings_are_heard_once() -> None:
    config = STRICT.model_copy(update={"rows": 2})
    _, without, heard = hear(config)
    assert heard == 4 * sum(map(len, VOICES))
    _, kept, heard = hear(config.model_copy(update={"kept_streams": 3}))
    assert kept == without
    assert heard == sum(map(len, VOICES))
    _, some, heard_again = hear(config.model_copy(update={"kept_streams": 1}))
    assert some == without
    assert heard_again > heard


def test_requests_that_come_together_hear_a_recording_once() -> None:
    listener = Listener(
        engine(STRICT.model_copy(update={"rows": 6, "kept_streams": 2}), patient_talker())
    )
    runner = listener.engine.parts.codec
    assert isinstance(runner, CodecRunner)
    with mock.patch.object(runner, "prime", side_effect=runner.prime) as hear:
        for i in range(6):
            same = SpeechRequest(
                text="So it is.", reference=VOICES[0], reference_text="So.", seed=i, max_frames=4
            )
            listener.add(same)
        listener.run()
    assert sum(len(piece) for call in hear.call_args_list for piece in call.args[1]) == len(
        VOICES[0]
    )


def test_the_least_recently_used_goes() -> None:
    kept = PrimedStateCache([5, 6])
    assert kept.find(digest(VOICES[0])) is None
    first, second = kept.place(digest(VOICES[0])), kept.place(digest(VOICES[1]))
    assert {first, second} == {5, 6}
    assert kept.place(digest(VOICES[0])) is None, "it is there already"
    assert kept.find(digest(VOICES[0])) == first
    assert kept.place(digest(VOICES[2])) == second
    assert kept.find(digest(VOICES[1])) is None
    assert PrimedStateCache([]).place(digest(VOICES[0])) is None
