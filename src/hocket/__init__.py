"""Hocket: many texts into many voices at once."""

from typing import TYPE_CHECKING

from hocket.config import let_openmp_sleep
from hocket.core import AudioArray, AudioChunk, Sampling, Speech, SpeechRequest, Timings
from hocket.errors import HocketError

let_openmp_sleep()

if TYPE_CHECKING:
    from hocket.engine.engine import Engine

__version__ = "0.1.0"
__all__ = [
    "AudioArray",
    "AudioChunk",
    "Engine",
    "HocketError",
    "Sampling",
    "Speech",
    "SpeechRequest",
    "Timings",
    "__version__",
]


def __getattr__(name: str) -> object:
    # Importing the engine imports torch, which takes a second or two; wrong arguments should be
    # refused before that.
    if name == "Engine":
        from hocket.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
