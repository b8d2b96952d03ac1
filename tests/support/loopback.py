"""A server on loopback around any app, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from fastapi import FastAPI

from hocket.checkpoint.voices import ONLY_DEFAULT
from hocket.server.serve import uvicorn_server
from hocket.server.voice_store import VoiceStore


@contextmanager
def on_loopback(app: FastAPI) -> Iterator[str]:
    """Serve `app` as `hocket serve` does, in a thread; its address."""
    server = uvicorn_server(app, app.state.services.settings)
    server.config.port = 0
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        port = cast(int, server.servers[0].sockets[0].getsockname()[1])
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


def wait_until(condition: object, seconds: float = 10.0) -> None:
    """Poll a condition that another thread makes true."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


def new_store(folder: Path) -> VoiceStore:
    """A store of voices in `folder`, as `hocket serve` makes it."""
    return VoiceStore(folder / "voices", ONLY_DEFAULT)
