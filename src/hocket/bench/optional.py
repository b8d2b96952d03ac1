"""Packages that only some measurements need, or an error that says how to install them."""

from __future__ import annotations

import importlib
from types import ModuleType

from hocket.errors import ConfigError

_BENCH = "pip install 'hocket[bench]'"
_COMMANDS = {
    "faster_whisper": _BENCH,
    "rapidfuzz": _BENCH,
    "whisper_normalizer.basic": _BENCH,
    "whisper_normalizer.english": _BENCH,
    "onnxruntime": _BENCH,
    # Its own dependencies name a package that must be compiled; these two are sufficient.
    "resemblyzer": "pip install librosa webrtcvad-wheels && pip install --no-deps resemblyzer",
}


def need(module: str, option: str) -> ModuleType:
    """Import `module`. Raises ConfigError that names the `option` which needs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("_", "-")
        raise ConfigError(
            f"{option} needs {package}, which is not installed; run: {_COMMANDS[module]}"
        ) from None
