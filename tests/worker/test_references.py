"""A front end's references: one preparation for each content, whoever asks, and none for a known
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hocket.audio.codes_file import write_codes
from hocket.audio.io import FORMATS, encode_audio
from hocket.audio.reference import RecordingForm
from hocket.audio.reference_cache import ReferenceCache
from hocket.config import ReferenceCacheConfig
from hocket.core import AudioArray, EncodedReference, EngineInfo, PreparedReference, Reference
from hocket.errors import EngineStoppedError, HocketError, ReferenceAudioError
from hocket.worker.references import ReferencePreparer, decode_on_thread
from tests.support.fake_engine import RATE, fake_info


def recording(seed: int, seconds: float = 1.0) -> AudioArray:
    samples = 0.1 * np.random.default_rng(seed).standard_normal((1, int(seconds * RATE)))
    return AudioArray(samples.astype(np.float32), RATE)


def wav(seed: int, seconds: float = 1.0) -> bytes:
    return encode_audio(FORMATS[".wav"], recording(seed, seconds).samples, RATE)


@dataclass
class CountingReader:
    """Counts what is decoded and encoded; `gate` holds an encoding up."""

    info: EngineInfo = field(default_factory=fake_info)
    decoded: int = 0
    encoded: int = 0
    cancelled: int = 0
    error: HocketError | None = None
    gate: asyncio.Event | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def prepare(self, recording: PreparedReference) -> EncodedReference:
        self.encoded += 1
        self.started.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        value = int(abs(recording.samples).sum())
        return EncodedReference(np.full((10, 4), value), np.full(8, value, np.float32))

    async def decode(
        self,
        content: bytes | AudioArray | PreparedReference,
        form: RecordingForm,
        name: str | None = None,
        /,
    ) -> NDArray[np.float32]:
        self.decoded += 1
        return await decode_on_thread(content, form, name)


def preparer(
    reader: CountingReader, config: ReferenceCacheConfig | None = None
) -> ReferencePreparer:
    return ReferencePreparer(ReferenceCache(config or ReferenceCacheConfig()), decode=reader.decode)


def run(body: Callable[[CountingReader], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(20):
            await body(CountingReader())

    asyncio.run(within())


def test_a_known_recording_is_neither_decoded_nor_encoded(tmp_path: Path) -> None:
    (tmp_path / "voice.wav").write_bytes(wav(1))

    async def body(reader: CountingReader) -> None:
        references = preparer(reader)
        first = await references.encoded(wav(1), reader)
        same: list[Reference] = [wav(1), tmp_path / "voice.wav", str(tmp_path / "voice.wav")]
        for reference in same:
            again = await references.encoded(reference, reader)
            assert again.codes is not None
            np.testing.assert_array_equal(again.codes, first.codes)
            np.testing.assert_array_equal(again.voice, first.voice)
        assert (reader.decoded, reader.encoded) == (1, 1)
        assert (references.hits, references.misses) == (3, 1)
        await references.encoded(recording(1), reader)
        await references.encoded(recording(1), reader)
        assert (reader.decoded, reader.encoded) == (2, 2)
        # Another model, or other limits, must not hear of it.
        reader.info = replace(reader.info, reference_id="another")
        await references.encoded(wav(1), reader)
        assert (reader.decoded, reader.encoded) == (3, 3)

    run(body)


def test_what_is_encoded_already_passes(tmp_path: Path) -> None:
    codes_FN = np.arange(24).reshape(2, 12)
    write_codes(tmp_path / "voice.npy", codes_FN)

    async def body(reader: CountingReader) -> None:
        references = preparer(reader)
        given: list[Reference] = [codes_FN, EncodedReference(codes_FN), tmp_path / "voice.npy"]
        for reference in given:
            np.testing.assert_array_equal(
                (await references.encoded(reference, reader)).codes, codes_FN
            )
        assert (reader.decoded, reader.encoded) == (0, 0)

    run(body)


def test_concurrent_requests_wait_for_one_preparation() -> None:
    async def body(reader: CountingReader) -> None:
        references, reader.gate = preparer(reader), asyncio.Event()
        waiting = [asyncio.create_task(references.encoded(wav(1), reader)) for _ in range(20)]
        other = asyncio.create_task(references.encoded(wav(2), reader))
        while reader.encoded < 2:
            await asyncio.sleep(0)
        reader.gate.set()
        results = await asyncio.gather(*waiting, other)
        assert (reader.decoded, reader.encoded) == (2, 2)
        assert len({result.codes[0, 0] for result in results if result.codes is not None}) == 2
        assert (references.hits, references.misses) == (19, 2)

    run(body)


@pytest.mark.parametrize("leaving", [[0], [1, 3], [0, 1, 2, 3, 4]])
def test_who_leaves_takes_nobody_along(leaving: list[int]) -> None:
    """The first one to ask is like the others; without anybody the work is given up."""

    async def body(reader: CountingReader) -> None:
        references, reader.gate = preparer(reader), asyncio.Event()
        waiting = [asyncio.create_task(references.encoded(wav(1), reader)) for _ in range(5)]
        await reader.started.wait()
        for i in leaving:
            waiting[i].cancel()
        await asyncio.sleep(0.01)
        assert reader.cancelled == (len(leaving) == len(waiting))
        late = asyncio.create_task(references.encoded(wav(1), reader))
        reader.gate.set()
        results = await asyncio.gather(*waiting, late, return_exceptions=True)
        for i, result in enumerate(results):
            expected = asyncio.CancelledError if i in leaving else EncodedReference
            assert isinstance(result, expected)
        assert reader.encoded == (2 if reader.cancelled else 1)

    run(body)


def test_errors_reach_all_who_wait_and_are_not_kept() -> None:
    async def body(reader: CountingReader) -> None:
        references, reader.gate = preparer(reader), asyncio.Event()
        reader.error = EngineStoppedError("the engine has gone away; send the request again")
        waiting = [asyncio.create_task(references.encoded(wav(1), reader)) for _ in range(3)]
        await reader.started.wait()
        reader.gate.set()
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in errors} == {EngineStoppedError}
        assert len({id(error) for error in errors}) == 3
        assert reader.encoded == 1
        reader.error = None
        assert (await references.encoded(wav(1), reader)).codes is not None
        for bad, words in ((wav(3, 0.1), "lasts 0.10 s"), (b"no audio", "not an audio file")):
            for _ in range(2):
                with pytest.raises(ReferenceAudioError, match=words) as caught:
                    await references.encoded(bad, reader)
                assert caught.value.param == "reference"
        assert reader.decoded == 2 + 4

    run(body)


def test_front_ends_share_a_folder(tmp_path: Path) -> None:
    async def body(reader: CountingReader) -> None:
        config = ReferenceCacheConfig(folder=tmp_path)
        first = await preparer(reader, config).encoded(wav(1), reader)
        second = preparer(reader, config)
        again = await second.encoded(wav(1), reader)
        np.testing.assert_array_equal(again.codes, first.codes)
        assert (reader.decoded, reader.encoded) == (1, 1)
        assert (second.hits, second.misses) == (1, 0)
        (path,) = tmp_path.iterdir()
        path.unlink()
        await second.encoded(wav(1), reader)  # from memory
        assert reader.encoded == 1

    run(body)


class Shared:
    """What another front end knows."""

    def __init__(self) -> None:
        self.known: dict[str, EncodedReference] = {}

    async def get(self, key: str) -> EncodedReference | None:
        return self.known.get(key)

    async def put(self, key: str, encoded: EncodedReference) -> None:
        self.known[key] = encoded


def test_front_ends_ask_each_other() -> None:
    async def body(reader: CountingReader) -> None:
        shared = Shared()
        for _ in range(2):
            cache = ReferenceCache(ReferenceCacheConfig())
            references = ReferencePreparer(cache, decode=reader.decode, shared=shared)
            for _ in range(2):
                await references.encoded(wav(1), reader)
        assert (reader.decoded, reader.encoded) == (1, 1)
        assert len(shared.known) == 1

    run(body)


def test_memory_is_flat_over_thousands_of_recordings() -> None:
    async def body(reader: CountingReader) -> None:
        cache = ReferenceCache(ReferenceCacheConfig(max_bytes=100 * (10 * 4 * 8 + 8 * 4)))
        references = ReferencePreparer(cache, decode=reader.decode)
        samples = recording(1, 0.5).samples
        for i in range(4000):
            await references.encoded(PreparedReference(samples + np.float32(i), RATE), reader)
            if i >= 100:
                assert cache.nbytes == 100 * (10 * 4 * 8 + 8 * 4)
        assert reader.encoded == 4000
        assert references._flights == {}

    run(body)
