"""The settings of a server: one frozen tree, `Profile`, which `profiles.py` loads from files and
flags.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from hocket.config import (
    EngineConfig,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    usable_cores,
)
from hocket.core import StrictModel
from hocket.worker.messages import EngineSpec

HostName = Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])$")]
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[a-z0-9._\[\]:-]+)$")]
ResponseFormat = Literal["wav", "pcm", "mp3", "opus", "flac", "aac"]


class FetchPolicy(StrictModel):
    """Which recordings the server opens for a request, and for how long it tries."""

    #: Whether http: and https: URLs are fetched.
    allow_urls: bool = True
    #: Whether that includes addresses that are not public: loopback, private, link-local (the
    #: metadata services of clouds) ...
    allow_private: bool = False
    #: Folder of the files that `file:` URLs and paths may name. None: no files.
    files_folder: Path | None = None
    #: Largest recording in a file, a URI or a response, after decompression.
    max_bytes: PositiveInt = 64 * 2**20
    connect_seconds: PositiveFloat = 5.0
    #: Time limit from the resolution of the first host to the last byte.
    total_seconds: PositiveFloat = 10.0
    max_redirects: Annotated[int, Field(ge=0, le=20)] = 3


class ServerSettings(StrictModel):
    """Settings of the HTTP side."""

    host: str = "127.0.0.1"
    #: 0 takes any free port, which the `address` line names.
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    #: Names that requests may have as Host, besides the usual ones (docs/security.md); `*`: any.
    allowed_hosts: tuple[HostName, ...] = ()
    #: Origins (`https://app.example`) whose pages may use the server; `*`: any.
    cors_origins: tuple[Origin, ...] = ()
    #: Processes that serve HTTP. None: one, and more where there are the cores for it
    #: (`Profile.http_processes`).
    http_workers: Annotated[int, Field(ge=1, le=64)] | None = None
    #: Accepted API keys; empty disables authentication.
    api_keys: tuple[Annotated[str, Field(min_length=1)], ...] = ()

    #: Name of the model in /v1/models. None: its folder or hub id, `hocket-mini` for the built-in
    #: one.
    model_name: str | None = None
    #: Further names that requests may give, so that programs written for other services run
    #: unchanged.
    model_aliases: tuple[str, ...] = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
    #: Format for requests that name none. OpenAI's default is mp3.
    response_format: ResponseFormat = "mp3"
    #: Whether unknown fields of a request are an error. False: they are ignored.
    strict_fields: bool = True

    #: Longest input of one request.
    max_characters: PositiveInt = 10_000
    #: Longer texts are split at sentences. None: the model's own limit, else 400, half a minute of
    #: speech.
    segment_characters: Annotated[int, Field(ge=20)] | None = None
    #: Silence between the segments of a split text.
    segment_pause_ms: NonNegativeFloat = 150.0
    batch_items: PositiveInt = 64
    #: Items of one batch that are spoken concurrently.
    batch_concurrency: PositiveInt = 8

    #: Largest body of a request, and largest message on a WebSocket.
    max_body_bytes: PositiveInt = 32 * 2**20
    #: Time limit for the arrival of a body.
    body_seconds: PositiveFloat = 60.0
    #: Requests that may wait beyond the engine's rows; more are refused.
    max_queue: Annotated[int, Field(ge=0)] = 64
    #: Open requests per API key, or per address where no keys are set. None: any number.
    max_open_per_key: PositiveInt | None = None
    #: Time limit for the first audio of a request.
    first_audio_seconds: PositiveFloat = 60.0
    #: Time limit for a whole request, however slowly its client reads.
    request_seconds: PositiveFloat = 1800.0
    #: A client that reads nothing for this long is taken for gone.
    stall_seconds: PositiveFloat = 60.0
    #: A WebSocket without messages for this long is closed.
    socket_idle_seconds: PositiveFloat = 300.0
    #: Audio of one request that may wait for its client: 64 MiB are 175 s of 48 kHz stereo.
    buffer_bytes: PositiveInt = 64 * 2**20
    #: Time for open requests to finish after SIGTERM.
    drain_seconds: NonNegativeFloat = 30.0

    #: Folder of uploaded voices. None: `voices` in Hocket's folder.
    voices_folder: Path | None = None
    #: Whether a voice that is uploaded with an API key is everybody's. False: that key's alone.
    voices_shared: bool = False
    #: Longest audio in a request to the codec.
    max_codec_seconds: PositiveFloat = 600.0
    max_voice_bytes: PositiveInt = 10 * 2**20
    #: Which recordings the server fetches for a request, and how.
    fetch: FetchPolicy = FetchPolicy()


class Profile(StrictModel):
    """All settings of `hocket serve`."""

    #: Checkpoint folder or hub id; None: the built-in model.
    model: str | None = None
    codec: str | None = None
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    #: GPUs to spread the engines over, from `cuda:0` on; `device` must be `cuda`. None: all are on
    #: `device`.
    gpus: PositiveInt | None = None
    #: Engines behind the one address, each with `engine`'s rows in a process of its own; a
    #: multiple of `gpus`. None: one on each GPU.
    workers: Annotated[int, Field(ge=1, le=256)] | None = None
    engine: EngineConfig = EngineConfig()
    server: ServerSettings = ServerSettings()

    @field_validator("gpus")
    @classmethod
    def _gpus_are_numbered_here(cls, gpus: int | None, others: ValidationInfo) -> int | None:
        device = others.data.get("device")
        if gpus is not None and device != "cuda":
            raise ValueError(
                f"{gpus} GPUs were asked for, but the device is {device!r}; name a profile for "
                "GPUs (--profile latency or throughput), or --set device=cuda"
            )
        return gpus

    @field_validator("workers")
    @classmethod
    def _workers_fill_the_gpus(cls, workers: int | None, others: ValidationInfo) -> int | None:
        gpus = others.data.get("gpus")
        if workers is not None and gpus is not None and workers % gpus:
            raise ValueError(
                f"{workers} engines cannot be shared out evenly over {gpus} GPUs; give a multiple"
            )
        return workers

    @property
    def engine_count(self) -> int:
        """Engines behind the one address."""
        return self.workers or self.gpus or 1

    @property
    def http_processes(self) -> int:
        """Processes that serve HTTP. By default one for each engine on a GPU, where eight cores or
        more are left for each.
        """
        if self.server.http_workers is not None:
            return self.server.http_workers
        if self.device == "cpu":  # the engine takes the cores
            return 1
        return max(1, min(self.engine_count, usable_cores() // 8))

    @property
    def engine_specs(self) -> list[EngineSpec]:
        """One spec for each worker."""
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
