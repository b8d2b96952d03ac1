"""Reference recordings to codes: exact in parts, bounded in work per step; and in the engine once
per content.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.audio.io import write_audio
from hocket.audio.reference import prepare_reference
from hocket.config import ChunkPolicy, EngineConfig, ReferenceCacheConfig
from hocket.core import EncodedReference, PreparedReference, Reference, SpeechRequest
from hocket.engine import intake
from hocket.engine.references.codes import ENCODER_CHUNK_FRAMES, ENCODER_ROWS
from hocket.engine.references.encoder import ReferenceEncoder
from hocket.errors import (
    CapacityError,
    EngineStoppedError,
    HocketError,
    InvalidRequestError,
    ReferenceAudioError,
)
from hocket.models.layers.codec_state import CodecState
from hocket.models.moss_codec.codec import MossCodec
from tests.support import tiny_qwen3
from tests.support.tiny_engine import (
    EAGER,
    FRAME_SAMPLES,
    N_VQ,
    Listener,
    codec,
    endless_talker,
    engine,
    noise,
)


def new_encoder(*, fixed_batch: bool = False, n_codebooks: int = N_VQ) -> ReferenceEncoder:
    return ReferenceEncoder(codec(), None, n_codebooks=n_codebooks, fixed_batch=fixed_batch)


def submit(encoder: ReferenceEncoder, samples_CS: NDArray[np.float32]) -> str:
    return encoder.submit(samples_CS, codes=True, voice=False)


def recording(seed: int, frames: int, more_samples: int = 0) -> NDArray[np.float32]:
    shape = (2, frames * FRAME_SAMPLES + more_samples)
    return (0.1 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def whole(samples_CS: NDArray[np.float32]) -> NDArray[np.int64]:
    return codec().encode_whole(torch.from_numpy(samples_CS), N_VQ).numpy()


def encode(encoder: ReferenceEncoder, *recordings: NDArray[np.float32]) -> list[NDArray[np.int64]]:
    """Encode all recordings together."""
    keys = [submit(encoder, samples_CS) for samples_CS in recordings]
    made: dict[str, NDArray[np.int64]] = {}
    while not encoder.idle:
        for key, encoded in encoder.step(set(keys)).items():
            assert isinstance(encoded, EncodedReference)
            assert encoded.voice is None
            assert encoded.codes is not None
            made[key] = encoded.codes
    return [made[key] for key in keys]


@pytest.fixture
def calls() -> Iterator[list[tuple[int, int]]]:
    """Every call of the codec's encoder: its recordings, and their real frames in total."""
    seen: list[tuple[int, int]] = []
    original = MossCodec.encode

    def record(
        self: MossCodec,
        samples: Tensor,
        state: CodecState,
        rows: Tensor,
        lengths: Tensor,
        n_codebooks: int,
    ) -> Tensor:
        counts = lengths // FRAME_SAMPLES
        seen.append((int((counts > 0).sum()), int(counts.sum())))
        return original(self, samples, state, rows, lengths, n_codebooks)

    with mock.patch.object(MossCodec, "encode", record):
        yield seen


def test_a_fixed_batch_has_one_shape() -> None:
    """The number and the lengths of recordings do not matter, because roundings depend on
    shapes.
    """
    with mock.patch.object(
        MossCodec, "encode", autospec=True, side_effect=MossCodec.encode
    ) as spied:
        encode(new_encoder(fixed_batch=True), *(recording(seed, 5 + 9 * seed) for seed in range(6)))
        shapes = {call.args[1].shape for call in spied.call_args_list}
    assert shapes == {(ENCODER_ROWS, 2, ENCODER_CHUNK_FRAMES * FRAME_SAMPLES)}


@pytest.mark.parametrize("fixed_batch", [False, True])
def test_pieces_give_the_codes_of_the_whole(
    fixed_batch: bool, calls: list[tuple[int, int]]
) -> None:
    """Nine recordings of different lengths on four rows, cut to whole frames."""
    lengths = [1, 5, 15, 16, 17, 31, 40, 64, 90]
    recordings = [recording(seed, frames, seed) for seed, frames in enumerate(lengths)]
    made = encode(new_encoder(fixed_batch=fixed_batch), *recordings)
    assert max(rows for rows, _ in calls) == ENCODER_ROWS
    assert max(frames for _, frames in calls) <= ENCODER_ROWS * ENCODER_CHUNK_FRAMES
    assert sum(frames for _, frames in calls) == sum(lengths)
    assert len(calls) <= 9, "rows are refilled as soon as they are free"
    for samples_CS, codes, frames in zip(recordings, made, lengths, strict=True):
        assert codes.shape == (frames, N_VQ)
        assert np.array_equal(codes, whole(samples_CS))


def test_what_nobody_waits_for_is_dropped(calls: list[tuple[int, int]]) -> None:
    encoder = new_encoder()
    keys = [submit(encoder, recording(seed, 160)) for seed in range(6)]  # four on rows, two wait
    encoder.step(set(keys))
    encoder.step({keys[5]})
    assert calls == [(4, 64), (1, 16)]
    encoder.step(set())
    assert encoder.idle
    assert encoder.step(set(keys)) == {}
    assert len(calls) == 2
    assert encode(encoder, recording(0, 160))[0].shape == (160, N_VQ)


def test_recordings_without_a_frame_are_refused() -> None:
    encoder = new_encoder()
    with pytest.raises(ReferenceAudioError, match=r"shorter than one frame of the codec \(80 ms\)"):
        submit(encoder, recording(1, 0, FRAME_SAMPLES - 1))
    assert encoder.idle


def test_identity_follows_what_codes_depend_on() -> None:
    """A strict engine rounds in other shapes; other codebooks or weights give other codes."""
    other = codec().__class__(codec().config)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(0.5)
    others = [
        new_encoder(fixed_batch=True),
        new_encoder(n_codebooks=N_VQ - 1),
        ReferenceEncoder(other, None, n_codebooks=N_VQ, fixed_batch=False),
        ReferenceEncoder(None, tiny_qwen3.talker().voice_encoder, n_codebooks=1, fixed_batch=False),
    ]
    identities = {encoder.identity for encoder in [new_encoder(), *others]}
    assert len(identities) == 5
    assert new_encoder().identity == new_encoder().identity


# ---- in the engine

#: A chunk is a frame, so that every frame shows in the step that made it.
EVERY_FRAME = ChunkPolicy(first_chunk_frames=1, ramp_frames=(), steady_chunk_frames=1, min_batch=1)


def talking(config: EngineConfig = EAGER) -> Listener:
    return Listener(
        engine(config.model_copy(update={"rows": 8, "chunks": EVERY_FRAME}), endless_talker())
    )


def test_encoding_does_not_stall_running_streams(calls: list[tuple[int, int]]) -> None:
    listener = talking()
    streams = [listener.add(SpeechRequest(text=f"Stream {i}.", max_frames=60)) for i in range(2)]
    while not all(listener.heard[name].codes for name in streams):
        listener.step()
    voices = [
        noise(seed, 24.0) for seed in range(6)
    ]  # 300 frames each: 600 s of a frame's real time in all
    clones = [
        listener.add(SpeechRequest(text="Clone.", reference=voice, max_frames=1))
        for voice in voices
    ]
    while listener.engine.stats().preparing:
        before = len(calls)
        chunks = listener.step()
        assert {chunk.request_id for chunk in chunks} >= set(streams), (
            "every stream gets a frame in every step"
        )
        assert len(calls) - before <= 1
    assert len(calls) >= 6 * 300 // 64
    assert max(frames for _, frames in calls) <= 64
    listener.run()
    assert {listener.heard[name].reason for name in streams + clones} == {"length"}


def test_cancelled_while_encoding(calls: list[tuple[int, int]]) -> None:
    """It ends with the next step. A recording for which another request waits is still encoded;
    others are not.
    """
    listener = talking()
    shared, own = noise(1, 8.0), noise(2, 24.0)  # 100 and 300 frames
    name = listener.add(SpeechRequest(text="One.", reference=[shared, own], max_frames=2))
    other = listener.add(SpeechRequest(text="Two.", reference=shared, max_frames=2))
    listener.step()
    listener.engine.cancel(name)
    assert [chunk.request_id for chunk in listener.step() if chunk.end is not None] == [name]
    assert listener.heard[name].reason == "cancelled"
    listener.run()
    assert listener.heard[other].reason == "length"
    assert sum(frames for _, frames in calls) == 100 + 16
    stats = listener.engine.stats()
    assert (stats.reference_hits, stats.reference_misses) == (1, 2)
    listener.assert_all_is_back()


def test_two_engines_share_a_folder(tmp_path: Path, calls: list[tuple[int, int]]) -> None:
    config = EAGER.model_copy(update={"reference_cache": ReferenceCacheConfig(folder=tmp_path)})
    request = SpeechRequest(text="One.", reference=noise(1, 2.0), seed=1, max_frames=5)
    first = engine(config, endless_talker()).generate(request)
    encoded = len(calls)
    second = engine(config, endless_talker())
    assert np.array_equal(second.generate(request).codes, first.codes)
    assert second.stats().reference_hits == 1
    assert len(calls) == encoded > 0


def test_a_clip_that_two_engines_share_counts_once(tmp_path: Path) -> None:
    """Both encode it at the same time, so that the second finds the file of the first in place of
    its own. Counting it again emptied the memory for good.
    """
    clip = noise(1, 2.0)
    one_bytes = 25 * N_VQ * 8
    cache = ReferenceCacheConfig(folder=tmp_path, max_bytes=3 * one_bytes)
    config = EAGER.model_copy(update={"reference_cache": cache})
    listeners = [Listener(engine(config, endless_talker())) for _ in range(2)]
    for _ in range(3):
        for listener in listeners:
            listener.add(SpeechRequest(text="One.", reference=clip, max_frames=1))
        for listener in listeners:
            listener.run()
    for listener in listeners:
        for seed in (2, 3):
            listener.add(SpeechRequest(text="One.", reference=noise(seed, 2.0), max_frames=1))
            listener.run()
        before = listener.engine.stats()
        for path in tmp_path.iterdir():  # what follows comes from memory
            path.unlink()
        for seed in (1, 2, 3):
            listener.add(SpeechRequest(text="One.", reference=noise(seed, 2.0), max_frames=1))
            listener.run()
        after = listener.engine.stats()
        assert after.reference_hits == before.reference_hits + 3
        assert after.reference_misses == before.reference_misses


def test_a_recording_is_known_by_its_bytes(calls: list[tuple[int, int]], tmp_path: Path) -> None:
    """A file, its path and its bytes are one recording; what is heard before is not decoded."""
    audio = noise(1, 2.0)
    write_audio(tmp_path / "voice.wav", audio.samples, audio.sample_rate)
    content = (tmp_path / "voice.wav").read_bytes()
    speaking = engine(EAGER, endless_talker())
    references: list[Reference] = [content, tmp_path / "voice.wav", str(tmp_path / "voice.wav")]
    first = speaking.generate(SpeechRequest(text="One.", reference=content, seed=1, max_frames=5))
    encoded = len(calls)
    with mock.patch.object(intake, "prepare_reference") as prepare:
        for reference in references:
            request = SpeechRequest(text="One.", reference=reference, seed=1, max_frames=5)
            assert np.array_equal(speaking.generate(request).codes, first.codes)
    assert not prepare.called
    assert len(calls) == encoded
    (tmp_path / "broken.wav").write_bytes(b"no audio")
    with pytest.raises(ReferenceAudioError, match=r"broken\.wav' is not an audio file"):
        speaking.add(SpeechRequest(text="One.", reference=tmp_path / "broken.wav"))


def test_a_recording_that_cannot_be_encoded_ends_the_requests_that_wait_for_it() -> None:
    listener = talking()
    names = [
        listener.add(SpeechRequest(text="One.", reference=noise(1, 1.0), max_frames=2))
        for _ in range(2)
    ]
    other = listener.add(SpeechRequest(text="Two.", reference=noise(2, 1.0), max_frames=2))
    references = listener.engine.parts.references
    assert references is not None
    step, failed = references.step, HocketError("cannot be encoded")

    def break_first(wanted: set[str]) -> dict[str, EncodedReference | HocketError]:
        first = sorted(wanted)[0]
        return {**step(wanted - {first}), first: failed}

    with mock.patch.object(references, "step", break_first):
        listener.step()
    listener.run()
    for name in names:
        end = listener.heard[name].end
        assert end is not None
        assert end.finish_reason == "error"
        assert str(end.error) == "cannot be encoded"
        assert end.error is not failed
    assert listener.heard[other].reason == "length"
    listener.assert_all_is_back()


def test_a_refused_request_leaves_nothing_to_encode() -> None:
    """The second reference is too short, so the first one is not encoded either."""
    speaking = engine(EAGER, endless_talker())
    with pytest.raises(ReferenceAudioError, match=r"lasts 0\.10 s"):
        speaking.add(SpeechRequest(text="One.", reference=[noise(1, 2.0), noise(2, 0.1)]))
    assert speaking.idle
    assert speaking.stats().reference_misses == 0


def test_a_full_queue_counts_those_that_prepare() -> None:
    """They were accepted, so they are queued later, however many were preempted meanwhile."""
    listener = talking(EAGER.model_copy(update={"max_waiting": 3}))
    names = [
        listener.add(SpeechRequest(text="One.", reference=noise(seed, 4.0), max_frames=2))
        for seed in range(2)
    ]
    names.append(listener.add(SpeechRequest(text="Two.", max_frames=2)))
    with pytest.raises(CapacityError, match="3 requests are waiting"):
        listener.add(SpeechRequest(text="Three.", max_frames=2))
    with pytest.raises(CapacityError, match="3 requests are waiting"):
        listener.add(SpeechRequest(text="Three.", reference=noise(9, 1.0), max_frames=2))
    listener.run()
    assert {listener.heard[name].reason for name in names} == {"length"}


# ---- for a front end


def test_a_front_end_gets_what_its_requests_need(calls: list[tuple[int, int]]) -> None:
    """Speech with the result is that with the recording, and waits for nothing."""
    speaking = engine(EAGER, endless_talker())
    answers: list[EncodedReference | HocketError] = []
    asked = SpeechRequest(text="One.", reference=noise(1, 2.0), seed=1, max_frames=5)
    expected = engine(EAGER, endless_talker()).generate(asked)
    calls.clear()
    speaking.prepare(PreparedReference(recording(1, 25), 300), answers.append, request_id="a")
    samples_CS = prepare_reference(
        noise(1, 2.0), sample_rate=300, channels=2, limits=EAGER.reference
    )
    speaking.prepare(PreparedReference(samples_CS, 300), answers.append, request_id="b")
    speaking.prepare(PreparedReference(recording(2, 90), 300), answers.append, request_id="c")
    assert speaking.stats().preparing == 3
    speaking.step()
    speaking.cancel("c")
    while not speaking.idle:
        speaking.step()
    assert len(answers) == 2
    encoded = answers[1]
    assert isinstance(encoded, EncodedReference)
    counted = len(calls)
    speech = speaking.generate(asked.model_copy(update={"reference": (encoded,)}))
    assert np.array_equal(speech.codes, expected.codes)
    assert len(calls) == counted
    with pytest.raises(ReferenceAudioError, match="has 2 channels at 7 Hz"):
        speaking.prepare(PreparedReference(samples_CS, 7), answers.append, request_id="d")
    bare = engine(EAGER, endless_talker(), with_codec=False)
    with pytest.raises(InvalidRequestError, match="needs a codec; load one, or give codes"):
        bare.prepare(PreparedReference(samples_CS, 300), answers.append, request_id="e")


def test_preparations_count_as_waiting_and_end_with_the_engine() -> None:
    speaking = engine(EAGER.model_copy(update={"max_waiting": 2}), endless_talker())
    answers: list[EncodedReference | HocketError] = []
    for name in "ab":
        speaking.prepare(PreparedReference(recording(1, 25), 300), answers.append, request_id=name)
    with pytest.raises(CapacityError, match="2 requests are waiting"):
        speaking.prepare(PreparedReference(recording(1, 25), 300), answers.append, request_id="c")
    with pytest.raises(CapacityError, match="2 requests are waiting"):
        speaking.add(SpeechRequest(text="One."))
    references = speaking.parts.references
    assert references is not None
    with mock.patch.object(references, "step", side_effect=RuntimeError("broken")):
        speaking.step()
    assert [type(answer) for answer in answers] == [EngineStoppedError] * 2
    assert speaking.idle
    with pytest.raises(EngineStoppedError):
        speaking.prepare(PreparedReference(recording(1, 25), 300), answers.append, request_id="d")
