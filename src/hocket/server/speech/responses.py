"""The three forms of a response: encoded audio as it is generated, server-sent events, or one whole
body.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import TypedDict

import numpy as np
from fastapi import Response
from starlette.types import Receive, Scope, Send

from hocket.core import Samples
from hocket.errors import HocketError
from hocket.server.errors import ApiError, error_code, error_fields
from hocket.server.middleware import RequestRecord
from hocket.server.schemas import SpeechBody
from hocket.server.services import Services
from hocket.server.speech.encoders import AudioEncoder, EncodedAudio, encode_whole
from hocket.server.speech.synthesis import Speaking, SpeechPlan, plan_speech, speaking

#: Formats that cost almost nothing to encode. The others are encoded on a thread, to keep the event
#: loop free.
_CHEAP_FORMATS = {"wav", "pcm"}


class Usage(TypedDict):
    """Usage of a request: prompt rows in (template, text and reference), frames of audio out."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


def usage_of(speech: Speaking) -> Usage:
    """Usage of `speech` so far."""
    rows, frames = speech.prompt_rows, speech.frames
    return {"input_tokens": rows, "output_tokens": frames, "total_tokens": rows + frames}


class _ClientStalledError(ApiError):
    """The client does not read, so it cannot be told."""


class SpeechResponse(Response):
    """Runs the whole request when it is called, so that its resources are released however the
    connection ends.

    Errors before the first audio leave as exceptions, so that they get a status of their own.
    """

    def __init__(self, services: Services, body: SpeechBody, record: RequestRecord) -> None:
        super().__init__()
        self._services, self._body, self._record = services, body, record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, record = self._services, self._record
        record.model = services.model_name
        plan = await plan_speech(services, self._body, caller=record.caller)
        if self._body.delivery == "whole":
            await self._send_whole(plan, scope, receive, send)
            return
        await self._send_pieces(plan, send)

    async def _send_pieces(self, plan: SpeechPlan, send: Send) -> None:
        record, is_sse, started = self._record, self._body.delivery == "sse", False
        try:
            with _opening_encoder(self._services, plan) as opening:
                async with speaking(self._services, plan, record) as (speech, pieces):
                    encoder = await opening
                    body = encoded(encoder, plan, pieces)
                    if is_sse:
                        body = _events(body, speech, encoder, record)
                    await self._start(
                        send, plan, encoder, "text/event-stream" if is_sse else encoder.content_type
                    )
                    started = True
                    async with aclosing(body):
                        async for data in body:
                            await self._send(send, data, more=True)
                    await self._send(send, b"", more=False)
        except _ClientStalledError as error:
            record.reason = error.code
        except HocketError as error:
            if not started:
                raise
            record.reason = error_code(error)
            # The status has been sent. Events can carry the error; a body of audio stays
            # incomplete, which the client's HTTP library notices.
            if is_sse:
                with suppress(_ClientStalledError):
                    await self._send(
                        send,
                        _event("speech.audio.error", {"error": error_fields(error)}),
                        more=False,
                    )

    async def _send_whole(
        self, plan: SpeechPlan, scope: Scope, receive: Receive, send: Send
    ) -> None:
        speech, audio = await speak_whole(self._services, plan, self._record)
        headers = _headers(plan, audio.sample_rate, audio.channels) | {
            "X-Audio-Seconds": f"{audio.seconds:.6f}",
            "X-Finish-Reason": speech.finish_reason,
            "X-Input-Tokens": str(speech.prompt_rows),
            "X-Output-Tokens": str(speech.frames),
        }
        await Response(audio.body, headers=headers, media_type=audio.content_type)(
            scope, receive, send
        )

    async def _start(
        self, send: Send, plan: SpeechPlan, encoder: AudioEncoder, content_type: str
    ) -> None:
        headers = _headers(plan, encoder.sample_rate, encoder.channels) | {
            "Content-Type": content_type,
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",  # proxies must not buffer
        }
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _send(self, send: Send, data: bytes, *, more: bool) -> None:
        """Raises _ClientStalledError when the client reads nothing."""
        seconds = self._services.settings.stall_seconds
        try:
            async with asyncio.timeout(seconds):
                await send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise _ClientStalledError(
                408, f"nothing was taken for {seconds:g} s", code="client_stalled"
            ) from None


async def speak_whole(
    services: Services, plan: SpeechPlan, record: RequestRecord
) -> tuple[Speaking, EncodedAudio]:
    """The whole speech of `plan` as one body. Raises what `speaking` raises."""
    async with speaking(services, plan, record) as (speech, pieces):
        whole = [samples_CS async for samples_CS in pieces]
    samples_CS = np.concatenate(whole, axis=1)
    del whole
    return speech, await asyncio.to_thread(
        encode_whole, plan.response_format, samples_CS, speech.sample_rate, plan.body.speed
    )


async def new_encoder(services: Services, plan: SpeechPlan) -> AudioEncoder:
    """The encoder of `plan`.

    Those of compressed formats take milliseconds to open, which happens on a thread.
    """
    return (
        _encoder_of(services, plan)
        if _is_cheap(plan)
        else await asyncio.to_thread(_encoder_of, services, plan)
    )


def _encoder_of(services: Services, plan: SpeechPlan) -> AudioEncoder:
    """The encoder from the engine's audio to the format of `plan`."""
    info = services.client.info
    return AudioEncoder(plan.response_format, info.sample_rate, info.channels, plan.body.speed)


@contextmanager
def _opening_encoder(
    services: Services, plan: SpeechPlan
) -> Iterator[asyncio.Future[AudioEncoder]]:
    """A future of the encoder, which is opened while the engine generates the first audio."""
    opening: asyncio.Future[AudioEncoder]
    if _is_cheap(plan):
        opening = asyncio.get_running_loop().create_future()
        opening.set_result(_encoder_of(services, plan))
    else:
        opening = asyncio.create_task(asyncio.to_thread(_encoder_of, services, plan))
        opening.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # the future may never be awaited
    try:
        yield opening
    finally:
        opening.cancel()


def _is_cheap(plan: SpeechPlan) -> bool:
    return plan.response_format in _CHEAP_FORMATS and plan.body.speed == 1.0


async def encoded(
    encoder: AudioEncoder, plan: SpeechPlan, pieces: AsyncIterator[Samples]
) -> AsyncGenerator[bytes, None]:
    """Encode `pieces`. Nothing is yielded while the encoder buffers."""
    is_cheap = _is_cheap(plan)
    async for samples_CS in pieces:
        data = (
            encoder.feed(samples_CS)
            if is_cheap
            else await asyncio.to_thread(encoder.feed, samples_CS)
        )
        if data:
            yield data
    data = encoder.finish()
    if data:
        yield data


async def _events(
    body: AsyncGenerator[bytes, None],
    speech: Speaking,
    encoder: AudioEncoder,
    record: RequestRecord,
) -> AsyncGenerator[bytes, None]:
    """OpenAI's events for speech without errors."""
    async with aclosing(body):
        async for data in body:
            yield _event("speech.audio.delta", {"audio": base64.b64encode(data).decode()})
    yield _event(
        "speech.audio.done",
        {
            "usage": usage_of(speech),
            "request_id": record.id,
            "seed": speech.plan.seed,
            "finish_reason": speech.finish_reason,
            "audio_seconds": round(encoder.seconds, 6),
            "sample_rate": encoder.sample_rate,
            "channels": encoder.channels,
        },
    )


def _event(kind: str, fields: dict[str, object]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _headers(plan: SpeechPlan, sample_rate: int, channels: int) -> dict[str, str]:
    return {
        "X-Sample-Rate": str(sample_rate),
        "X-Channels": str(channels),
        "X-Seed": str(plan.seed),
    }
