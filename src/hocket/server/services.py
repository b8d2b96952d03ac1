"""Dependencies of the routes: one frozen bundle, found at `app.state.services`, and their class."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from fastapi import Request, Response
from fastapi.routing import APIRoute
from numpy.typing import NDArray
from starlette.requests import HTTPConnection

from hocket.core import EncodedReference, EngineInfo, PreparedReference, SpeechRequest
from hocket.server.admission import Slots
from hocket.server.metrics import Metrics
from hocket.server.settings import ServerSettings
from hocket.server.voice_store import VoiceStore
from hocket.worker.client import State
from hocket.worker.messages import Stats
from hocket.worker.pool import WorkerStatus
from hocket.worker.stream import SpeechStream


class SpeechClient(Protocol):
    """The server's view of `hocket.worker.pool.EnginePool`, which documents each call."""

    @property
    def state(self) -> State: ...
    @property
    def info(self) -> EngineInfo: ...
    @property
    def workers(self) -> Sequence[WorkerStatus]: ...
    @property
    def reference_counts(self) -> tuple[int, int]: ...
    async def submit(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool = True,
    ) -> SpeechStream: ...
    async def read(self, content: bytes) -> PreparedReference: ...
    async def prepare(self, recording: PreparedReference) -> EncodedReference: ...
    async def encode(
        self, samples_CS: NDArray[np.float32], n_codebooks: int | None = None
    ) -> NDArray[np.int64]: ...
    async def decode(self, codes_FN: NDArray[np.int64]) -> NDArray[np.float32]: ...
    async def stats(self) -> Sequence[Stats | None]: ...


#: Default where neither the settings nor the model limit the length of a segment.
_SEGMENT_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one server."""

    client: SpeechClient
    settings: ServerSettings
    voices: VoiceStore
    admission: Slots
    metrics: Metrics
    #: Name of the model in /v1/models.
    model_name: str

    @property
    def state(self) -> State:
        """State of the server: the engine's, or `draining` while this front end takes no new
        requests.
        """
        state = self.client.state
        return "draining" if self.admission.draining and state == "ready" else state

    def voices_of(self, caller: str) -> VoiceStore:
        """The voices of `caller` (`RequestRecord.caller`): its own and everybody's where it has an
        API key.
        """
        has_owner = self.settings.api_keys and not self.settings.voices_shared
        return self.voices.of(caller) if has_owner else self.voices

    @property
    def segment_characters(self) -> int:
        """Longest segment of a text.

        Raises EngineStoppedError while there is no engine, as the model may set it.
        """
        return (
            self.settings.segment_characters
            or self.client.info.segment_characters
            or _SEGMENT_CHARACTERS
        )


def services_of(connection: HTTPConnection) -> Services:
    """The services of the app that serves `connection`."""
    services = connection.app.state.services
    assert isinstance(services, Services)
    return services


class PlainRoute(APIRoute):
    """A route whose endpoint takes the request and returns the response, so that FastAPI resolves
    no parameters.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler
