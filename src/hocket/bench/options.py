"""The options of `hocket bench serve`, `isolation` and `engine`, as dataclasses that make run
configurations.

A field is an option with its default. None means "not given", so that an option without effect can
be refused.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from hocket.errors import ConfigError

if TYPE_CHECKING:
    from hocket.bench.engine.bench import EngineRunConfig
    from hocket.bench.isolation import By
    from hocket.bench.load.generator import Load
    from hocket.bench.load.run_config import RunConfig

_KNOWN_DIMENSIONS = "moss-tts-local-v1.5, qwen3-tts-1.7b, qwen3-tts-0.6b"
_REFERENCES_NEEDED = "--similarity needs a dataset with reference recordings"

OptionsT = TypeVar("OptionsT")
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the whole report here.")]


def with_options(
    options: type[OptionsT],
) -> Callable[[Callable[[OptionsT], None]], Callable[..., None]]:
    """Make a Typer command of a function that takes `options`, a dataclass whose fields are the
    command's options.
    """
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in fields(options)  # type: ignore[arg-type]  # a dataclass, which no type says
    ]

    def decorate(command: Callable[[OptionsT], None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            command(options(**values))

        run.__doc__ = command.__doc__
        run.__annotations__ = hints
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """Options of a client: the server, its requests, and the judges of its answers."""

    base_url: Annotated[
        str, typer.Option("--base-url", help="Address of the server, e.g. http://127.0.0.1:8000.")
    ]
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="Path of the dataset seed-tts or jsonl.")
    ] = None
    dialect: Annotated[
        str, typer.Option(help="hocket, openai, vllm-omni, sglang-omni, kokoro-fastapi.")
    ] = "hocket"
    dataset: Annotated[
        str,
        typer.Option(
            help="Built-in texts: plain, numbers, names, paragraphs, short, de, fr, es, it, pt, "
            "zh, ja, ko (several with commas), all; or seed-tts or jsonl, with a PATH."
        ),
    ] = "plain"
    limit: Annotated[int | None, typer.Option(min=1, help="Use only so many texts.")] = None
    references: Annotated[bool, typer.Option(help="Send the dataset's reference recordings.")] = (
        True
    )
    voice: Annotated[str | None, typer.Option(help="Voices, used in turn: a,b,c.")] = None
    model: Annotated[str | None, typer.Option(help="Model to request; default: the server's.")] = (
        None
    )
    warmup: Annotated[int, typer.Option(min=0, help="Requests before the clock starts.")] = 2
    delivery: Annotated[str, typer.Option(help="raw (streamed bytes), sse, or whole.")] = "raw"
    response_format: Annotated[
        str, typer.Option("--format", help="pcm, wav, mp3, opus, flac or aac.")
    ] = "pcm"
    request_seed: Annotated[
        int | None, typer.Option(min=0, help="Request i is sent with this seed + i.")
    ] = None
    body: Annotated[
        str | None,
        typer.Option(help='Additional fields of every request, as JSON: {"temperature": 0.8}.'),
    ] = None
    api_key: Annotated[
        str | None, typer.Option(help="API key; HOCKET_API_KEY hides it from other users.")
    ] = None
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Time limit of a request, in seconds.")
    ] = 120.0
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the texts' order, of arrivals and of intervals.")
    ] = 0
    pcm_rate: Annotated[
        int | None, typer.Option(min=1, help="Rate of raw samples, for servers that state none.")
    ] = None
    pcm_channels: Annotated[
        int | None, typer.Option(min=1, max=8, help="Channels of raw samples; default: 1.")
    ] = None
    recogniser: Annotated[
        str | None,
        typer.Option(help="faster-whisper model or folder, or a server's address; default: base."),
    ] = None
    recogniser_model: Annotated[
        str | None, typer.Option(help="Model of the transcription server; default: whisper-1.")
    ] = None
    recogniser_api_key: Annotated[
        str | None, typer.Option(help="API key of the transcription server.")
    ] = None
    similarity: Annotated[
        bool, typer.Option("--similarity", help="Compare the speaker to the reference recording.")
    ] = False
    speaker_model: Annotated[
        str | None, typer.Option(help="resemblyzer, or an .onnx file; default: resemblyzer.")
    ] = None
    json_path: JsonPath = None

    def _check_partners(self, recognises_words: bool, words_option: str) -> None:
        """Raise ConfigError for an option without effect; `words_option` is the one that enables a
        recogniser.
        """
        needs("--pcm-channels", self.pcm_channels, self.pcm_rate is not None, "--pcm-rate")
        needs("--speaker-model", self.speaker_model, self.similarity, "--similarity")
        for option, value in (
            ("--recogniser", self.recogniser),
            ("--recogniser-model", self.recogniser_model),
            ("--recogniser-api-key", self.recogniser_api_key),
        ):
            needs(option, value, recognises_words, words_option)
        is_server = (self.recogniser or "").startswith("http")
        needs("--recogniser-model", self.recogniser_model, is_server, "--recogniser http://…")
        needs("--recogniser-api-key", self.recogniser_api_key, is_server, "--recogniser http://…")

    def _run_config(
        self, *, order_seed: int | None, recognises_words: bool, min_references: int, **more: Any
    ) -> RunConfig:
        """`more` are fields of `RunConfig`. Raises ConfigError, before it loads models."""
        from hocket.bench.dataset import choose, load_dataset
        from hocket.bench.dialects import find_dialect, parse_delivery
        from hocket.bench.http import Target, bearer
        from hocket.bench.judge.asr import load_recogniser
        from hocket.bench.judge.speaker_similarity import load_speaker_model
        from hocket.bench.load.run_config import RunConfig
        from hocket.config import Environment

        api_key = self.api_key or Environment.read().api_key
        bearer(api_key)
        dialect, delivery = find_dialect(self.dialect), parse_delivery(self.delivery)
        items = choose(
            load_dataset(self.dataset, self.path),
            seed=order_seed,
            limit=self.limit,
            voices=[name.strip() for name in self.voice.split(",")] if self.voice else (),
            references=self.references,
        )
        dialect.check(delivery, self.response_format, items)
        if self.request_seed is not None and dialect.seed is None:
            raise ConfigError(
                f"--dialect {dialect.name} has no field for seeds; leave --request-seed out"
            )
        if self.similarity and len({item.reference for item in items} - {None}) < min_references:
            different = f", at least {min_references} different ones" if min_references > 1 else ""
            needed = f"{_REFERENCES_NEEDED}{different}"
            raise ConfigError(f"{needed}; give --dataset seed-tts or jsonl, or leave it out")
        run_config = RunConfig(
            target=Target.parse(self.base_url),
            dialect=dialect,
            items=items,
            response_format=self.response_format,
            delivery=delivery,
            model=self.model,
            api_key=api_key,
            request_seed=self.request_seed,
            extra=_json_object(self.body),
            raw_shape=None if self.pcm_rate is None else (self.pcm_rate, self.pcm_channels or 1),
            seed=self.seed,
            warmup=self.warmup,
            timeout_seconds=self.timeout,
            **more,
        )
        if recognises_words:
            name, model = self.recogniser or "base", self.recogniser_model or "whisper-1"
            recogniser = load_recogniser(name, model=model, api_key=self.recogniser_api_key)
            run_config = replace(run_config, recogniser=recogniser)
        if self.similarity:
            speaker_model = load_speaker_model(self.speaker_model or "resemblyzer")
            run_config = replace(run_config, speaker_model=speaker_model)
        return run_config


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(RequestOptions):
    """Options of `hocket bench serve`."""

    shuffle: Annotated[bool, typer.Option(help="Shuffle the texts, by --seed.")] = True
    clients: Annotated[
        int | None, typer.Option(min=1, help="Closed loop with so many clients.")
    ] = None
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Open loop with so many requests a second.")
    ] = None
    ramp: Annotated[str | None, typer.Option(help="Stages: clients 1,2,4 or rates 1/s,2/s.")] = None
    arrivals: Annotated[
        str | None,
        typer.Option(help="Arrivals of an open loop: poisson or constant; default: poisson."),
    ] = None
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests of each stage; default: enough for a steady state."),
    ] = None
    expect: Annotated[str | None, typer.Option(help="Expected rate and channels: 48000x2.")] = None
    buffer_ms: Annotated[float, typer.Option(min=0, help="Start buffer of the second player.")] = (
        200.0
    )
    stall_seconds: Annotated[
        float, typer.Option(min=0, help="A longer stall of the player fails.")
    ] = 2.0
    max_silence_seconds: Annotated[float, typer.Option(min=0, help="A longer silence fails.")] = 3.0
    max_clipped: Annotated[
        float, typer.Option(min=0, help="A larger share of samples at full scale fails.")
    ] = 0.001
    ignore_length: Annotated[
        bool, typer.Option("--ignore-length", help="Do not compare lengths to the texts.")
    ] = False
    transcribe: Annotated[
        bool, typer.Option("--transcribe", help="Recognise the words and count errors.")
    ] = False
    max_cer: Annotated[
        float | None,
        typer.Option(min=0, help="A larger share of wrong characters fails; default: 0.5."),
    ] = None
    min_similarity: Annotated[float | None, typer.Option(help="A smaller similarity fails.")] = None
    probe: Annotated[
        bool, typer.Option(help="Request one WAV file first, to check the rate of raw samples.")
    ] = True
    floor: Annotated[bool, typer.Option(help="Measure the generator against a stub first.")] = True
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page with plots here, and the audio of bad answers beside it."),
    ] = None
    keep_audio: Annotated[
        int | None,
        typer.Option(
            min=0, help="Number of failures, and of worst cases, whose audio is kept; default: 10."
        ),
    ] = None
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help="Exit with 1 when this holds: 'ttfa_p95_ms > 200'; may be repeated."),
    ] = None

    def run_config(self) -> RunConfig:
        """Make the run configuration. Raises ConfigError, and AudioFileError for a report that
        cannot be written.
        """
        from hocket.bench.judge.outcome import Limits

        self._check_partners(self.transcribe, "--transcribe")
        needs("--max-cer", self.max_cer, self.transcribe, "--transcribe")
        needs("--min-similarity", self.min_similarity, self.similarity, "--similarity")
        needs(
            "--keep-audio",
            self.keep_audio,
            (self.html or self.json_path) is not None,
            "--json or --html",
        )
        given = {"max_cer": self.max_cer, "keep_audio": self.keep_audio}
        return self._run_config(
            order_seed=self.seed if self.shuffle else None,
            recognises_words=self.transcribe,
            min_references=1,
            loads=self._loads(),
            limits=Limits(
                max_silence_seconds=self.max_silence_seconds,
                max_clipped=self.max_clipped,
                stall_seconds=self.stall_seconds,
                buffer_seconds=self.buffer_ms / 1e3,
                check_length=not self.ignore_length,
                shape=parse_shape(self.expect),
            ),
            has_probe=self.probe,
            has_self_check=self.floor,
            min_similarity=self.min_similarity,
            audio_folder=self._audio_folder(),
            **{name: value for name, value in given.items() if value is not None},
        )

    def _loads(self) -> list[Load]:
        """The stages. Raises ConfigError for contradicting options."""
        from hocket.bench.load.generator import parse_arrivals, parse_ramp

        of_clients = None if self.clients is None else str(self.clients)
        of_rate = None if self.rate is None else f"{self.rate}/s"
        given = [text for text in (of_clients, of_rate, self.ramp) if text is not None]
        if len(given) > 1:
            raise ConfigError("give one of --clients, --rate and --ramp")
        loads = parse_ramp(
            given[0] if given else "1", self.requests, parse_arrivals(self.arrivals or "poisson")
        )
        is_open = any(load.rate is not None for load in loads)
        needs("--arrivals", self.arrivals, is_open, "--rate (or a --ramp of rates)")
        return loads

    def _audio_folder(self) -> Path | None:
        """The folder for audio of bad answers, beside the report, which must be writable."""
        from hocket.audio.files import check_replaceable

        for output in (self.json_path, self.html):
            if output is not None:
                check_replaceable(output)
        if (
            self.json_path is not None
            and self.html is not None
            and self.json_path.resolve() == self.html.resolve()
        ):
            raise ConfigError("--json and --html name the same file; give two", param="html")
        beside = self.html or self.json_path
        if beside is None:
            return None
        folder = beside.with_name(f"{beside.stem}_audio")
        if folder.exists() and not folder.is_dir():
            raise ConfigError(
                f"{str(folder)!r} is not a folder, but audio is kept there; rename the report"
            )
        return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationOptions(RequestOptions):
    """Options of `hocket bench isolation`."""

    dataset: Annotated[str, typer.Option(help="As for `hocket bench serve`.")] = "plain,names"
    warmup: Annotated[int, typer.Option(min=0, help="Requests before the clock starts.")] = 1
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Time limit of a request, in seconds.")
    ] = 300.0
    clients: Annotated[int, typer.Option(min=2, help="Number of concurrent requests.")] = 32
    by: Annotated[
        str,
        typer.Option(
            help="words (a recogniser transcribes), or seed (compares each answer to itself alone)."
        ),
    ] = "words"

    def run_config(self) -> tuple[RunConfig, By]:
        """Make the run configuration. Raises ConfigError, and AudioFileError for a report that
        cannot be written.
        """
        from hocket.audio.files import check_replaceable
        from hocket.bench.isolation import parse_by
        from hocket.bench.load.generator import Load

        by = parse_by(self.by)
        self._check_partners(by == "words", "--by words")
        if self.json_path is not None:
            check_replaceable(self.json_path)
        run_config = self._run_config(
            order_seed=self.seed, recognises_words=by == "words", min_references=2, loads=[]
        )
        return replace(run_config, loads=[Load(len(run_config.items), clients=self.clients)]), by


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of `hocket bench engine`."""

    model: Annotated[
        str,
        typer.Option(help=f"Checkpoint folder; with --random-weights also {_KNOWN_DIMENSIONS}."),
    ]
    codec: Annotated[str | None, typer.Option(help="Codec folder; default: the model's.")] = None
    random_weights: Annotated[
        bool,
        typer.Option("--random-weights", help="Use the model's dimensions with random weights."),
    ] = False
    clients: Annotated[
        int | None, typer.Option(min=1, help="Closed loop with so many open requests; default: 1.")
    ] = None
    open_loop: Annotated[
        float | None,
        typer.Option(min=0.001, help="Open loop with so many Poisson arrivals a second."),
    ] = None
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Number of requests; default: the whole workload, 1,088."),
    ] = None
    ignore_stop: Annotated[
        bool, typer.Option(help="Speak exactly as long as the workload says.")
    ] = True
    profile: Annotated[
        str, typer.Option(help="default, throughput, latency, cpu, or a YAML file.")
    ] = "default"
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting, e.g. engine.rows=32."),
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Same bytes under any load.")] = False
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N; default: the profile's.")
    ] = None
    dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; default: the profile's.")
    ] = None
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of weights, codes, arrivals and requests.")
    ] = 0
    seeded: Annotated[bool, typer.Option(help="Give every request its own seed.")] = True
    json_path: JsonPath = None

    def run_config(self) -> EngineRunConfig:
        """Make the run configuration. Raises ConfigError, and AudioFileError for a report that
        cannot be written.
        """
        from hocket.audio.files import check_replaceable
        from hocket.bench.engine.bench import CONTEXT_ROWS, EngineRunConfig, engine_config
        from hocket.server.profiles import load_profile, parse_settings

        if self.clients is not None and self.open_loop is not None:
            raise ConfigError("give one of --clients and --open-loop")
        clients = 1 if self.clients is None and self.open_loop is None else self.clients
        if self.json_path is not None:
            check_replaceable(self.json_path)
        layer = parse_settings(self.settings or [])
        check_engine_settings(layer.values)
        loaded = load_profile(self.profile, layer)
        # A profile sizes a server; the benchmark has as many rows as clients, and short requests.
        rows = None if loaded.origins["engine.rows"] == "--set" else clients
        context_rows = (
            CONTEXT_ROWS if loaded.origins["engine.max_context_rows"] == "built in" else None
        )
        return EngineRunConfig(
            model=self.model,
            codec=self.codec,
            random_weights=self.random_weights,
            device=self.device or loaded.profile.device,
            dtype=self.dtype or loaded.profile.dtype,
            profile=self.profile,
            engine=engine_config(
                loaded.profile.engine, rows=rows, context_rows=context_rows, strict=self.strict
            ),
            clients=clients,
            rate=self.open_loop,
            requests=self.requests,
            ignore_stop=self.ignore_stop,
            seed=self.seed,
            seeded=self.seeded,
        )


def needs(option: str, value: object, has_partner: bool, partner: str) -> None:
    """Raise ConfigError for an option that was given without the one that it depends on."""
    if value is not None and not has_partner:
        raise ConfigError(f"{option} does nothing without {partner}; add that, or leave it out")


def parse_shape(text: str | None) -> tuple[int, int] | None:
    """Parse "48000x2" (48 kHz stereo). Raises ConfigError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,6})x(\d)", text)
    if found is None:
        raise ConfigError(
            f"--expect is {text!r}; write rate x channels, such as 48000x2", param="expect"
        )
    return int(found[1]), int(found[2])


def check_engine_settings(keys: Iterable[str]) -> None:
    """Raise ConfigError for a setting (`--set`) that `hocket bench engine` does not read."""
    for key in keys:
        if key.startswith("engine.runaway."):
            raise ConfigError(
                f"--set {key} does nothing here: no speech is ended early; leave it out", param=key
            )
        if key not in ("device", "dtype") and not key.startswith("engine."):
            known = "set engine.…, device or dtype, and see --model, --codec"
            raise ConfigError(f"--set {key} does nothing here; {known}", param=key)


def _json_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            "--body is not a JSON object; write for instance '{\"temperature\": 0.8}'", param="body"
        )
    return found
