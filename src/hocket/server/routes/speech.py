"""`POST /v1/audio/speech`: one text, spoken."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from hocket.server.middleware import record_of
from hocket.server.openapi import ERROR_RESPONSES, json_body
from hocket.server.schemas import SpeechBody, json_document, read_body
from hocket.server.services import PlainRoute, services_of
from hocket.server.speech.responses import SpeechResponse

router = APIRouter(route_class=PlainRoute)


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    responses={
        200: {"description": "Audio", "content": {"audio/*": {}, "text/event-stream": {}}},
        **ERROR_RESPONSES,
    },
    openapi_extra=json_body(SpeechBody),
)
async def speech(request: Request) -> Response:
    """Speak a text. The audio is streamed as it is generated, unless `stream` is false."""
    services = services_of(request)
    body = read_body(SpeechBody, await json_document(request), services.settings)
    return SpeechResponse(services, body, record_of(request))
