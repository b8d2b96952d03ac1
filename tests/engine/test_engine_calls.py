"""`generate`, `generate_many` and `stream`: calls in the engine's own process, alone and inside one
another.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from hocket.config import EngineConfig
from hocket.core import AudioChunk, SpeechRequest
from hocket.engine.engine import Engine
from hocket.errors import CapacityError, InvalidRequestError, ReferenceAudioError
from tests.support.tiny_engine import (
    EAGER,
    Heard,
    Listener,
    codec,
    codes,
    endless_talker,
    engine,
    hear,
    noise,
    patient_talker,
)

CONFIG = EAGER.model_copy(update={"rows": 3})


def request(seed: int, frames: int = 12) -> SpeechRequest:
    return SpeechRequest(text=f"Text {seed}.", seed=seed, max_frames=frames)


def whole(speaking: Engine, chunks: list[AudioChunk]) -> Heard:
    heard = Heard(speaking)
    for chunk in chunks:
        heard.take(chunk)
    return heard


def test_results_come_in_the_order_given() -> None:
    """Short requests end long before long ones."""
    speaking = engine(CONFIG, endless_talker())
    frames = [25, 1, 7, 1, 30, 2, 2, 16, 1]
    requests = [request(seed, count) for seed, count in enumerate(frames)]
    speeches = speaking.generate_many(iter(requests))
    assert [len(speech.codes) for speech in speeches] == frames
    assert [speech.seed for speech in speeches] == list(range(9))
    for speech, spoken in zip(speeches, requests, strict=True):
        one = speaking.generate(spoken)
        assert np.array_equal(one.codes, speech.codes)
        assert one.samples.shape == speech.samples.shape == (2, 24 * len(one.codes))
        assert np.allclose(one.samples, speech.samples, atol=1e-5)
    assert speaking.generate_many([]) == []


def test_a_small_queue_is_no_obstacle() -> None:
    """More requests than the queue holds, beside requests of another caller that fill it."""
    listener = Listener(engine(CONFIG.model_copy(update={"max_waiting": 2}), endless_talker()))
    names = [listener.add(request(seed)) for seed in range(2)]
    with pytest.raises(CapacityError):
        listener.engine.add(request(9))
    with pytest.raises(CapacityError):
        next(listener.engine.stream(request(9)))
    assert len(listener.engine.generate_many([request(seed, 3) for seed in range(10)])) == 10
    listener.run()
    assert [listener.heard[name].reason for name in names] == ["length"] * 2


@pytest.mark.parametrize(
    "bad", [SpeechRequest(text="One.", max_frames=511), SpeechRequest(text="x" * 600)]
)
def test_an_error_at_once(bad: SpeechRequest) -> None:
    listener = Listener(engine(CONFIG, endless_talker()))
    name = listener.add(request(0, 20))
    with pytest.raises(InvalidRequestError, match="context"):
        listener.engine.generate_many([request(1, 20), bad, request(2, 20)])
    assert listener.engine.stats().scheduler.rows_free >= 2, "the others were ended"
    stats = listener.engine.stats().scheduler
    assert stats.waiting + stats.prefilling + stats.running + stats.ending == 1
    assert len(listener.run()[name].all_codes) == 20
    with pytest.raises(ReferenceAudioError):
        listener.engine.generate(SpeechRequest(text="One.", reference=noise(1, 0.1)))


def test_an_error_after_encoding_ends_the_rest() -> None:
    speaking = engine(CONFIG, endless_talker())
    late = SpeechRequest(text="One.", reference=noise(1, 40.0))
    with pytest.raises(InvalidRequestError, match="context"):
        speaking.generate_many(
            [request(1, 200), late, *(request(seed, 200) for seed in range(2, 9))]
        )
    assert speaking.idle
    assert speaking.stats().frame_batches < 100, "it did not wait for the others"


def test_two_streams_take_turns() -> None:
    speaking = engine(CONFIG, endless_talker())
    streams = [speaking.stream(request(seed, 20)) for seed in (1, 2)]
    heard: list[list[AudioChunk]] = [[], []]
    for pair in zip(*streams, strict=True):
        for chunks, chunk in zip(heard, pair, strict=True):
            chunks.append(chunk)
    for seed, chunks in zip((1, 2), heard, strict=True):
        assert [len(chunk.codes) for chunk in chunks] == [1, 2, 4, 8, 5, 0]
        alone = speaking.generate(request(seed, 20))
        assert np.array_equal(whole(speaking, chunks).all_codes, alone.codes)
    assert speaking.idle


def test_generate_inside_a_stream_and_beside_add() -> None:
    """Every caller gets its own chunks: the stream, the inner call, and the caller of `step`."""
    listener = Listener(engine(CONFIG, endless_talker()))
    speaking = listener.engine
    name = listener.add(request(3, 30))
    chunks = []
    for number, chunk in enumerate(speaking.stream(request(1, 20))):
        chunks.append(chunk)
        if number < 3:
            inner = speaking.generate(request(2, 5))
            assert len(inner.codes) == 5
    assert len(whole(speaking, chunks).all_codes) == 20
    listener.run()
    for _ in range(2):  # all of it may have been made by the stream
        listener.step()
    heard = listener.heard[name]
    assert heard.reason == "length"
    assert len(heard.all_codes) == 30
    listener.assert_all_is_back()


@pytest.mark.parametrize("chunks", [1, 3])
def test_closing_a_stream_cancels(chunks: int) -> None:
    speaking = engine(CONFIG, endless_talker())
    stream = speaking.stream(request(1, 200))
    for _ in range(chunks):
        next(stream)
    assert not speaking.idle
    stream.close()
    assert speaking.idle
    speaking.check_integrity()
    assert speaking.stats().scheduler.rows_free == 3
    never_begun = speaking.stream(request(2))
    del never_begun
    assert speaking.idle


def test_a_stream_collected_in_the_middle_of_a_step() -> None:
    """The garbage collector may close a forgotten iterator at any moment, which must not enter the
    step again.
    """
    speaking = engine(CONFIG, endless_talker())
    other = speaking.stream(request(1, 40))
    next(other)
    forgotten = speaking.stream(request(2, 200))
    next(forgotten)
    loop: list[object] = [forgotten]
    loop.append(loop)
    loop_is_held = [loop]
    del loop, forgotten
    launch = speaking.parts.talker.launch

    def collect_and_launch(*arguments: object) -> object:
        if loop_is_held:
            loop_is_held.clear()
            gc.collect()
        return launch(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speaking.parts.talker, "launch", collect_and_launch)
        assert sum(len(chunk.codes) for chunk in other) == 39
    assert speaking.idle


def test_names() -> None:
    speaking = engine(CONFIG, endless_talker())
    assert speaking.add(request(1), request_id="request-1") == "request-1"
    assert speaking.add(request(2)) == "request-2"
    with pytest.raises(InvalidRequestError, match="'request-1' is open already"):
        speaking.add(request(3), request_id="request-1")
    assert speaking.stats().scheduler.waiting == 2


def test_seed_is_drawn_and_reported() -> None:
    speaking = engine(CONFIG, patient_talker())
    drawn = [speaking.generate(SpeechRequest(text="One.", max_frames=9)) for _ in range(3)]
    assert len({speech.seed for speech in drawn}) == 3
    for speech in drawn:
        again = speaking.generate(SpeechRequest(text="One.", max_frames=9, seed=speech.seed))
        assert np.array_equal(again.codes, speech.codes)


def test_higher_priority_goes_first() -> None:
    """In a full engine of one row. Within a priority, the first to arrive goes first."""
    listener = Listener(engine(CONFIG.model_copy(update={"rows": 1}), endless_talker()))
    names = [
        listener.add(request(seed, 2), priority=priority)
        for seed, priority in enumerate([0, 0, 5, 1, 5])
    ]
    ended: list[str] = []
    while not listener.engine.idle:
        ended += [chunk.request_id for chunk in listener.step() if chunk.end is not None]
    assert ended == [names[i] for i in (2, 4, 3, 0, 1)]


def test_continuation_goes_on_where_its_recording_ends() -> None:
    """The audio equals the tail of recording and speech decoded in one call."""
    reference = codes(7, 40)
    spoken = SpeechRequest(
        text="More.", reference=reference, reference_text="Before.", seed=3, max_frames=20
    )
    speaking: Engine = engine(EngineConfig(rows=2, max_context_rows=512), endless_talker())
    (heard,) = hear(speaking, [spoken])
    both = (
        codec().decode_whole(torch.from_numpy(np.concatenate([reference, heard.all_codes]))).numpy()
    )
    assert np.allclose(heard.all_samples, both[:, 40 * 24 :], atol=1e-5)
    alone = codec().decode_whole(torch.from_numpy(heard.all_codes)).numpy()
    assert not np.allclose(heard.all_samples, alone, atol=1e-3)


def test_drawn_seeds_fit_a_double() -> None:
    speaking = engine(CONFIG, endless_talker())
    speeches = speaking.generate_many([SpeechRequest(text="So.", max_frames=1)] * 4)
    assert len({speech.seed for speech in speeches}) == 4
    assert all(speech.seed < 2**53 for speech in speeches)
