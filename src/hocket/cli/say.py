"""`hocket say`: one text to one audio file."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.options import Codec, Device, Dtype, Json, Model, print_out, with_sampling_options
from hocket.errors import InvalidRequestError, requirement

if TYPE_CHECKING:
    from hocket.core import Speech, SpeechRequest

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Audio file; the suffix sets the format; default: out.wav."
    ),
]
Instruction = Annotated[
    str | None, typer.Option("--instruction", "--instructions", help="How to speak, or who does.")
]
TaskType = Annotated[
    str | None,
    typer.Option(
        help="Refuse a Qwen3-TTS checkpoint that is not for Base, CustomVoice or VoiceDesign."
    ),
]
StreamingText = Annotated[
    bool | None,
    typer.Option(
        "--streaming-text/--no-streaming-text",
        help="Qwen3-TTS reads a token a frame, or all up front.",
    ),
]
TextFront = Annotated[
    bool | None,
    typer.Option(
        "--text-front/--no-text-front", help="Read numbers and symbols out; default: by the model."
    ),
]


@with_sampling_options
def say(
    text: Annotated[
        str, typer.Argument(metavar="TEXT|-", help="What to say; '-' reads it from standard input.")
    ],
    output: Output = None,
    model: Model = None,
    codec: Codec = None,
    voice: Annotated[
        str | None, typer.Option(help="One of the model's own; `hocket voices` lists them.")
    ] = None,
    reference: Annotated[
        list[str] | None, typer.Option(help="Voice to clone: audio file or codes .npy.")
    ] = None,
    reference_text: Annotated[
        str | None, typer.Option(help="Words of the one reference: continue it.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="English name of the language, e.g. English.")
    ] = None,
    instruction: Instruction = None,
    task_type: TaskType = None,
    streaming_text: StreamingText = None,
    quality: Annotated[str | None, typer.Option(help="Recording quality wanted.")] = None,
    sound_event: Annotated[str | None, typer.Option(help="Sound event.")] = None,
    ambient_sound: Annotated[str | None, typer.Option(help="Ambient sound.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Wanted length in frames.")] = None,
    join: Annotated[
        str | None, typer.Option(help="Put between reference text and text; default: by script.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="0 to 2^63 - 1; the same seed gives the same speech.")
    ] = None,
    *,
    sampling: Mapping[str, Any],
    max_frames: Annotated[int | None, typer.Option(help="Hard cap on new frames.")] = None,
    text_front: TextFront = None,
    codes_out: Annotated[
        Path | None, typer.Option(help="Also write the new frames' codes (.npy).")
    ] = None,
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
        sampling=sampling,
    )
    _speak(
        request,
        output,
        codes_out,
        model=model,
        codec=codec,
        device=device,
        dtype=dtype,
        as_json=as_json,
    )


def _speak(
    request: SpeechRequest,
    output: Path | None,
    codes_out: Path | None,
    *,
    model: str | None,
    codec: str | None,
    device: str,
    dtype: str,
    as_json: bool,
) -> None:
    if codec == "none" and (output is not None or codes_out is None):
        raise InvalidRequestError(
            "--codec none makes no audio; leave out --output and give --codes-out FILE.npy"
        )

    from hocket.audio.codes_file import check_codes_writable, write_codes
    from hocket.audio.io import check_writable, write_audio
    from hocket.checkpoint.voices import find_voice
    from hocket.engine.engine import Engine
    from hocket.models.registry import checkpoint_extras

    if request.voice is not None:
        find_voice(
            checkpoint_extras(model).voices, request.voice
        )  # refused before the weights are loaded
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


def _text(argument: str) -> str:
    if argument != "-":
        return argument
    if sys.stdin is None:
        raise InvalidRequestError("there is no standard input to read the text from")
    try:
        # A byte order mark and Windows line ends are not part of the text.
        return sys.stdin.buffer.read().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"standard input is not UTF-8 (byte {error.start}); convert it first"
        ) from None


def _request(*, sampling: Mapping[str, Any], **fields: Any) -> SpeechRequest:
    from pydantic import ValidationError

    from hocket.core import Sampling, SpeechRequest

    try:
        return SpeechRequest(sampling=Sampling(**sampling), **fields)
    except ValidationError as error:
        problem = error.errors()[0]
        field = str(problem["loc"][0]) if problem["loc"] else ""
        option = field if field in {"", "text"} else f"--{field.replace('_', '-')}"
        if problem["type"] == "value_error":
            message = f"{option} {requirement(problem)}"
        else:
            given = str(problem["input"])
            shown = given if len(given) <= 60 else f"{given[:60]}…"
            message = f"{option} is {shown}; it {requirement(problem)}"
        raise InvalidRequestError(message, param=field or None) from None


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A function that shows the current activity, on a terminal only."""
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
        print_out(
            json.dumps(
                {
                    **facts,
                    "output": output and str(output),
                    "codes_out": codes_out and str(codes_out),
                }
            )
        )
        return
    speed = f", {seconds / taken:.1f} times as fast as it plays" if seconds else ""
    where = output or codes_out
    print_out(
        f"{where}: {seconds:.2f} s of audio in {taken:.2f} s{speed} "
        f"({len(speech.codes)} frames, seed {speech.seed}, {speech.finish_reason})"
    )
    if speech.finish_reason == "runaway":
        print(
            "note: ended as a runaway: it went on for far longer than its text, repeated itself "
            "or fell silent; another --seed or temperature may do better",
            file=sys.stderr,
        )
