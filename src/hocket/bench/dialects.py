"""The request that each server expects: the fields of `POST /v1/audio/speech`, and the limits of a
dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hocket.bench.dataset import Item
from hocket.errors import ConfigError

#: How the server sends audio: raw bytes while it generates them, server-sent events, or one whole
#: answer.
Delivery = Literal["raw", "sse", "whole"]
DELIVERIES: tuple[Delivery, ...] = ("raw", "sse", "whole")
FORMATS = ("pcm", "wav", "mp3", "opus", "flac", "aac")

SPEECH_PATH = "/v1/audio/speech"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One server's request format. A field name is None where the server has no such field."""

    name: str
    #: Fields that select each delivery; the server does not support a missing one.
    deliveries: Mapping[Delivery, Mapping[str, Any]]
    #: Formats that can be streamed (raw and sse).
    streamed_formats: tuple[str, ...] = FORMATS
    #: Defaults for callers that name none.
    model: str | None = None
    voice: str | None = None
    language: str | None = None
    #: Codes by English name; None: the server takes the English name itself.
    language_codes: Mapping[str, str] | None = None
    reference: str | None = None
    reference_text: str | None = None
    seed: str | None = None

    def check(self, delivery: Delivery, response_format: str, items: list[Item]) -> None:
        """Raise ConfigError when these requests cannot be written."""
        if delivery not in self.deliveries:
            known = ", ".join(self.deliveries)
            raise ConfigError(
                f"--dialect {self.name} has no --delivery {delivery}; it has {known}",
                param="delivery",
            )
        if response_format not in FORMATS:
            raise ConfigError(
                f"--format is {response_format!r}; use one of {', '.join(FORMATS)}", param="format"
            )
        if delivery != "whole" and response_format not in self.streamed_formats:
            known = ", ".join(self.streamed_formats)
            raise ConfigError(
                f"--dialect {self.name} streams {known} only, not {response_format}", param="format"
            )
        if self.reference is None and any(item.reference is not None for item in items):
            raise ConfigError(
                f"--dialect {self.name} has no field for reference audio; use --no-references"
            )

    def body(
        self,
        item: Item,
        *,
        delivery: Delivery,
        response_format: str,
        model: str | None,
        reference_uri: str | None,
        seed: int | None,
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The JSON body for `item`; fields of `extra` win."""
        fields: dict[str, Any] = {
            "model": model or self.model,
            "input": item.text,
            "voice": item.voice or self.voice,
            "response_format": response_format,
            **self.deliveries[delivery],
        }
        if self.language is not None and item.language is not None:
            codes = self.language_codes
            fields[self.language] = item.language if codes is None else codes.get(item.language)
        if self.reference is not None and reference_uri is not None:
            fields[self.reference] = reference_uri
            if self.reference_text is not None:
                fields[self.reference_text] = item.reference_text
        if self.seed is not None:
            fields[self.seed] = seed
        return {name: value for name, value in {**fields, **extra}.items() if value is not None}


#: Kokoro's language codes.
_KOKORO_LANGUAGES = {
    "English": "a",
    "Spanish": "e",
    "French": "f",
    "Italian": "i",
    "Portuguese": "p",
    "Japanese": "j",
    "Chinese": "z",
}

_DIALECTS = (
    Dialect(
        "hocket",
        {
            "raw": {"stream_format": "audio"},
            "sse": {"stream_format": "sse"},
            "whole": {"stream": False},
        },
        language="language",
        reference="reference_audio",
        reference_text="reference_text",
        seed="seed",
    ),
    # OpenAI always streams the body; "whole" only means that the caller waits for its end.
    Dialect(
        "openai",
        {"raw": {}, "sse": {"stream_format": "sse"}, "whole": {}},
        model="gpt-4o-mini-tts",
        voice="alloy",
    ),
    Dialect(
        "vllm-omni",
        {
            "raw": {"stream": True, "stream_format": "audio"},
            "sse": {"stream": True},
            "whole": {"stream": False},
        },
        streamed_formats=("pcm", "wav"),
        language="language",
        reference="ref_audio",
        reference_text="ref_text",
        seed="seed",
    ),
    Dialect(
        "sglang-omni",
        {
            "raw": {"stream": True, "stream_format": "audio"},
            "sse": {"stream": True},
            "whole": {"stream": False},
        },
        streamed_formats=("pcm",),
        language="language",
        reference="ref_audio",
        reference_text="ref_text",
        seed="seed",
    ),
    Dialect(
        "kokoro-fastapi",
        {"raw": {"stream": True}, "whole": {"stream": False}},
        model="kokoro",
        voice="af_heart",
        language="lang_code",
        language_codes=_KOKORO_LANGUAGES,
    ),
)
DIALECTS = {dialect.name: dialect for dialect in _DIALECTS}


def parse_delivery(name: str) -> Delivery:
    """Raises ConfigError."""
    for delivery in DELIVERIES:
        if delivery == name:
            return delivery
    raise ConfigError(
        f"--delivery is {name!r}; use one of {', '.join(DELIVERIES)}", param="delivery"
    )


def find_dialect(name: str) -> Dialect:
    """The dialect called `name`. Raises ConfigError."""
    if name not in DIALECTS:
        raise ConfigError(
            f"--dialect is {name!r}; use one of {', '.join(DIALECTS)}", param="dialect"
        )
    return DIALECTS[name]
