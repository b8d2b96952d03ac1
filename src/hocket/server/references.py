"""The voice of a request: a named one, or a recording that came with it.

An inline recording goes before a voice's name, whatever the name is: clients of other servers must send some name.
"""

from __future__ import annotations

import asyncio

from hocket.core import Reference
from hocket.errors import InvalidRequestError, ReferenceAudioError
from hocket.server.fetch import fetch_reference
from hocket.server.services import Services
from hocket.server.voices import VoiceNotFoundError

#: The model's own choice, where a request names no voice.
DEFAULT_VOICE = "default"
#: Voices that an error lists.
_SOME = 5

Found = tuple[Reference | None, str | None]


async def find_voice(services: Services, name: str, param: str) -> Found:
    """What to clone for the voice `name`, and the words of it. Raises InvalidRequestError, naming `param`."""
    codec = services.client.facts.codec_id
    try:
        return await asyncio.to_thread(services.voices.reference, name, codec=codec)
    except VoiceNotFoundError:
        known = [voice.name for voice in await asyncio.to_thread(services.voices.listed)]
        more = ", ..." if len(known) > _SOME else ""
        raise InvalidRequestError(
            f"there is no voice {name!a}; some are {', '.join(known[:_SOME])}{more}", param=param
        ) from None
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error), param=param) from None


async def find_reference(services: Services, source: str) -> Found:
    """The recording at the address `source`, or the uploaded voice of that name.

    Raises InvalidRequestError, naming `reference_audio`.
    """
    if ":" not in source and "/" not in source:
        return await find_voice(services, source, "reference_audio")
    return await fetch(services, source, "reference_audio"), None


async def fetch(services: Services, address: str, param: str) -> bytes:
    """The bytes behind a data: or http(s): or file: address. Raises ReferenceAudioError, naming `param`."""
    try:
        return await fetch_reference(address, services.settings.fetch)
    except ReferenceAudioError as error:
        raise ReferenceAudioError(str(error), param=param) from None
