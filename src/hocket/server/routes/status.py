"""The state of the server: models, version, health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from hocket.server.openapi import ERROR_RESPONSES
from hocket.server.services import PlainRoute, services_of

router = APIRouter(route_class=PlainRoute)


@router.get("/v1/models")
async def models(request: Request) -> JSONResponse:
    """The served model, as OpenAI's list of models."""
    entry = {
        "id": services_of(request).model_name,
        "object": "model",
        "created": 0,
        "owned_by": "hocket",
    }
    return JSONResponse({"object": "list", "data": [entry]})


@router.head("/health", include_in_schema=False)
@router.get("/health", responses=ERROR_RESPONSES)
async def health(request: Request) -> JSONResponse:
    """200 while requests are served, otherwise 503; `status` holds the reason."""
    services = services_of(request)
    state = services.state
    rows = services.client.info.rows if state in ("ready", "draining") else 0
    open_requests = (await services.admission.counts()).open
    document = {
        "status": state,
        "live": True,
        "ready": state == "ready",
        "draining": state == "draining",
        "rows": rows,
        "speaking": min(rows, open_requests),
        "waiting": max(0, open_requests - rows),
        "workers": [
            {"status": worker.state, "rows": worker.rows, "open_requests": worker.open_requests}
            for worker in services.client.workers
        ],
    }
    return JSONResponse(document, 200 if state == "ready" else 503)


@router.get("/health/live")
async def health_live(_: Request) -> JSONResponse:
    """200 while this process responds."""
    return JSONResponse({"live": True})


@router.get("/metrics", response_class=Response)
async def metrics_page(request: Request) -> Response:
    """Metrics in Prometheus' format."""
    services = services_of(request)
    page = services.metrics.page(
        ready=services.state == "ready",
        slots=await services.admission.counts(),
        references=services.client.reference_counts,
        workers=services.client.workers,
        stats=await services.client.stats(),
    )
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/version")
async def version(request: Request) -> JSONResponse:
    """Versions of Hocket and of its API, and the served model."""
    return JSONResponse(
        {"version": request.app.version, "api": "v1", "model": services_of(request).model_name}
    )
