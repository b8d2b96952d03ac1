"""Interfaces of the runners. Tests and benchmarks implement them without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.core import PromptRows
from hocket.engine.runners.codec import DecodedChunk, SamplesInFlight, StateSlot
from hocket.engine.runners.talker import FramesInFlight, PageTable
from hocket.engine.scheduling.request import DecodeBatch, FrameBatch, PrefillItem
from hocket.models.sampling import ResolvedSampling


class FrameRunner(Protocol):
    """Prefills prompts and makes frames; `TalkerRunner` documents each call."""

    @property
    def joins_prefill(self) -> bool: ...
    def start(
        self, row: int, sampling: ResolvedSampling, seed: int, min_frames: int, prompt: PromptRows
    ) -> None: ...
    def prefill(self, items: list[PrefillItem], page_table: PageTable) -> None: ...
    def launch(
        self, batch: FrameBatch, page_table: PageTable, items: Sequence[PrefillItem]
    ) -> FramesInFlight: ...
    def collect(self, flight: FramesInFlight) -> tuple[list[bool], NDArray[np.int64]]: ...


class ChunkRunner(Protocol):
    """Decodes chunks of codes to audio; `CodecRunner` documents each call."""

    @property
    def pack_frames(self) -> int: ...
    @property
    def priming_slots(self) -> int: ...
    @property
    def priming_sizes(self) -> tuple[int, ...]: ...
    @property
    def kept(self) -> int: ...
    def start(self, slot: StateSlot) -> None: ...
    def copy(
        self, source: StateSlot, target: StateSlot, frames: int
    ) -> torch.cuda.Event | None: ...
    def prime(
        self, slots: list[int], pieces: list[NDArray[np.int64]], frames: int
    ) -> torch.cuda.Event | None: ...
    def launch(
        self, batch: DecodeBatch, pieces: Sequence[NDArray[np.int64]]
    ) -> SamplesInFlight: ...
    def collect(self, flight: SamplesInFlight) -> list[DecodedChunk]: ...
