"""A front end's way from a recording to what the model reads from it: once for each content.

A recording that is known, by the digest of its bytes as they came, is neither decoded nor sent. A
new one is decoded here, encoded by a worker, and kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hocket.audio.reference import (
    RecordingForm,
    load_encoded,
    name_of,
    prepare_reference,
    read_content,
)
from hocket.audio.reference_cache import Key, ReferenceCache, content_key
from hocket.core import AudioArray, EncodedReference, EngineInfo, PreparedReference, Reference
from hocket.errors import HocketError

#: Larger contents are hashed on a thread: a mebibyte takes a millisecond.
_LARGE_BYTES = 2**20


class ReferenceReader(Protocol):
    """A worker, or several, that reads recordings: `EngineClient` or `EnginePool`."""

    @property
    def info(self) -> EngineInfo: ...
    async def prepare(self, recording: PreparedReference) -> EncodedReference: ...


class Decode(Protocol):
    """Decodes a recording as `prepare_reference` does, without holding up the event loop."""

    def __call__(
        self,
        content: bytes | AudioArray | PreparedReference,
        form: RecordingForm,
        name: str | None = None,
        /,
    ) -> Awaitable[NDArray[np.float32]]: ...


class SharedReferences(Protocol):
    """A second place to ask: other front ends of the same server. It never raises."""

    async def get(self, key: Key) -> EncodedReference | None: ...
    async def put(self, key: Key, encoded: EncodedReference) -> None: ...


async def decode_on_thread(
    content: bytes | AudioArray | PreparedReference, form: RecordingForm, name: str | None = None, /
) -> NDArray[np.float32]:
    """Decoding and resampling take up to 0.3 s for a minute of audio."""
    return await asyncio.to_thread(
        prepare_reference,
        content,
        sample_rate=form.sample_rate,
        channels=form.channels,
        limits=form.limits,
        level=form.level,
        name=name,
    )


@dataclass(slots=True, eq=False)
class _Flight:
    """The one preparation of a recording, and how many wait for it."""

    task: asyncio.Task[EncodedReference]
    waiting: int = 0


class ReferencePreparer:
    """One for a front end and all its workers. Like a client, it belongs to its event loop."""

    def __init__(
        self,
        cache: ReferenceCache,
        *,
        decode: Decode = decode_on_thread,
        shared: SharedReferences | None = None,
    ) -> None:
        self._cache, self._decode, self._shared = cache, decode, shared
        self._flights: dict[Key, _Flight] = {}
        #: Recordings that were known, or on their way; and recordings that a worker had to read.
        self.hits = 0
        self.misses = 0

    async def encoded(self, reference: Reference, reader: ReferenceReader) -> EncodedReference:
        """What `reader`'s model reads from `reference`.

        Concurrent calls with one new recording wait for one preparation, which goes on while any of
        them waits; all get its error, which is not kept. Raises ReferenceAudioError,
        InvalidRequestError, CapacityError, EngineStoppedError.
        """
        if isinstance(reference, str | Path):
            loaded = await asyncio.to_thread(load_encoded, reference)
        else:
            loaded = load_encoded(reference)
        if isinstance(loaded, EncodedReference):
            return loaded
        info = reader.info
        form = RecordingForm.of(info)
        if isinstance(loaded, str | Path):
            content = await asyncio.to_thread(read_content, loaded, form.limits)
        else:
            content = read_content(loaded, form.limits)
        key = await _key(info.reference_id, content)
        found = self._cache.recall(key)
        if found is not None:
            self.hits += 1
            return found
        flight = self._flights.get(key)
        if flight is None or flight.task.done():  # done: it failed, and its callers do not know yet
            task = asyncio.create_task(self._prepared(key, content, form, name_of(loaded), reader))
            self._flights[key] = flight = _Flight(task)
        else:
            self.hits += 1
        return await self._landed(key, flight)

    async def read(self, content: bytes, info: EngineInfo) -> PreparedReference:
        """A recording's file in the form of that engine; nothing is kept. Raises
        ReferenceAudioError.
        """
        form = RecordingForm.of(info)
        return PreparedReference(await self._decode(content, form), form.sample_rate)

    async def _landed(self, key: Key, flight: _Flight) -> EncodedReference:
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except HocketError as error:
            # One instance for each caller: raising an exception sets its traceback.
            raise type(error)(error.message, param=error.param) from error
        finally:
            flight.waiting -= 1
            if not flight.waiting:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                flight.task.cancel()  # no effect on one that is done

    async def _prepared(
        self,
        key: Key,
        content: bytes | AudioArray | PreparedReference,
        form: RecordingForm,
        name: str | None,
        reader: ReferenceReader,
    ) -> EncodedReference:
        encoded = None
        if self._cache.has_folder:
            encoded = await asyncio.to_thread(self._cache.load, key)
        if encoded is None and self._shared is not None:
            encoded = await self._shared.get(key)
        if encoded is not None:
            self.hits += 1
            self._cache.remember(key, encoded)
            return encoded
        self.misses += 1
        samples_CS = await self._decode(content, form, name)
        encoded = await reader.prepare(PreparedReference(samples_CS, form.sample_rate))
        self._cache.remember(key, encoded)
        if self._cache.has_folder:
            await asyncio.to_thread(self._cache.store, key, encoded)
        if self._shared is not None:
            await self._shared.put(key, encoded)
        return encoded


async def _key(preparation: str, content: bytes | AudioArray | PreparedReference) -> Key:
    size = len(content) if isinstance(content, bytes) else content.samples.nbytes
    if size <= _LARGE_BYTES:
        return content_key(preparation, content)
    return await asyncio.to_thread(content_key, preparation, content)
