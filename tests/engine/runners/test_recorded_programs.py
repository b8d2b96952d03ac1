"""Programs are replayed as they were recorded: their inputs must come from the same addresses, and
nothing else may matter.

A CPU has no graphs. Here a replay calls the function that was recorded, with everything that it had
closed over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.audio.io import to_int16
from hocket.config import ChunkPolicy, EngineConfig
from hocket.core import Samples, Sampling, SpeechRequest
from hocket.engine.runners.codec import StateSlot
from hocket.engine.runners.device import Launcher, StaticInput, batch_sizes
from tests.support import tiny_engine
from tests.support.tiny_engine import EAGER, Listener, engine

CHUNKS = ChunkPolicy(
    first_chunk_frames=1, ramp_frames=(2,), steady_chunk_frames=5, min_batch=1, max_wait_ms=0.0
)
CONFIG = EAGER.model_copy(
    update={"rows": 5, "chunks": CHUNKS, "kept_streams": 2, "max_context_rows": 256}
)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Hashable]:
    """The keys of recorded programs."""
    programs: dict[tuple[int, Hashable], Callable[[], object]] = {}
    keys: list[Hashable] = []

    def run(self: Launcher, key: Hashable, program: Callable[[], object]) -> object:
        if (id(self), key) not in programs:
            keys.append(key)
        return programs.setdefault((id(self), key), program)()

    monkeypatch.setattr(Launcher, "records", property(lambda self: True))
    monkeypatch.setattr(Launcher, "run", run)
    return keys


def requests() -> list[SpeechRequest]:
    voice = np.random.default_rng(0).integers(0, 16, (13, 12))
    penalties = (1.0, 1.0, 1.3)
    return [
        SpeechRequest(
            text="Some words. " * (1 + i % 2),
            seed=i,
            max_frames=40 + i % 7,
            sampling=Sampling(repetition_penalty=penalties[i % 3]),
            reference=None if i % 2 else voice,
            reference_text=None if i % 2 else "So.",
        )
        for i in range(12)
    ]


def hear(config: EngineConfig) -> tuple[list[NDArray[np.int64]], list[Samples], int]:
    listener = Listener(engine(config, tiny_engine.endless_talker()))
    names = []
    for request in requests():
        names.append(listener.add(request))
        listener.step()
    listener.run()
    heard = [listener.heard[name] for name in names]
    preemptions = listener.engine.stats().scheduler.preemptions
    return [one.all_codes for one in heard], [one.all_samples for one in heard], preemptions


# Twelve rows: as many streams in a pack as there are codebooks.
@pytest.mark.parametrize(
    ("rows", "kv_rows", "strict", "firsts_apart"),
    [(5, 256, False, True), (12, None, False, False), (5, None, True, True)],
)
def test_replays_speak_as_calls_do(
    recorded: list[Hashable],
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    kv_rows: int | None,
    strict: bool,
    firsts_apart: bool,
) -> None:
    chunks = CHUNKS if firsts_apart else CHUNKS.model_copy(update={"first_batch_frames": 0})
    config = CONFIG.model_copy(
        update={"rows": rows, "kv_rows": kv_rows, "strict": strict, "chunks": chunks}
    )
    codes, samples, preemptions = hear(config)
    assert (preemptions > 0) == (kv_rows is not None)
    assert {key[0] for key in recorded if isinstance(key, tuple)} == {
        "pages",
        "draw",
        "advance",
        "row",
        "priming",
        "copy",
        *(["first"] if firsts_apart else []),
        *([] if strict else ["joined"]),
    }
    monkeypatch.undo()
    plain_codes, plain_samples, _ = hear(config)
    assert all(map(np.array_equal, codes, plain_codes))
    for one, plain in zip(samples, plain_samples, strict=True):
        np.testing.assert_allclose(one, plain, atol=2e-5)


def test_replays_make_16_bits_of_the_same_samples(recorded: list[Hashable]) -> None:
    codes, samples, _ = hear(CONFIG.model_copy(update={"samples": "int16"}))
    float_codes, floats, _ = hear(CONFIG)
    assert all(map(np.array_equal, codes, float_codes))
    assert all(
        np.array_equal(one, to_int16(other)) for one, other in zip(samples, floats, strict=True)
    )
    assert {one.dtype.name for one in samples} == {"int16"}
    assert all(one.any() for one in samples)


def test_everything_is_recorded_before_the_first_request(recorded: list[Hashable]) -> None:
    speaking = Listener(engine(CONFIG, tiny_engine.patient_talker()))
    before = len(recorded)
    assert before
    for request in requests():
        speaking.add(request)
    speaking.run()
    assert len(recorded) == before


class FakeEvent:
    """A CUDA event that the test controls."""

    def __init__(self) -> None:
        self.is_past = False

    def query(self) -> bool:
        return self.is_past


def test_a_row_begins_again_behind_a_copy_that_is_on_its_way_there(
    recorded: list[Hashable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request of the copy may have ended; the next request must not continue its recording."""
    assert recorded == []
    runner = engine(CONFIG, tiny_engine.patient_talker()).parts.codec
    assert runner is not None
    waited: list[object] = []
    monkeypatch.setattr(Launcher, "record_event", lambda self: FakeEvent())
    monkeypatch.setattr(Launcher, "wait", lambda self, event: waited.append(event))
    runner.start(StateSlot("row", 0))
    copied = runner.copy(StateSlot("kept", 0), StateSlot("row", 0), 3)
    waited.clear()
    runner.start(StateSlot("row", 0))
    assert waited == [copied]


def test_speech_waits_until_its_recording_is_on_its_row(
    recorded: list[Hashable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other request waits for it."""
    events: list[FakeEvent] = []

    def new_event(self: Launcher) -> FakeEvent:
        events.append(FakeEvent())
        return events[-1]

    monkeypatch.setattr(Launcher, "record_event", new_event)
    monkeypatch.setattr(Launcher, "wait", lambda self, event: None)
    listener = Listener(engine(CONFIG, tiny_engine.endless_talker()))
    continuing, plain = (listener.add(requests()[i]) for i in (0, 1))
    for _ in range(40):
        listener.step()
    assert recorded
    assert listener.heard[plain].all_codes.shape[0] > 10
    assert not listener.heard[continuing].samples
    for event in events:
        event.is_past = True
    for _ in range(200):
        listener.step()
        for event in events:
            event.is_past = True
    listener.run()
    assert listener.heard[continuing].all_codes.shape[0] == 40


def test_sizes_of_batches() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(12) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
    for most in range(1, 300):
        sizes = batch_sizes(most)
        assert sizes[-1] == most
        assert sizes == sorted(set(sizes))
        assert all(larger <= 1.25 * smaller + 1 for smaller, larger in pairwise(sizes))


def test_an_input_stays_where_it_is() -> None:
    place = Launcher(torch.device("cpu")).static_input((2, 3))
    tensor = place.tensor
    for value in (1, 2, 3):
        place.put(np.full((2, 3), value))
        assert tensor.tolist() == [[value] * 3] * 2
    with pytest.raises(ValueError, match="shape"):
        place.put(np.zeros((3, 3), np.int64))


def test_what_is_on_its_way_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is as much pinned memory as there are copies in flight; buffers are reused once they
    were read.
    """

    class Event(FakeEvent):
        def record(self, stream: object) -> None:
            self.is_past = False

    events: list[Event] = []
    hosts: list[Tensor] = []
    empty = torch.empty

    def new_event() -> Event:
        events.append(Event())
        return events[-1]

    def pinned(shape: Sequence[int], *, pin_memory: bool, **rest: Any) -> Tensor:
        assert pin_memory
        hosts.append(empty(shape, **rest))
        return hosts[-1]

    monkeypatch.setattr(torch.cuda, "Event", new_event)
    monkeypatch.setattr(torch, "empty", pinned)
    place = StaticInput((2,), torch.device("cpu"), torch.int64, cast("torch.cuda.Stream", object()))
    for value in range(3):
        place.put(np.full(2, value))
        assert place.tensor.tolist() == [value] * 2
    assert [host.tolist() for host in hosts] == [[0, 0], [1, 1], [2, 2]]
    # The second is done, but they end in order: nothing to use again yet.
    events[1].is_past = True
    place.put(np.full(2, 3))
    assert [host.tolist() for host in hosts] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    events[0].is_past = True
    for value in (4, 5, 6):
        place.put(np.full(2, value))
    assert [host.tolist() for host in hosts] == [[4, 4], [5, 5], [2, 2], [3, 3], [6, 6]]
