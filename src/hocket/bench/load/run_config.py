"""Configuration of `hocket bench serve` and `isolation`, checked by the command line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hocket.bench.dataset import Item
from hocket.bench.dialects import Delivery, Dialect
from hocket.bench.http import Target
from hocket.bench.judge.asr import Recogniser
from hocket.bench.judge.outcome import Limits
from hocket.bench.judge.speaker_similarity import SpeakerModel
from hocket.bench.load.generator import Load


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Configuration of one run."""

    target: Target
    dialect: Dialect
    items: list[Item]
    loads: list[Load]
    response_format: str = "pcm"
    delivery: Delivery = "raw"
    model: str | None = None
    api_key: str | None = None
    #: Request i has this seed + i.
    request_seed: int | None = None
    #: Additional fields of every request.
    extra: dict[str, Any] = field(default_factory=dict)
    #: (rate, channels) of raw samples, for servers that state none.
    raw_shape: tuple[int, int] | None = None
    #: Seed of the texts' order, of arrivals and of intervals.
    seed: int = 0
    warmup: int = 2
    timeout_seconds: float = 120.0
    limits: Limits = field(default_factory=Limits)
    has_probe: bool = True
    has_self_check: bool = True
    recogniser: Recogniser | None = None
    max_cer: float = 0.5
    speaker_model: SpeakerModel | None = None
    min_similarity: float | None = None
    #: Folder for the audio of bad answers (None: not kept), and how many failures and worst cases
    #: of each stage.
    audio_folder: Path | None = None
    keep_audio: int = 10

    def as_json(self) -> dict[str, Any]:
        """The configuration as a report has it, without the key, and without the texts, which the
        requests have.
        """
        return {
            "url": self.target.url,
            "dialect": self.dialect.name,
            "items": len(self.items),
            "format": self.response_format,
            "delivery": self.delivery,
            "model": self.model,
            "extra": self.extra,
            "raw_shape": self.raw_shape,
            "warmup": self.warmup,
            "timeout_seconds": self.timeout_seconds,
            "limits": asdict(self.limits),
            "recogniser": None if self.recogniser is None else self.recogniser.name,
            "max_cer": self.max_cer,
            "speaker_model": None if self.speaker_model is None else self.speaker_model.name,
            "min_similarity": self.min_similarity,
        }
