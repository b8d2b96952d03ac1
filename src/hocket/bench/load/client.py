"""Writes the requests of a run, sends them, and keeps the bodies of the answers on disk until somebody listens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from hocket.bench.dataset import Item, data_uri
from hocket.bench.dialects import SPEECH_PATH, Delivery
from hocket.bench.faults import AnswerError
from hocket.bench.http import Answer, ask, bearer
from hocket.bench.judge.decode import Heard, hear
from hocket.bench.load.run_config import Wishes
from hocket.errors import HocketError


class Asker:
    """The requests of one stage. Bodies lie in `folder`: what 256 streams send is too much to hold, and decoding it
    would disturb the load.
    """

    def __init__(self, wishes: Wishes, folder: Path) -> None:
        self._wishes, self._folder = wishes, folder
        self._writing: set[asyncio.Task[int]] = set()
        folder.mkdir()

    def item(self, index: int) -> Item:
        """What request `index` asks for; after the last item comes the first again."""
        return self._wishes.items[index % len(self._wishes.items)]

    def body(self, index: int, delivery: Delivery | None = None, response_format: str | None = None) -> bytes:
        """The JSON of request `index`."""
        wishes, item = self._wishes, self.item(index)
        fields = wishes.dialect.body(
            item,
            delivery=delivery or wishes.delivery,
            response_format=response_format or wishes.response_format,
            model=wishes.model,
            reference_uri=None if item.reference is None else data_uri(item.reference),
            seed=None if wishes.request_seed is None else wishes.request_seed + index,
            extra=wishes.extra,
        )
        return json.dumps(fields).encode()

    async def send(self, body: bytes) -> Answer:
        """One request."""
        headers = {"Content-Type": "application/json", "Accept": "*/*", "User-Agent": "hocket-bench"}
        headers |= bearer(self._wishes.api_key)
        return await ask(self._wishes.target, "POST", SPEECH_PATH, headers, body, self._wishes.timeout_seconds)

    async def ask(self, index: int, body: bytes) -> Answer:
        """Send `body` as request `index`; the answer's body goes to disk on a thread."""
        answer = await self.send(body)
        received, answer.body = answer.body, b""
        task = asyncio.create_task(asyncio.to_thread(self._path(index).write_bytes, received))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return answer

    async def written(self) -> None:
        """Until every body is on disk."""
        await asyncio.gather(*self._writing)

    def listen(self, index: int, answer: Answer) -> Heard:
        """What request `index` got. Raises AnswerError."""
        wishes = self._wishes
        answer.body = self._path(index).read_bytes()
        try:
            heard = hear(answer, wishes.response_format, wishes.delivery, wishes.raw_shape)
        finally:
            answer.body = b""
        if wishes.delivery == "whole":  # nobody plays a file before it is there
            heard.marks = [(answer.ended_at, heard.seconds)]
        return heard

    async def warm_up(self) -> None:
        """Ask a few times without counting. Raises HocketError when nobody is there."""
        wishes = self._wishes
        answers = await asyncio.gather(*(self.send(self.body(0)) for _ in range(wishes.warmup)))
        if answers and all(answer.broken == "connect" for answer in answers):
            raise HocketError(f"nothing answers at {wishes.target.url} ({answers[0].detail}); start the server first")

    async def probe(self) -> tuple[tuple[int, int] | None, str]:
        """Rate and channels by a whole WAV file, which cannot be mistaken for another rate; or None and why not."""
        try:
            heard = hear(await self.send(self.body(0, "whole", "wav")), "wav", "whole")
        except AnswerError as error:
            return None, f"the probe, a whole WAV file, failed: {error.fault.kind} {error.fault.detail}".strip()
        return (heard.sample_rate, heard.channels), ""

    def _path(self, index: int) -> Path:
        return self._folder / str(index)
