"""The app: puts routes, middleware, services and error handlers together."""

from __future__ import annotations

import http
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Route, WebSocketRoute

from hocket import __version__
from hocket.errors import HocketError, requirement
from hocket.server.admission import Admission, Slots
from hocket.server.browsers import CrossOriginMiddleware
from hocket.server.errors import ApiError, error_code, error_response, http_error
from hocket.server.metrics import Metrics
from hocket.server.middleware import RequestMiddleware, record_of
from hocket.server.openapi import document_models, documentation_router
from hocket.server.routes import batch, speech, status, tokens, voices
from hocket.server.routes.studio import studio_router
from hocket.server.schemas import BatchBody, SpeechBody
from hocket.server.services import Services, SpeechClient
from hocket.server.settings import ServerSettings
from hocket.server.voice_store import VoiceStore
from hocket.server.websocket.session import websocket_router

_ROUTERS = (speech.router, batch.router, status.router, voices.router, tokens.router)


def create_app(
    client: SpeechClient,
    settings: ServerSettings,
    voice_store: VoiceStore,
    model_name: str = "hocket-mini",
    *,
    admission: Slots | None = None,
    metrics: Metrics | None = None,
) -> FastAPI:
    """An app that speaks through `client`, which stays the caller's to start and stop.

    `admission` and `metrics` are this app's own where none are given.
    """
    app = FastAPI(
        title="Hocket",
        version=__version__,
        description="Text to speech over an OpenAI-compatible API.",
        redoc_url=None,
        docs_url=None,
        # A redirect names the host that the client named.
        redirect_slashes=False,
    )
    metrics = metrics or Metrics()
    app.state.services = Services(
        client, settings, voice_store, admission or Admission(settings), metrics, model_name
    )
    routers = (*_ROUTERS, websocket_router(), studio_router(), documentation_router())
    routes = [
        route
        for route in (*app.routes, *(route for router in routers for route in router.routes))
        if isinstance(route, Route | WebSocketRoute)
    ]
    app.add_middleware(RequestMiddleware, settings=settings, metrics=metrics, routes=routes)
    if settings.cors_origins:
        app.add_middleware(CrossOriginMiddleware, origins=settings.cors_origins)
    app.add_exception_handler(HocketError, _on_error(lambda error, _: _hocket_error(error)))
    app.add_exception_handler(HTTPException, _on_error(_framework_error))
    app.add_exception_handler(RequestValidationError, _on_error(_parameter_error))
    document_models(app, (SpeechBody, BatchBody, tokens.EncodeBody, tokens.DecodeBody))
    for router in routers:
        app.include_router(router)
    return app


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
    """All methods of `path`; the framework knows those of the first of its routes only.

    Pages take GET.
    """
    routes = (route for router in _ROUTERS for route in router.routes)
    here = [
        route for route in routes if isinstance(route, APIRoute) and route.path_regex.match(path)
    ]
    return sorted({method for route in here for method in route.methods or ()}) or ["GET"]


def _parameter_error(error: Exception, _: Request) -> HocketError:
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    name = str(problem["loc"][-1])
    return ApiError(400, f"{name} {requirement(problem)}", param=name, code="invalid_request")
