"""Where and with what a report was made. Keys never get here."""

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
from typing import Any

_PACKAGES = ("hocket", "torch", "triton", "numpy", "av", "h11", "uvloop", "faster-whisper", "whisper-normalizer")
#: A shorter one is a word such as EMPTY, which a server that wants no key is given.
_SHORTEST_KEY = 8
#: Options whose values are secret.
_SECRET_OPTIONS = ("--api-key", "--recogniser-api-key")


def host_facts() -> dict[str, Any]:
    """Machine, system, versions."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "gpus": _gpus(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := package_version(name))},
    }


def package_version(name: str) -> str | None:
    """Of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def command_line(arguments: Sequence[str] | None = None) -> str:
    """The command that was typed, without the values of secret options."""
    shown, hide_next = ["hocket"], False
    for argument in sys.argv[1:] if arguments is None else arguments:
        name, equals, _ = argument.partition("=")
        is_secret = name in _SECRET_OPTIONS and equals
        shown.append("***" if hide_next else f"{name}=***" if is_secret else argument)
        hide_next = argument in _SECRET_OPTIONS and not hide_next
    return shlex.join(shown)


def without_key(document: Any, api_key: str | None) -> Any:
    """`document`, a piece of JSON, in which nothing that a server said repeats the key."""
    if api_key is None or len(api_key) < _SHORTEST_KEY:
        return document
    if isinstance(document, dict):
        return {name: without_key(value, api_key) for name, value in document.items()}
    if isinstance(document, list | tuple):
        return [without_key(value, api_key) for value in document]
    return document.replace(api_key, "***") if isinstance(document, str) else document


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


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
    return [line.strip() for line in listed.stdout.splitlines() if line.strip()] if listed.returncode == 0 else []
