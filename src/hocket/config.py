"""Settings: frozen, strict, with units in their names. The only file that reads the environment."""

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
    """What a reference recording may be, checked before any model work."""

    min_seconds: PositiveFloat = 0.5
    max_seconds: PositiveFloat = 60.0
    #: Root mean square under which a recording counts as silent (1e-4 is -80 dB of full scale).
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
    """Sizes of chunks (frames) and of decode batches (streams), and how long a chunk may wait."""

    #: Small, because the listener waits for it.
    first_chunk_frames: PositiveInt = 1
    #: Sizes of the chunks after the first, while the player's buffer grows.
    ramp_frames: tuple[PositiveInt, ...] = (2, 4, 8)
    #: Size of every chunk after the ramp, and of all chunks of a request that does not stream. The largest size.
    steady_chunk_frames: PositiveInt = 15
    #: Chunks wait for this many ready streams ...
    min_batch: PositiveInt = 8
    #: ... but no longer than this, and not at all where waiting cannot help.
    max_wait_ms: NonNegativeFloat = 20.0
    max_batch: PositiveInt = 32
    #: Most frames of a batch of first chunks, which a GPU decodes beside the others: earlier, but at a lower rate, as
    #: such batches are small. 0: they go with the others.
    first_batch_frames: NonNegativeInt = 32
    #: A chunk is launched at the latest this long before its player runs dry.
    deadline_margin_ms: NonNegativeFloat = 40.0
    #: The due time of a chunk that nobody plays yet, counted from the moment that it was ready.
    offline_slack_ms: NonNegativeFloat = 500.0
    #: Decode batches launched and not collected; more would only queue up on the device, out of deadline order.
    max_in_flight: PositiveInt = 2

    @model_validator(mode="after")
    def _sizes_grow(self) -> ChunkPolicy:
        if list(self.sizes) != sorted(self.sizes):
            raise ValueError(f"chunk sizes must not shrink from first to ramp to steady, got {self.sizes}")
        if 0 < self.first_batch_frames < self.first_chunk_frames:
            raise ValueError(
                f"first_batch_frames {self.first_batch_frames} is under first_chunk_frames {self.first_chunk_frames}; "
                "raise it, or give 0"
            )
        if self.min_batch > self.max_batch:
            raise ValueError(f"min_batch {self.min_batch} is above max_batch {self.max_batch}; lower it")
        return self

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """First, ramp, steady."""
        return (self.first_chunk_frames, *self.ramp_frames, self.steady_chunk_frames)


class RunawayPolicy(StrictModel):
    """When speech that never stops is ended: too long for its text, in a loop, or silent for good. 0 turns off."""

    #: Frame budget: times the estimated length of the text, which is that of an unhurried reader ...
    multiple: NonNegativeFloat = 4.0
    #: ... and no less than this.
    min_seconds: PositiveFloat = 10.0
    #: 12 letters a second is 130 English words a minute.
    seconds_per_letter: PositiveFloat = 1 / 12
    #: Characters that are syllables or words of their own: Han, kana, Hangul; 4 a second.
    seconds_per_wide_character: PositiveFloat = 0.25
    #: Digits and symbols are read as words: "7" takes as long as "seven".
    seconds_per_digit: PositiveFloat = 0.5
    #: Frames that repeat with a period of up to 8 frames, for this long.
    loop_seconds: NonNegativeFloat = 4.0
    #: Audio below `silence_rms` for this long, beyond the pauses that the text asks for.
    silence_seconds: NonNegativeFloat = 8.0
    #: 1e-3 is -60 dB of full scale.
    silence_rms: PositiveFloat = 1e-3


class ReferenceCacheConfig(StrictModel):
    """Where codes of reference recordings are kept, by content."""

    #: In memory; least recently used ones go first. A second of 12 codebooks takes 1.2 kB.
    max_bytes: PositiveInt = 64 * 2**20
    #: Also kept here, as .npy files, when given: several engines may share a folder.
    folder: Path | None = None


class EngineConfig(StrictModel):
    """How an engine uses its machine."""

    #: Requests spoken at the same time.
    rows: PositiveInt = 16
    #: K/V rows for all requests together; None: `rows` times `max_context_rows`, so that none is ever preempted.
    kv_rows: PositiveInt | None = None
    #: Device memory for weights, K/V, rings and workspace, of both GPUs together where the codec has one of its own;
    #: K/V gets what the rest leaves. None: no bound.
    memory_bytes: PositiveInt | None = None
    #: Longest prompt and speech together, in K/V rows; the model's own limit applies as well.
    max_context_rows: PositiveInt = 8192
    #: Positions that a K/V page holds.
    page_rows: PositiveInt = 32
    #: Prompt rows prefilled per step: what bounds how long a burst of arrivals holds up a running stream.
    prefill_rows_per_step: PositiveInt = 512
    #: Requests that may wait; further ones are refused.
    max_waiting: PositiveInt = 1024
    #: Share K/V pages between prompts that begin alike.
    prefix_cache: bool = True
    #: Default cap on new frames of a request (12.5 frames a second: 4096 are five and a half minutes; spec/moss 1.5).
    max_frames: PositiveInt = 4096
    #: The same bytes for a request and seed whatever else is running: every shape is fixed, at a price in speed.
    strict: bool = False
    #: PyTorch's threads on a CPU; strict mode always uses 1. None: PyTorch's default, but 1 for weights under 256 MiB
    #: where OpenMP's threads spin while they wait (`Environment.openmp_sleeps`), which stalls a small model on a busy
    #: machine.
    cpu_threads: PositiveInt | None = None
    #: Read numbers, abbreviations and symbols out as English words before the model sees them. None: as the checkpoint
    #: says (`text_front` in its hocket.json).
    text_front: bool | None = None
    #: Codec streams kept that have just heard a recording, for requests that continue the same one. Each takes memory
    #: (MOSS: 91 MB in bfloat16), and saves hearing the recording again, which costs as much as speaking it.
    kept_streams: NonNegativeInt = 0
    #: "fp8": 8-bit weights and activations in the talker's and the codec's matrix products, on GPUs that have them.
    quantize: Literal["fp8"] | None = None
    #: "fp8": the talker's keys and values in 8 bits, on GPUs that have them: twice as many fit, and attention reads
    #: half as much. "auto": in the model's dtype.
    kv_dtype: Literal["auto", "fp8"] = "auto"
    #: What audio is handed out as. "int16" is made on the codec's device: half as much is copied and sent, and wav, pcm
    #: and flac at the codec's own rate and speed hold the same samples.
    samples: SampleFormat = "float32"
    #: The GPU of the codec (`cuda:N`), with its streams, references and conversions. None: the talker's device.
    codec_device: str | None = None
    chunks: ChunkPolicy = ChunkPolicy()
    runaway: RunawayPolicy = RunawayPolicy()
    reference: ReferenceLimits = ReferenceLimits()
    reference_cache: ReferenceCacheConfig = ReferenceCacheConfig()


class Environment(StrictModel):
    """The environment variables that Hocket itself reads."""

    #: Set by users of the Hugging Face hub (`HF_HUB_OFFLINE`) to forbid downloads; only reported in messages here.
    hub_offline: bool
    #: `HOCKET_PROFILE`: the profile that `hocket serve` uses when it is given none.
    profile: str | None = None
    #: `HOCKET_API_KEY`: a key for `hocket serve`, which other users of the machine cannot see as they see arguments.
    api_key: str | None = None
    #: `HOCKET_HOME`: where Hocket keeps what must survive a restart, such as uploaded voices.
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


def let_openmp_sleep() -> None:
    """Make OpenMP's threads sleep while they wait, unless PyTorch is loaded already or the user has chosen.

    By default they spin, and on a machine that has other work to do, two of them hold each other up without end.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
