"""The client of one stage: builds requests, sends them, and keeps response bodies on disk until
they are judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from hocket.bench.dataset import Item, data_uri
from hocket.bench.dialects import SPEECH_PATH, Delivery
from hocket.bench.faults import ResponseError
from hocket.bench.http import Response, bearer, page, send
from hocket.bench.judge.decode import DecodedAudio, decode_response
from hocket.bench.load.run_config import RunConfig
from hocket.errors import HocketError

_FACT_PATHS = ("/version", "/v1/models")
_MAX_FACT_BYTES = 20_000


class BenchClient:
    """Sends the requests of one stage.

    Bodies of responses lie in `folder`: those of 256 streams need too much memory, and decoding
    them at once would disturb the load.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._writing: set[asyncio.Task[int]] = set()
        folder.mkdir()

    def item(self, index: int) -> Item:
        """The item of request `index`; items repeat from the first one."""
        return self._config.items[index % len(self._config.items)]

    def body(
        self, index: int, delivery: Delivery | None = None, response_format: str | None = None
    ) -> bytes:
        """The JSON of request `index`."""
        config, item = self._config, self.item(index)
        fields = config.dialect.body(
            item,
            delivery=delivery or config.delivery,
            response_format=response_format or config.response_format,
            model=config.model,
            reference_uri=None if item.reference is None else data_uri(item.reference),
            seed=None if config.request_seed is None else config.request_seed + index,
            extra=config.extra,
        )
        return json.dumps(fields).encode()

    async def _post(self, body: bytes) -> Response:
        """Send one request."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "*/*",
            "User-Agent": "hocket-bench",
        }
        headers |= bearer(self._config.api_key)
        return await send(
            self._config.target, "POST", SPEECH_PATH, headers, body, self._config.timeout_seconds
        )

    async def send(self, index: int, body: bytes) -> Response:
        """Send `body` as request `index`; a thread writes the response's body to disk."""
        response = await self._post(body)
        received, response.body = response.body, b""
        task = asyncio.create_task(asyncio.to_thread(self._path(index).write_bytes, received))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return response

    async def written(self) -> None:
        """Wait until every body is on disk."""
        await asyncio.gather(*self._writing)

    def decode(self, index: int, response: Response) -> DecodedAudio:
        """Decode the response to request `index`. Raises ResponseError."""
        config = self._config
        response.body = self._path(index).read_bytes()
        try:
            decoded = decode_response(
                response, config.response_format, config.delivery, config.raw_shape
            )
        finally:
            response.body = b""
        if config.delivery == "whole":  # a file is played only after its end
            decoded.marks = [(response.ended_at, decoded.seconds)]
        return decoded

    async def warm_up(self) -> None:
        """Send a few requests that do not count. Raises HocketError when nothing answers."""
        config = self._config
        responses = await asyncio.gather(*(self._post(self.body(0)) for _ in range(config.warmup)))
        if responses and all(response.broken == "connect" for response in responses):
            where = f"{config.target.url} ({responses[0].detail})"
            raise HocketError(f"nothing answers at {where}; start the server first")

    async def server_facts(self) -> dict[str, Any]:
        """The JSON of the pages on which the server describes itself, by path."""
        facts: dict[str, Any] = {}
        for path in _FACT_PATHS:
            text = await page(self._config.target, path, self._config.api_key)
            if text is not None and len(text) < _MAX_FACT_BYTES:
                with contextlib.suppress(ValueError, RecursionError):
                    facts[path] = json.loads(text)
        return facts

    async def probe(self) -> tuple[tuple[int, int] | None, str]:
        """(rate, channels) of a whole WAV file, whose rate is unambiguous; or None and the
        reason.
        """
        try:
            decoded = decode_response(
                await self._post(self.body(0, "whole", "wav")), "wav", "whole"
            )
        except ResponseError as error:
            why = f"{error.fault.kind} {error.fault.detail}".strip()
            return None, f"the probe, a whole WAV file, failed: {why}"
        return (decoded.sample_rate, decoded.channels), ""

    def _path(self, index: int) -> Path:
        return self._folder / str(index)
