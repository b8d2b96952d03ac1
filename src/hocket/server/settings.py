"""What a server is told: one frozen tree of settings, which profiles fill (see `profiles.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from hocket.config import EngineConfig, NonNegativeFloat, PositiveFloat, PositiveInt
from hocket.core import StrictModel
from hocket.worker.messages import EngineSpec

ResponseFormat = Literal["wav", "pcm", "mp3", "opus", "flac", "aac"]


class FetchPolicy(StrictModel):
    """What may be opened for a request, and for how long."""

    #: http: and https: at all.
    allow_urls: bool = True
    #: Also at addresses that are not public: loopback, private, link-local (the metadata services of clouds) ...
    allow_private: bool = False
    #: The folder in which `file:` URLs and paths may lie. None: no files.
    files_folder: Path | None = None
    #: Of the recording, in a file, a URI or an answer, unpacked.
    max_bytes: PositiveInt = 64 * 2**20
    connect_seconds: PositiveFloat = 5.0
    #: From the resolution of the first host to the last byte.
    total_seconds: PositiveFloat = 10.0
    max_redirects: Annotated[int, Field(ge=0, le=20)] = 3


class ServerSettings(StrictModel):
    """How the HTTP side behaves."""

    host: str = "127.0.0.1"
    #: 0 takes any free port; the ready line names it.
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    #: Any of these opens /v1. None: everybody may.
    api_keys: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    #: What the model is called in /v1/models; None: its folder or hub id, `hocket-mini` for the built-in one.
    model_name: str | None = None
    #: Further names that requests may give, so that programs written for another service run unchanged.
    model_aliases: tuple[str, ...] = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
    #: Where a request names none. OpenAI's default is mp3.
    response_format: ResponseFormat = "mp3"
    #: Unknown fields of a request are an error; otherwise they are ignored.
    strict_fields: bool = True

    #: Of the input of one request.
    max_characters: PositiveInt = 10_000
    #: Longer texts are split at sentences. None: what the model says of itself, else 400, half a minute of speech.
    segment_characters: Annotated[int, Field(ge=20)] | None = None
    #: Silence between the pieces of a split text.
    segment_pause_ms: NonNegativeFloat = 150.0
    batch_items: PositiveInt = 64
    #: Items of one batch that are spoken at the same time.
    batch_concurrency: PositiveInt = 8

    #: Of the body of a request, and of one message on a WebSocket.
    max_body_bytes: PositiveInt = 32 * 2**20
    #: A body that takes longer to arrive is given up.
    body_seconds: PositiveFloat = 60.0
    #: Requests beyond the engine's rows that may wait; more are refused.
    max_queue: Annotated[int, Field(ge=0)] = 64
    #: Open requests of one API key, or of one address where no keys are set. None: any number.
    max_open_per_key: PositiveInt | None = None
    #: A request whose audio has not begun by then is refused.
    first_audio_seconds: PositiveFloat = 60.0
    #: The whole of a request, its listener's pace included.
    request_seconds: PositiveFloat = 1800.0
    #: A listener that takes nothing for this long has gone.
    stall_seconds: PositiveFloat = 60.0
    #: A WebSocket on which nobody says anything for this long is closed.
    socket_idle_seconds: PositiveFloat = 300.0
    #: Audio of one request that may wait for its listener: 64 MiB are 175 s of 48 kHz stereo.
    buffer_bytes: PositiveInt = 64 * 2**20
    #: After SIGTERM, open requests may go on for this long.
    drain_seconds: NonNegativeFloat = 30.0

    #: Where uploaded voices are kept. None: `voices` in Hocket's folder.
    voices_folder: Path | None = None
    #: Of audio in a request to the codec.
    max_codec_seconds: PositiveFloat = 600.0
    max_voice_bytes: PositiveInt = 10 * 2**20
    #: Which recordings may be fetched for a request, and how.
    fetch: FetchPolicy = FetchPolicy()


class Profile(StrictModel):
    """Everything that `hocket serve` runs with."""

    #: Checkpoint folder or hub id; None: the built-in model.
    model: str | None = None
    codec: str | None = None
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    #: GPUs that the engines are spread over, from `cuda:0` on; `device` must be `cuda`. None: all are on `device`.
    gpus: PositiveInt | None = None
    #: Engines, each with `engine`'s rows in a process of its own, behind the one HTTP process: a multiple of `gpus`.
    #: None: one on each GPU.
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    engine: EngineConfig = EngineConfig()
    server: ServerSettings = ServerSettings()

    @field_validator("gpus")
    @classmethod
    def _gpus_are_numbered_here(cls, gpus: int | None, others: ValidationInfo) -> int | None:
        device = others.data.get("device")
        if gpus is not None and device != "cuda":
            raise ValueError(
                f"{gpus} GPUs were asked for, but the device is {device!r}; name a profile for GPUs (--profile latency "
                "or throughput), or --set device=cuda"
            )
        return gpus

    @field_validator("workers")
    @classmethod
    def _workers_fill_the_gpus(cls, workers: int | None, others: ValidationInfo) -> int | None:
        gpus = others.data.get("gpus")
        if workers is not None and gpus is not None and workers % gpus:
            raise ValueError(f"{workers} engines cannot be shared out evenly over {gpus} GPUs; give a multiple")
        return workers

    @property
    def engine_count(self) -> int:
        """Engines behind the one HTTP process."""
        return self.workers or self.gpus or 1

    @property
    def engine_specs(self) -> list[EngineSpec]:
        """What each worker loads."""
        return [
            EngineSpec(
                model=self.model,
                codec=self.codec,
                device=self.device if self.gpus is None else f"cuda:{i % self.gpus}",
                dtype=self.dtype,
                config=self.engine,
                gpus=self.gpus,
                workers=self.engine_count,
                drain_seconds=self.server.drain_seconds,
            )
            for i in range(self.engine_count)
        ]

    @property
    def served_name(self) -> str:
        """The model's name in /v1/models."""
        return self.server.model_name or self.model or "hocket-mini"
