"""Whether an installed Hocket works: the command line, a server and README's Python lines.

    python try_installed.py README.md

Run in a folder that is none of the project's, with the Python of an environment that has Hocket and
need have nothing else. Prints a line for each thing that was tried; the first failure ends it.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HOCKET = str(Path(sys.executable).parent / "hocket")
MAGIC = {
    "wav": b"RIFF",
    "flac": b"fLaC",
    "mp3": b"",
    "opus": b"OggS",
    "m4a": b"",
    "aac": b"",
    "webm": b"\x1a\x45\xdf\xa3",
}


def run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def command_line() -> None:
    for suffix, magic in MAGIC.items():
        spoken, again = Path(f"spoken.{suffix}"), Path(f"again-{suffix}.wav")
        run(HOCKET, "say", "Hello from Hocket.", "-o", str(spoken))
        assert spoken.read_bytes().startswith(magic), suffix
        assert spoken.stat().st_size > 1000, suffix
        run(HOCKET, "codec", "encode", str(spoken), "-o", "codes.npy")
        run(HOCKET, "codec", "decode", "codes.npy", "-o", str(again))
    run(HOCKET, "say", "It costs $5.20.", "--reference", "spoken.wav", "-o", "clone.wav")
    run(HOCKET, "voices")
    run(HOCKET, "info")
    print(f"hocket say in and out of {', '.join(MAGIC)}; cloning, codec, voices, info")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def server() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Path("serve.log").open("w+") as log:
        serving = subprocess.Popen([HOCKET, "serve", "--port", str(port)], stdout=log, stderr=log)
        try:
            begin = time.monotonic()
            while True:
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=10).close()
                    break
                except OSError:
                    log.flush()
                    said = Path("serve.log").read_text()
                    assert serving.poll() is None, said
                    assert time.monotonic() - begin < 300, f"no answer in 300 s\n{said}"
                    time.sleep(0.2)
            ready = time.monotonic() - begin
            body = (
                b'{"model": "hocket-mini", "input": "Hello from Hocket.", "response_format": "wav"}'
            )
            request = urllib.request.Request(
                f"{url}/v1/audio/speech", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=300) as answer:
                wav = answer.read()
            assert wav.startswith(b"RIFF")
            assert len(wav) > 1000
        finally:
            serving.terminate()
            serving.wait(60)
    print(f"hocket serve ready after {ready:.0f} s, one request answered with {len(wav)} bytes")


def python_lines(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        run(sys.executable, "-W", "error", "-c", code)
    print("README's Python lines")


if __name__ == "__main__":
    lines_of = Path(sys.argv[1]).resolve()
    command_line()
    server()
    python_lines(lines_of)
