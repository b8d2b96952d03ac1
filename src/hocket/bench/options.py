"""The options that commands of `hocket bench` share, and what they come to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from hocket.errors import ConfigError

BaseUrl = Annotated[str, typer.Option("--base-url", help="Address of the server, e.g. http://127.0.0.1:8000.")]
DialectName = Annotated[str, typer.Option("--dialect", help="hocket, openai, vllm-omni, sglang-omni, kokoro-fastapi.")]
Dataset = Annotated[
    str,
    typer.Option(
        help="Built-in texts: plain, numbers, names, paragraphs, short, de, fr, es, it, pt, zh, ja, ko (several with "
        "commas), all; or seed-tts or jsonl, with a PATH."
    ),
]
DatasetPath = Annotated[Path | None, typer.Argument(metavar="[PATH]", help="Of the dataset seed-tts or jsonl.")]
Voices = Annotated[str | None, typer.Option("--voice", help="Names of voices, which take turns: a,b,c.")]
ModelName = Annotated[str | None, typer.Option("--model", help="Model to ask for; default: the server's.")]
ApiKey = Annotated[str | None, typer.Option(help="Better in HOCKET_API_KEY, where other users cannot see it.")]
ResponseFormat = Annotated[str, typer.Option("--format", help="pcm, wav, mp3, opus, flac or aac.")]
DeliveryName = Annotated[str, typer.Option("--delivery", help="raw (bytes as they are made), sse, or whole.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the texts' order, of arrivals and of intervals.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only so many texts.")]
References = Annotated[bool, typer.Option(help="Send the dataset's reference recordings.")]
Body = Annotated[str | None, typer.Option(help='More fields of every request, as JSON: {"temperature": 0.8}.')]
RecogniserName = Annotated[
    str, typer.Option("--recogniser", help="faster-whisper model or folder, or the address of a transcription server.")
]
RecogniserModel = Annotated[str, typer.Option(help="Model to ask a transcription server for.")]
RecogniserKey = Annotated[str | None, typer.Option(help="API key of the transcription server.")]
SpeakerModelName = Annotated[str, typer.Option("--speaker-model", help="resemblyzer, or an .onnx file.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds that a request may take.")]
PcmRate = Annotated[int | None, typer.Option(min=1, help="Rate of raw samples, for a server that does not say.")]
PcmChannels = Annotated[int, typer.Option(min=1, max=8, help="Their channels.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the whole report here.")]
FailIf = Annotated[
    list[str] | None, typer.Option(help="Leave with 1 when it holds: 'ttfa_p95_ms > 200'; may be repeated.")
]


def request_fields(
    *,
    base_url: str,
    dialect: str,
    dataset: str,
    path: Path | None,
    limit: int | None,
    order_seed: int | None,
    references: bool,
    voice: str | None,
    delivery: str,
    response_format: str,
    body: str | None,
    api_key: str | None,
    pcm: tuple[int | None, int],
) -> dict[str, Any]:
    """The part of `Wishes` that says what is asked for. Raises ConfigError."""
    from hocket.bench.dataset import choose, load_dataset
    from hocket.bench.dialects import find_dialect, parse_delivery
    from hocket.bench.wire import Target, bearer
    from hocket.config import Environment

    key = api_key or Environment.read().api_key
    bearer(key)
    spoken = find_dialect(dialect)
    items = choose(
        load_dataset(dataset, path),
        seed=order_seed,
        limit=limit,
        voices=[name.strip() for name in voice.split(",")] if voice else (),
        references=references,
    )
    way = parse_delivery(delivery)
    spoken.check(way, response_format, items)
    return {
        "target": Target.parse(base_url),
        "dialect": spoken,
        "items": items,
        "delivery": way,
        "response_format": response_format,
        "extra": _json_object(body),
        "api_key": key,
        "raw_shape": None if pcm[0] is None else (pcm[0], pcm[1]),
    }


def parse_shape(text: str | None) -> tuple[int, int] | None:
    """ "48000x2" is 48 kHz stereo. Raises ConfigError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})x(\d)", text)
    if found is None:
        raise ConfigError(f"--expect is {text!r}; write rate x channels, such as 48000x2", param="expect")
    return int(found[1]), int(found[2])


def _json_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ConfigError("--body is not a JSON object; write for instance '{\"temperature\": 0.8}'", param="body")
    return fields
