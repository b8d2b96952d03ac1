"""Keeps one worker process running."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import zmq

from hocket.errors import ConfigError, EngineStoppedError, HocketError
from hocket.worker.messages import EngineSpec, Planned, decode_report

_LOG = logging.getLogger("hocket.worker")

#: Seconds before a worker that died is restarted; doubled each time up to the maximum ...
MIN_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0
#: ... and reset to the minimum once a worker has run for this long.
HEALTHY_SECONDS = 60.0
#: The longest report: voices come with their codes.
_REPORT_BYTES = 64 * 2**20
#: Time beyond `drain_seconds` for a worker to exit before it is killed.
_EXIT_SECONDS = 5.0


class Supervisor:
    """Starts a worker for `spec`, and another whenever one dies, until `stop`.

    A first worker that ends before it was ready is not replaced, and `failure` says why: then the
    settings or the machine are wrong. The socket lies in a folder that only this user may enter.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        #: Plan of the first worker.
        self.planned: asyncio.Future[Planned] = asyncio.get_running_loop().create_future()
        self.failure: asyncio.Future[HocketError] = asyncio.get_running_loop().create_future()
        self._folder = Path(tempfile.mkdtemp(prefix="hocket-"))
        self.endpoint = f"ipc://{self._folder / 'engine'}"
        if len(self.endpoint) - len("ipc://") > zmq.IPC_PATH_MAX_LEN:
            self._folder.rmdir()
            raise ConfigError(
                f"the path {self.endpoint!r} is too long for a socket; set TMPDIR to a shorter one"
            )
        self._process: Process | None = None
        self._ever_ready = False
        self._ready_at: float | None = None
        self._stopping = False
        self._task = asyncio.create_task(self._supervise())

    def note_ready(self) -> None:
        """The worker has loaded its engine."""
        self._ever_ready = True
        self._ready_at = asyncio.get_running_loop().time()

    def kill(self, reason: str) -> None:
        """Kill a worker that does not respond; `_supervise` starts another."""
        if self._process is not None and self._process.returncode is None:
            _LOG.error("event=worker_kill pid=%d reason=%s", self._process.pid, reason)
            self._process.kill()

    async def stop(self) -> None:
        """Let the worker drain for `drain_seconds` and wait for its exit. Removes the socket."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self._spec.drain_seconds + _EXIT_SECONDS)
            except TimeoutError:
                self.kill("did_not_leave")
                await process.wait()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _supervise(self) -> None:
        delay = MIN_DELAY_SECONDS
        while not self._stopping:
            self._ready_at = None
            code, error = await self._run_worker()
            if self._stopping:
                return
            if not self._ever_ready:
                self.failure.set_result(
                    error
                    or EngineStoppedError(
                        f"the worker ended with code {code} before it was ready; its log says why"
                    )
                )
                return
            now = asyncio.get_running_loop().time()
            if self._ready_at is not None and now - self._ready_at >= HEALTHY_SECONDS:
                delay = MIN_DELAY_SECONDS
            _LOG.error("event=worker_died code=%d restart_seconds=%.1f", code, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_DELAY_SECONDS)

    async def _run_worker(self) -> tuple[int, HocketError | None]:
        """Run one worker; its exit code (negative: the signal that ended it) and the error that it
        reported.
        """
        # In a session of its own: Ctrl-C on a terminal reaches the front end alone.
        self._process = process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "hocket.worker.process",
                self.endpoint,
                self._spec.model_dump_json(),
            ),
            stdin=PIPE,
            stdout=PIPE,
            limit=_REPORT_BYTES,
            start_new_session=True,
        )
        assert process.stdout is not None
        error = None
        async for line in process.stdout:
            report = decode_report(line)
            if not isinstance(report, Planned):
                error = report.error.error()
                continue
            _LOG.info("event=worker_start pid=%d", process.pid)
            if not self.planned.done():
                self.planned.set_result(report)
        return await process.wait(), error
