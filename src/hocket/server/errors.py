"""Errors in the form of OpenAI's API, on every path: `{"error": {"message", "type", "param",
"code"}}`.
"""

from __future__ import annotations

import http
import logging
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hocket.errors import CapacityError, EngineStoppedError, HocketError

_LOG = logging.getLogger("hocket.server")


class ErrorFields(TypedDict):
    """An error as clients read it."""

    message: str
    type: str
    param: str | None
    code: str


class ApiError(HocketError):
    """An error of HTTP alone, with a status and code of its own."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.http_status = status
        self.code = code
        self.retry_after_seconds = retry_after_seconds


def error_fields(error: HocketError) -> ErrorFields:
    """The fields of `error` for a client."""
    status = error.http_status
    return {
        "message": str(error),
        "type": _type(status),
        "param": error.param,
        "code": error_code(error),
    }


def error_response(error: HocketError) -> JSONResponse:
    """Response to a request that failed before its response began."""
    headers = {}
    retry_after = error.retry_after_seconds if isinstance(error, ApiError) else None
    if error.http_status == http.HTTPStatus.SERVICE_UNAVAILABLE and retry_after is None:
        retry_after = 1
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    if error.http_status == http.HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": error_fields(error)}, error.http_status, headers)


def internal_error(error: Exception) -> ApiError:
    """The error for a bug in Hocket.

    The log says where it happened, the client learns only its type.
    """
    calls = traceback.extract_tb(error.__traceback__)[-5:]
    # Only file names and lines: an exception may quote the user's text.
    place = "<".join(f"{Path(call.filename).name}:{call.lineno}" for call in reversed(calls))
    _LOG.error("event=internal_error error=%s at=%s", type(error).__name__, place)
    return ApiError(
        500,
        f"internal error ({type(error).__name__}); the server's log says where",
        code="internal_error",
    )


def http_error(error: HTTPException, request: Request, methods: Sequence[str]) -> ApiError:
    """Our error for one of the framework: no route, a wrong method (the path takes `methods`), an
    unreadable form.
    """
    status = error.status_code
    if status == http.HTTPStatus.NOT_FOUND:
        return ApiError(
            404, "there is nothing at this address; /docs lists the routes", code="not_found"
        )
    if status == http.HTTPStatus.METHOD_NOT_ALLOWED:
        use = ", ".join(methods)
        return ApiError(
            405, f"{request.method} is not for this route; use {use}", code="method_not_allowed"
        )
    return ApiError(status, str(error.detail), code=http.HTTPStatus(status).name.lower())


def _type(status: int) -> str:
    if status == http.HTTPStatus.UNAUTHORIZED:
        return "authentication_error"
    if status == http.HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return (
        "invalid_request_error"
        if status < http.HTTPStatus.INTERNAL_SERVER_ERROR
        else "server_error"
    )


def error_code(error: HocketError) -> str:
    """The error's code, for programs."""
    if isinstance(error, ApiError):
        return error.code
    if isinstance(error, CapacityError):
        return "overloaded"
    if isinstance(error, EngineStoppedError):
        return "engine_unavailable"
    return (
        "invalid_request"
        if error.http_status < http.HTTPStatus.INTERNAL_SERVER_ERROR
        else "internal_error"
    )
