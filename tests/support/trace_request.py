"""Print the files of `src/hocket` that one request runs through, in the order in which they run.

    python -m tests.support.trace_request          # Engine.generate, in this process
    python -m tests.support.trace_request --http   # hocket serve: front end and worker together

A file counts when one of its functions runs between the request and its answer; loading and
starting do not count. The request is a plain sentence with the built-in model on a CPU.
docs/architecture.md lists what this prints, and tests/test_request_path.py compares the two.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.support.paths import REPOSITORY

SOURCE = REPOSITORY / "src" / "hocket"
TEXT = "Many voices, one line."
#: Flag of code objects that are functions; module and class bodies do not have it.
_IS_FUNCTION = 0x1


@dataclass
class Recorder:
    """Files whose functions run while it records, in the order of their first call."""

    files: dict[str, None] = field(default_factory=dict)
    _seen: set[CodeType] = field(default_factory=set)

    def hook(self, frame: FrameType, event: str, _argument: Any) -> None:
        """The profile hook: note the file of a function that is called."""
        code = frame.f_code
        if event == "call" and code not in self._seen:
            self._seen.add(code)
            if code.co_flags & _IS_FUNCTION and code.co_filename.startswith(str(SOURCE)):
                self.files.setdefault(code.co_filename[len(str(SOURCE)) + 1 :])

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record this thread, and threads that start meanwhile."""
        threading.setprofile(self.hook)
        sys.setprofile(self.hook)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def trace_in_process() -> list[str]:
    """Files that `Engine.generate` runs through."""
    from hocket import Engine, SpeechRequest

    engine = Engine.load()
    recorder = Recorder()
    with recorder.recording():
        engine.generate(SpeechRequest(text=TEXT, seed=7))
    return list(recorder.files)


def trace_http() -> list[str]:
    """Files that `POST /v1/audio/speech` runs through: the front end's, then the worker's that are
    not among them.
    """
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder)
        (notes / "sitecustomize.py").write_text(
            "from tests.support.trace_request import record_this_process\nrecord_this_process()\n"
        )
        path = os.pathsep.join(
            [folder, str(REPOSITORY), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")]
        )
        environment = {**os.environ, "PYTHONPATH": path, "HOCKET_TRACE_FOLDER": folder}
        command = [sys.executable, "-m", "hocket", "serve", "--port", "0"]
        server = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            _request(_ready_address(server), notes)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
            if server.stdout is not None:
                server.stdout.close()
        recorded = sorted(notes.glob("*.json"), key=lambda note: int(note.stem))
        files: dict[str, None] = {}
        for note in recorded:  # the front end has the lower process id: it starts the worker
            files |= dict.fromkeys(json.loads(note.read_text()))
        return list(files)


def record_this_process() -> None:
    """Run in every process of the server at its start: record between the files `begin` and
    `end`.
    """
    folder, recorder = Path(os.environ["HOCKET_TRACE_FOLDER"]), Recorder()
    watcher = threading.Thread(target=_watch, args=(folder, recorder), daemon=True)
    watcher.start()
    threading.setprofile(recorder.hook)
    sys.setprofile(recorder.hook)


def _watch(folder: Path, recorder: Recorder) -> None:
    _wait_for(folder / "begin")
    # New containers: the hook may be running in another thread.
    recorder._seen, recorder.files = set(), {}
    (folder / f"{os.getpid()}.begun").touch()
    _wait_for(folder / "end")
    if recorder.files:
        (folder / f"{os.getpid()}.json").write_text(json.dumps(list(recorder.files)))
    (folder / f"{os.getpid()}.ended").touch()


def _wait_for(flag: Path) -> None:
    while not flag.exists():
        time.sleep(0.05)


def _ready_address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    shown: list[str] = []
    for line in server.stdout:  # ends when the server does
        shown.append(line)
        if line.startswith("ready"):
            return next(found[0] for seen in shown if (found := re.search(r"http://\S+", seen)))
    raise RuntimeError(f"the server did not become ready:\n{''.join(shown)}")


def _request(address: str, notes: Path) -> None:
    body = json.dumps(
        {
            "model": "hocket-mini",
            "voice": "default",
            "input": TEXT,
            "seed": 7,
            "response_format": "wav",
        }
    )
    headers = {"Content-Type": "application/json"}
    (notes / "begin").touch()
    while len(list(notes.glob("*.begun"))) < 2:
        time.sleep(0.05)
    request = urllib.request.Request(f"{address}/v1/audio/speech", body.encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.read()[:4] == b"RIFF"
    (notes / "end").touch()
    until = time.monotonic() + 10
    while len(list(notes.glob("*.ended"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--http", action="store_true", help="through hocket serve instead of Engine.generate"
    )
    files = trace_http() if parser.parse_args().http else trace_in_process()
    total = 0
    for file in files:
        lines = len((SOURCE / file).read_text(encoding="utf-8").splitlines())
        total += lines
        print(f"{lines:5}  {file}")
    print(f"{len(files)} files, {total:,} lines")


if __name__ == "__main__":
    main()
