"""A front end's side of one open request: a bounded buffer of audio that its reader has not taken
yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from hocket.core import AudioChunk
from hocket.errors import CapacityError, HocketError


class SpeechStream:
    """The audio of one request, as it is made. The last chunk says how it ended, and has no
    samples.

    For one reader. Leaving `async with` cancels a request that is still open. Iteration raises the
    request's error, CapacityError when the buffer overflowed, and EngineStoppedError when the
    worker was lost.
    """

    def __init__(
        self, request_id: str, buffer_bytes: int, on_cancel: Callable[[SpeechStream], None]
    ) -> None:
        self.request_id = request_id
        self._buffer_bytes, self._on_cancel = buffer_bytes, on_cancel
        self._chunks: deque[AudioChunk] = deque()
        self._waiting_bytes = 0
        self._error: HocketError | None = None
        #: No chunk follows: the last one has arrived, the request failed, or the reader has left.
        self._over = False
        self._changed = asyncio.Event()

    def cancel(self) -> None:
        """Ask the engine to stop; the stream ends with the audio made until then and the reason
        `cancelled`.
        """
        if not self._over:
            self._on_cancel(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AudioChunk:
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._over:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        self._waiting_bytes -= chunk.samples.nbytes
        return chunk

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()
        self._over = True
        self._chunks.clear()

    def put(self, chunk: AudioChunk) -> None:
        """Called by the client for each chunk from the worker."""
        if self._over:
            return
        if chunk.end is not None and chunk.end.error is not None:
            self.fail(chunk.end.error)
            return
        self._waiting_bytes += chunk.samples.nbytes
        if self._waiting_bytes > self._buffer_bytes:
            self.cancel()
            self._chunks.clear()
            self.fail(
                CapacityError(
                    f"{self._waiting_bytes} bytes of audio were not read, the most is "
                    f"{self._buffer_bytes}"
                )
            )
            return
        self._chunks.append(chunk)
        self._over = chunk.end is not None
        self._changed.set()

    def fail(self, error: HocketError) -> None:
        """Called by the client: the request ends with `error`, behind the buffered chunks."""
        if not self._over:
            self._over, self._error = True, error
            self._changed.set()
