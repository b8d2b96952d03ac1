"""The app: every route, and what is around them."""

from __future__ import annotations

import http
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from hocket import __version__
from hocket.errors import HocketError, requirement
from hocket.server.admission import Admission
from hocket.server.errors import ApiError, error_code, error_response, http_error
from hocket.server.gate import Gate, record_of
from hocket.server.metrics import Metrics
from hocket.server.openapi import ERROR_ANSWERS, document_models, json_body, json_document
from hocket.server.routes.batch import speak_batch
from hocket.server.routes.studio import studio_router
from hocket.server.routes.tokens import DecodeBody, EncodeBody
from hocket.server.routes.tokens import router as token_router
from hocket.server.routes.voices import router as voice_router
from hocket.server.schemas import BatchBody, SpeechBody, read_body
from hocket.server.services import Services, SpeechClient, services_of
from hocket.server.settings import ServerSettings
from hocket.server.speech.responses import SpeechAnswer
from hocket.server.voice_store import VoiceStore
from hocket.server.websocket.session import websocket_router


class _PlainRoute(APIRoute):
    """Its endpoint takes the request and returns the answer, so FastAPI has nothing to work out for it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


router = APIRouter(route_class=_PlainRoute)


def create_app(
    client: SpeechClient, settings: ServerSettings, voices: VoiceStore, model_name: str = "hocket-mini"
) -> FastAPI:
    """An app that speaks through `client`, which stays the caller's to start and stop."""
    app = FastAPI(
        title="Hocket",
        version=__version__,
        description="Text to speech over an OpenAI-compatible API.",
        redoc_url=None,
    )
    metrics = Metrics()
    app.state.services = Services(client, settings, voices, Admission(settings), metrics, model_name)
    app.add_middleware(Gate, settings=settings, metrics=metrics)
    app.add_exception_handler(HocketError, _on_error(lambda error, _: _hocket_error(error)))
    app.add_exception_handler(HTTPException, _on_error(_framework_error))
    app.add_exception_handler(RequestValidationError, _on_error(_parameter_error))
    document_models(app, (SpeechBody, BatchBody, EncodeBody, DecodeBody))
    app.include_router(router)
    app.include_router(voice_router)
    app.include_router(token_router)
    app.include_router(websocket_router())
    app.include_router(studio_router())
    return app


# ---- speech


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    responses={200: {"description": "Audio", "content": {"audio/*": {}, "text/event-stream": {}}}, **ERROR_ANSWERS},
    openapi_extra=json_body(SpeechBody),
)
async def speech(request: Request) -> Response:
    """Speak a text. The audio is streamed as it is made, unless `stream` is false."""
    services = services_of(request)
    body = read_body(SpeechBody, await json_document(request), services.settings)
    return SpeechAnswer(services, body, record_of(request))


@router.post(
    "/v1/audio/speech/batch",
    responses={200: {"description": "All items", "content": {"application/zip": {}}}, **ERROR_ANSWERS},
    openapi_extra=json_body(BatchBody),
)
async def speech_batch(request: Request) -> Response:
    """Speak many texts; each succeeds or fails by itself."""
    services = services_of(request)
    document = await json_document(request)
    body = read_body(BatchBody, document, services.settings)
    return await speak_batch(services, body, document, record_of(request))


# ---- about the server


@router.get("/v1/models")
async def models(request: Request) -> JSONResponse:
    """The one model that is served, in OpenAI's list."""
    entry = {"id": services_of(request).model_name, "object": "model", "created": 0, "owned_by": "hocket"}
    return JSONResponse({"object": "list", "data": [entry]})


@router.head("/health", include_in_schema=False)
@router.get("/health", responses=ERROR_ANSWERS)
async def health(request: Request) -> JSONResponse:
    """200 while speech is served; otherwise 503, and `status` says why."""
    services = services_of(request)
    state = services.state
    rows = services.client.info.rows if state in ("ready", "draining") else 0
    document = {
        "status": state,
        "live": True,
        "ready": state == "ready",
        "draining": state == "draining",
        "rows": rows,
        "speaking": min(rows, services.admission.open),
        "waiting": max(0, services.admission.open - rows),
        "workers": [
            {"status": worker.state, "rows": worker.rows, "open_requests": worker.open_requests}
            for worker in services.client.workers
        ],
    }
    return JSONResponse(document, 200 if state == "ready" else 503)


@router.get("/health/live")
async def health_live(_: Request) -> JSONResponse:
    """200 while this process answers."""
    return JSONResponse({"live": True})


@router.get("/metrics", response_class=Response)
async def metrics_page(request: Request) -> Response:
    """For Prometheus."""
    services = services_of(request)
    page = services.metrics.page(
        ready=services.state == "ready",
        open_requests=services.admission.open,
        refused=services.admission.refused,
        workers=services.client.workers,
        stats=await services.client.stats(),
    )
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version")
async def version(request: Request) -> JSONResponse:
    """Versions of Hocket and of its API, and the model."""
    return JSONResponse({"version": __version__, "api": "v1", "model": services_of(request).model_name})


# ---- errors


def _on_error(
    translate: Callable[[Exception, Request], HocketError],
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        problem = translate(error, request)
        record_of(request).reason = error_code(problem)
        response = error_response(problem)
        if isinstance(error, HTTPException):
            response.headers.update(error.headers or {})
        return response

    return answer


def _hocket_error(error: Exception) -> HocketError:
    assert isinstance(error, HocketError)
    return error


def _framework_error(error: Exception, request: Request) -> HocketError:
    assert isinstance(error, HTTPException)
    methods = _methods(request.url.path)
    if error.status_code == http.HTTPStatus.METHOD_NOT_ALLOWED:
        error.headers = {"Allow": ", ".join(methods)}
    return http_error(error, request, methods)


def _methods(path: str) -> list[str]:
    """All that `path` takes; the framework knows those of the first of its routes only. Pages are to be got."""
    routes = (route for each in (router, voice_router, token_router) for route in each.routes)
    here = [route for route in routes if isinstance(route, APIRoute) and route.path_regex.match(path)]
    return sorted({method for route in here for method in route.methods or ()}) or ["GET"]


def _parameter_error(error: Exception, _: Request) -> HocketError:
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    name = str(problem["loc"][-1])
    return ApiError(400, f"{name} {requirement(problem)}", param=name, code="invalid_request")
