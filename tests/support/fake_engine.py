"""An engine that computes nothing, for tests and benchmarks of what lies around one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hocket.core import EngineInfo

_INFO = EngineInfo(
    model=None,
    sample_rate=24_000,
    channels=1,
    frame_seconds=0.08,
    rows=4,
    max_waiting=1000,
    context_rows=1024,
    codec_id="fake",
    reference_min_seconds=0.5,
    reference_max_seconds=60.0,
    reference_min_rms=1e-4,
    reference_max_file_bytes=2**20,
)


def fake_info(**changes: Any) -> EngineInfo:
    """A small mono engine, but for `changes`."""
    return replace(_INFO, **changes)
