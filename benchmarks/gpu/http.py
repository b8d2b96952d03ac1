"""What a user meets: `hocket serve` on a GPU, over HTTP, with recordings as clients send them.

    python -m benchmarks.gpu.http --json OUT [--profile latency] [--scenarios named,inline-hot] ...

Writes a random checkpoint of MOSS-TTS-Local v1.5's dimensions in the official layout (or takes
`--model`), starts the server with a shipped profile for each launch, and drives it from processes
of their own. Lengths are forced, as random weights never stop. `--tiny` takes the golden checkpoint
of the tests on a CPU, to try the script. Results are saved after every scenario.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.http_load import Body, Plan, Served, Window, figures, run
from benchmarks.gpu.random_checkpoint import write_random_checkpoint
from hocket.bench.environment import command_line, host_facts, now
from hocket.bench.http import Target, send

_GOLDEN = Path(__file__).parents[2] / "tests" / "golden"
_WORDS = "the words of it"
_CLIP_RATE = 24_000
_START_SECONDS = 300.0
_FORM = "hocket-benchmark"


@dataclass(frozen=True, slots=True)
class Server:
    """A running `hocket serve`."""

    url: str
    pid: int
    sample_rate: int
    channels: int
    log: Path

    @property
    def bytes_per_second(self) -> int:
        return self.sample_rate * self.channels * 2

    @property
    def workers(self) -> list[int]:
        """Processes of the engines."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.pid), "-f", "hocket.worker.process"],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(pid) for pid in found.stdout.split()]


@dataclass(frozen=True, slots=True)
class Bench:
    """One launch: the server, the workload and how long each scenario runs."""

    server: Server
    workload: dict[str, Any]
    window: Window
    clients: int
    #: Distinguishes the recordings of this launch from those of others.
    launch: int

    def plan(self, clients: int | None = None) -> Plan:
        server = self.server
        return Plan(server.url, server.bytes_per_second, clients or self.clients)


# ---- requests


def speech(i: int, frames: int, **fields: Any) -> bytes:
    """The body of a request of exactly so many frames."""
    words = f"word {i} and so the sentence goes on until it has an end of its own, as they do."
    lengths = {"max_new_tokens": frames, "min_new_tokens": frames}
    return json.dumps(
        {"input": words[: 4 + frames], "response_format": "pcm", "seed": i, **lengths, **fields}
    ).encode()


@cache
def clip(i: int, seconds: float) -> bytes:
    """A recording of its own: 24 kHz mono, 16 bits, WAV."""
    generator = np.random.default_rng(1000 + i)
    time_S = np.arange(int(seconds * _CLIP_RATE)) / _CLIP_RATE
    tone_S = 0.3 * np.sin(2 * np.pi * (110 + i % 90) * time_S)
    noise_S = generator.standard_normal(len(time_S)) * 0.05
    samples_S = (tone_S + noise_S) * (1 + 0.5 * np.sin(2 * np.pi * 3 * time_S)) * 12_000
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(_CLIP_RATE)
        writer.writeframes(samples_S.astype("<i2").tobytes())
    return file.getvalue()


@cache
def clip_uri(i: int, seconds: float) -> str:
    return "data:audio/wav;base64," + base64.b64encode(clip(i, seconds)).decode()


def named(bench: Bench) -> Body:
    """The workload with uploaded voices."""
    requests = bench.workload["requests"]

    def body(i: int) -> bytes:
        voice, _, frames = requests[i % len(requests)]
        return speech(i, frames, voice=f"v{voice}")

    return body


def inline(
    bench: Bench, clips: int, seconds: float, first: int = 0, frames: int | None = None
) -> Body:
    """The workload's lengths, each with one of `clips` recordings inline."""
    requests = bench.workload["requests"]

    def body(i: int) -> bytes:
        length = requests[i % len(requests)][2] if frames is None else frames
        uri = clip_uri(first + i % clips, seconds)
        return speech(i, length, reference_audio=uri, reference_text=_WORDS)

    return body


# ---- scenarios

Scenario = Callable[[Bench], dict[str, Any]]


def named_voices(bench: Bench) -> dict[str, Any]:
    """Uploaded voices, a closed loop."""
    return _measured(bench, bench.plan(), named(bench), bench.window)


def inline_hot(bench: Bench) -> dict[str, Any]:
    """Recordings that were all heard before the window."""
    clips = len(bench.workload["reference_frames"])
    body = inline(bench, clips, 5.0)
    run(replace(bench.plan(16), requests=clips), body, Window(60.0, 0.0))
    return _measured(bench, bench.plan(), body, bench.window)


def inline_hot_alone(bench: Bench) -> dict[str, Any]:
    """One client whose recordings were heard before."""
    body = inline(bench, 4, 5.0, frames=25)
    run(replace(bench.plan(1), requests=8), body, Window(60.0, 0.0))
    return _measured(bench, bench.plan(1), body, Window(6.0, 0.5))


def named_alone(bench: Bench) -> dict[str, Any]:
    """One client with uploaded voices."""
    return _measured(bench, bench.plan(1), named(bench), Window(6.0, 1.0))


def cold(clients: int, seconds: float, requests: int) -> Scenario:
    """Each recording once."""

    def scenario(bench: Bench) -> dict[str, Any]:
        first = 100_000 * (bench.launch + 1) + int(1000 * seconds) + 10_000 * clients
        body = inline(bench, 10**6, seconds, first, frames=50)
        plan = replace(bench.plan(clients), requests=requests)
        prepared = [body(i) for i in range(requests)]  # drawn before the clock runs
        return _measured(bench, plan, prepared.__getitem__, Window(120.0, 0.0))

    return scenario


def cold_beside(bench: Bench) -> dict[str, Any]:
    """16 clients with new recordings beside 96 with named voices, whose figures these are."""
    clients = max(1, bench.clients * 3 // 4)
    count, first = 4000, 900_000 + 10_000 * bench.launch
    beside = inline(bench, 10**6, 5.0, first, frames=50)
    seconds = min(bench.window.seconds, 30.0)
    window = Window(seconds, bench.window.warm_seconds)
    with contextlib.ExitStack() as stack:
        others = stack.enter_context(
            _beside(bench, beside, max(1, bench.clients // 8), count, window)
        )
        found = _measured(bench, bench.plan(clients), named(bench), window)
    return {**found, "cold_beside": others()}


def uploads(bench: Bench) -> dict[str, Any]:
    """123 new voices, 16 at a time."""
    count = len(bench.workload["reference_frames"])
    began = time.perf_counter()
    errors = _upload(bench.server.url, [(f"u{i}", clip(700_000 + i, 5.0)) for i in range(count)])
    return {"voices": count, "seconds": round(time.perf_counter() - began, 2), "errors": errors[:1]}


def open_loop(rate: float) -> Scenario:
    """Named voices, arrivals at a constant rate."""

    def scenario(bench: Bench) -> dict[str, Any]:
        plan = replace(bench.plan(), rate=rate)
        return _measured(bench, plan, named(bench), Window(min(30.0, bench.window.seconds), 3.0))

    return scenario


def killed_worker(bench: Bench) -> dict[str, Any]:
    """SIGKILL of the engine under load: what streams see, and when the server speaks again."""
    import threading

    killed: list[float] = []

    def kill() -> None:
        for pid in bench.server.workers:
            os.kill(pid, signal.SIGKILL)
        killed.append(time.perf_counter())

    timer = threading.Timer(8.0, kill)
    timer.start()
    served = run(bench.plan(64), named(bench), Window(9.0, 0.0))
    timer.join()
    at = killed[0]
    cut = [one for one in served if one.error and one.sent < at]
    refused = [one for one in served if one.error and one.sent >= at]
    while not _is_ready(bench.server.url):
        if time.perf_counter() - at > _START_SECONDS:
            break
        time.sleep(0.1)
    return {
        "streams_cut": len(cut),
        "told_after_ms_max": round(1e3 * max((one.last - at for one in cut), default=0.0), 1),
        "refused_meanwhile": len(refused),
        "ready_again_s": round(time.perf_counter() - at, 1),
    }


def many_recordings(bench: Bench) -> dict[str, Any]:
    """4,000 different recordings: memory of front end and engine every 1,000."""
    sizes = [_resident_mib(bench.server)]
    for part in range(4):
        body = inline(bench, 10**6, 1.0, 2_000_000 + 1000 * part, frames=2)
        run(replace(bench.plan(), requests=1000), body, Window(90.0, 0.0))
        sizes.append(_resident_mib(bench.server))
    return {"recordings": 4000, "resident_mib": sizes}


SCENARIOS: dict[str, Scenario] = {
    "named-alone": named_alone,
    "named": named_voices,
    "inline-hot-alone": inline_hot_alone,
    "inline-hot": inline_hot,
    "cold-alone": cold(1, 5.0, 20),
    "cold-16": cold(16, 5.0, 400),
    "cold-30s-alone": cold(1, 30.0, 8),
    "cold-beside": cold_beside,
    "uploads": uploads,
    "open-loop": open_loop(40.0),
    "memory": many_recordings,
    "kill": killed_worker,
}


# ---- measuring


def _measured(bench: Bench, plan: Plan, body: Body, window: Window) -> dict[str, Any]:
    server = bench.server
    before, began = _cpu_seconds(server), time.perf_counter()
    served = run(plan, body, window)
    passed, after = time.perf_counter() - began, _cpu_seconds(server)
    good = sum(not one.error for one in served)
    found = figures(served, plan, window)
    if good:
        found["cpu_ms_per_request"] = {
            name: round(1e3 * (after[name] - before[name]) / good, 2) for name in after
        }
        found["cpu_cores"] = {
            name: round((after[name] - before[name]) / passed, 2) for name in after
        }
    return {**found, "resident_mib": _resident_mib(server), "gpu_mib": _gpu_mib()}


@contextlib.contextmanager
def _beside(
    bench: Bench, body: Body, clients: int, count: int, window: Window
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Load beside the block; the callable gives its figures afterwards."""
    import threading

    plan, served = replace(bench.plan(clients), requests=count), list[Served]()
    thread = threading.Thread(target=lambda: served.extend(run(plan, body, window, 2)))
    thread.start()

    def found() -> dict[str, Any]:
        thread.join()
        return figures(served, plan, window)

    yield found
    thread.join()


def _front_ends(server: Server) -> list[int]:
    """The front end and its helpers, without the engines."""
    children = subprocess.run(
        ["pgrep", "-P", str(server.pid)], capture_output=True, text=True, check=False
    ).stdout.split()
    return [server.pid, *({int(pid) for pid in children} - set(server.workers))]


def _cpu_seconds(server: Server) -> dict[str, float]:
    def of(pids: list[int]) -> float:
        total = 0.0
        for pid in pids:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    return {
        "front_end": of([server.pid]),
        "decoders": of(_front_ends(server)[1:]),
        "engine": of(server.workers),
    }


def _resident_mib(server: Server) -> dict[str, int]:
    def of(pids: list[int]) -> int:
        total = 0
        for pid in pids:
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return total * os.sysconf("SC_PAGE_SIZE") // 2**20

    return {"front_end": of([server.pid]), "engine": of(server.workers)}


def _gpu_mib() -> int | None:
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        return int(
            subprocess.run(
                ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()[0]
        )
    return None


# ---- the server


@contextlib.contextmanager
def serving(arguments: list[str], folder: Path) -> Iterator[Server]:
    """Run `hocket serve` until the block ends. Raises RuntimeError when it does not start."""
    log = folder / f"serve-{time.time_ns()}.log"
    command = [sys.executable, "-m", "hocket", "serve", "--port", "0", *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"HOCKET_HOME": str(folder / f"home-{time.time_ns()}")},
        )
    try:
        yield _started(process, log)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def _started(process: subprocess.Popen[bytes], log: Path) -> Server:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        lines = log.read_text().splitlines()
        ready = next((line.split() for line in lines if line.startswith("ready ")), None)
        if ready is not None:
            url = next(line.split()[1] for line in lines if line.startswith("address"))
            channels = next(int(ready[i - 1]) for i, word in enumerate(ready) if "channel" in word)
            rate = next(int(ready[i - 1]) for i, word in enumerate(ready) if word.startswith("Hz"))
            return Server(url, process.pid, rate, channels, log)
        time.sleep(0.1)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")


def _is_ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as page:
        return bool(page.status == 200)
    return False


def _upload(url: str, voices: list[tuple[str, bytes]], at_once: int = 16) -> list[str]:
    """Store voices; returns the errors."""
    target, errors = Target.parse(url), list[str]()

    async def one(name: str, recording: bytes, gate: asyncio.Semaphore) -> None:
        form = b""
        for field, value in (("name", name), ("ref_text", _WORDS)):
            head = f'--{_FORM}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n'
            form += head.encode()
        file = 'name="audio_sample"; filename="v.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        form += f"--{_FORM}\r\nContent-Disposition: form-data; {file}".encode() + recording
        form += f"\r\n--{_FORM}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={_FORM}"}
        async with gate:
            answer = await send(target, "POST", "/v1/audio/voices", headers, form, 120.0)
        if answer.status != 200:
            errors.append(f"{answer.status} {answer.detail or answer.body[:200].decode()}")

    async def every() -> None:
        gate = asyncio.Semaphore(at_once)
        await asyncio.gather(*(one(name, recording, gate) for name, recording in voices))

    asyncio.run(every())
    return errors


# ---- the command


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="file for the results")
    parser.add_argument("--profile", default="latency")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--model", help="checkpoint folder; default: written with random weights")
    parser.add_argument("--codec", help="its codec's folder, where the model does not name it")
    parser.add_argument(
        "--checkpoint", type=Path, default=Path(tempfile.gettempdir()) / "hocket-random"
    )
    parser.add_argument("--scenarios", default="named", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each window")
    parser.add_argument("--launches", type=int, default=1)
    parser.add_argument("--tiny", action="store_true", help="the tests' checkpoint on a CPU")
    return parser.parse_args()


def _served_model(arguments: argparse.Namespace) -> list[str]:
    if arguments.tiny:
        golden_codec = f"--set=codec={_GOLDEN / 'codec2_tiny'}"
        return [str(_GOLDEN / "local_tiny"), golden_codec, "--profile", "cpu"]
    model, codec = arguments.model, arguments.codec
    if model is None:
        written = arguments.checkpoint
        if not written.exists():
            began = time.perf_counter()
            write_random_checkpoint(written, _GOLDEN / "local_tiny")
            print(f"checkpoint written in {time.perf_counter() - began:.1f} s", flush=True)
        model, codec = str(written / "talker"), str(written / "codec")
    of_codec = [] if codec is None else [f"--set=codec={codec}"]
    return [model, *of_codec, "--profile", arguments.profile]


def main() -> None:
    arguments = _arguments()
    data = resources.files("hocket.bench") / "data/workload_en1088_like.json"
    workload = json.loads(data.read_text(encoding="utf-8"))
    report: dict[str, Any] = {
        "hocket_http_benchmark": 1,
        "date": now(),
        "command": command_line(),
        "host": host_facts(),
        "profile": arguments.profile,
        "set": arguments.set,
        "launches": [],
    }
    serve = [*_served_model(arguments), *(f"--set={pair}" for pair in arguments.set)]
    with tempfile.TemporaryDirectory(prefix="hocket-http-") as scratch:
        for launch in range(arguments.launches):
            rows: dict[str, Any] = {}
            report["launches"].append(rows)
            with serving(serve, Path(scratch)) as server:
                rows["server"] = [
                    line
                    for line in server.log.read_text().splitlines()
                    if line.split(" ")[0] in ("memory", "model", "ready", "")
                ]
                print(*rows["server"], sep="\n", flush=True)
                bench = Bench(
                    server, workload, Window(arguments.seconds), arguments.clients, launch
                )
                rows["voices"] = _upload_workload(bench)
                print(rows["voices"], flush=True)
                for name in arguments.scenarios.split(","):
                    rows[name] = _attempt(SCENARIOS[name], bench)
                    shown = {
                        key: value for key, value in rows[name].items() if not key.endswith("_at_s")
                    }
                    print(launch, name, json.dumps(shown), flush=True)
                    arguments.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
                rows["log"] = [
                    line
                    for line in server.log.read_text().splitlines()
                    if "event=request" not in line
                ][-20:]
                arguments.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _upload_workload(bench: Bench) -> dict[str, Any]:
    frame_seconds = 0.08
    voices = [
        (f"v{i}", clip(i, frames * frame_seconds))
        for i, frames in enumerate(bench.workload["reference_frames"])
    ]
    with urllib.request.urlopen(f"{bench.server.url}/v1/audio/voices", timeout=30) as page:
        known = {voice["name"] for voice in json.load(page)["voices"]}
    if known.issuperset(name for name, _ in voices):  # of a launch with the same voices' folder
        return {"voices": len(voices)}
    began = time.perf_counter()
    errors = _upload(bench.server.url, voices)
    return {
        "voices": len(voices),
        "upload_seconds": round(time.perf_counter() - began, 2),
        "errors": errors[:1],
    }


def _attempt(scenario: Scenario, bench: Bench) -> dict[str, Any]:
    try:
        return scenario(bench)
    except Exception as error:  # the other scenarios are worth a report
        return {"failed": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
