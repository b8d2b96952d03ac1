"""Runs the command line, in this process or as a process of its own."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from hocket.cli.app import main
from tests.support.paths import GOLDEN

TALKER = str(GOLDEN / "local_tiny")
#: Belongs to the golden talker: 300 Hz, stereo, 16 codebooks of which it makes 12.
CODEC = str(GOLDEN / "codec2_tiny")
PAIR = ("--model", TALKER, "--codec", CODEC)
CODES_ONLY = ("--model", TALKER, "--codec", "none", "--codes-out", "codes.npy")


@dataclass(frozen=True, slots=True)
class Done:
    """Exit code and output of a run."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on standard error of a run that failed."""
        assert self.code != 0
        assert self.out == ""
        assert self.err.count("\n") == 1
        assert self.err.endswith("\n")
        assert "Traceback" not in self.err
        return self.err.rstrip("\n")


def run(*arguments: str | bytes, stdin: bytes = b"") -> Done:
    """`hocket ARGUMENTS`. Bytes are decoded as Python decodes a command line."""
    streams = [io.TextIOWrapper(io.BytesIO(data), encoding="utf-8") for data in (stdin, b"", b"")]
    streams[2].reconfigure(errors="backslashreplace")  # as the interpreter sets up standard error
    argv = ["hocket", *map(os.fsdecode, arguments)]
    with mock.patch.multiple(
        sys, argv=argv, stdin=streams[0], stdout=streams[1], stderr=streams[2]
    ):
        try:
            main()
        except SystemExit as left:
            code = left.code
    assert isinstance(code, int)
    return Done(code, *map(_text, streams[1:]))


def run_process(*arguments: str | bytes, stdin: bytes = b"", **environment: str) -> Done:
    """`python -W error -m hocket ARGUMENTS` as a process of its own, with `environment` added to
    this one's.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "hocket", *arguments],
        check=False,
        input=stdin,
        capture_output=True,
        timeout=120,
        env=os.environ | environment,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def listing() -> dict[str, bytes]:
    """Every file under the working directory, and what is in it."""
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def refused(message: str, *arguments: str | bytes, stdin: bytes = b"", code: int = 2) -> None:
    """The arguments end with `code` and an error that matches `message`, and leave every file as it
    was.
    """
    before = listing()
    done = run(*arguments, stdin=stdin)
    assert re.match(r"hocket: error: .*" + message, done.error), done.error
    assert done.code == code
    assert listing() == before


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
