"""Several engines, each in a process of its own, behind one front end.

    async with await EnginePool.start([spec, spec]) as pool:
        await pool.wait_ready()
        async with await pool.submit(SpeechRequest(text="Hello.")) as stream:
            ...

A request goes to the worker with the fewest open requests, those of other front ends included, and
stays there: a worker that fails ends its own requests only. Workers hold no voices, because what
they read from a recording travels with each request: the front end keeps it, for all of them. Like
a client, a pool belongs to its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hocket.audio.reference_cache import ReferenceCache
from hocket.config import ReferenceCacheConfig
from hocket.core import EncodedReference, EngineInfo, PreparedReference, SpeechRequest
from hocket.errors import EngineStoppedError
from hocket.worker.client import BUFFER_BYTES, HANG_SECONDS, EngineClient, State
from hocket.worker.messages import EngineSpec, Planned, Stats
from hocket.worker.references import ReferencePreparer
from hocket.worker.stream import SpeechStream


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """State of one worker, as its front end sees it."""

    state: State
    #: Requests spoken at a time; 0 while the worker has no engine.
    rows: int
    #: Open requests of this front end, and of others at the worker's last heartbeat.
    open_requests: int


class EnginePool:
    """Made by `start`; ends with `stop`, or by leaving `async with`. `EngineClient` says what each
    call does.
    """

    def __init__(
        self, clients: Sequence[EngineClient], references: ReferencePreparer, favourite: int = 0
    ) -> None:
        self._clients = list(clients)
        #: What this front end knows of recordings, for all workers.
        self.references = references
        #: Gets the request where several workers have equally few.
        self._favourite = favourite

    @classmethod
    async def start(
        cls,
        specs: Sequence[EngineSpec],
        *,
        references: ReferencePreparer | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        hang_seconds: float = HANG_SECONDS,
    ) -> EnginePool:
        """Start a worker for each of `specs`, which describe the same model.

        Without `references` the pool has its own, with the cache of the first spec. Raises
        ConfigError.
        """
        if references is None:
            references = ReferencePreparer(ReferenceCache(specs[0].config.reference_cache))
        pool = cls([], references)
        try:
            for spec in specs:
                client = await EngineClient.start(
                    spec,
                    references=references,
                    buffer_bytes=buffer_bytes,
                    hang_seconds=hang_seconds,
                )
                pool._clients.append(client)
        except BaseException:
            await pool.stop()
            raise
        return pool

    @classmethod
    async def connect(
        cls,
        endpoints: Sequence[str],
        favourite: int,
        *,
        references: ReferencePreparer | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        hang_seconds: float = HANG_SECONDS,
    ) -> EnginePool:
        """Use the workers at the `endpoints` of another front end's pool.

        Where several have equally few requests, the first from `favourite` on gets the next: it
        should differ between front ends. Without `references` the pool keeps its own, in memory.
        """
        if references is None:
            references = ReferencePreparer(ReferenceCache(ReferenceCacheConfig()))
        clients = [
            await EngineClient.connect(
                endpoint,
                references=references,
                buffer_bytes=buffer_bytes,
                hang_seconds=hang_seconds,
            )
            for endpoint in endpoints
        ]
        return cls(clients, references, favourite)

    @property
    def endpoints(self) -> list[str]:
        """Where other front ends can `connect`."""
        return [client.endpoint for client in self._clients]

    @property
    def state(self) -> State:
        """`ready` while any worker is; otherwise the best state among the workers."""
        states = {client.state for client in self._clients}
        best: tuple[State, ...] = ("ready", "draining", "starting")
        return next((state for state in best if state in states), "down")

    @property
    def info(self) -> EngineInfo:
        """The engines' common info, with the rows of all that are up. Raises EngineStoppedError
        while there is none.
        """
        found = [client.info for client in self._clients if client.state in ("ready", "draining")]
        if len(found) > 1:
            rows, max_waiting = (
                sum(info.rows for info in found),
                sum(info.max_waiting for info in found),
            )
            return replace(found[0], rows=rows, max_waiting=max_waiting)
        return found[0] if found else self._next().info

    @property
    def workers(self) -> list[WorkerStatus]:
        """Status of each worker, in the order of the specs."""
        statuses = []
        for client in self._clients:
            rows = client.info.rows if client.state in ("ready", "draining") else 0
            open_requests = client.open_requests + client.other_requests
            statuses.append(WorkerStatus(client.state, rows, open_requests))
        return statuses

    @property
    def reference_counts(self) -> tuple[int, int]:
        """Recordings of requests that were known, and new ones."""
        return self.references.hits, self.references.misses

    async def planned(self) -> Planned:
        """The first worker's plan, which all share. Errors as for `EngineClient.planned`."""
        return await self._clients[0].planned()

    async def wait_ready(self, timeout_seconds: float | None = None) -> EngineInfo:
        """Wait for all workers. Raises the error of the first that fails to load, or
        EngineStoppedError.
        """
        waits = [
            asyncio.ensure_future(client.wait_ready(timeout_seconds)) for client in self._clients
        ]
        try:
            await asyncio.gather(*waits)
        finally:
            for wait in waits:
                wait.cancel()
        return self.info

    async def submit(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> SpeechStream:
        return await self._next().submit(
            request, request_id=request_id, priority=priority, streaming=streaming
        )

    async def read(self, content: bytes) -> PreparedReference:
        """A recording's file in the engines' form, for `prepare`. Raises ReferenceAudioError."""
        return await self.references.read(content, self.info)

    async def prepare(self, recording: PreparedReference) -> EncodedReference:
        return await self._next().prepare(recording)

    async def encode(
        self, samples_CS: NDArray[np.float32], n_codebooks: int | None = None
    ) -> NDArray[np.int64]:
        return await self._next().encode(samples_CS, n_codebooks)

    async def decode(self, codes_FN: NDArray[np.int64]) -> NDArray[np.float32]:
        return await self._next().decode(codes_FN)

    async def stats(self) -> list[Stats | None]:
        """Counters of each worker; None for a worker without an engine."""
        return list(await asyncio.gather(*map(_stats, self._clients)))

    async def drain(self, timeout_seconds: float) -> bool:
        return all(
            await asyncio.gather(*(client.drain(timeout_seconds) for client in self._clients))
        )

    async def stop(self) -> None:
        await asyncio.gather(*(client.stop() for client in self._clients))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def _next(self) -> EngineClient:
        """The ready worker with the fewest open requests; any worker when none is ready, so that it
        raises why.
        """
        first = self._favourite % len(self._clients)
        return min(
            self._clients[first:] + self._clients[:first],
            key=lambda client: (client.state != "ready", client.load),
        )


async def _stats(client: EngineClient) -> Stats | None:
    try:
        return await client.stats()
    except EngineStoppedError:
        return None
