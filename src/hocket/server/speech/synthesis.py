"""From a request's body to its audio: the plan of texts, voice and seeds, and its synthesis segment
by segment.

The plain route, the batch and the WebSocket all use `speaking`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import numpy as np

from hocket.checkpoint.voices import DEFAULT_VOICE
from hocket.core import (
    MAX_SEED,
    FinishReason,
    Reference,
    RequestEnd,
    Samples,
    SpeechRequest,
    TaskType,
    drawn_seed,
)
from hocket.errors import CapacityError, EngineStoppedError, InvalidRequestError, Template
from hocket.server.errors import ApiError
from hocket.server.middleware import RequestRecord
from hocket.server.schemas import SpeechBody
from hocket.server.services import Services
from hocket.server.settings import ResponseFormat
from hocket.server.speech.voice import ResolvedVoice, resolve_reference, resolve_voice
from hocket.text.normalize import normalize
from hocket.text.segment import split_text

#: Odd, and far from a simple fraction of 2^63, so that the segments of nearby seeds get different
#: seeds.
_SEED_STRIDE = 0x1E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """A validated request, ready for the engine. Its texts are spoken in this order and joined."""

    texts: tuple[str, ...]
    body: SpeechBody
    #: The request's task, where the checkpoint has one.
    task_type: TaskType | None
    #: Name of a speaker that the model knows.
    voice: str | None
    reference: Reference | None
    reference_text: str | None
    seed: int
    response_format: ResponseFormat
    #: Whether the audio is sent as it is generated.
    streaming: bool

    @property
    def is_repeatable(self) -> bool:
        """Whether the same request gives the same speech: it brought its seed, or decoding is
        greedy.
        """
        return self.body.seed is not None or self.body.temperature == 0

    def request(self, i: int, max_frames: int | None) -> SpeechRequest:
        """The engine's request for text `i`, with its own seed and its share of the target and
        minimum length.
        """
        body = self.body
        text = self.texts[i]
        share = len(text) / sum(map(len, self.texts))
        min_frames = math.ceil((body.min_new_tokens or 0) * share)
        return SpeechRequest(
            text=text,
            language=body.language,
            instruction=body.instructions,
            tokens=None if body.tokens is None else max(1, round(body.tokens * share)),
            task_type=self.task_type,
            streaming_text=body.streaming_text,
            voice=self.voice,
            reference=self.reference,
            reference_text=self.reference_text,
            sampling=body.sampling,
            seed=segment_seed(self.seed, i),
            max_frames=max_frames,
            min_frames=min_frames if max_frames is None else min(min_frames, max_frames),
        )


def segment_seed(seed: int, i: int) -> int:
    """Seed of the i-th segment of a text: the request's own for the first, then in documented
    steps.
    """
    return (seed + i * _SEED_STRIDE) & MAX_SEED


async def plan_speech(services: Services, body: SpeechBody, *, caller: str) -> SpeechPlan:
    """Check what only the server can check, and resolve the voice, which `caller` must know.

    Raises InvalidRequestError with the client's name of the field at fault, and ApiError.
    """
    try:
        return await _plan(services, body, caller)
    except InvalidRequestError as error:
        raise error.renamed(body.client_names) from error


async def _plan(services: Services, body: SpeechBody, caller: str) -> SpeechPlan:
    settings = services.settings
    if body.model is not None and body.model not in (services.model_name, *settings.model_aliases):
        raise ApiError(
            404,
            f"the model {body.model!r} is not served here; use {services.model_name!r}",
            param="model",
            code="model_not_found",
        )
    if len(body.input) > settings.max_characters:
        raise InvalidRequestError(
            f"input has {len(body.input)} characters, the most is {settings.max_characters}; "
            "send the text in several requests",
            param="input",
        )
    if body.reference_audio is not None:
        found = await resolve_reference(services, body.reference_audio, caller=caller)
        if found.reference is None:
            raise InvalidRequestError(
                Template(
                    "{param}: the voice {name!a} has no recording; give it as voice",
                    name=body.reference_audio,
                ),
                param="reference_audio",
            )
        words = body.reference_text or found.words
    else:
        if body.reference_text is not None:
            raise InvalidRequestError(
                Template("{param} are the words of a recording; give {reference_audio}, too"),
                param="reference_text",
            )
        found = await resolve_voice(
            services, body.voice_name or DEFAULT_VOICE, "voice", caller=caller
        )
        words = found.words
    task = services.client.info.voice_traits.task_type
    if body.x_vector_only_mode is not None:
        _check_x_vector_only(body.x_vector_only_mode, task, found, words)
    return SpeechPlan(
        texts=await segments_of(services, body.input, body.language),
        body=body,
        task_type=None if task is None else body.task_type,
        voice=found.speaker,
        reference=found.reference,
        reference_text=None if body.x_vector_only_mode else words,
        seed=drawn_seed() if body.seed is None else body.seed,
        response_format=body.response_format or settings.response_format,
        streaming=body.delivery != "whole",
    )


def _check_x_vector_only(
    value: bool, task: TaskType | None, found: ResolvedVoice, words: str | None
) -> None:
    """Raises InvalidRequestError where the field would have no effect."""
    name = "x_vector_only_mode"
    if task not in (None, "Base"):
        raise InvalidRequestError(
            f"{name} is about a recording, and a {task} checkpoint takes none; leave it out",
            param=name,
        )
    if found.reference is None:
        raise InvalidRequestError(
            Template(
                "{param} is about a recording, and there is none; give {reference_audio}, or leave "
                "it out"
            ),
            param=name,
        )
    if not value and words is None:
        raise InvalidRequestError(
            Template("{param}: false needs {reference_text}, the words of the recording"),
            param=name,
        )


async def segments_of(services: Services, text: str, language: str | None) -> tuple[str, ...]:
    """Split `text` into segments that the model can speak at once.

    Lengths are those after normalization.
    """
    max_characters, front = services.segment_characters, services.client.info.text_front
    if front is None:
        return tuple(split_text(text, max_characters))
    return tuple(
        await asyncio.to_thread(
            split_text, text, max_characters, lambda part: len(normalize(part, language))
        )
    )


class Speaking:
    """Synthesis of a plan. Segments run one by one, so that a request holds a single row."""

    def __init__(self, services: Services, plan: SpeechPlan, record: RequestRecord) -> None:
        self.plan = plan
        self._services, self._record = services, record
        info = services.client.info
        self.sample_rate, self.channels, self._format = (
            info.sample_rate,
            info.channels,
            info.samples,
        )
        self.frames = 0
        #: Prompt rows of all segments: template, text and reference.
        self.prompt_rows = 0
        self.samples = 0
        self.finish_reason: FinishReason = "stop"

    @property
    def audio_seconds(self) -> float:
        """Made so far, at the natural pace."""
        return self.samples / self.sample_rate

    async def pieces(self) -> AsyncGenerator[Samples, None]:
        """[C, S] as the engine makes them.

        Raises HocketError with the client's name of the field at fault.
        """
        try:
            for i in range(len(self.plan.texts)):
                left = self._frames_left()
                if left is not None and left < 1:
                    break
                if i:
                    pause_CS = self.silence(self._services.settings.segment_pause_ms)
                    self._count(pause_CS)
                    yield pause_CS
                async with aclosing(self._speak(self.plan.request(i, left))) as spoken:
                    async for samples_CS in spoken:
                        yield samples_CS
        except InvalidRequestError as error:
            raise error.renamed(self.plan.body.client_names) from error

    async def _speak(self, request: SpeechRequest) -> AsyncGenerator[Samples, None]:
        before = self.frames
        async with await self._services.client.submit(
            request, streaming=self.plan.streaming
        ) as stream:
            async for chunk in stream:
                self.frames += len(chunk.codes)
                self._record.frames = self.frames
                if chunk.end is not None:
                    self._ended(chunk.end, self.frames - before)
                if chunk.samples.shape[1]:
                    self._count(chunk.samples)
                    yield chunk.samples

    def _count(self, samples_CS: Samples) -> None:
        record = self._record
        if record.first_audio_seconds is None:
            record.first_audio_seconds = record.age_seconds
            # Not of a whole response, whose first chunk is large and not sent.
            if self.plan.streaming:
                self._services.metrics.first_audio(record.age_seconds)
        self.samples += samples_CS.shape[1]
        record.audio_seconds = self.audio_seconds

    def _ended(self, end: RequestEnd, frames: int) -> None:
        # A cancellation by the client would have ended this reader, so the engine is stopping.
        if end.finish_reason == "cancelled":
            raise EngineStoppedError(
                "the server is about to stop and ended this request; send it again"
            )
        if not frames:
            raise self._no_audio()
        self.prompt_rows += end.prompt_rows
        if self.finish_reason == "stop":
            self.finish_reason = end.finish_reason
        self._record.reason = self.finish_reason
        self._services.metrics.segment_ended(end.finish_reason, end.timings.late_seconds, frames)

    def _no_audio(self) -> ApiError:
        """Error for a model that stopped before its first frame: the text would be missing from the
        speech.
        """
        what = "the model ended the speech before its first frame"
        if self.plan.is_repeatable:
            return ApiError(
                400,
                f"{what}, as it will each time; try another seed or text",
                param="seed",
                code="no_audio",
            )
        return ApiError(
            500, f"{what}; send the request again, it then gets another seed", code="no_audio"
        )

    def _frames_left(self) -> int | None:
        max_frames = self.plan.body.max_new_tokens
        return None if max_frames is None else max_frames - self.frames

    def silence(self, ms: float) -> Samples:
        """Silence [C, S] in the engine's sample format."""
        return np.zeros((self.channels, round(self.sample_rate * ms / 1000)), self._format)


@asynccontextmanager
async def speaking(
    services: Services, plan: SpeechPlan, record: RequestRecord
) -> AsyncIterator[tuple[Speaking, AsyncIterator[Samples]]]:
    """Synthesize `plan`.

    The first audio exists when this is entered, and leaving it early cancels the rest.

    Raises the errors of the request, CapacityError (503) when the first audio takes too long, and
    ApiError (504) when the whole does. The deadlines cover the body of the `async with`, too.
    """
    settings = services.settings
    speech = Speaking(services, plan, record)
    try:
        async with asyncio.timeout(settings.request_seconds), aclosing(speech.pieces()) as pieces:
            try:
                async with asyncio.timeout(settings.first_audio_seconds):
                    first = await anext(pieces)
            except TimeoutError:
                raise CapacityError(
                    f"no audio within {settings.first_audio_seconds:g} s, the engine is too busy; "
                    "try again later"
                ) from None
            yield speech, _chain(first, pieces)
    except TimeoutError:
        seconds = f"{settings.request_seconds:g} s"
        raise ApiError(
            504, f"the request took longer than {seconds}; shorten the text", code="deadline"
        ) from None
    finally:
        services.metrics.speech_ended(speech.audio_seconds, record.age_seconds)


async def _chain(first: Samples, rest: AsyncIterator[Samples]) -> AsyncIterator[Samples]:
    yield first
    async for samples_CS in rest:
        yield samples_CS
