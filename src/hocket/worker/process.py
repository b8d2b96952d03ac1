"""The process that owns the engine.

    python -m hocket.worker.process ENDPOINT SPEC

Started by `hocket.worker.supervisor`, which holds the other end of its standard input: when that closes, whoever
started it is gone, and so is the worker. Standard output carries reports, one a line (`encode_report`).
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

from hocket.engine.build import engine_devices, engine_memory, parse_device, parse_dtype
from hocket.engine.engine import Engine
from hocket.errors import ConfigError, HocketError
from hocket.models.registry import checkpoint_extras
from hocket.worker.messages import EngineSpec, Planned, Stopped, WireError, encode_report
from hocket.worker.worker import Worker, open_socket

_LOG = logging.getLogger("hocket.worker")


def run_worker(endpoint: str, spec: EngineSpec, report: Callable[[Planned], None]) -> int:
    """Load what `spec` says and serve it at `endpoint` until SIGTERM; returns the exit code.

    `report` is called before the load. Raises ConfigError, CheckpointError.
    """
    started = time.monotonic()
    # What `EngineConfig.cpu_threads` means by PyTorch's default.
    torch.set_num_threads(max(1, torch.get_num_threads() // spec.workers))
    _check_gpus(spec)
    device = parse_device(spec.device)
    if device.type == "cuda":
        # This process's own: PyTorch sets up the current GPU on many occasions, and half a gigabyte of the first one
        # would go to each worker.
        torch.cuda.set_device(device.index or 0)
    report(plan(spec))
    engine = Engine.load(spec.model, spec.codec, device=spec.device, dtype=spec.dtype, config=spec.config)
    _LOG.info("event=worker_ready pid=%d load_seconds=%.1f", os.getpid(), time.monotonic() - started)
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
    """What `spec` comes to, from configurations alone.

    Raises ConfigError for devices that are not there or cannot do what is asked for and for memory that does not
    suffice, CheckpointError for what is wrong with a checkpoint but its weights.
    """
    engine_devices(spec.device, spec.config, has_codec=spec.codec != "none")
    voices = checkpoint_extras(spec.model).voices
    return Planned(engine_memory(spec.model, spec.codec, parse_dtype(spec.dtype), spec.config), dict(voices))


def _check_gpus(spec: EngineSpec) -> None:
    if spec.gpus is not None and spec.gpus > (there := torch.cuda.device_count()):
        raise ConfigError(
            f"gpus is {spec.gpus}, but PyTorch sees {there} of them on this machine; lower it", param="gpus"
        )


def main(endpoint: str, spec: str) -> int:
    """Run a worker in this process and return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    threading.Thread(target=_leave_with_parent, args=(endpoint,), daemon=True).start()
    # Whatever libraries print goes to standard error, so that reports are alone on the pipe.
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
    """Wait for the end of standard input, which comes when the parent is gone, however it went; leave nothing behind.

    A thread, so that it works while the engine loads or hangs; `os.read`, so that it holds no lock at exit.
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
