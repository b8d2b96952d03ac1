"""The worker's loop around the fake engine, on a thread of the test's own process."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from hocket.worker.worker import Worker, open_socket
from tests.support.fake_engine import FakeEngine


class Served:
    """A worker on a thread."""

    def __init__(self, engine: FakeEngine, drain_seconds: float) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="hocket-test-")
        self.endpoint = f"ipc://{Path(self.folder.name) / 's'}"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = open_socket(self.context, self.endpoint)
        self.worker = Worker(engine, self._socket, drain_seconds=drain_seconds)
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.worker.run()
        self._socket.close(linger=100)

    def cpu_seconds(self) -> float:
        assert self.thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))


@contextmanager
def serving(engine: FakeEngine, drain_seconds: float = 0.0) -> Iterator[Served]:
    served = Served(engine, drain_seconds)
    try:
        yield served
    finally:
        served.worker.drain()
        served.thread.join(10)
        assert not served.thread.is_alive()
        served.context.destroy(linger=0)
        served.folder.cleanup()
