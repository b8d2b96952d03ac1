"""Named voices over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import UploadFile

from hocket.errors import InvalidRequestError, ReferenceAudioError
from hocket.server.middleware import record_of
from hocket.server.openapi import ERROR_RESPONSES
from hocket.server.services import services_of
from hocket.server.speech.encoders import encode_whole
from hocket.server.voice_store import Voice, VoiceStore

router = APIRouter(prefix="/v1/audio/voices")

#: `consent` is required by vLLM-Omni and ignored here.
_FIELDS = ("audio_sample", "name", "ref_text", "speaker_description", "consent")
_FORM = {
    "type": "object",
    "required": ["audio_sample", "name"],
    "properties": {name: {"type": "string"} for name in _FIELDS}
    | {"audio_sample": {"type": "string", "format": "binary"}},
}


@router.get("")
async def list_voices(request: Request) -> JSONResponse:
    """All voices, the built-in ones first."""
    voices = await asyncio.to_thread(_voices(request).listed)
    return JSONResponse({"voices": [_entry(voice) for voice in voices]})


@router.post(
    "",
    responses=ERROR_RESPONSES,
    openapi_extra={
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}
    },
)
async def upload_voice(request: Request) -> JSONResponse:
    """Store a recording as a voice. It replaces a voice of that name once it is complete."""
    services = services_of(request)
    sample, fields = await _read_form(request)
    info, store = services.client.info, _voices(request)
    draft = await asyncio.to_thread(
        store.draft,
        fields["name"],
        len(sample),
        description=fields.get("speaker_description", ""),
        transcript=fields.get("ref_text") or None,
    )
    try:
        recording = await services.client.read(sample)
    except ReferenceAudioError as error:
        raise error.renamed({"reference": "audio_sample"}) from error
    encoded = await services.client.prepare(recording)
    voice = await asyncio.to_thread(store.save, draft, recording, encoded, info.reference_id)
    return JSONResponse({"success": True, "voice": _entry(voice)})


@router.get("/{name}/preview", response_class=Response, responses=ERROR_RESPONSES)
async def preview_voice(request: Request, name: str) -> Response:
    """The audio that a voice is cloned from: its recording, or its decoded codes."""
    services = services_of(request)
    builtin = services.voices.builtin(name)
    if builtin is None or builtin.codes is None:
        return Response(
            await asyncio.to_thread(_voices(request).preview, name), media_type="audio/wav"
        )
    info = services.client.info
    async with services.admission.slot(record_of(request).caller, info.rows):
        samples_CS = await services.client.decode(builtin.codes)
    audio = await asyncio.to_thread(encode_whole, "wav", samples_CS, info.sample_rate, 1.0)
    return Response(audio.body, media_type=audio.content_type)


@router.delete("/{name}", responses=ERROR_RESPONSES)
async def delete_voice(request: Request, name: str) -> JSONResponse:
    """Forget an uploaded voice."""
    await asyncio.to_thread(_voices(request).delete, name)
    return JSONResponse({"success": True, "name": name})


def _voices(request: Request) -> VoiceStore:
    return services_of(request).voices_of(record_of(request).caller)


async def _read_form(request: Request) -> tuple[bytes, dict[str, str]]:
    """The recording and the other fields. Raises InvalidRequestError."""
    async with request.form(max_files=1, max_fields=len(_FIELDS)) as form:
        unknown = [name for name in form if name not in _FIELDS]
        if unknown:
            raise InvalidRequestError(
                f"{unknown[0][:100]}: an unknown field; leave it out", param=unknown[0][:100]
            )
        sample = form.get("audio_sample")
        if not isinstance(sample, UploadFile):
            raise InvalidRequestError(
                "audio_sample is missing; send a form (multipart/form-data) with a file",
                param="audio_sample",
            )
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        if not fields.get("name"):
            raise InvalidRequestError("name is missing; give the voice one", param="name")
        return await sample.read(), fields


def _entry(voice: Voice) -> dict[str, Any]:
    entry = {
        "name": voice.name,
        "builtin": voice.kind == "builtin",
        "kind": voice.kind,
        "speaker_description": voice.description,
        "ref_text": voice.transcript,
        "seconds": voice.seconds,
        "preview": voice.preview,
        "created_at": voice.created,
        "problem": voice.problem,
    }
    return {key: value for key, value in entry.items() if value not in (None, "")}
