"""The process that owns the engine.

    python -m hocket.worker.process ENDPOINT SPEC

Started by `hocket.worker.supervisor`, which holds the other end of its standard input: when that closes, whoever
started it is gone, and so is the worker. Standard output carries one line, the error, when the engine does not load.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import msgspec
import torch
import zmq

from hocket.engine.build import parse_device
from hocket.engine.engine import Engine
from hocket.errors import HocketError
from hocket.worker.messages import EngineSpec, WireError
from hocket.worker.worker import Worker, open_socket

_LOG = logging.getLogger("hocket.worker")


def run_worker(endpoint: str, spec: EngineSpec) -> int:
    """Load what `spec` says and serve it at `endpoint` until SIGTERM; returns the exit code.

    Raises ConfigError, CheckpointError.
    """
    started = time.monotonic()
    # What `EngineConfig.cpu_threads` means by PyTorch's default.
    torch.set_num_threads(max(1, torch.get_num_threads() // spec.workers))
    device = parse_device(spec.device)
    if device.type == "cuda":
        # This process's own: PyTorch sets up the current GPU on many occasions, and half a gigabyte of the first one
        # would go to each worker.
        torch.cuda.set_device(device.index or 0)
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


def main(endpoint: str, spec: str) -> int:
    """Run a worker in this process and return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    threading.Thread(target=_leave_with_parent, args=(endpoint,), daemon=True).start()
    # Whatever libraries print goes to standard error, so that the report is alone on the pipe.
    report = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        return run_worker(endpoint, EngineSpec.model_validate_json(spec))
    except HocketError as error:
        os.write(report, msgspec.json.encode(WireError.of(error)))
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
