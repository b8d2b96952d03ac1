"""The server under attack, what an attack is, and when it has held."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

SPEECH = "/v1/audio/speech"
BATCH = "/v1/audio/speech/batch"
VOICES = "/v1/audio/voices"
ENCODE = "/v1/audio/tokens/encode"
DECODE = "/v1/audio/tokens/decode"
STREAM = "/v1/audio/speech/stream"

#: What is wrong with the server's behaviour, or None where it has held.
Verdict = str | None


@dataclass(frozen=True, slots=True)
class Attack:
    """One attempt."""

    group: str
    name: str
    act: Callable[[], Verdict]


@dataclass
class Target:
    """A server, with a key of it."""

    url: str
    key: str
    #: Of a server that was started here; None: what needs them is not tried.
    folder: Path | None = None
    pid: int | None = None
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    @property
    def bearer(self) -> dict[str, str]:
        """The header with the key."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request with the key, unless `headers` say otherwise."""
        headers = {**self.bearer, **options.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **options)

    def post(self, path: str, body: object, *statuses: int) -> Verdict:
        """A JSON request, whose answer must have one of `statuses`."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return judged(self.ask("POST", path, content=content, headers=headers), *statuses)

    def raw(self, data: bytes, *, seconds: float = 5.0) -> bytes:
        """What comes back for these bytes, until the server closes or is silent."""
        answer = b""
        with contextlib.suppress(OSError), socket.create_connection(self.address, 5) as sock:
            sock.settimeout(seconds)
            sock.sendall(data)
            while piece := sock.recv(65536):
                answer += piece
                if len(answer) > 2**20:
                    break
        return answer

    @property
    def resident_bytes(self) -> int:
        """Memory of the front end."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


def judged(answer: httpx.Response, *statuses: int) -> Verdict:
    """Whether an answer has one of `statuses`, and errors the form and the reserve that they
    should.
    """
    if answer.status_code not in statuses:
        return f"{answer.status_code} {answer.text[:100]!r}"
    if answer.status_code < 400 or answer.request.method == "HEAD":
        return None
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} without an error in it: {answer.text[:100]!r}"
    return None if is_plain(message) else f"the message is {message[:200]!r}"


def is_plain(message: str) -> bool:
    """Whether a message is one line without a traceback or a path of the server."""
    is_long = len(message) > 1000
    return not (is_long or "\n" in message or "Traceback" in message or "site-packages" in message)


class Watch:
    """Asks `/health/live` all the time, and remembers how long it took.

    It has a process of its own, since the attacks keep this one busy.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        context = multiprocessing.get_context("spawn")
        #: When the question that is open was asked, or 0, and the longest wait.
        self._asked, self._longest = context.Value("d", 0.0), context.Value("d", 0.0)
        self._process = context.Process(
            target=_watch, args=(target.url, self._asked, self._longest), daemon=True
        )

    def __enter__(self) -> Watch:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join(10)
        self._process.close()

    def wait(self) -> None:
        """Wait until what the last attack has left behind is over, five minutes at most."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                self._target.client.get("/health/live").raise_for_status()
                return

    def freeze_seconds(self) -> float:
        """The longest wait since the last call, the present one included."""
        asked = self._asked.value
        longest = max(self._longest.value, time.monotonic() - asked if asked else 0.0)
        self._longest.value = 0.0
        return longest


def _watch(url: str, asked: Synchronized[float], longest: Synchronized[float]) -> None:
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        while True:
            asked.value = started = time.monotonic()
            try:
                client.get("/health/live").raise_for_status()
                longest.value = max(longest.value, time.monotonic() - started)
            except httpx.HTTPError:
                longest.value = max(longest.value, 999.0)
            asked.value = 0.0
            time.sleep(0.02)


def attacked(attack: Attack, watch: Watch, freeze_seconds: float) -> Verdict:
    """Run one attack. One whose only fault is a short freeze is run twice, for the machine may have
    been busy with something else.
    """
    is_second = False
    while True:
        watch.wait()
        watch.freeze_seconds()
        try:
            verdict = attack.act()
        except Exception as error:
            verdict = f"{type(error).__name__}: {str(error)[:200]}"
        frozen = watch.freeze_seconds()
        if verdict is not None:
            return verdict
        if frozen <= freeze_seconds:
            return None
        if is_second or frozen > 4 * freeze_seconds:
            return f"nothing else was answered for {frozen:.2f} s"
        is_second = True


@contextlib.contextmanager
def own_server(folder: Path, *, key: str, settings: Sequence[str] = ()) -> Iterator[Target]:
    """`hocket serve` of the built-in model on a free port; its log is `folder`/log."""
    (folder / "files").mkdir(parents=True)
    options = [f"server.fetch.files_folder={folder / 'files'}", *settings]
    command = [sys.executable, "-m", "hocket", "serve", "--port", "0"]
    command += [part for option in options for part in ("--set", option)]
    environment = os.environ | {"HOCKET_API_KEY": key, "HOCKET_HOME": str(folder / "home")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield Target(_address(folder / "log", process), key, folder, process.pid)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(40)
            process.kill()
            process.wait()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        text = log.read_text(encoding="utf-8", errors="replace")
        if "\nready " in text:
            return re.findall(r"^address  (\S+)$", text, re.MULTILINE)[0]
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start:\n{log.read_text(encoding='utf-8')}")
