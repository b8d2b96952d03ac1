"""The codec as a service: recordings to codes and codes to audio, chunk by chunk beside speech."""

from __future__ import annotations

import asyncio
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from hocket.audio.reference import prepare_audio
from hocket.errors import AudioFileError, InvalidRequestError, ReferenceAudioError
from hocket.server.openapi import ERROR_RESPONSES, json_body
from hocket.server.schemas import Body, json_document, read_body
from hocket.server.services import services_of
from hocket.server.settings import ResponseFormat
from hocket.server.speech.encoders import encode_whole
from hocket.server.speech.voice import fetch

router = APIRouter(prefix="/v1/audio/tokens")

_MAX_CODE = 2**31 - 1
_Frame = Annotated[list[Annotated[int, Field(ge=0, le=_MAX_CODE)]], Field(min_length=1)]


class EncodeBody(Body):
    """POST /v1/audio/tokens/encode."""

    #: data:, http(s): or file: URL of a recording.
    audio: str
    #: Number of codebooks to keep; absent: all of the codec's.
    codebooks: Annotated[int, Field(ge=1, le=1024)] | None = None


class DecodeBody(Body):
    """POST /v1/audio/tokens/decode."""

    #: A list per frame, with a code per codebook.
    codes: Annotated[list[_Frame], Field(min_length=1)]
    response_format: ResponseFormat = "wav"
    speed: Annotated[float, Field(ge=0.25, le=4.0, allow_inf_nan=False)] = 1.0


@router.post("/encode", responses=ERROR_RESPONSES, openapi_extra=json_body(EncodeBody))
async def encode_tokens(request: Request) -> JSONResponse:
    """Encode a recording at its own loudness. The last frame is padded with silence."""
    services = services_of(request)
    body = read_body(EncodeBody, await json_document(request), services.settings)
    info = services.client.info
    data = await fetch(services, body.audio, "audio")
    try:
        samples_CS = await asyncio.to_thread(
            prepare_audio,
            data,
            sample_rate=info.sample_rate,
            channels=info.channels,
            max_seconds=services.settings.max_codec_seconds,
        )
    except (AudioFileError, ReferenceAudioError) as error:
        raise InvalidRequestError(str(error), param="audio") from None
    codes_FN = await services.client.encode(samples_CS, body.codebooks)
    return JSONResponse(
        {
            "codes": codes_FN.tolist(),
            "frames": codes_FN.shape[0],
            "codebooks": codes_FN.shape[1],
            "frame_seconds": info.frame_seconds,
            "sample_rate": info.sample_rate,
        }
    )


@router.post(
    "/decode",
    response_class=Response,
    responses={200: {"description": "Audio", "content": {"audio/*": {}}}, **ERROR_RESPONSES},
    openapi_extra=json_body(DecodeBody),
)
async def decode_tokens(request: Request) -> Response:
    """Decode codes to audio."""
    services = services_of(request)
    body = read_body(DecodeBody, await json_document(request), services.settings)
    if len({len(frame) for frame in body.codes}) != 1:
        raise InvalidRequestError(
            "codes has frames of different lengths; give each as many codes", param="codes"
        )
    info, max_seconds = services.client.info, services.settings.max_codec_seconds
    if len(body.codes) * info.frame_seconds > max_seconds:
        raise InvalidRequestError(
            f"codes last longer than {max_seconds:g} s; send fewer frames", param="codes"
        )
    samples_CS = await services.client.decode(np.array(body.codes, np.int64))
    audio = await asyncio.to_thread(
        encode_whole, body.response_format, samples_CS, info.sample_rate, body.speed
    )
    headers = {
        "X-Sample-Rate": str(audio.sample_rate),
        "X-Channels": str(audio.channels),
        "X-Audio-Seconds": f"{audio.seconds:.6f}",
    }
    return Response(audio.body, headers=headers, media_type=audio.content_type)
