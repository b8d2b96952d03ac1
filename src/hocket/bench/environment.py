"""Where, when and by what command a figure was measured: the one collector for `hocket bench` and
`benchmarks`.

A report chooses its keys; every value comes from here. Secrets never do.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PACKAGES = (
    "hocket",
    "torch",
    "triton",
    "numpy",
    "av",
    "h11",
    "uvloop",
    "faster-whisper",
    "whisper-normalizer",
)
#: Options whose values are secret.
_SECRET_OPTIONS = ("--api-key", "--recogniser-api-key")


def host_facts() -> dict[str, Any]:
    """Machine, system, versions."""
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_gb": _memory_gb(),
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": python_version(),
        "versions": {name: found for name, found in package_versions(*_PACKAGES).items() if found},
    }


def device_facts(device: torch.device) -> dict[str, Any]:
    """The device as PyTorch sees it, and PyTorch's version; "gpu" is None on a CPU."""
    import torch

    facts = {
        "device": str(device),
        "gpu": None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    if device.type != "cuda":
        return facts
    card = torch.cuda.get_device_properties(device)
    memory_gb = round(card.total_memory / 1e9)
    return facts | {
        "gpu": card.name,
        "processors": card.multi_processor_count,
        "memory_gb": memory_gb,
    }


def package_versions(*names: str) -> dict[str, str | None]:
    """The installed version of each package; None for one that is not installed."""
    return {name: _version(name) for name in names}


def command_line(arguments: Sequence[str] | None = None) -> str:
    """The command that was typed, without the values of secret options."""
    shown, hide_next = ["hocket"], False
    for argument in sys.argv[1:] if arguments is None else arguments:
        name, equals, _ = argument.partition("=")
        is_secret = name in _SECRET_OPTIONS and equals
        shown.append("***" if hide_next else f"{name}=***" if is_secret else argument)
        hide_next = argument in _SECRET_OPTIONS and not hide_next
    return shlex.join(shown)


def module_command(*left_out: str) -> str:
    """The command that runs this benchmark (`python -m ...`), without the arguments that are
    `left_out`.
    """
    return shlex.join(
        ["python", *(argument for argument in sys.orig_argv[1:] if argument not in left_out)]
    )


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def today() -> str:
    """The date in UTC."""
    return datetime.now(UTC).date().isoformat()


def python_version() -> str:
    """The version of this interpreter."""
    return platform.python_version()


def cores() -> int | None:
    """The number of logical processors."""
    return os.cpu_count()


def scheduler_name() -> str:
    """How Linux schedules this process; "real-time" (`chrt -r 1 python …`) goes before all other
    programs.
    """
    names = {os.SCHED_OTHER: "normal", os.SCHED_RR: "real-time", os.SCHED_FIFO: "real-time"}
    return names.get(os.sched_getscheduler(0), "other")


def cpu_name() -> str:
    """The processor's model, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError):
        return None


def _gpus() -> list[str]:
    """As the driver's own tool lists them: name, driver, memory."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        listed = subprocess.run(query, check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return (
        [line.strip() for line in listed.stdout.splitlines() if line.strip()]
        if listed.returncode == 0
        else []
    )
