"""The studio: one page at `/` with its scripts and style sheet, from the package's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response

_FOLDER = Path(__file__).parents[1] / "studio"
#: Address, file and media type of each part.
_FILES = (
    ("/", "index.html", "text/html"),
    ("/studio/studio.css", "studio.css", "text/css"),
    ("/studio/studio.js", "studio.js", "text/javascript"),
    ("/studio/player.js", "player.js", "text/javascript"),
    ("/studio/take.js", "take.js", "text/javascript"),
)
#: What the page may load and talk to: this server alone. Its icon is in it, and recordings play
#: from the browser's memory.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def studio_router() -> APIRouter:
    """The page and its files.

    They are public: requests of the page to `/v1` carry the user's API key.
    """
    router = APIRouter(include_in_schema=False)
    for address, name, media_type in _FILES:
        _serve(router, address, (_FOLDER / name).read_bytes(), media_type)
    return router


def _serve(router: APIRouter, address: str, content: bytes, media_type: str) -> None:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {
        # Browsers revalidate each time, so that a new page never runs an old script after an
        # update.
        "Cache-Control": "no-cache",
        "ETag": tag,
        "Content-Security-Policy": _POLICY,
    }

    async def answer(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    router.add_api_route(address, answer, methods=["GET"])
