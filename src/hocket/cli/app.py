"""The commands. Results go to standard output, all else to standard error; an error is one line."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from hocket import __version__
from hocket.bench.cli import bench_app
from hocket.cli.options import Device, Dtype, Json, Model, OnlyCodec, print_out
from hocket.cli.say import say
from hocket.errors import AudioFileError, HocketError

if TYPE_CHECKING:
    from hocket.models.codec import Codec as LoadedCodec

# Commands import torch themselves, so that --help and wrong arguments answer at once.

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
codec_app = typer.Typer(rich_markup_mode=None, help="Audio to codes and back.")
app.command()(say)
app.add_typer(codec_app, name="codec")
app.add_typer(bench_app, name="bench")

#: Traceback of the error that `main` caught, for `hocket --debug`.
_LOG = logging.getLogger("hocket")
#: Exit code of sysexits.h for an internal software error.
_INTERNAL_ERROR = 70


@app.callback(invoke_without_command=True)
def hocket(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print a traceback with every error.")
    ] = False,
) -> None:
    """Many texts into many voices at once."""
    if debug:
        logging.basicConfig(format="%(message)s")
        _LOG.setLevel(logging.DEBUG)
    if version:
        print_out(f"hocket {__version__}")
    elif context.invoked_subcommand is None:
        print_out(context.get_help())


@app.command()
def voices(model: Model = None, as_json: Json = False) -> None:
    """List the voices that come with a model."""
    from hocket.models.registry import checkpoint_extras

    entries = [
        {
            "name": name,
            "description": voice.description,
            "language": voice.language,
            "mode": voice.mode,
            "transcript": voice.transcript,
            "source": voice.source,
            "licence": voice.licence,
        }
        for name, voice in checkpoint_extras(model).voices.items()
    ]
    width = max(len(str(entry["name"])) for entry in entries)
    lines = [f"{entry['name']:<{width}}  {entry['description']}" for entry in entries]
    print_out(json.dumps(entries) if as_json else "\n".join(lines))


@app.command()
def serve(
    model: Annotated[
        str | None, typer.Argument(help="Checkpoint folder or hub id; default: built in.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="default, throughput, latency, cpu, or a YAML file.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting, e.g. engine.rows=32."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen at; default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen at, 0 for a free one; default: 8000.")
    ] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help="Clients must send it; may be repeated.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(help="Spread engines over so many GPUs; the profile's device must be cuda."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Engines, each in a process of its own; default: one on each of --gpus, or 1."
        ),
    ] = None,
    http_workers: Annotated[
        int | None,
        typer.Option(help="Processes that serve HTTP; default: 1, more on many cores and GPUs."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option(help="Print every setting and its origin, and leave.")
    ] = False,
) -> None:
    """Serve speech over an OpenAI-compatible API."""
    from hocket.config import Environment
    from hocket.server.profiles import Layer, load_profile, parse_settings

    environment = Environment.read()
    key = environment.api_key
    server = {
        "server.host": host,
        "server.port": port,
        "server.api_keys": api_key,
        "server.http_workers": http_workers,
    }
    flags = {"model": model, "gpus": gpus, "workers": workers, **server}
    loaded = load_profile(
        profile or environment.profile or "default",
        Layer("HOCKET_API_KEY", {} if key is None else {"server.api_keys": [key]}),
        parse_settings(settings or []),
        Layer("flag", {name: value for name, value in flags.items() if value is not None}),
    )
    if print_config:
        print_out(loaded.table())
        return
    from hocket.server.serve import serve as run

    run(loaded.profile, environment.home)


@codec_app.command("encode")
def codec_encode(
    audio: Annotated[Path, typer.Argument(help="Audio file.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Codes, int64 [frames, codebooks] (.npy).")
    ],
    codec: OnlyCodec = None,
    codebooks: Annotated[int | None, typer.Option(help="Keep the first N; default: all.")] = None,
    as_reference: Annotated[
        bool, typer.Option(help="Apply the limits and loudness rule of references.")
    ] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Turn an audio file into codes."""
    import torch

    from hocket.audio.codes_file import check_codes_writable, write_codes
    from hocket.audio.reference import prepare_audio, prepare_reference
    from hocket.config import ReferenceLimits

    check_codes_writable(output)
    model = _load_codec(codec, device, dtype)
    rate, channels = model.config.sample_rate, model.config.channels
    if as_reference:
        samples = prepare_reference(
            audio, sample_rate=rate, channels=channels, limits=ReferenceLimits()
        )
    else:
        samples = prepare_audio(audio, sample_rate=rate, channels=channels)
    if model.config.reference_frames(samples.shape[1]) == 0:
        frame_ms = 1000 * model.config.frame_samples / rate
        raise AudioFileError(
            f"{str(audio)!r} is shorter than one frame of the codec ({frame_ms:.0f} ms)"
        )
    codes = model.encode_whole(torch.from_numpy(samples).to(device), codebooks).cpu().numpy()
    write_codes(output, codes)
    print_out(f"{output}: {codes.shape[0]} frames of {codes.shape[1]} codes")


@codec_app.command("decode")
def codec_decode(
    codes: Annotated[Path, typer.Argument(help="Codes, int64 [frames, codebooks] (.npy).")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Audio file; the suffix sets the format.")
    ],
    codec: OnlyCodec = None,
    float32: Annotated[
        bool, typer.Option("--float", help="32-bit float samples, unclipped (.wav only).")
    ] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Turn codes into an audio file."""
    import torch

    from hocket.audio.codes_file import read_codes
    from hocket.audio.io import check_writable, write_audio

    check_writable(output)
    if float32 and output.suffix.lower() != ".wav":
        raise AudioFileError(f"cannot write {str(output)!r}: --float needs the suffix .wav")
    codes_TN = read_codes(codes)
    model = _load_codec(codec, device, dtype)
    samples = model.decode_whole(torch.from_numpy(codes_TN).to(device)).cpu().numpy()
    write_audio(output, samples, model.config.sample_rate, float32=float32)
    print_out(f"{output}: {samples.shape[1] / model.config.sample_rate:.2f} s of audio")


@app.command()
def info(
    model: Annotated[
        str | None, typer.Argument(help="Checkpoint folder or hub id; default: built in.")
    ] = None,
    dtype: Dtype = "float32",
    rows: Annotated[
        int | None, typer.Option(min=1, help="Also plan the memory of an engine of N rows.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Describe a checkpoint: family, dimensions, parameters, memory."""
    from hocket.engine.build import parse_dtype
    from hocket.info import describe

    facts = describe(model, parse_dtype(dtype), rows)
    if as_json:
        print_out(json.dumps(facts))
        return
    width = max(len(name) for name in facts)
    shown = {
        name: f"{value:,}" if isinstance(value, int) else value for name, value in facts.items()
    }
    print_out(
        "\n".join(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in shown.items())
    )


def main() -> NoReturn:
    """Entry point; a failure is one line on standard error and a non-zero exit.

    `--debug` adds the traceback.
    """
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
        _fail(
            f"{reason}; please report it with what `hocket --debug ...` prints",
            _INTERNAL_ERROR,
            "internal error",
        )
    if code:
        _fail("interrupted", code)  # Typer turns Ctrl-C into an exit code of its own
    sys.exit(0)


def _fail(message: str, code: int, kind: str = "error") -> NoReturn:
    print(f"hocket: {kind}: {' '.join(message.split())}", file=sys.stderr)
    _LOG.debug("", exc_info=True)
    sys.exit(code)


def _load_codec(codec: str | None, device: str, dtype: str) -> LoadedCodec:
    from hocket.engine.build import parse_device, parse_dtype
    from hocket.models.registry import builtin_model, codec_folder, load_codec

    on, precision = parse_device(device), parse_dtype(dtype)
    return load_codec(codec_folder(builtin_model(), codec), device=on, dtype=precision)


if __name__ == "__main__":
    main()
