"""`POST /v1/audio/speech/batch`: many texts in one request; each succeeds or fails by itself."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import zipfile
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from hocket.errors import HocketError, InvalidRequestError
from hocket.server.errors import error_fields
from hocket.server.middleware import RequestRecord, record_of
from hocket.server.openapi import ERROR_RESPONSES, json_body
from hocket.server.schemas import (
    ALIASES,
    BatchBody,
    SpeechBody,
    VoiceFields,
    json_document,
    read_body,
)
from hocket.server.services import PlainRoute, Services, services_of
from hocket.server.settings import ServerSettings
from hocket.server.speech.encoders import EncodedAudio
from hocket.server.speech.responses import Usage, speak_whole, usage_of
from hocket.server.speech.synthesis import plan_speech

router = APIRouter(route_class=PlainRoute)

#: Fields about the delivery of one response; a batch is sent whole.
_NOT_IN_ITEMS = ("stream", "stream_format")


@dataclass(frozen=True, slots=True)
class _Spoken:
    audio: EncodedAudio
    seed: int
    finish_reason: str
    usage: Usage
    suffix: str


@router.post(
    "/v1/audio/speech/batch",
    responses={
        200: {"description": "All items", "content": {"application/zip": {}}},
        **ERROR_RESPONSES,
    },
    openapi_extra=json_body(BatchBody),
)
async def speech_batch(request: Request) -> Response:
    """Speak many texts; each succeeds or fails by itself."""
    services = services_of(request)
    document = await json_document(request)
    body = read_body(BatchBody, document, services.settings)
    return await _speak_batch(services, body, document, record_of(request))


async def _speak_batch(
    services: Services, body: BatchBody, document: dict[str, Any], record: RequestRecord
) -> Response:
    """Speak all items, some concurrently.

    Raises InvalidRequestError for errors of the whole batch.
    """
    settings = services.settings
    if len(body.items) > settings.batch_items:
        raise InvalidRequestError(
            f"items has {len(body.items)} entries, the most is {settings.batch_items}; send "
            "several batches",
            param="items",
        )
    defaults = {
        name: value
        for name, value in document.items()
        if ALIASES.get(name, name) in VoiceFields.model_fields
    }
    turns = asyncio.Semaphore(settings.batch_concurrency)

    async def speak(item: dict[str, Any]) -> _Spoken | HocketError:
        async with turns:
            try:
                return await _speak(services, _item_body(defaults, item, settings), record)
            except HocketError as error:
                return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(speak(item)) for item in body.items]
    results = [task.result() for task in tasks]
    record.reason = "batch"
    return (
        _zip(results, record.id)
        if body.output == "zip"
        else JSONResponse(_document(results, record.id))
    )


def _item_body(
    defaults: dict[str, Any], item: dict[str, Any], settings: ServerSettings
) -> SpeechBody:
    """The item's fields over the batch's defaults. Raises InvalidRequestError."""
    for name in _NOT_IN_ITEMS:
        if name in item:
            raise InvalidRequestError(
                f"{name} is not for a batch, which is answered whole; leave it out", param=name
            )
    own = {ALIASES.get(name, name) for name in item}
    inherited = {
        name: value for name, value in defaults.items() if ALIASES.get(name, name) not in own
    }
    return read_body(SpeechBody, {**inherited, **item, "stream": False}, settings)


async def _speak(services: Services, body: SpeechBody, record: RequestRecord) -> _Spoken:
    # Items run concurrently, so each has a record of its own.
    own = RequestRecord(record.id, record.method, record.path, record.caller)
    async with services.admission.slot(record.caller, services.client.info.rows):
        plan = await plan_speech(services, body, caller=record.caller)
        speech, audio = await speak_whole(services, plan, own)
    record.frames += own.frames
    record.audio_seconds += own.audio_seconds
    return _Spoken(audio, plan.seed, speech.finish_reason, usage_of(speech), plan.response_format)


def _document(
    results: list[_Spoken | HocketError], batch_id: str, *, with_audio: bool = True
) -> dict[str, object]:
    entries: list[dict[str, object]] = []
    for i, result in enumerate(results):
        if isinstance(result, HocketError):
            entries.append({"index": i, "status": "error", "error": error_fields(result)})
            continue
        entry: dict[str, object] = {
            "index": i,
            "status": "success",
            "media_type": result.audio.content_type,
            "sample_rate": result.audio.sample_rate,
            "channels": result.audio.channels,
            "audio_seconds": round(result.audio.seconds, 6),
            "seed": result.seed,
            "finish_reason": result.finish_reason,
            "usage": result.usage,
        }
        if with_audio:
            entry["audio_data"] = base64.b64encode(result.audio.body).decode()
        else:
            entry["file"] = _file_name(i, result)
        entries.append(entry)
    failed = sum(isinstance(result, HocketError) for result in results)
    return {
        "id": batch_id,
        "results": entries,
        "total": len(results),
        "succeeded": len(results) - failed,
        "failed": failed,
    }


def _zip(results: list[_Spoken | HocketError], batch_id: str) -> Response:
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", zipfile.ZIP_STORED
    ) as archive:  # audio does not compress further
        archive.writestr(
            "results.json", json.dumps(_document(results, batch_id, with_audio=False), indent=1)
        )
        for i, result in enumerate(results):
            if isinstance(result, _Spoken):
                archive.writestr(_file_name(i, result), result.audio.body)
    return Response(
        buffer.getvalue(),
        media_type="application/zip",
        headers={"Content-Disposition": 'attachment; filename="speech.zip"'},
    )


def _file_name(i: int, result: _Spoken) -> str:
    return f"{i:03d}.{result.suffix}"
