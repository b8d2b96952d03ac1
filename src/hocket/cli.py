"""The command line. Results go to standard output, everything else to standard error; errors are one line each."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from hocket import __version__
from hocket.bench.cli import bench_app
from hocket.errors import AudioFileError, HocketError, InvalidRequestError

if TYPE_CHECKING:
    from hocket.core import Speech, SpeechRequest
    from hocket.models.family import Codec as LoadedCodec

# Heavy imports (torch) happen inside the commands, so that --help and bad arguments answer at once.

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
codec_app = typer.Typer(rich_markup_mode=None, help="Audio to codes and back.")
app.add_typer(codec_app, name="codec")
app.add_typer(bench_app, name="bench")

#: What `main` caught, for `hocket --debug`.
_LOG = logging.getLogger("hocket")
#: The exit code of sysexits.h for "internal software error".
_INTERNAL_ERROR = 70

Model = Annotated[str | None, typer.Option("--model", help="Checkpoint folder or hub id; default: built in.")]
Codec = Annotated[str | None, typer.Option("--codec", help="Codec folder or hub id; 'none' makes codes only.")]
OnlyCodec = Annotated[str | None, typer.Option("--codec", help="Codec folder or hub id; default: built in.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


@app.callback(invoke_without_command=True)
def hocket(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print a traceback with every error.")] = False,
) -> None:
    """Many texts into many voices at once."""
    if debug:
        logging.basicConfig(format="%(message)s")
        _LOG.setLevel(logging.DEBUG)
    if version:
        _print(f"hocket {__version__}")
    elif context.invoked_subcommand is None:
        _print(context.get_help())


@app.command()
def say(
    text: Annotated[str, typer.Argument(metavar="TEXT|-", help="What to say; '-' reads it from standard input.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Audio file; the suffix sets the format; default: out.wav.")
    ] = None,
    model: Model = None,
    codec: Codec = None,
    voice: Annotated[str | None, typer.Option(help="One of the model's own; `hocket voices` lists them.")] = None,
    reference: Annotated[list[str] | None, typer.Option(help="Voice to clone: audio file or codes .npy.")] = None,
    reference_text: Annotated[str | None, typer.Option(help="Words of the one reference: continue it.")] = None,
    language: Annotated[str | None, typer.Option(help="English name of the language, e.g. English.")] = None,
    instruction: Annotated[
        str | None, typer.Option("--instruction", "--instructions", help="How to speak, or who does.")
    ] = None,
    task_type: Annotated[
        str | None, typer.Option(help="Refuse a Qwen3-TTS checkpoint that is not for Base, CustomVoice or VoiceDesign.")
    ] = None,
    streaming_text: Annotated[
        bool | None,
        typer.Option("--streaming-text/--no-streaming-text", help="Qwen3-TTS reads a token a frame, or all up front."),
    ] = None,
    quality: Annotated[str | None, typer.Option(help="Recording quality wanted.")] = None,
    sound_event: Annotated[str | None, typer.Option(help="Sound event.")] = None,
    ambient_sound: Annotated[str | None, typer.Option(help="Ambient sound.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Wanted length in frames.")] = None,
    join: Annotated[str | None, typer.Option(help="Put between reference text and text; default: by script.")] = None,
    seed: Annotated[int | None, typer.Option(help="0 to 2^63 - 1; the same seed gives the same speech.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus mass; 0 and 1 disable.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Codes kept; 0 disables.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="1 disables.")] = None,
    predictor_temperature: Annotated[float | None, typer.Option(help="Of Qwen3-TTS's codes after the first.")] = None,
    predictor_top_p: Annotated[float | None, typer.Option(help="Likewise.")] = None,
    predictor_top_k: Annotated[int | None, typer.Option(help="Likewise.")] = None,
    max_frames: Annotated[int | None, typer.Option(help="Hard cap on new frames.")] = None,
    text_front: Annotated[
        bool | None,
        typer.Option("--text-front/--no-text-front", help="Read numbers and symbols out; default: by the model."),
    ] = None,
    codes_out: Annotated[Path | None, typer.Option(help="Also write the new frames' codes (.npy).")] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Speak TEXT into a file."""
    request = _request(
        text=_text(text),
        text_front=text_front,
        voice=voice,
        reference=[Path(item) for item in reference or []],
        reference_text=reference_text,
        language=language,
        instruction=instruction,
        task_type=task_type,
        streaming_text=streaming_text,
        quality=quality,
        sound_event=sound_event,
        ambient_sound=ambient_sound,
        tokens=tokens,
        join=join,
        seed=seed,
        max_frames=max_frames,
        sampling={
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "repetition_penalty": repetition_penalty,
            "predictor_temperature": predictor_temperature,
            "predictor_top_p": predictor_top_p,
            "predictor_top_k": predictor_top_k,
        },
    )
    if codec == "none" and (output is not None or codes_out is None):
        raise InvalidRequestError("--codec none makes no audio; leave out --output and give --codes-out FILE.npy")

    from hocket.audio import check_writable, write_audio
    from hocket.codes_file import check_codes_writable, write_codes
    from hocket.engine.engine import Engine
    from hocket.info import checkpoint_extras
    from hocket.voices import find_voice

    if voice is not None:
        find_voice(checkpoint_extras(model).voices, voice)  # an error before the weights are loaded
    if codec != "none":
        output = output or Path("out.wav")
        check_writable(output)
    if codes_out is not None:
        check_codes_writable(codes_out)
    with _progress() as show:
        show("loading")
        engine = Engine.load(model, codec, device=device, dtype=dtype)
        show("speaking")
        speech = engine.generate(request)
    if output is not None:
        write_audio(output, speech.samples, speech.sample_rate)
    if codes_out is not None:
        write_codes(codes_out, speech.codes)
    _report(speech, output, codes_out, as_json=as_json)


@app.command()
def voices(model: Model = None, as_json: Json = False) -> None:
    """List the voices that come with a model."""
    from hocket.info import describe_voices

    entries = describe_voices(model)
    width = max(len(str(entry["name"])) for entry in entries)
    lines = [f"{entry['name']:<{width}}  {entry['description']}" for entry in entries]
    _print(json.dumps(entries) if as_json else "\n".join(lines))


@app.command()
def serve(
    model: Annotated[str | None, typer.Argument(help="Checkpoint folder or hub id; default: built in.")] = None,
    profile: Annotated[str | None, typer.Option(help="default, throughput, latency, cpu, or a YAML file.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting, e.g. engine.rows=32.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at; default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen at, 0 for a free one; default: 8000.")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Clients must send it; may be repeated.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Engines, each in a process (on cuda: a GPU) of its own; default: 1.")
    ] = None,
    print_config: Annotated[bool, typer.Option(help="Print every setting and its origin, and leave.")] = False,
) -> None:
    """Serve speech over an OpenAI-compatible API."""
    from hocket.config import Environment
    from hocket.server.profiles import Layer, load_profile, parse_settings

    environment = Environment.read()
    key = environment.api_key
    server = {"server.host": host, "server.port": port, "server.api_keys": api_key}
    flags = {"model": model, "workers": workers, **server}
    loaded = load_profile(
        profile or environment.profile or "default",
        Layer("HOCKET_API_KEY", {} if key is None else {"server.api_keys": [key]}),
        parse_settings(settings or []),
        Layer("flag", {name: value for name, value in flags.items() if value is not None}),
    )
    if print_config:
        _print(loaded.table())
        return
    from hocket.server.serve import serve as run

    run(loaded.profile, environment.home)


@codec_app.command("encode")
def codec_encode(
    audio: Annotated[Path, typer.Argument(help="Audio file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Codes, int64 [frames, codebooks] (.npy).")],
    codec: OnlyCodec = None,
    codebooks: Annotated[int | None, typer.Option(help="Keep the first N; default: all.")] = None,
    as_reference: Annotated[bool, typer.Option(help="Apply the limits and loudness rule of references.")] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Turn an audio file into codes."""
    import torch

    from hocket.codes_file import check_codes_writable, write_codes
    from hocket.config import ReferenceLimits
    from hocket.prompt.reference import prepare_audio, prepare_reference

    check_codes_writable(output)
    model = _load_codec(codec, device, dtype)
    rate, channels = model.config.sample_rate, model.config.channels
    if as_reference:
        samples = prepare_reference(audio, sample_rate=rate, channels=channels, limits=ReferenceLimits())
    else:
        samples = prepare_audio(audio, sample_rate=rate, channels=channels)
    if model.config.reference_frames(samples.shape[1]) == 0:
        frame_ms = 1000 * model.config.frame_samples / rate
        raise AudioFileError(f"{str(audio)!r} is shorter than one frame of the codec ({frame_ms:.0f} ms)")
    codes = model.encode_whole(torch.from_numpy(samples).to(device), codebooks).cpu().numpy()
    write_codes(output, codes)
    _print(f"{output}: {codes.shape[0]} frames of {codes.shape[1]} codes")


@codec_app.command("decode")
def codec_decode(
    codes: Annotated[Path, typer.Argument(help="Codes, int64 [frames, codebooks] (.npy).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Audio file; the suffix sets the format.")],
    codec: OnlyCodec = None,
    float32: Annotated[bool, typer.Option("--float", help="32-bit float samples, unclipped (.wav only).")] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Turn codes into an audio file."""
    import torch

    from hocket.audio import check_writable, write_audio
    from hocket.codes_file import read_codes

    check_writable(output)
    if float32 and output.suffix.lower() != ".wav":
        raise AudioFileError(f"cannot write {str(output)!r}: --float needs the suffix .wav")
    codes_TN = read_codes(codes)
    model = _load_codec(codec, device, dtype)
    samples = model.decode_whole(torch.from_numpy(codes_TN).to(device)).cpu().numpy()
    write_audio(output, samples, model.config.sample_rate, float32=float32)
    _print(f"{output}: {samples.shape[1] / model.config.sample_rate:.2f} s of audio")


@app.command()
def info(
    model: Annotated[str | None, typer.Argument(help="Checkpoint folder or hub id; default: built in.")] = None,
    dtype: Dtype = "float32",
    rows: Annotated[int | None, typer.Option(min=1, help="Also plan the memory of an engine of N rows.")] = None,
    as_json: Json = False,
) -> None:
    """Describe a checkpoint: family, dimensions, parameters, memory."""
    from hocket.engine.loading import parse_dtype
    from hocket.info import describe

    facts = describe(model, parse_dtype(dtype), rows)
    if as_json:
        _print(json.dumps(facts))
        return
    width = max(len(name) for name in facts)
    shown = {name: f"{value:,}" if isinstance(value, int) else value for name, value in facts.items()}
    _print("\n".join(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in shown.items()))


def main() -> NoReturn:
    """Entry point. Every failure is one line on standard error and a non-zero exit; `--debug` adds the traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be valid UTF-8
    try:
        code = app(standalone_mode=False)
    except TyperException as error:
        _fail(f"{error.format_message().rstrip('.')}; --help shows what there is", error.exit_code)
    except HocketError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        _fail(f"{reason}; please report it with what `hocket --debug ...` prints", _INTERNAL_ERROR, "internal error")
    if code:
        _fail("interrupted", code)  # Typer turns Ctrl-C into an exit code of its own
    sys.exit(0)


def _fail(message: str, code: int, kind: str = "error") -> NoReturn:
    print(f"hocket: {kind}: {' '.join(message.split())}", file=sys.stderr)
    _LOG.debug("", exc_info=True)
    sys.exit(code)


def _print(text: str) -> None:
    """To standard output, at once, so that a reader who has gone away or a full disk is reported here."""
    try:
        print(text, flush=True)
    except OSError as error:
        # Python flushes once more at exit; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(141)  # what a shell reports for a program that SIGPIPE ended
        raise AudioFileError(f"cannot write to standard output: {error.strerror}") from error


def _text(argument: str) -> str:
    if argument != "-":
        return argument
    if sys.stdin is None:
        raise InvalidRequestError("there is no standard input to read the text from")
    try:
        # A byte order mark and Windows line ends belong to the file, not to the text.
        return sys.stdin.buffer.read().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"standard input is not UTF-8 (byte {error.start}); convert it first") from None


def _request(**fields: Any) -> SpeechRequest:
    from pydantic import ValidationError

    from hocket.core import Sampling, SpeechRequest

    try:
        return SpeechRequest(sampling=Sampling(**fields.pop("sampling")), **fields)
    except ValidationError as error:
        problem = error.errors()[0]
        field = str(problem["loc"][0]) if problem["loc"] else ""
        option = field if field in {"", "text"} else f"--{field.replace('_', '-')}"
        if problem["type"] == "value_error":
            message = f"{option} {problem['msg'].removeprefix('Value error, ')}"
        else:
            given = str(problem["input"])
            shown = given if len(given) <= 60 else f"{given[:60]}…"
            message = f"{option} is {shown}; {problem['msg'][0].lower()}{problem['msg'][1:]}"
        raise InvalidRequestError(message, param=field or None) from None


def _load_codec(codec: str | None, device: str, dtype: str) -> LoadedCodec:
    from hocket.engine.loading import parse_device, parse_dtype
    from hocket.models.registry import builtin_model, codec_folder, load_codec

    on, precision = parse_device(device), parse_dtype(dtype)
    return load_codec(codec_folder(builtin_model(), codec), device=on, dtype=precision)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A function that shows what is going on: on a terminal only, whatever the environment says about colours."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


def _report(speech: Speech, output: Path | None, codes_out: Path | None, *, as_json: bool) -> None:
    seconds, taken = speech.seconds, speech.timings.total_seconds
    facts = {
        "audio_seconds": round(seconds, 4),
        "taken_seconds": round(taken, 4),
        "frames": len(speech.codes),
        "seed": speech.seed,
        "finish_reason": speech.finish_reason,
    }
    if as_json:
        _print(json.dumps({**facts, "output": output and str(output), "codes_out": codes_out and str(codes_out)}))
        return
    speed = f", {seconds / taken:.1f} times as fast as it plays" if seconds else ""
    where = output or codes_out
    _print(
        f"{where}: {seconds:.2f} s of audio in {taken:.2f} s{speed} "
        f"({len(speech.codes)} frames, seed {speech.seed}, {speech.finish_reason})"
    )
    if speech.finish_reason == "runaway":
        print(
            "note: ended as a runaway: it went on for far longer than its text, repeated itself or fell silent; "
            "another --seed or temperature may do better",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
