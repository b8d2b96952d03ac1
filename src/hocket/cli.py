"""The command line. Results go to standard output, everything else to standard error; errors are one line each."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from pydantic import ValidationError
from rich.console import Console

from hocket.errors import HocketError, InvalidRequestError

if TYPE_CHECKING:
    from hocket.core import Speech, SpeechRequest
    from hocket.engine.engine import Engine

# Heavy imports (torch) happen inside the commands, so that --help and bad arguments answer at once.

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Many texts into many voices at once.",
)
codec_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Audio to codes and back.")
app.add_typer(codec_app, name="codec")

Model = Annotated[str | None, typer.Option("--model", "-m", help="Checkpoint folder or hub id; default: built in.")]
Codec = Annotated[str | None, typer.Option("--codec", help="Codec folder or hub id; 'none' makes codes only.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


@app.command()
def say(
    text: Annotated[str, typer.Argument(help="What to say; '-' reads it from standard input.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Audio file; the suffix sets the format.")
    ] = None,
    model: Model = None,
    codec: Codec = None,
    reference: Annotated[list[str] | None, typer.Option(help="Voice to clone: audio file or codes .npy.")] = None,
    reference_text: Annotated[str | None, typer.Option(help="Words of the one reference: continue it.")] = None,
    language: Annotated[str | None, typer.Option(help="English name of the language, e.g. English.")] = None,
    instruction: Annotated[str | None, typer.Option(help="How to speak.")] = None,
    quality: Annotated[str | None, typer.Option(help="Recording quality wanted.")] = None,
    sound_event: Annotated[str | None, typer.Option(help="Sound event.")] = None,
    ambient_sound: Annotated[str | None, typer.Option(help="Ambient sound.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Wanted length in frames.")] = None,
    join: Annotated[str | None, typer.Option(help="Put between reference text and text; default: by script.")] = None,
    seed: Annotated[int | None, typer.Option(help="0 to 2^63 - 1; the same seed gives the same speech.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus mass; 1 disables.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Codes kept; 0 disables.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="1 disables.")] = None,
    max_frames: Annotated[int | None, typer.Option(help="Hard cap on new frames.")] = None,
    codes_out: Annotated[Path | None, typer.Option(help="Also write the new frames' codes (.npy).")] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Speak TEXT into a file."""
    from hocket.audio import check_writable
    from hocket.codes_file import check_codes_writable

    request = _request(
        text=_text(text),
        reference=[Path(item) for item in reference or []],
        reference_text=reference_text,
        language=language,
        instruction=instruction,
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
        },
    )
    if codec == "none":
        if output is not None or codes_out is None:
            raise InvalidRequestError("--codec none makes no audio; leave out --output and give --codes-out FILE.npy")
    else:
        output = output or Path("out.wav")
        check_writable(output)
    if codes_out is not None:
        check_codes_writable(codes_out)

    from hocket.engine.engine import Engine

    engine = Engine.load(model, codec, device=device, dtype=dtype)
    speech = _speak(engine, request)
    if output is not None:
        from hocket.audio import write_audio

        write_audio(output, speech.samples, speech.sample_rate)
    if codes_out is not None:
        from hocket.codes_file import write_codes

        write_codes(codes_out, speech.codes)
    _report(speech, output, codes_out, as_json=as_json)
    if model is None and not as_json:
        print("note: the built-in model is a random placeholder: it babbles, it cannot speak yet", file=sys.stderr)


@codec_app.command("encode")
def codec_encode(
    audio: Annotated[Path, typer.Argument(help="Audio file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Codes, int64 [frames, codebooks] (.npy).")],
    codec: Codec = None,
    codebooks: Annotated[int | None, typer.Option(help="Keep the first N; default: all.")] = None,
    as_reference: Annotated[bool, typer.Option(help="Apply the limits and loudness rule of references.")] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Turn an audio file into codes."""
    import torch

    from hocket.codes_file import check_codes_writable, write_codes
    from hocket.config import ReferenceLimits
    from hocket.errors import AudioFileError
    from hocket.prompt.reference import prepare_audio, prepare_reference

    check_codes_writable(output)
    model = _load_codec(codec, device, dtype)
    rate, channels = model.config.sample_rate, model.config.channels
    if as_reference:
        samples = prepare_reference(audio, sample_rate=rate, channels=channels, limits=ReferenceLimits())
    else:
        samples = prepare_audio(audio, sample_rate=rate, channels=channels)
    if samples.shape[1] < model.config.frame_samples:
        frame_ms = 1000 * model.config.frame_samples / rate
        raise AudioFileError(f"{audio} is shorter than one frame of the codec ({frame_ms:.0f} ms)")
    with torch.inference_mode():
        codes = model.encode_whole(torch.from_numpy(samples).to(device), codebooks).cpu().numpy()
    write_codes(output, codes)
    print(f"{output}: {codes.shape[0]} frames of {codes.shape[1]} codes")


@codec_app.command("decode")
def codec_decode(
    codes: Annotated[Path, typer.Argument(help="Codes, int64 [frames, codebooks] (.npy).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Audio file; the suffix sets the format.")],
    codec: Codec = None,
    float32: Annotated[bool, typer.Option("--float", help="32-bit float samples, unclipped (.wav only).")] = False,
    device: Device = "cpu",
    dtype: Dtype = "float32",
) -> None:
    """Turn codes into an audio file."""
    import torch

    from hocket.audio import check_writable, write_audio
    from hocket.codes_file import read_codes

    check_writable(output, float32=float32)
    codes_TN = read_codes(codes)
    model = _load_codec(codec, device, dtype)
    with torch.inference_mode():
        samples = model.decode_whole(torch.from_numpy(codes_TN).to(device)).cpu().numpy()
    write_audio(output, samples, model.config.sample_rate, float32=float32)
    print(f"{output}: {samples.shape[1] / model.config.sample_rate:.2f} s of audio")


@app.command()
def info(
    model: Annotated[str | None, typer.Argument(help="Checkpoint folder or hub id; default: built in.")] = None,
    dtype: Dtype = "float32",
    as_json: Json = False,
) -> None:
    """Describe a checkpoint: family, dimensions, parameters, memory."""
    from hocket.engine.engine import parse_dtype
    from hocket.info import describe

    facts = describe(model, parse_dtype(dtype))
    if as_json:
        print(json.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<{width}}  {f'{value:,}' if isinstance(value, int) else value}")


def main() -> NoReturn:
    """Entry point: every expected failure is one line on standard error and a non-zero exit."""
    try:
        app(standalone_mode=True)
    except HocketError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    # backslashreplace: a message may quote a file name that is not valid UTF-8.
    line = f"hocket: error: {' '.join(message.split())}\n"
    sys.stderr.buffer.write(line.encode("utf-8", "backslashreplace"))
    sys.exit(code)


def _text(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"standard input is not UTF-8 (byte {error.start}); convert it first") from None


def _request(**fields: Any) -> SpeechRequest:
    from hocket.core import Sampling, SpeechRequest

    try:
        sampling = Sampling(**fields.pop("sampling"))
        return SpeechRequest(sampling=sampling, **fields)
    except ValidationError as error:
        problem = error.errors()[0]
        option = "-".join(str(part) for part in problem["loc"][:1]).replace("_", "-")
        reason = problem["msg"].removeprefix("Value error, ")
        message = f"{option}: {reason}" if option else reason
        raise InvalidRequestError(message, param=option) from None


def _load_codec(codec: str | None, device: str, dtype: str) -> Any:
    from hocket.engine.engine import parse_device, parse_dtype
    from hocket.models.checkpoint import resolve_checkpoint
    from hocket.models.registry import builtin_model, load_codec

    folder = builtin_model() / "codec" if codec is None else resolve_checkpoint(codec)
    return load_codec(folder, device=parse_device(device), dtype=parse_dtype(dtype))


def _speak(engine: Engine, request: SpeechRequest) -> Speech:
    console = Console(stderr=True)
    if not console.is_terminal:
        return engine.generate(request)
    with console.status("speaking"):
        return engine.generate(request)


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
        print(json.dumps({**facts, "output": output and str(output), "codes_out": codes_out and str(codes_out)}))
        return
    speed = f", {seconds / taken:.1f} times as fast as it plays" if seconds else ""
    where = output or codes_out
    print(
        f"{where}: {seconds:.2f} s of audio in {taken:.2f} s{speed} "
        f"({len(speech.codes)} frames, seed {speech.seed}, {speech.finish_reason})"
    )


if __name__ == "__main__":
    main()
