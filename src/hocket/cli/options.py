"""What the commands share: options of the same meaning, and how a result is printed."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from hocket.errors import AudioFileError

Model = Annotated[str | None, typer.Option("--model", help="Checkpoint folder or hub id; default: built in.")]
Codec = Annotated[str | None, typer.Option("--codec", help="Codec folder or hub id; 'none' makes codes only.")]
OnlyCodec = Annotated[str | None, typer.Option("--codec", help="Codec folder or hub id; default: built in.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Json = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]


def print_out(text: str) -> None:
    """To standard output, at once, so that a reader who has gone away or a full disk is reported here."""
    try:
        print(text, flush=True)
    except OSError as error:
        # Python flushes once more at exit; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(141)  # what a shell reports for a program that SIGPIPE ended
        raise AudioFileError(f"cannot write to standard output: {error.strerror}") from error
