"""The studio: one page at `/`, and the scripts and style sheet that it needs, all parts of the package."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response

_FOLDER = Path(__file__).parents[1] / "studio"
#: Address, file and type of everything there is.
_FILES = (
    ("/", "index.html", "text/html"),
    ("/studio/studio.css", "studio.css", "text/css"),
    ("/studio/studio.js", "studio.js", "text/javascript"),
    ("/studio/player.js", "player.js", "text/javascript"),
    ("/studio/take.js", "take.js", "text/javascript"),
)


def studio_router() -> APIRouter:
    """The page and its files. They hold nothing secret: what the page asks of `/v1` carries the reader's API key."""
    router = APIRouter(include_in_schema=False)
    for address, name, media_type in _FILES:
        _serve(router, address, (_FOLDER / name).read_bytes(), media_type)
    return router


def _serve(router: APIRouter, address: str, content: bytes, media_type: str) -> None:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {
        # Browsers ask each time: after an update, no old script meets a new page.
        "Cache-Control": "no-cache",
        "ETag": tag,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }

    async def answer(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    router.add_api_route(address, answer, methods=["GET"])
