"""The process that owns the engine.

    python -m hocket.worker.process ENDPOINT SPEC

`hocket.worker.supervisor` starts it and holds the other end of its standard input: when that
closes, the parent has exited, and the worker exits too. Standard output carries reports, one per
line (`encode_report`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
import zmq

from hocket.config import ReferenceCacheConfig
from hocket.engine.build import engine_devices, engine_memory, parse_device, parse_dtype
from hocket.engine.engine import Engine
from hocket.errors import ConfigError, HocketError
from hocket.models.registry import checkpoint_extras
from hocket.worker.heap import settle_heap
from hocket.worker.messages import EngineSpec, Planned, Stopped, WireError, encode_report
from hocket.worker.worker import Worker, open_socket

_LOG = logging.getLogger("hocket.worker")


def run_worker(endpoint: str, spec: EngineSpec, report: Callable[[Planned], None]) -> int:
    """Load what `spec` says and serve it at `endpoint` until SIGTERM; returns the exit code.

    `report` is called before the load. Raises ConfigError, CheckpointError.
    """
    started = time.monotonic()
    # This is the default that `EngineConfig.cpu_threads` refers to.
    torch.set_num_threads(max(1, torch.get_num_threads() // spec.workers))
    _check_gpus(spec)
    device = parse_device(spec.device)
    if device.type == "cuda":
        # PyTorch initialises the current GPU on many occasions; without this, each worker would
        # take half a gigabyte of the first GPU.
        torch.cuda.set_device(device.index or 0)
    report(plan(spec))
    engine = Engine.load(
        spec.model,
        spec.codec,
        device=spec.device,
        dtype=spec.dtype,
        # The front end keeps what is read from recordings, for all its workers.
        config=spec.config.model_copy(update={"reference_cache": ReferenceCacheConfig()}),
    )
    settle_heap()
    _LOG.info(
        "event=worker_ready pid=%d load_seconds=%.1f", os.getpid(), time.monotonic() - started
    )
    with zmq.Context() as context, open_socket(context, endpoint) as socket:
        worker = Worker(
            engine,
            socket,
            conversions=engine.parts.conversions,
            drain_seconds=spec.drain_seconds,
        )

        def drain(_signal: int, _frame: FrameType | None) -> None:
            worker.drain()

        signal.signal(signal.SIGTERM, drain)
        code = worker.run()
    _LOG.info("event=worker_exit pid=%d code=%d", os.getpid(), code)
    return code


def plan(spec: EngineSpec) -> Planned:
    """Plan the engine of `spec` from configurations alone, without reading weights.

    Raises ConfigError for devices that are missing or cannot compute what `spec` asks for and for a
    memory budget that is too small, CheckpointError for a broken checkpoint.
    """
    engine_devices(spec.device, spec.config, has_codec=spec.codec != "none")
    voices = checkpoint_extras(spec.model).voices
    return Planned(
        engine_memory(spec.model, spec.codec, parse_dtype(spec.dtype), spec.config), dict(voices)
    )


def _check_gpus(spec: EngineSpec) -> None:
    if spec.gpus is not None and spec.gpus > (there := torch.cuda.device_count()):
        raise ConfigError(
            f"gpus is {spec.gpus}, but PyTorch sees {there} of them on this machine; lower it",
            param="gpus",
        )


def main(endpoint: str, spec: str) -> int:
    """Run a worker in this process and return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    threading.Thread(target=_leave_with_parent, args=(endpoint,), daemon=True).start()
    # Output of libraries goes to standard error, so that the pipe carries reports only.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as reports:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

        def report(message: Planned | Stopped) -> None:
            reports.write(encode_report(message))
            reports.flush()

        try:
            return run_worker(endpoint, EngineSpec.model_validate_json(spec), report)
        except HocketError as error:
            report(Stopped(WireError.of(error)))
            return error.exit_code


def _leave_with_parent(endpoint: str) -> None:
    """Exit at the end of standard input, which comes when the parent has exited for any reason;
    remove the socket.

    Runs on a thread, so that it works while the engine loads or hangs; `os.read` holds no lock at
    exit.
    """
    while os.read(sys.stdin.fileno(), 4096):
        pass
    _LOG.info("event=worker_orphaned pid=%d", os.getpid())
    socket_file = Path(endpoint.removeprefix("ipc://"))
    with contextlib.suppress(OSError):
        socket_file.unlink(missing_ok=True)
        socket_file.parent.rmdir()  # the supervisor's private folder; any other is not empty
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
