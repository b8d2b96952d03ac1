"""One of several HTTP processes of a server.

    python -m hocket.server.processes.process CHANNEL LISTENER

The arguments are descriptors that it inherits: its end of the pair of sockets to the parent, and
the socket that all HTTP processes listen on. It ends when the parent says so or has ended.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import uvloop

from hocket.audio.reference_cache import ReferenceCache
from hocket.config import ReferenceCacheConfig
from hocket.errors import HocketError
from hocket.server.app import create_app
from hocket.server.metrics import Metrics
from hocket.server.processes.channel import (
    Answer,
    Channel,
    Close,
    Counts,
    Drain,
    Failed,
    FromParent,
    Ready,
    Recalled,
    Serving,
    Start,
    ToParent,
    channel_to_parent,
)
from hocket.server.processes.remote import Parent
from hocket.server.serve import configure_logging, uvicorn_server
from hocket.server.settings import ServerSettings
from hocket.server.voice_store import VoiceStore
from hocket.worker.heap import settle_heap
from hocket.worker.messages import WireError
from hocket.worker.pool import EnginePool
from hocket.worker.references import ReferencePreparer

#: Interval between notes of the reference cache's counts, which the cache keeps itself.
_NOTE_SECONDS = 1.0


class HttpProcess:
    """The process' side of the channel, and what it serves."""

    def __init__(self) -> None:
        self._start: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self._close = asyncio.Event()
        self._channel: Channel[FromParent] | None = None
        self._parent = Parent(self._send)

    def _send(self, message: ToParent) -> None:
        assert self._channel is not None
        self._channel.send(message)

    async def run(self, end: socket.socket, listener: socket.socket) -> int:
        """Serve until the parent says `Close`; returns the exit code."""
        self._channel = await channel_to_parent(end, self._on_message, self._on_lost)
        start = await self._start
        try:
            await self._serve(start, listener)
        except HocketError as error:
            self._send(Failed(WireError.of(error)))
            self._close.set()  # the parent is there, and so are the others' counts
            self._channel.close()
            return error.exit_code
        return 0

    async def _serve(self, start: Start, listener: socket.socket) -> None:
        settings = ServerSettings.model_validate_json(start.settings)
        voices = VoiceStore(
            Path(start.voices_folder),
            start.voices,
            max_recording_bytes=settings.max_voice_bytes,
        )
        metrics = Metrics(Path(start.metrics_folder))
        cache = ReferenceCache(ReferenceCacheConfig.model_validate_json(start.reference_cache))
        async with await EnginePool.connect(
            start.endpoints,
            start.number,
            references=ReferencePreparer(cache, shared=self._parent),
            buffer_bytes=settings.buffer_bytes,
        ) as pool:
            app = create_app(
                pool,
                settings,
                voices,
                start.model_name,
                admission=self._parent,
                metrics=metrics,
            )
            server = uvicorn_server(app, settings)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            settling = asyncio.create_task(self._settle(pool))
            noting = asyncio.create_task(_note_references(pool, metrics))
            closing = asyncio.create_task(self._close.wait())
            self._send(Serving())
            await asyncio.wait((serving, closing), return_when=asyncio.FIRST_COMPLETED)
            for task in (settling, noting, closing):
                task.cancel()
            await pool.drain(0.0)  # the parent has waited for those that end in time
            server.should_exit = True
            await serving

    async def _settle(self, pool: EnginePool) -> None:
        await pool.wait_ready()
        settle_heap()
        self._send(Ready())

    def _on_message(self, message: FromParent) -> None:
        if isinstance(message, Answer | Counts | Recalled):
            self._parent.on_answer(message)
        elif isinstance(message, Start):
            self._start.set_result(message)
        elif isinstance(message, Drain):
            self._parent.draining = True
        else:
            assert isinstance(message, Close)
            self._close.set()

    def _on_lost(self) -> None:
        """The parent has ended, or this process has closed the channel before it exits."""
        if self._start.done() and not self._close.is_set():
            shutil.rmtree(self._start.result().metrics_folder, ignore_errors=True)
        os._exit(1)


async def _note_references(pool: EnginePool, metrics: Metrics) -> None:
    """Keep what this process adds to the page of another up to date."""
    while True:
        metrics.note_references(*pool.reference_counts)
        await asyncio.sleep(_NOTE_SECONDS)


async def _run(end: socket.socket, listener: socket.socket) -> int:
    return await HttpProcess().run(end, listener)


def main(channel: str, listener: str) -> int:
    """Run an HTTP process and return its exit code."""
    # The parent alone decides when it is time: service managers and terminals signal all.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    configure_logging()
    with (
        socket.socket(fileno=int(channel)) as end,
        socket.socket(fileno=int(listener)) as listening,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_run(end, listening))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
