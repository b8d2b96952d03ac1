"""`GET /v1/audio/speech/stream`: text comes in while audio goes out (docs/websocket.md).

Two tasks run per socket: one receives, so that `cancel` takes effect in the middle of a word, the
other speaks.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np
from fastapi import APIRouter, WebSocket

from hocket.core import FinishReason, Samples, drawn_seed
from hocket.errors import HocketError, InvalidRequestError
from hocket.server.errors import error_code
from hocket.server.middleware import RequestRecord, record_of
from hocket.server.schemas import check_text, read_json
from hocket.server.services import Services, services_of
from hocket.server.speech.encoders import encode_whole
from hocket.server.speech.responses import encoded, new_encoder
from hocket.server.speech.synthesis import (
    SpeechPlan,
    plan_speech,
    segment_seed,
    segments_of,
    speaking,
)
from hocket.server.websocket.connection import SocketConnection
from hocket.server.websocket.dialects import VllmOmniEvents, hocket_events
from hocket.server.websocket.messages import (
    OMNI_MODELS,
    CancelMessage,
    ConfigMessage,
    FlushMessage,
    StartMessage,
    TextMessage,
    kind_of,
    read_message,
)
from hocket.text.segment import SentenceBuffer

_LOG = logging.getLogger("hocket.request")

#: Maximum of waiting sentences and flushes. Ordinary text meets the limit of characters first.
_MAX_WAITING = 1000
#: Stands for the text when `start` is checked before any text has arrived.
_ANY_TEXT = "a"


class _Signal(enum.Enum):
    """Entries of the queue between sentences."""

    FLUSH = enum.auto()
    CLOSE = enum.auto()


@dataclass(slots=True)
class _Utterance:
    """The sentences between two flushes."""

    #: Position among the utterances of the socket.
    index: int
    sentences: int = 0
    #: Samples generated, before a change of speed.
    samples: int = 0
    finish_reason: FinishReason = "stop"
    #: Bytes of audio sent before the current sentence.
    sent_before: int | None = None
    #: Whether its last sentence was taken from the queue.
    complete: bool = False


def websocket_router() -> APIRouter:
    """The router with the WebSocket's route."""
    router = APIRouter()

    @router.websocket("/v1/audio/speech/stream")
    async def stream(socket: WebSocket) -> None:
        await _Session(socket).run()

    return router


class _Session:
    """The state of one socket."""

    def __init__(self, socket: WebSocket) -> None:
        self._services: Services = services_of(socket)
        self._settings = self._services.settings
        self._connection = SocketConnection(
            socket, self._settings.stall_seconds, self._settings.socket_idle_seconds
        )
        self._record = record_of(socket)
        # From `start`
        self._plan: SpeechPlan | None = None
        self._buffer: SentenceBuffer
        self._as_base64 = False
        #: Whether every sentence is sent as a file of its own.
        self._is_whole = False
        #: Whether text is kept until it is complete.
        self._keeps_text = False
        # Handed from the receiving task to the speaking one
        self._kept = ""
        self._waiting: asyncio.Queue[str | _Signal] = asyncio.Queue()
        self._waiting_characters = 0
        #: Whether text has arrived since the last flush.
        self._is_open = False
        self._is_closing = self._is_cancelling = False
        self._cancelled = asyncio.Event()
        # State of the speaking task
        self._utterance = _Utterance(0)
        self._task: asyncio.Task[bool] | None = None
        #: Whether it waits for text.
        self._speaker_waits = True

    async def run(self) -> None:
        """Run until either side closes."""
        await self._connection.accept()
        tasks = (asyncio.create_task(self._receive()), asyncio.create_task(self._speak()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._connection.end(done.pop().exception())

    # ---- receiving

    async def _receive(self) -> None:
        while True:
            raw = await self._connection.receive(lambda: self._speaker_waits)
            try:
                await self._handle(raw)
            except HocketError as error:
                await self._connection.send_error(error)

    async def _handle(self, raw: str | None) -> None:
        """Handle one message. After an error the socket stays open and nothing has changed."""
        if raw is None:
            raise InvalidRequestError(
                "binary messages are not supported; send JSON in text messages"
            )
        document = read_json(raw.encode())
        kind = kind_of(document)
        if self._plan is None and kind in OMNI_MODELS:
            self._connection.dialect = VllmOmniEvents()  # errors have this form, too
        message = read_message(kind, document, self._settings)
        if self._is_closing and not isinstance(message, CancelMessage):
            raise InvalidRequestError(
                f"after close, {message.type} comes too late; connect again", param="type"
            )
        if isinstance(message, StartMessage):
            await self._start(message)
        elif self._plan is None:
            raise InvalidRequestError(
                f"{message.type} comes too early; send start before anything else", param="type"
            )
        elif isinstance(message, TextMessage):
            self._take_text(message.text)
        elif isinstance(message, FlushMessage):
            self._flush()
        elif isinstance(message, CancelMessage):
            await self._cancel()
        else:
            self._close()

    async def _start(self, message: StartMessage) -> None:
        if self._is_open or not (self._speaker_waits and self._waiting.empty()):
            raise InvalidRequestError(
                "start comes while text waits or is spoken; flush or cancel first", param="type"
            )
        self._check_room(message.text)
        # One seed for every utterance, as if the client had given it, so that the same text gives
        # the same speech.
        seed = drawn_seed() if message.seed is None else message.seed
        plan = await plan_speech(
            self._services, message.speech(_ANY_TEXT, seed), caller=self._record.caller
        )
        encoder = await new_encoder(self._services, plan)
        self._buffer = SentenceBuffer(self._services.segment_characters)
        self._plan, self._as_base64 = plan, message.audio == "base64"
        omni = message if isinstance(message, ConfigMessage) else None
        self._is_whole = omni is not None and not omni.stream_audio
        self._keeps_text = omni is not None and omni.split_granularity == "none"
        self._connection.dialect = hocket_events if omni is None else VllmOmniEvents()
        await self._connection.send_event(
            "started",
            request_id=self._record.id,
            model=self._services.model_name,
            response_format=plan.response_format,
            audio=message.audio,
            sample_rate=encoder.sample_rate,
            channels=encoder.channels,
            seed=plan.seed,
        )
        self._take_text(message.text)

    def _take_text(self, text: str) -> None:
        self._check_room(text)
        self._is_open = self._is_open or bool(text.strip())
        if self._keeps_text:
            self._kept += text
            return
        for sentence in self._buffer.push(text):
            self._put(sentence)

    def _check_room(self, text: str) -> None:
        characters = self._waiting_characters + len(self._kept) + len(text)
        max_characters = self._settings.max_characters
        if characters > max_characters or self._waiting.qsize() >= _MAX_WAITING:
            raise InvalidRequestError(
                f"too much text waits to be spoken (at most {max_characters} characters may); send "
                "this again later",
                param="text",
            )

    def _put(self, sentence: str) -> None:
        if _is_spoken(sentence):
            self._waiting_characters += len(sentence)
            self._waiting.put_nowait(sentence)

    def _flush(self) -> None:
        self._check_room("")
        if rest := self._kept or self._buffer.flush():
            self._put(rest)
        self._kept = ""
        self._is_open = False
        self._waiting.put_nowait(_Signal.FLUSH)

    async def _cancel(self) -> None:
        self._buffer.flush()
        self._kept = ""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting_characters = 0
        self._is_open = False
        if self._is_closing:
            self._waiting.put_nowait(_Signal.CLOSE)
        assert self._task is not None
        self._is_cancelling = True
        self._task.cancel()
        # The next message is handled once speech has stopped and `done` is sent.
        self._cancelled.clear()
        await self._cancelled.wait()

    def _close(self) -> None:
        if self._is_open:
            self._flush()
        self._is_closing = True
        self._waiting.put_nowait(_Signal.CLOSE)

    # ---- speaking

    async def _speak(self) -> None:
        """Speak the utterances, each in a task of its own, so that `cancel` ends nothing else."""
        is_open = True
        while is_open:
            self._task = asyncio.create_task(self._speak_next())
            try:
                await asyncio.wait((self._task,))
            finally:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
            is_open = self._task.cancelled() or self._task.result()
            if self._is_cancelling:
                self._is_cancelling = False
                self._utterance.finish_reason = "cancelled"
                await self._send_done()
                self._cancelled.set()
            self._utterance = _Utterance(self._utterance.index + 1)

    async def _speak_next(self) -> bool:
        """Speak the next utterance up to its `done`; False when the client closes instead."""
        item = await self._next()
        if item is _Signal.CLOSE:
            return False
        try:
            if isinstance(item, str):
                await self._speak_utterance(item)
        except HocketError as error:
            self._utterance.finish_reason = "error"
            await self._connection.send_error(error)
            await self._end_sentence(failed=True)
            while not self._utterance.complete:
                await self._next()
        await self._send_done()
        return True

    async def _next(self) -> str | _Signal:
        self._speaker_waits = True
        item = await self._waiting.get()
        self._speaker_waits = False
        if isinstance(item, str):
            self._waiting_characters -= len(item)
        self._utterance.complete = item is _Signal.FLUSH
        return item

    async def _speak_utterance(self, first: str) -> None:
        """Speak an utterance.

        It holds one slot and makes one file, whatever its number of sentences.
        """
        assert self._plan is not None
        async with self._services.admission.slot(
            self._record.caller, self._services.client.info.rows
        ):
            if self._is_whole:
                await self._speak_files(first)
                return
            encoder = await new_encoder(self._services, self._plan)
            # Both are closed here, at once, so that the engine stops as soon as the audio is not
            # wanted.
            async with (
                aclosing(self._sentences(first)) as samples,
                aclosing(encoded(encoder, self._plan, samples)) as body,
            ):
                async for data in body:
                    await self._connection.send_audio(data, as_base64=self._as_base64)

    async def _speak_files(self, first: str) -> None:
        assert self._plan is not None
        item: str | _Signal = first
        while isinstance(item, str):
            async with aclosing(self._sentence(item, pause_ms=0.0)) as pieces:
                whole_CS = np.concatenate([samples_CS async for samples_CS in pieces], axis=1)
            rate, speed = self._services.client.info.sample_rate, self._plan.body.speed
            audio = await asyncio.to_thread(
                encode_whole, self._plan.response_format, whole_CS, rate, speed
            )
            await self._connection.send_audio(audio.body, as_base64=False)
            await self._end_sentence()
            item = await self._next()

    async def _sentences(self, first: str) -> AsyncGenerator[Samples, None]:
        item: str | _Signal = first
        while isinstance(item, str):
            pause_ms = self._settings.segment_pause_ms if self._utterance.sentences else 0.0
            async with aclosing(self._sentence(item, pause_ms)) as pieces:
                async for samples_CS in pieces:
                    yield samples_CS
            await self._end_sentence()
            item = await self._next()

    async def _sentence(self, text: str, pause_ms: float) -> AsyncGenerator[Samples, None]:
        """Audio of one sentence after a pause: a request to the engine, with a log line of
        its own.
        """
        assert self._plan is not None
        utterance, session = self._utterance, self._record
        index = utterance.sentences
        utterance.sentences += 1
        record = RequestRecord(
            f"{session.id}-{utterance.index}-{index}",
            session.method,
            session.path,
            session.caller,
            status=101,
            model=self._services.model_name,
            reason="cancelled",
        )
        body = self._plan.body.model_copy(update={"input": text})
        texts = await segments_of(self._services, text, body.language)
        plan = replace(
            self._plan, texts=texts, body=body, seed=segment_seed(self._plan.seed, index)
        )
        try:
            async with speaking(self._services, plan, record) as (speech, pieces):
                pause_CS = speech.silence(pause_ms)
                utterance.samples += pause_CS.shape[1]
                utterance.sent_before = self._connection.audio_bytes
                await self._connection.send_event(
                    "sentence",
                    utterance=utterance.index,
                    index=index,
                    request_id=record.id,
                    text=text,
                    at_seconds=self._seconds(),
                )
                if pause_ms:
                    yield pause_CS
                async for samples_CS in pieces:
                    utterance.samples += samples_CS.shape[1]
                    yield samples_CS
            if utterance.finish_reason == "stop":
                utterance.finish_reason = speech.finish_reason
        except HocketError as error:
            record.reason = error_code(error)
            raise
        finally:
            _LOG.info("%s", record.line())

    async def _end_sentence(self, *, failed: bool = False) -> None:
        utterance = self._utterance
        if utterance.sent_before is None:  # the sentence has not begun
            return
        sent, utterance.sent_before = self._connection.audio_bytes - utterance.sent_before, None
        await self._connection.send_event(
            "sentence_end",
            utterance=utterance.index,
            index=utterance.sentences - 1,
            bytes=sent,
            failed=failed,
        )

    def _seconds(self) -> float:
        """Length of the utterance so far, as played."""
        if self._plan is None or not self._utterance.samples:
            return 0.0
        return round(
            self._utterance.samples
            / self._services.client.info.sample_rate
            / self._plan.body.speed,
            6,
        )

    async def _send_done(self) -> None:
        utterance = self._utterance
        self._speaker_waits = True  # before a client can answer with `start`
        await self._connection.send_event(
            "done",
            utterance=utterance.index,
            finish_reason=utterance.finish_reason,
            sentences=utterance.sentences,
            seconds=self._seconds(),
            seed=None if self._plan is None else self._plan.seed,
        )


def _is_spoken(sentence: str) -> bool:
    """Lone dashes and emoji are left out; an error for them would come in the middle of a text."""
    try:
        check_text(sentence)
    except ValueError:
        return False
    return True
