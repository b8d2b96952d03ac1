"""Options that commands share, and how results are printed."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from hocket.core import SamplingFields
from hocket.errors import AudioFileError

Model = Annotated[
    str | None, typer.Option("--model", help="Checkpoint folder or hub id; default: built in.")
]
Codec = Annotated[
    str | None, typer.Option("--codec", help="Codec folder or hub id; 'none' makes codes only.")
]
OnlyCodec = Annotated[
    str | None, typer.Option("--codec", help="Codec folder or hub id; default: built in.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


def with_sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with an option for each of `SamplingFields`, passed on as its `sampling`."""
    types = get_type_hints(SamplingFields)
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[types[name], typer.Option(help=field.description)],
        )
        for name, field in SamplingFields.model_fields.items()
    ]
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        parameters += options if parameter.name == "sampling" else [parameter]

    @functools.wraps(command)
    def call(**arguments: Any) -> None:
        sampling = {name: arguments.pop(name) for name in SamplingFields.model_fields}
        command(sampling=sampling, **arguments)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def print_out(text: str) -> None:
    """Print to standard output and flush, so that a closed pipe or a full disk is reported here."""
    try:
        print(text, flush=True)
    except OSError as error:
        # Python flushes again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(141)  # a shell's code for a program that SIGPIPE ended
        raise AudioFileError(f"cannot write to standard output: {error.strerror}") from error
