"""How requests end: by the talker, the cap, the runaway guard, the caller, an error, and the
engine's own failure.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from hocket.config import EngineConfig, RunawayPolicy
from hocket.core import Sampling, SpeechRequest
from hocket.engine.engine import Engine
from hocket.errors import EngineStoppedError, InvalidRequestError
from hocket.models.family import LoadedTalker
from hocket.models.moss_local.talker import STOP, MossLocalTalker
from tests.support import tiny_qwen3
from tests.support.tiny_engine import (
    EAGER,
    STRICT,
    Listener,
    TickingClock,
    codes,
    endless_talker,
    engine,
    hear,
    mute_talker,
    noise,
    patient_talker,
    stop_head_weight,
    talker,
    with_stop_head,
)

GREEDY = Sampling(temperature=0.0, repetition_penalty=1.0)
NO_GUARD = RunawayPolicy(multiple=0.0, loop_seconds=0.0, silence_seconds=0.0)


def guarded(policy: RunawayPolicy, *, strict: bool = False) -> EngineConfig:
    base = STRICT if strict else EAGER
    return base.model_copy(update={"runaway": policy, "rows": 4})


def looping_talker() -> LoadedTalker:
    """Always draws code 7 of every codebook."""
    weight_2D = stop_head_weight()
    weight_2D[STOP] = torch.nan
    model = with_stop_head(weight_2D)
    assert isinstance(model.talker, MossLocalTalker)
    with torch.no_grad():
        for k in range(12):
            others = torch.arange(model.talker.codebook(k).shape[0]) != 7
            model.talker.codebook(k)[others] = torch.nan
    return model


@pytest.mark.parametrize(
    ("patient", "endless", "voice"),
    [
        (patient_talker, endless_talker, None),
        (tiny_qwen3.patient_talker, tiny_qwen3.endless_talker, tiny_qwen3.voice(1, 0.6)),
    ],
)
def test_stop_and_length(
    patient: Callable[[], LoadedTalker], endless: Callable[[], LoadedTalker], voice: object
) -> None:
    requests = [
        SpeechRequest(text="One.", reference=voice, seed=seed, max_frames=20) for seed in range(8)
    ]
    heard = hear(engine(guarded(NO_GUARD), patient()), requests)
    for one in heard:
        assert one.reason == ("length" if len(one.all_codes) == 20 else "stop")
    assert {one.reason for one in heard} == {"stop", "length"}
    one_frame = hear(
        engine(guarded(NO_GUARD), endless()),
        [SpeechRequest(text="One.", reference=voice, max_frames=1)],
    )
    assert [one_frame[0].reason, len(one_frame[0].all_codes)] == ["length", 1]


@pytest.mark.parametrize("reference", [None, codes(1, 40)])
def test_stop_at_the_first_frame_is_an_empty_result(reference: object) -> None:
    """Also while the codec is being primed with the 40 frames that the speech continues."""
    request = SpeechRequest(
        text="One.", reference=reference, reference_text=None if reference is None else "Before."
    )
    speaking = engine(guarded(NO_GUARD), mute_talker())
    speech = speaking.generate(request)
    assert speech.finish_reason == "stop"
    assert speech.samples.shape == (2, 0)
    assert speech.codes.shape == (0, 12)
    chunks = list(speaking.stream(request))
    assert len(chunks) == 1
    assert chunks[0].end is not None
    assert chunks[0].end.finish_reason == "stop"


def test_budget() -> None:
    """Ten letters at 12 per second, times 3, are 2.5 s: 32 frames. A lower cap of the caller ends
    with `length`.
    """
    policy = RunawayPolicy(multiple=3.0, min_seconds=0.1, loop_seconds=0.0, silence_seconds=0.0)
    requests = [
        SpeechRequest(text="aaaaaaaaaa"),
        SpeechRequest(text="aaaaaaaaaa", max_frames=32),
        SpeechRequest(text="aaaaaaaaaa", max_frames=40),
        SpeechRequest(text="aaaaaaaaaa", tokens=20),
    ]
    heard = hear(engine(guarded(policy), endless_talker()), requests)
    assert [(one.reason, len(one.all_codes)) for one in heard] == [
        ("runaway", 32),
        ("length", 32),
        ("runaway", 32),
        ("runaway", 60),
    ]


def test_loop() -> None:
    """1.2 s are 15 frames that equal the one before, so 16 in all."""
    policy = RunawayPolicy(multiple=0.0, loop_seconds=1.2, silence_seconds=0.0)
    requests = [SpeechRequest(text="One.", max_frames=frames) for frames in (60, 16, 15)]
    heard = hear(engine(guarded(policy), looping_talker()), requests)
    assert [(one.reason, len(one.all_codes)) for one in heard] == [
        ("runaway", 16),
        ("length", 16),
        ("length", 15),
    ]
    assert (heard[0].all_codes == 7).all()
    one_row = guarded(policy).model_copy(update={"rows": 1})
    after = hear(engine(one_row, looping_talker()), [requests[0]] * 2)
    assert [len(one.all_codes) for one in after] == [16, 16], "a row's next request begins anew"
    unguarded = hear(engine(guarded(NO_GUARD), looping_talker()), requests[:1])
    assert unguarded[0].reason == "length"
    speaking = hear(engine(guarded(policy), endless_talker()), [requests[0]] * 5)
    assert {one.reason for one in speaking} == {"length"}, "speech is no loop"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("frames", [60, 13])
def test_silence(streaming: bool, frames: int) -> None:
    """1 s is 13 frames, wherever chunks are split and however far the codec is behind; a requested
    pause is added.

    With a cap of 13 frames the cap is reached before the silence is detected.
    """
    policy = RunawayPolicy(multiple=0.0, loop_seconds=0.0, silence_seconds=1.0, silence_rms=1e3)
    requests = [
        SpeechRequest(text="One.", max_frames=frames),
        SpeechRequest(text="One. [pause 0.8s]", max_frames=60),
        SpeechRequest(text="One.", max_frames=12),
    ]
    config = guarded(policy)
    heard = hear(engine(config, endless_talker()), requests, streaming=streaming)
    assert [(one.reason, len(one.all_codes)) for one in heard] == [
        ("runaway", 13),
        ("runaway", 23),
        ("length", 12),
    ]
    loud = policy.model_copy(update={"silence_rms": 1e-9})
    heard = hear(engine(guarded(loud), endless_talker()), requests, streaming=streaming)
    assert {one.reason for one in heard} == {"length"}


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 9])
@pytest.mark.parametrize(
    ("talker", "reference"),
    [
        (endless_talker, None),
        (endless_talker, codes(1, 40)),
        (endless_talker, noise(1, 4.0)),
        (tiny_qwen3.endless_talker, tiny_qwen3.voice(1, 2.0)),
    ],
)
def test_cancel_anywhere(steps: int, talker: Callable[[], LoadedTalker], reference: object) -> None:
    """Before its first step, in prefill, while priming, while encoding, between chunks, with work
    in flight.
    """
    config = guarded(NO_GUARD).model_copy(update={"prefill_rows_per_step": 64, "rows": 1})
    listener = Listener(engine(config, talker()))
    before = "Before." if steps % 2 and reference is not None else None
    request = SpeechRequest(text="One.", reference=reference, reference_text=before)
    name = listener.add(request)
    for _ in range(steps):
        listener.step()
    chunks = len(listener.heard[name].codes)
    listener.engine.cancel(name)
    listener.engine.cancel(name)
    for _ in range(2):
        listener.step()
    listener.assert_all_is_back()
    assert listener.heard[name].reason == "cancelled"
    assert len(listener.heard[name].codes) == chunks + 1
    listener.engine.cancel(name)
    listener.engine.cancel("nobody")
    assert listener.step() == []


def test_nothing_comes_after_a_cancel() -> None:
    """Chunks that were made for it while `generate` drove the engine are dropped, too."""
    listener = Listener(engine(guarded(NO_GUARD), endless_talker()))
    name = listener.add(SpeechRequest(text="One."))
    listener.engine.generate(SpeechRequest(text="Two.", max_frames=12))
    listener.engine.cancel(name)
    assert [chunk.end is not None for chunk in listener.step()] == [True]


def test_errors_found_after_encoding() -> None:
    """A recording of 40 s does not fit a context of 512 rows, which is known only once its codes
    are.
    """
    request = SpeechRequest(text="One.", reference=noise(1, 40.0))
    listener = Listener(engine(guarded(NO_GUARD), patient_talker()))
    name = listener.add(request)
    other = listener.add(SpeechRequest(text="Two.", max_frames=3))
    listener.run()
    end = listener.heard[name].end
    assert end is not None
    assert end.finish_reason == "error"
    assert isinstance(end.error, InvalidRequestError)
    assert listener.heard[other].reason in ("stop", "length")
    with pytest.raises(InvalidRequestError, match="rows of a context of 512"):
        listener.engine.generate(request)
    with pytest.raises(InvalidRequestError, match="rows of a context of 512"):
        list(listener.engine.stream(request))
    listener.assert_all_is_back()


def test_small_memory_is_the_context() -> None:
    """A request without a cap gets as many frames as fit into all K/V rows."""
    config = guarded(NO_GUARD).model_copy(update={"kv_rows": 200})
    (one,) = hear(engine(config, endless_talker()), [SpeechRequest(text="One.")])
    assert one.reason == "length"
    assert 50 < len(one.all_codes) < 100


@pytest.mark.parametrize("part", ["prefill", "launch", "collect", "decode", "encode"])
def test_failure_ends_everything(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in a runner reaches every open request at once, and the engine accepts no more."""
    speaking = engine(guarded(NO_GUARD), endless_talker())
    listener = Listener(speaking)
    names = [listener.add(SpeechRequest(text=f"Text {i}.")) for i in range(7)]  # 4 rows: some wait
    for _ in range(8):
        listener.step()
    names.append(listener.add(SpeechRequest(text="New.", reference=noise(1, 3.0), max_frames=3)))
    break_part(monkeypatch, speaking, part)
    if part == "prefill":
        speaking.cancel(names[0])
    for _ in range(20):
        if speaking.idle:
            break
        for chunk in speaking.step():
            listener.heard[chunk.request_id].take(chunk)
    assert speaking.idle
    for name in names[1:]:
        end = listener.heard[name].end
        assert end is not None
        assert end.finish_reason == "error"
        assert isinstance(end.error, EngineStoppedError)
        assert "(RuntimeError)" in str(end.error)
        assert "illegal" not in str(end.error), "an exception's text may quote a user"
        assert "\n" not in str(end.error)
        assert isinstance(end.error.__cause__, RuntimeError)
    assert speaking.step() == []
    speaking.cancel(names[0])
    request = SpeechRequest(text="Late.")
    calls: list[Callable[[], object]] = [
        lambda: speaking.add(request),
        lambda: speaking.generate(request),
        lambda: list(speaking.stream(request)),
    ]
    for call in calls:
        with pytest.raises(EngineStoppedError, match="RuntimeError"):
            call()
    assert speaking.stats().steps > 0


def break_part(monkeypatch: pytest.MonkeyPatch, speaking: Engine, part: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(
            "CUDA error: an illegal memory access was encountered\nCompile with DEBUG"
        )

    parts = speaking.parts
    owner, name = {
        "prefill": (parts.talker, "prefill"),
        "launch": (parts.talker, "launch"),
        "collect": (parts.talker, "collect"),
        "decode": (parts.codec, "launch"),
        "encode": (parts.references, "step"),
    }[part]
    monkeypatch.setattr(owner, name, fail)


def test_failure_reaches_callers_inside() -> None:
    speaking = engine(guarded(NO_GUARD), endless_talker())
    stream = speaking.stream(SpeechRequest(text="One."))
    next(stream)
    with pytest.MonkeyPatch.context() as patch:
        break_part(patch, speaking, "launch")
        with pytest.raises(EngineStoppedError, match="RuntimeError"):
            speaking.generate(SpeechRequest(text="Two."))
    with pytest.raises(EngineStoppedError, match="RuntimeError"):
        list(stream)


def test_an_interrupt_is_raised_and_stops_the_engine() -> None:
    speaking = engine(guarded(NO_GUARD), endless_talker())
    with pytest.MonkeyPatch.context() as patch:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(speaking.parts.talker, "launch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            speaking.generate(SpeechRequest(text="One."))
    with pytest.raises(EngineStoppedError, match="KeyboardInterrupt"):
        speaking.generate(SpeechRequest(text="One."))


def test_timings() -> None:
    clock = TickingClock(3)
    listener = Listener(
        engine(guarded(NO_GUARD).model_copy(update={"rows": 2}), patient_talker(), clock=clock)
    )
    references = [None, codes(1, 20), noise(2, 2.0)]
    names = [
        listener.add(
            SpeechRequest(text=f"Text {i}.", seed=i, reference=references[i % 3], max_frames=30)
        )
        for i in range(9)
    ]
    listener.run()
    for name in names:
        end = listener.heard[name].end
        assert end is not None
        times = end.timings
        assert 0 < times.admitted_seconds <= times.prefilled_seconds < times.total_seconds
        if listener.heard[name].codes[:-1]:
            assert times.prefilled_seconds < times.first_audio_seconds < times.total_seconds
            frames = sum(map(len, listener.heard[name].codes))
            assert times.speech_seconds == pytest.approx(frames * listener.engine.frame_seconds)
            assert times.rtf == pytest.approx(
                (times.total_seconds - times.admitted_seconds) / times.speech_seconds
            )
        else:
            assert math.isnan(times.first_audio_seconds)
            assert math.isnan(times.rtf)
        assert times.late_seconds >= 0
    # The simulated clock is slower than real time, so players do run dry, and requests without
    # streaming have no player.
    late = [listener.heard[name].end.timings.late_seconds for name in names]  # type: ignore[union-attr]
    assert max(late) > 0
    assert listener.engine.stats().scheduler.underruns > 0
    whole = hear(
        listener.engine, [SpeechRequest(text="Long.", seed=1, max_frames=30)], streaming=False
    )
    assert whole[0].end is not None
    assert whole[0].end.timings.late_seconds == 0


def test_statistics() -> None:
    speaking = engine(guarded(NO_GUARD), talker())
    requests = [
        SpeechRequest(text=f"Text {i}.", reference=noise(i % 2, 1.0), max_frames=4)
        for i in range(6)
    ]
    speaking.generate_many(requests)
    stats = speaking.stats()
    assert (stats.reference_misses, stats.reference_hits) == (2, 4)
    assert stats.steps >= stats.frame_batches > 0
    assert 1 <= stats.mean_frame_rows <= 4
    assert 1 <= stats.mean_decode_rows <= 4
    parts = (
        stats.reference_seconds,
        stats.prefill_seconds,
        stats.frame_seconds,
        stats.decode_seconds,
    )
    assert all(seconds > 0 for seconds in (*parts, stats.host_seconds))
    assert stats.host_seconds < sum(parts)
    assert stats.scheduler.rows_free == 4
    codes_only = engine(guarded(NO_GUARD), talker(), with_codec=False)
    assert len(codes_only.generate(SpeechRequest(text="One.", seed=0, max_frames=2)).codes) == 2
    assert codes_only.stats().decode_batches == 0


def test_codes_only() -> None:
    """Without a codec the last chunk has all codes, the same as with a codec; a cancelled request
    gets none.
    """
    config = guarded(NO_GUARD)
    requests = [
        SpeechRequest(text=f"Text {i}.", seed=i, reference=codes(1, 9), max_frames=9)
        for i in range(6)
    ]
    wanted = hear(engine(config, patient_talker()), requests)
    bare = engine(config, patient_talker(), with_codec=False)
    for speech, one in zip(bare.generate_many(requests), wanted, strict=True):
        assert np.array_equal(speech.codes, one.all_codes)
        assert speech.finish_reason == one.reason
        assert speech.samples.shape == (1, 0)
    name = bare.add(requests[0])
    for _ in range(3):
        assert bare.step() == []
    bare.cancel(name)
    (chunk,) = bare.step()
    assert len(chunk.codes) == 0
    with pytest.raises(InvalidRequestError, match="needs a codec"):
        bare.add(SpeechRequest(text="One.", reference=noise(1, 1.0)))


def test_greedy_loop_in_strict_mode_is_cut_alike() -> None:
    """Alone or beside others, however far the codec lags: silence is cut at the same frame, even
    behind a stop.
    """
    policy = RunawayPolicy(multiple=0.0, loop_seconds=0.0, silence_seconds=0.8, silence_rms=1e3)
    config = guarded(policy, strict=True)
    requests = [
        SpeechRequest(text=f"Text {i}.", seed=i, sampling=GREEDY, max_frames=9 + i % 4)
        for i in range(8)
    ]
    together = hear(engine(config, endless_talker(), clock=TickingClock(5)), requests)
    for request, one in zip(requests, together, strict=True):
        hear(engine(config, endless_talker()), [request])[0].assert_same(one)
        assert one.reason == ("length" if request.max_frames == 9 else "runaway")
        assert len(one.all_codes) == min(10, request.max_frames or 0)
