"""Every HTTP route, a module for each subject. `app.py` includes the router that each module makes.

`PlainRoute` is the route class of those whose endpoints read the request themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class PlainRoute(APIRoute):
    """Its endpoint takes the request and returns the answer, so FastAPI has nothing to work out for it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler
