"""The process that serves HTTP: what it loads, and what it knows before its engine is ready."""

from __future__ import annotations

import subprocess
import sys

FRONT_END = "hocket.server.app, hocket.server.serve, hocket.worker.client, hocket.worker.pool"


def test_it_loads_no_model_no_kernel_and_no_torch() -> None:
    script = f"import sys, {FRONT_END}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = (
        "torch",
        "triton",
        "hocket.models",
        "hocket.kernels",
        "hocket.engine.build",
        "hocket.engine.engine",
    )
    assert "hocket.server.serve" in loaded
    assert not [
        name for name in loaded if f"{name}.".startswith(tuple(f"{room}." for room in heavy))
    ]
