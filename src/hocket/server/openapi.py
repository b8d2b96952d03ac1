"""Parts of the OpenAPI document: bodies that routes read themselves, and errors."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from hocket.server.schemas import Body

#: Error responses of every route.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for status, text in {
        400: "The request must change; `param` names the field",
        401: "No valid API key",
        403: "The page of another site may not do this",
        404: "No such model, voice or address",
        413: "The body is too large",
        415: "The body is not JSON",
        421: "The server does not answer to this name",
        429: "Too many open requests of this caller",
        503: "No room, or no engine, now; Retry-After says when to come again",
        504: "The deadline has passed",
    }.items()
}


#: Reference to a model within the document.
_REF = "#/components/schemas/{model}"
#: Folder of the scripts and the style sheet of `/docs`.
_SWAGGER = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5/"


class ErrorFields(BaseModel):
    """The error of a request."""

    message: str
    type: str
    param: str | None
    code: str


class Error(BaseModel):
    """Body of every response other than 2xx."""

    error: ErrorFields


def json_body(model: type[Body]) -> dict[str, Any]:
    """OpenAPI entry of a route that reads its body itself, as `model`."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def document_models(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Add the schemas that `json_body` and `ERROR_RESPONSES` refer to, to the OpenAPI document of
    `app`.
    """
    framework = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            inputs: list[tuple[type[BaseModel], Literal["validation"]]] = [(Error, "validation")]
            inputs += [(model, "validation") for model in models]
            _, definitions = models_json_schema(inputs, ref_template=_REF)
            schemas = framework().setdefault("components", {}).setdefault("schemas", {})
            schemas.update(definitions["$defs"])
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def documentation_router() -> APIRouter:
    """The router of `/docs`: FastAPI's page, which loads Swagger UI from a public address."""
    page = get_swagger_ui_html(openapi_url="openapi.json", title="Hocket")
    inline = re.findall(rb"<script>(.*?)</script>", bytes(page.body), re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in inline]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    page.headers["Content-Security-Policy"] = (
        f"default-src 'none'; script-src {_SWAGGER} {allowed}; style-src {_SWAGGER} "
        "'unsafe-inline'; img-src data: https://fastapi.tiangolo.com; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    router = APIRouter(include_in_schema=False)

    async def documentation(_: Request) -> Response:
        return page

    router.add_api_route("/docs", documentation, methods=["GET"])
    return router
