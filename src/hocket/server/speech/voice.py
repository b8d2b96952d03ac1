"""The voice of a request: a named one, or a recording that came with it.

An inline recording takes precedence over a voice's name, because clients of other servers must send
some name.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice

from hocket.checkpoint.voices import VoiceNotFoundError, voice_name
from hocket.core import Reference
from hocket.errors import InvalidRequestError, ReferenceAudioError
from hocket.server.services import Services
from hocket.server.speech.fetch import fetch_reference

#: Number of voices that an error lists.
_SHOWN_VOICES = 5


@dataclass(frozen=True, slots=True)
class ResolvedVoice:
    """A recording with its transcript if known, a speaker of the model, or neither: the model's own
    choice.
    """

    reference: Reference | None = None
    words: str | None = None
    speaker: str | None = None


async def resolve_voice(services: Services, name: str, param: str, *, caller: str) -> ResolvedVoice:
    """The voice that `caller` knows as `name`. Raises InvalidRequestError, naming `param`."""
    info = services.client.info
    voices = services.voices_of(caller)
    try:
        builtin = voices.builtin(name)
        if builtin is None:
            return ResolvedVoice(*await asyncio.to_thread(voices.reference, name, info))
        if builtin.is_speaker:
            return ResolvedVoice(speaker=voice_name(name))
        return ResolvedVoice(builtin.codes, builtin.reference_text)
    except VoiceNotFoundError:
        known = await asyncio.to_thread(lambda: list(islice(voices.names(), _SHOWN_VOICES + 1)))
        more = ", ..." if len(known) > _SHOWN_VOICES else ""
        raise InvalidRequestError(
            f"there is no voice {name!a}; some are {', '.join(known[:_SHOWN_VOICES])}{more}",
            param=param,
        ) from None
    except InvalidRequestError as error:
        raise error.renamed({"name": param, "voice": param}) from None


async def resolve_reference(services: Services, source: str, *, caller: str) -> ResolvedVoice:
    """The recording at the URL `source`, or the uploaded voice that `caller` knows by that name.

    Raises InvalidRequestError, naming `reference_audio`.
    """
    if ":" not in source and "/" not in source:
        return await resolve_voice(services, source, "reference_audio", caller=caller)
    return ResolvedVoice(await fetch(services, source, "reference_audio"))


async def fetch(services: Services, address: str, param: str) -> bytes:
    """The bytes at a data:, http(s): or file: URL. Raises ReferenceAudioError, naming `param`."""
    try:
        return await fetch_reference(address, services.settings.fetch)
    except ReferenceAudioError as error:
        raise error.renamed({"reference_audio": param}) from None
