"""Ctrl-C during a step waits for its end, so the engine stays usable; a second Ctrl-C does not
wait.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest

from hocket.core import SpeechRequest
from hocket.engine.engine import Engine
from hocket.errors import EngineStoppedError
from tests.support.tiny_engine import EAGER, endless_talker, engine

REQUEST = SpeechRequest(text="One.", seed=1, max_frames=8)


def new_engine() -> Engine:
    return engine(EAGER.model_copy(update={"rows": 2}), endless_talker())


def interrupt_in_the_third_frame(
    speaking: Engine, monkeypatch: pytest.MonkeyPatch, signals: int
) -> list[str]:
    """Events in order."""
    runner = speaking.parts.talker
    real: Callable[..., object] = runner.launch
    seen: list[str] = []

    def launch(*arguments: object) -> object:
        seen.append("launch")
        if len(seen) == 3:
            for _ in range(signals):
                signal.raise_signal(signal.SIGINT)
            seen.append("survived")
        return real(*arguments)

    monkeypatch.setattr(runner, "launch", launch)
    return seen


def test_an_interrupt_waits_for_the_end_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = new_engine().generate(REQUEST)
    speaking = new_engine()
    before = signal.getsignal(signal.SIGINT)
    seen = interrupt_in_the_third_frame(speaking, monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        speaking.generate(REQUEST)
    assert seen[:4] == ["launch", "launch", "launch", "survived"]
    assert signal.getsignal(signal.SIGINT) is before
    assert speaking.idle, "the interrupted request was not ended"
    speaking.check_integrity()
    assert np.array_equal(speaking.generate(REQUEST).codes, expected.codes)


def test_a_stream_goes_on_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = new_engine().generate(REQUEST)
    speaking = new_engine()
    name = speaking.add(REQUEST)
    interrupt_in_the_third_frame(speaking, monkeypatch, 1)
    codes, interrupts = [], 0
    while not speaking.idle:
        try:
            codes += [chunk.codes for chunk in speaking.step()]
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 1
    assert name.startswith("request")
    assert np.array_equal(np.concatenate(codes), expected.codes), "the step's chunks were lost"


def test_the_second_interrupt_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    speaking = new_engine()
    seen = interrupt_in_the_third_frame(speaking, monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        speaking.generate(REQUEST)
    assert "survived" not in seen
    with pytest.raises(EngineStoppedError, match="KeyboardInterrupt"):
        speaking.generate(REQUEST)


def test_other_threads_and_ignored_interrupts_are_left_alone() -> None:
    speaking = new_engine()
    made: list[int] = []
    thread = Thread(target=lambda: made.append(len(speaking.generate(REQUEST).codes)))
    thread.start()
    thread.join(60)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        made.append(len(speaking.generate(REQUEST).codes))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert made == [8, 8]
