"""Settings: frozen and strict, with units in their names. Only this file reads the environment."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hocket.core import EngineInfo, SampleFormat, StrictModel

PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class ReferenceLimits(StrictModel):
    """Limits of a reference recording, checked before any model work."""

    min_seconds: PositiveFloat = 0.5
    max_seconds: PositiveFloat = 60.0
    #: RMS below which a recording counts as silent (1e-4 is -80 dB of full scale).
    min_rms: PositiveFloat = 1e-4
    max_file_bytes: PositiveInt = 64 * 2**20

    @classmethod
    def of(cls, info: EngineInfo) -> ReferenceLimits:
        """The limits of that engine."""
        return cls(
            min_seconds=info.reference_min_seconds,
            max_seconds=info.reference_max_seconds,
            min_rms=info.reference_min_rms,
            max_file_bytes=info.reference_max_file_bytes,
        )


class ChunkPolicy(StrictModel):
    """Chunk sizes in frames, decode batch sizes in streams, and how long a chunk may wait."""

    #: Small, because the listener waits for it.
    first_chunk_frames: PositiveInt = 1
    #: Sizes of the following chunks, while the player's buffer grows.
    ramp_frames: tuple[PositiveInt, ...] = (2, 4, 8)
    #: Size of every chunk after the ramp, and of every chunk of a request that does not stream. It
    #: is the largest.
    steady_chunk_frames: PositiveInt = 15
    #: Chunks wait until this many streams are ready ...
    min_batch: PositiveInt = 8
    #: ... but at most this long, and not at all when waiting cannot help.
    max_wait_ms: NonNegativeFloat = 20.0
    max_batch: PositiveInt = 32
    #: Maximum frames in a batch of first chunks. A GPU decodes such batches beside the others:
    #: earlier, but at a lower rate because they are small. 0: first chunks are decoded with the
    #: others.
    first_batch_frames: NonNegativeInt = 32
    #: A chunk is launched no later than this before its player runs dry.
    deadline_margin_ms: NonNegativeFloat = 40.0
    #: Deadline of a chunk without a player, counted from the moment that it is ready.
    offline_slack_ms: NonNegativeFloat = 500.0
    #: Decode batches launched and not yet collected; more would queue on the device, out of
    #: deadline order.
    max_in_flight: PositiveInt = 2

    @model_validator(mode="after")
    def _sizes_grow(self) -> ChunkPolicy:
        if list(self.sizes) != sorted(self.sizes):
            raise ValueError(
                f"chunk sizes must not shrink from first to ramp to steady, got {self.sizes}"
            )
        if 0 < self.first_batch_frames < self.first_chunk_frames:
            raise ValueError(
                f"first_batch_frames {self.first_batch_frames} is under first_chunk_frames "
                f"{self.first_chunk_frames}; raise it, or give 0"
            )
        if self.min_batch > self.max_batch:
            raise ValueError(
                f"min_batch {self.min_batch} is above max_batch {self.max_batch}; lower it"
            )
        return self

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The first, ramp and steady sizes."""
        return (self.first_chunk_frames, *self.ramp_frames, self.steady_chunk_frames)


class RunawayPolicy(StrictModel):
    """Rules that end speech which is too long for its text, loops or is silent. 0 disables one."""

    #: Frame budget as a multiple of the text's estimated length at an unhurried pace ...
    multiple: NonNegativeFloat = 4.0
    #: ... but at least this.
    min_seconds: PositiveFloat = 10.0
    #: 12 letters a second is 130 English words a minute.
    seconds_per_letter: PositiveFloat = 1 / 12
    #: For characters that are syllables or words (Han, kana, Hangul): 4 a second.
    seconds_per_wide_character: PositiveFloat = 0.25
    #: For digits and symbols, which are read as words: "7" takes as long as "seven".
    seconds_per_digit: PositiveFloat = 0.5
    #: Duration of a loop: frames that repeat with a period of at most 8.
    loop_seconds: NonNegativeFloat = 4.0
    #: Duration of audio below `silence_rms`, beyond the pauses in the text.
    silence_seconds: NonNegativeFloat = 8.0
    #: 1e-3 is -60 dB of full scale.
    silence_rms: PositiveFloat = 1e-3


class ReferenceCacheConfig(StrictModel):
    """Cache of what was read from recordings (codes, speaker vectors), keyed by their content.

    A front end has one for all its workers, an engine without a front end has its own.
    """

    #: Size in memory; the least recently used are evicted. A second of 12 codebooks takes 1.2 kB, a
    #: speaker vector 4 to 8 kB.
    max_bytes: PositiveInt = 64 * 2**20
    #: Folder for files as a second level, which several engines of one user may share; None: memory
    #: alone. It is made with access for that user alone.
    folder: Path | None = None


class EngineConfig(StrictModel):
    """Configuration of an engine."""

    #: Requests that run at the same time.
    rows: PositiveInt = 16
    #: K/V rows of all requests together; None: `rows` times `max_context_rows`, so that no request
    #: is preempted.
    kv_rows: PositiveInt | None = None
    #: Device memory for weights, K/V, rings and workspace, on both GPUs together when the codec has
    #: its own; K/V gets the remainder. None: no limit.
    memory_bytes: PositiveInt | None = None
    #: Longest prompt and speech together, in K/V rows; the model's own limit applies as well.
    max_context_rows: PositiveInt = 8192
    #: Positions that a K/V page holds.
    page_rows: PositiveInt = 32
    #: Prompt rows prefilled per step; bounds how long a burst of arrivals delays a running stream.
    prefill_rows_per_step: PositiveInt = 512
    #: Requests that may wait; more are refused.
    max_waiting: PositiveInt = 1024
    #: Share K/V pages between prompts with a common prefix.
    prefix_cache: bool = True
    #: Default cap on new frames of a request (12.5 frames a second: 4096 are five and a half
    #: minutes; sources: MOSS 1.5).
    max_frames: PositiveInt = 4096
    #: Give the same bytes for a request and seed whatever else runs. All shapes are fixed, which
    #: costs speed.
    strict: bool = False
    #: PyTorch's threads on a CPU; strict mode always uses 1. None: PyTorch's default, or 1 for
    #: weights under 256 MiB when OpenMP's threads spin while they wait
    #: (`Environment.openmp_sleeps`), which stalls small models on a busy machine.
    cpu_threads: PositiveInt | None = None
    #: Replace numbers, abbreviations and symbols by English words before the model sees them. None:
    #: the checkpoint's setting (`text_front` in its hocket.json).
    text_front: bool | None = None
    #: Primed codec states to keep, for requests that continue the same recording. Each takes memory
    #: (MOSS: 91 MB in bfloat16) and saves decoding the recording again.
    kept_streams: NonNegativeInt = 0
    #: "fp8": 8-bit weights and activations in the matrix products of talker and codec, on GPUs that
    #: support them.
    quantize: Literal["fp8"] | None = None
    #: "fp8": the talker's keys and values in 8 bits, on GPUs that support them: twice as many fit,
    #: and attention reads half as much. "auto": the model's dtype.
    kv_dtype: Literal["auto", "fp8"] = "auto"
    #: Format of the audio. The codec's device converts to "int16": half as much is copied and sent,
    #: and wav, pcm and flac at the codec's own rate and speed hold the same samples.
    samples: SampleFormat = "float32"
    #: GPU of the codec (`cuda:N`), its streams, references and conversions. None: the talker's
    #: device.
    codec_device: str | None = None
    chunks: ChunkPolicy = ChunkPolicy()
    runaway: RunawayPolicy = RunawayPolicy()
    reference: ReferenceLimits = ReferenceLimits()
    reference_cache: ReferenceCacheConfig = ReferenceCacheConfig()


class Environment(StrictModel):
    """The environment variables that Hocket itself reads."""

    #: `HF_HUB_OFFLINE`: forbids downloads from the Hugging Face hub; used only in messages.
    hub_offline: bool
    #: `HOCKET_PROFILE`: default profile of `hocket serve`.
    profile: str | None = None
    #: `HOCKET_API_KEY`: a key for `hocket serve`; unlike arguments, other users of the machine
    #: cannot see it.
    api_key: str | None = None
    #: `HOCKET_HOME`: folder of data that survives a restart, such as uploaded voices.
    home: Path = Path("~/.local/share/hocket")
    #: `OMP_WAIT_POLICY` is passive (`let_openmp_sleep`).
    openmp_sleeps: bool = False

    @classmethod
    def read(cls) -> Environment:
        home = os.environ.get("HOCKET_HOME") or cls.model_fields["home"].default
        return cls(
            hub_offline=os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"},
            profile=os.environ.get("HOCKET_PROFILE") or None,
            api_key=os.environ.get("HOCKET_API_KEY") or None,
            home=Path(home).expanduser(),
            openmp_sleeps=os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive",
        )


def environment_with(**values: str) -> dict[str, str]:
    """This process' environment and `values`, for a process to be started."""
    return {**os.environ, **values}


def usable_cores() -> int:
    """Processor cores that this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def let_openmp_sleep() -> None:
    """Make OpenMP's waiting threads sleep, unless PyTorch is loaded or the user has chosen.

    By default they spin, and on a busy machine two of them block each other.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
