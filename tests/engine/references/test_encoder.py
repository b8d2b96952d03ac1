"""Reference recordings to codes: exact in parts, once per content, bounded in memory and in work
per step.
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

from hocket.config import ChunkPolicy, EngineConfig, ReferenceCacheConfig
from hocket.core import SpeechRequest
from hocket.engine.references.encoder import ENCODER_CHUNK_FRAMES, ENCODER_ROWS, ReferenceEncoder
from hocket.errors import CapacityError, ConfigError, ReferenceAudioError
from hocket.models.layers.codec_state import CodecState
from hocket.models.moss_codec.codec import MossCodec
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

MANY = ReferenceCacheConfig()


def new_encoder(
    config: ReferenceCacheConfig = MANY, *, fixed_batch: bool = False
) -> ReferenceEncoder:
    return ReferenceEncoder(codec(), n_codebooks=N_VQ, config=config, fixed_batch=fixed_batch)


def recording(seed: int, frames: int, more_samples: int = 0) -> NDArray[np.float32]:
    shape = (2, frames * FRAME_SAMPLES + more_samples)
    return (0.1 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def whole(samples_CS: NDArray[np.float32]) -> NDArray[np.int64]:
    return codec().encode_whole(torch.from_numpy(samples_CS), N_VQ).numpy()


def encode(encoder: ReferenceEncoder, *recordings: NDArray[np.float32]) -> list[NDArray[np.int64]]:
    """Encode all recordings together."""
    keys: list[str] = []
    known: dict[str, NDArray[np.int64]] = {}
    for samples_CS in recordings:
        key, codes = encoder.submit(samples_CS)
        keys.append(key)
        if codes is not None:
            known[key] = codes
    while len(known) < len(set(keys)):
        known |= encoder.step(set(keys))
    return [known[key] for key in keys]


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


def test_equal_recordings_are_encoded_once(calls: list[tuple[int, int]]) -> None:
    encoder = new_encoder()
    one, other = recording(1, 20), recording(2, 20)
    key, codes = encoder.submit(one)
    assert codes is None
    assert encoder.submit(one.copy()) == (key, None)  # while it waits
    encoder.step({key})
    assert encoder.submit(one.copy()) == (key, None)  # while it is encoded
    done = encoder.step({key})
    assert set(done) == {key}
    found = encoder.submit(one.copy())[1]
    assert found is done[key]
    longer = np.pad(one, ((0, 0), (0, FRAME_SAMPLES - 1)))
    assert encoder.submit(longer)[1] is found, "what is beyond the last whole frame does not count"
    assert encoder.submit(other)[1] is None
    assert (encoder.hits, encoder.misses) == (4, 2)
    assert sum(frames for _, frames in calls) == 20


def test_memory_is_bounded_and_the_least_recently_used_goes_first() -> None:
    bytes_each = 10 * N_VQ * 8
    encoder = new_encoder(ReferenceCacheConfig(max_bytes=3 * bytes_each))
    recordings = [recording(seed, 10) for seed in range(5)]
    encode(encoder, *recordings[:3])
    assert encoder.submit(recordings[0])[1] is not None  # used again
    encode(encoder, recordings[3])  # drops 1
    held = [encoder.submit(recordings[number])[1] is not None for number in (0, 2, 3)]
    assert held == [True, True, True]
    assert encoder.submit(recordings[1])[1] is None
    tiny = new_encoder(ReferenceCacheConfig(max_bytes=bytes_each - 1))
    encode(tiny, recordings[0])
    assert tiny.submit(recordings[0])[1] is None, "one that is too large is not kept"


def test_what_nobody_waits_for_is_dropped(calls: list[tuple[int, int]]) -> None:
    encoder = new_encoder()
    keys = [
        encoder.submit(recording(seed, 160))[0] for seed in range(6)
    ]  # four on rows, two waiting
    encoder.step(set(keys))
    encoder.step({keys[5]})
    assert calls == [(4, 64), (1, 16)]
    encoder.step(set())
    assert encoder.step(set(keys)) == {}
    assert len(calls) == 2
    assert encode(encoder, recording(0, 160))[0].shape == (160, N_VQ)


def test_folder_is_shared_and_damage_is_repaired(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ReferenceCacheConfig(folder=tmp_path / "made" / "on demand")
    first, samples_CS = new_encoder(config), recording(1, 20)
    (codes,) = encode(first, samples_CS)
    (path,) = (tmp_path / "made" / "on demand").iterdir()
    second = new_encoder(config)
    found = second.submit(samples_CS)[1]
    assert found is not None
    assert np.array_equal(found, codes)
    assert (second.hits, second.misses) == (1, 0)
    assert caplog.records == []

    damages: list[bytes] = [b"", path.read_bytes()[:-50], b"no codes at all"]
    for array in (codes[:-1], codes[:, :-1], np.full_like(codes, 10_000)):
        np.save(tmp_path / "other.npy", array)
        damages.append((tmp_path / "other.npy").read_bytes())
    for damage in damages:
        path.write_bytes(damage)
        caplog.clear()
        assert np.array_equal(encode(new_encoder(config), samples_CS)[0], codes)
        assert "is damaged and is made again" in caplog.text
        assert np.array_equal(np.load(path), codes)


def test_codes_are_not_exchanged_where_they_may_differ(tmp_path: Path) -> None:
    """A strict engine rounds in other shapes; other codebooks or weights give other codes."""
    config = ReferenceCacheConfig(folder=tmp_path)
    samples_CS = recording(1, 5)
    encode(new_encoder(config), samples_CS)
    assert new_encoder(config).submit(samples_CS)[1] is not None
    assert new_encoder(config, fixed_batch=True).submit(samples_CS)[1] is None
    fewer = ReferenceEncoder(codec(), n_codebooks=N_VQ - 1, config=config, fixed_batch=False)
    assert fewer.submit(samples_CS)[1] is None


def test_folder_that_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be made"):
        new_encoder(ReferenceCacheConfig(folder=tmp_path / "file" / "folder"))
    config = ReferenceCacheConfig(folder=tmp_path / "gone")
    encoder = new_encoder(config)
    (tmp_path / "gone").rmdir()
    (codes,) = encode(encoder, recording(1, 5))
    assert "in memory only" in caplog.text
    assert encoder.submit(recording(1, 5))[1] is codes


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
