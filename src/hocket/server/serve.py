"""`hocket serve`: runs the workers, the app and uvicorn, from start to drained end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol

import uvicorn
import uvloop
from fastapi import FastAPI

from hocket import __version__
from hocket.audio.reference_cache import ReferenceCache
from hocket.config import ReferenceCacheConfig
from hocket.core import EngineInfo, MemoryPlan
from hocket.errors import ConfigError
from hocket.server.admission import Admission
from hocket.server.app import create_app
from hocket.server.browsers import is_loopback
from hocket.server.processes.channel import Start
from hocket.server.processes.supervisor import HttpProcesses
from hocket.server.settings import Profile, ServerSettings
from hocket.server.voice_store import VoiceStore
from hocket.worker.heap import settle_heap
from hocket.worker.pool import EnginePool

_LOG = logging.getLogger("hocket.server")

#: Time that idle connections get to close at the end.
_CLOSE_SECONDS = 5
#: Time beyond it until an HTTP process that does not exit is killed.
_KILL_SECONDS = 2
_BACKLOG = 2048
_MIB = 2**20


def serve(profile: Profile, home: Path) -> None:
    """Serve until SIGTERM or Ctrl-C. Data that must survive a restart is kept in `home`.

    Raises ConfigError, CheckpointError when it cannot start.
    """
    configure_logging()
    listener = _listen(profile.server)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(profile, listener, home))
    finally:
        listener.close()


def configure_logging() -> None:
    """Log to standard error, nothing of the users'."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for name in ("httpx", "httpcore"):  # they log URLs, which are the users'
        logging.getLogger(name).setLevel(logging.WARNING)


class _Uvicorn(uvicorn.Server):
    """uvicorn without signal handlers: `_serve` drains the engine before connections close."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _FrontEnd(Protocol):
    """What serves HTTP: this process, or several (`HttpProcesses`, which documents each call)."""

    def serve(self) -> Coroutine[Any, Any, None]: ...
    async def wait_ready(self) -> None: ...
    def drain(self) -> None: ...
    def end(self, *, at_once: bool) -> None: ...


class _OwnProcess:
    """Serves HTTP in this process."""

    def __init__(self, app: FastAPI, settings: ServerSettings, listener: socket.socket) -> None:
        self._server, self._listener = uvicorn_server(app, settings), listener

    def serve(self) -> Coroutine[Any, Any, None]:
        return self._server.serve(sockets=[self._listener])

    async def wait_ready(self) -> None:
        """It knows its engines as soon as they are ready."""

    def drain(self) -> None:
        """Its app asks `Admission` itself."""

    def end(self, *, at_once: bool) -> None:
        self._server.force_exit |= at_once
        self._server.should_exit = True


async def _serve(profile: Profile, listener: socket.socket, home: Path) -> None:
    settings, started = profile.server, time.monotonic()
    pool = await EnginePool.start(profile.engine_specs, buffer_bytes=settings.buffer_bytes)
    async with pool:
        # A model that cannot be loaded is refused here, with nothing printed and nothing written.
        planned = await pool.planned()
        folder = settings.voices_folder or home / "voices"
        voices = VoiceStore(folder, planned.voices, max_recording_bytes=settings.max_voice_bytes)
        print("\n".join(_plan(profile, planned.memory)), flush=True)
        several = profile.http_processes > 1
        served_by = f" by {profile.http_processes} HTTP processes" if several else ""
        print(f"address  {_address(listener)}{served_by}", flush=True)
        if not (settings.api_keys or is_loopback(settings.host)):
            _LOG.warning(
                "event=open_to_network reason=everybody who reaches it may use it; set an API key"
            )
        admission = Admission(settings)
        if not several:
            app = create_app(pool, settings, voices, profile.served_name, admission=admission)
            front_end: _FrontEnd = _OwnProcess(app, settings, listener)
            await _run(front_end, admission, pool, settings.drain_seconds, started)
            return
        # The parent keeps as much as one process would, and the others as much together.
        cache = profile.engine.reference_cache
        share = max(1, cache.max_bytes // profile.http_processes)
        with tempfile.TemporaryDirectory(prefix="hocket-metrics-") as metrics_folder:
            start = Start(
                settings=settings.model_dump_json(),
                model_name=profile.served_name,
                voices_folder=str(folder),
                voices=dict(planned.voices),
                endpoints=pool.endpoints,
                reference_cache=cache.model_copy(update={"max_bytes": share}).model_dump_json(),
                metrics_folder=metrics_folder,
                number=0,
            )
            front_end = HttpProcesses(
                profile.http_processes,
                listener,
                start,
                admission,
                ReferenceCache(ReferenceCacheConfig(max_bytes=cache.max_bytes)),
                close_seconds=_CLOSE_SECONDS + _KILL_SECONDS,
            )
            await _run(front_end, admission, pool, settings.drain_seconds, started)


async def _run(
    front_end: _FrontEnd,
    admission: Admission,
    pool: EnginePool,
    drain_seconds: float,
    started: float,
) -> None:
    """Serve from before the engines are ready until a signal has drained them."""
    serving = asyncio.create_task(front_end.serve())
    ending = asyncio.create_task(_end_on_signal(front_end, admission, pool, drain_seconds))
    ready = asyncio.create_task(_wait_ready(front_end, pool))
    try:
        await asyncio.wait((ready, serving), return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            settle_heap()
            print(
                _ready_line(ready.result(), len(pool.workers), time.monotonic() - started),
                flush=True,
            )
        await serving
    finally:
        front_end.end(at_once=False)
        for task in (ready, ending):
            task.cancel()
        await asyncio.gather(serving, ready, ending, return_exceptions=True)


async def _wait_ready(front_end: _FrontEnd, pool: EnginePool) -> EngineInfo:
    info = await pool.wait_ready()
    await front_end.wait_ready()
    return info


async def _drain(
    front_end: _FrontEnd, admission: Admission, pool: EnginePool, seconds: float
) -> None:
    """Drain requests before the engine: a request of several segments submits them one by one."""
    front_end.drain()
    in_time = await admission.drain(seconds)
    await pool.drain(seconds if in_time else 0.0)


async def _end_on_signal(
    front_end: _FrontEnd, admission: Admission, pool: EnginePool, drain_seconds: float
) -> None:
    """Let open requests finish after the first signal, stop at once after the second."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    await signals.get()
    _LOG.info("event=drain seconds=%g", drain_seconds)
    again = asyncio.create_task(signals.get())
    draining = asyncio.create_task(_drain(front_end, admission, pool, drain_seconds))
    await asyncio.wait((again, draining), return_when=asyncio.FIRST_COMPLETED)
    front_end.end(at_once=again.done())
    draining.cancel()
    again.cancel()


def uvicorn_server(app: FastAPI, settings: ServerSettings) -> uvicorn.Server:
    """uvicorn around `app`, which was made with `settings`. The caller handles signals."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        lifespan="off",
        # uvicorn's other parser is faster, but sends chunks to HTTP/1.0 clients and has no limit
        # for headers.
        http="h11",
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
        timeout_graceful_shutdown=_CLOSE_SECONDS,
    )
    return _Uvicorn(config)


def _listen(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = (error.strerror or "unknown reason").partition(" (")[0]
        raise ConfigError(
            f"cannot listen at {settings.host} port {settings.port}: {reason}; choose another "
            "--port or --host",
            param="server.port",
        ) from None


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _plan(profile: Profile, plan: MemoryPlan) -> list[str]:
    """Lines about the model to be loaded and the memory that it will take."""
    parts = {
        "weights": plan.weight_bytes,
        "K/V": plan.kv_bytes,
        "rings": plan.ring_bytes,
        "rows": plan.row_bytes,
        "workspace": plan.workspace_bytes,
    }
    shown = " + ".join(f"{name} {size / _MIB:,.1f}" for name, size in parts.items())
    copies = 1 if profile.http_processes == 1 else 2  # the parent's, and the processes' together
    references = copies * profile.engine.reference_cache.max_bytes / _MIB
    return [
        f"hocket   {__version__}",
        f"model    {profile.served_name}, {profile.dtype} on "
        f"{_devices(profile)}{_times(profile.engine_count)}",
        f"memory   {plan.total_bytes / _MIB:,.1f} MiB = {shown}; {plan.rows} rows of "
        f"{plan.context_rows:,} at most",
        *([f"         all that {profile.engine_count} times"] if profile.engine_count > 1 else []),
        f"         and {references:,.0f} MiB of the host for what is read of references, at most",
    ]


def _devices(profile: Profile) -> str:
    """Devices of all engines and of their codecs."""
    last = (profile.gpus or 1) - 1
    devices = f"cuda:0 to cuda:{last}" if last else profile.engine_specs[0].device
    codec = profile.engine.codec_device
    return devices if codec is None else f"{devices} (codec on {codec})"


def _times(workers: int) -> str:
    return f", {workers} engines" if workers > 1 else ""


def _ready_line(info: EngineInfo, workers: int, seconds: float) -> str:
    return (
        f"ready    in {seconds:.1f} s: {info.rows} voices at a time{_times(workers)}, "
        f"{info.sample_rate} Hz, {info.channels} channel{'s' if info.channels > 1 else ''}"
    )
