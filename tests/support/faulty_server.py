"""A speech server on loopback with every known fault: it lies, stalls and breaks off, byte by byte.

It "speaks" by giving each character a tone, so that its own recogniser, an OpenAI-compatible
transcription route, can tell exactly what was said. The request's `voice` chooses what goes wrong.
"""

from __future__ import annotations

import asyncio
import base64
import json
import string
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE = 24_000
SYMBOL_SECONDS = 0.06
ALPHABET = " " + string.ascii_lowercase + string.digits
_LOWEST_HZ, _STEP_HZ = 500.0, 60.0
_CHUNKS = 6
OTHER_TEXT = "these words belong to a stranger who is not even here today"

#: By the value of `voice`: the faults that a judge must find, no more and no less.
FAULTS: dict[str, set[str]] = {
    "good": set(),
    "empty": {"no_audio"},
    "status": {"status_500"},
    "busy": {"status_503"},
    "json": {"wrong_format"},
    "wav_for_pcm": {"wrong_format"},
    "no_rate": {"unknown_rate"},
    "wrong_rate": {"wrong_rate"},
    "wrong_channels": {"wrong_rate"},
    "half": {"too_short"},
    "double": {"too_long"},
    "silent": {"silent"},
    "long_silence": {"silent"},
    "clipped": {"clipped"},
    "stall": {"stalled"},
    "hang": {"timeout"},
    "cut": {"incomplete"},
    "lying_length": {"wrong_length"},
    "odd_bytes": {"wrong_length"},
    "stranger": {"wrong_words"},
}


def speak(text: str) -> NDArray[np.int16]:
    """Mono samples at `RATE`: a tone for each letter, silence for whatever else."""
    length = round(RATE * SYMBOL_SECONDS)
    time_S = np.arange(length) / RATE
    pieces = []
    for character in text.lower():
        place = ALPHABET.find(character)
        level = 0.0 if place <= 0 else 0.3
        pieces.append(level * np.sin(2 * np.pi * (_LOWEST_HZ + _STEP_HZ * max(0, place)) * time_S))
    return np.asarray(np.concatenate(pieces) * 32767, np.int16)


def recognise(samples_S: NDArray[np.float32], rate: int) -> str:
    """The text that `speak` was given, as far as its alphabet goes."""
    length = rate * SYMBOL_SECONDS
    text = []
    for i in range(round(len(samples_S) / length)):
        symbol = samples_S[round(i * length) : round((i + 1) * length)]
        if np.abs(symbol).mean() < 0.02:
            text.append(" ")
            continue
        power = np.abs(np.fft.rfft(symbol * np.hanning(len(symbol)), 8192))
        hertz = power.argmax() * rate / 8192
        text.append(
            ALPHABET[min(len(ALPHABET) - 1, max(0, round((hertz - _LOWEST_HZ) / _STEP_HZ)))]
        )
    return "".join(text)


def wav(samples: NDArray[np.int16], *, stated_bytes: int | None = None) -> bytes:
    """A WAV file; `stated_bytes` is what its header says of the samples."""
    data = samples.astype("<i2").tobytes()
    size = len(data) if stated_bytes is None else stated_bytes
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    return (
        b"RIFF"
        + struct.pack("<I", min(36 + size, 2**32 - 1))
        + b"WAVE"
        + form
        + b"data"
        + struct.pack("<I", size)
        + data
    )


@dataclass
class FaultyServer:
    """Everything it was asked, and how it answers."""

    #: Speech of this request goes to the next one instead.
    swaps: bool = False
    seconds_per_chunk: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    last_text: str = OTHER_TEXT
    open_now: int = 0
    max_open: int = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines[1:])
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.open_now += 1
            self.max_open = max(self.max_open, self.open_now)
            try:
                await self._route(lines[0].split()[1], headers, body, writer)
            finally:
                self.open_now -= 1
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _route(
        self, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        if path == "/v1/audio/transcriptions":
            data = body[body.index(b"RIFF") :]
            samples = np.frombuffer(data[44 : 44 + int.from_bytes(data[40:44], "little")], "<i2")
            text = recognise(
                samples.astype(np.float32) / np.float32(32768),
                int.from_bytes(data[24:28], "little"),
            )
            await _send(
                writer,
                200,
                {"Content-Type": "application/json"},
                json.dumps({"text": text}).encode(),
            )
        elif path == "/metrics":
            await _send(writer, 200, {"Content-Type": "text/plain"}, self._metrics())
        elif path == "/v1/audio/speech":
            self.requests.append(json.loads(body))
            self.headers.append(headers)
            await self._speech(self.requests[-1], writer)
        else:
            await _send(writer, 404, {}, b"")

    def _metrics(self) -> bytes:
        count = len(self.requests)
        return (
            "# TYPE hocket_first_audio_seconds histogram\n"
            f'hocket_first_audio_seconds_bucket{{le="0.1"}} {count}\n'
            f'hocket_first_audio_seconds_bucket{{le="+Inf"}} {count}\n'
            f"hocket_first_audio_seconds_sum {0.02 * count}\nhocket_first_audio_seconds_count "
            f"{count}\n"
        ).encode()

    async def _speech(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        text = request["input"]
        if self.swaps:
            text, self.last_text = self.last_text, text
        fault = request.get("voice") or "good"
        if request["response_format"] == "wav" and request.get("stream") is False:
            await _send(writer, 200, {"Content-Type": "audio/wav"}, wav(speak(text)))
            return
        if request.get("stream_format") == "sse":
            await self._events(text, fault, writer)
            return
        await self._raw(text, fault, request["response_format"], writer)

    async def _raw(
        self, text: str, fault: str, response_format: str, writer: asyncio.StreamWriter
    ) -> None:
        if fault in {"status", "busy", "json"}:
            status = {"status": 500, "busy": 503, "json": 200}[fault]
            error = json.dumps({"error": {"message": "it broke", "code": "broken"}}).encode()
            await _send(writer, status, {"Content-Type": "application/json"}, error)
            return
        samples = _spoilt(speak(OTHER_TEXT if fault == "stranger" else text), fault)
        headers = {"Content-Type": "audio/pcm", "X-Sample-Rate": str(RATE), "X-Channels": "1"}
        headers |= {
            "wrong_rate": {"X-Sample-Rate": "25600"},
            "wrong_channels": {"X-Channels": "2", "X-Sample-Rate": "12000"},
            "lying_length": {"X-Audio-Seconds": "0.5"},
        }.get(fault, {})
        if fault == "no_rate":
            headers = {"Content-Type": "audio/pcm"}
        body = samples.astype("<i2").tobytes()
        if (
            fault in {"wav_for_pcm", "wav_cut", "wav_lies", "wav_headers"}
            or response_format == "wav"
        ):
            headers["Content-Type"] = "audio/wav"
            body = _wav_body(samples, fault)
        if fault == "empty":
            body = b""
        if fault == "odd_bytes":
            body += b"x"
        _start(writer, 200, {**headers, "Transfer-Encoding": "chunked"})
        await self._chunks(body, fault, writer)

    async def _chunks(self, body: bytes, fault: str, writer: asyncio.StreamWriter) -> None:
        size = -(-len(body) // _CHUNKS // 2) * 2
        for i in range(0, len(body), max(1, size)):
            piece = body[i : i + size]
            writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            await writer.drain()
            await asyncio.sleep(self.seconds_per_chunk)
            if i == 0 and fault == "stall":
                await asyncio.sleep(len(piece) / 2 / RATE + 3.0)
            if i == 0 and fault == "hang":
                await asyncio.sleep(60)
            if i == 0 and fault == "cut":
                return
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _events(self, text: str, fault: str, writer: asyncio.StreamWriter) -> None:
        _start(
            writer,
            200,
            {
                "Content-Type": "text/event-stream",
                "X-Sample-Rate": str(RATE),
                "Connection": "close",
            },
        )
        samples = speak(text)
        for piece in np.array_split(samples, _CHUNKS):
            data = wav(piece) if fault == "wav_events" else piece.astype("<i2").tobytes()
            event: dict[str, Any] = {
                "type": "speech.audio.delta",
                "audio": base64.b64encode(data).decode(),
            }
            if fault == "wav_events":
                event = {
                    "object": "audio.speech.chunk",
                    "audio": {"data": event["audio"], "format": "wav"},
                }
            writer.write(f"data: {json.dumps(event)}\n\n".encode())
            await writer.drain()
        last: dict[str, Any] = {"type": "speech.audio.done", "sample_rate": RATE, "channels": 1}
        if fault == "error_event":
            last = {"type": "speech.audio.error", "error": {"message": "it broke on the way"}}
        if fault != "unfinished":
            writer.write(f"data: {json.dumps(last)}\r\n\r\n".encode())
        await writer.drain()


def _spoilt(samples: NDArray[np.int16], fault: str) -> NDArray[np.int16]:
    if fault == "half":
        return samples[: len(samples) // 2]
    if fault == "double":
        return np.concatenate([samples, samples])
    if fault == "silent":
        return np.zeros_like(samples)
    if fault == "long_silence":
        middle = len(samples) // 2
        return np.concatenate(
            [samples[:middle], np.zeros(round(1.2 * RATE), np.int16), samples[middle:]]
        )
    if fault == "clipped":
        return np.asarray(np.clip(samples.astype(np.int32) * 20, -32768, 32767), np.int16)
    return samples


def _wav_body(samples: NDArray[np.int16], fault: str) -> bytes:
    if fault == "wav_cut":
        return wav(samples[: len(samples) // 2], stated_bytes=2 * len(samples))
    if fault == "wav_lies":
        return wav(samples, stated_bytes=len(samples))
    if fault == "wav_headers":
        return wav(samples[:0], stated_bytes=2**32 - 1) + b"".join(
            wav(piece) for piece in np.array_split(samples, _CHUNKS)
        )
    return wav(samples, stated_bytes=2**32 - 1)


def _start(writer: asyncio.StreamWriter, status: int, headers: dict[str, str]) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode())


async def _send(
    writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: bytes
) -> None:
    _start(writer, status, {**headers, "Content-Length": str(len(body)), "Connection": "close"})
    writer.write(body)
    await writer.drain()


@contextmanager
def faulty_server(server: FaultyServer | None = None) -> Iterator[str]:
    """Its address, while it serves in a thread."""
    ready, address, stops = threading.Event(), list[str](), list[Callable[[], object]]()

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        listener = await asyncio.start_server((server or FaultyServer()).connection, "127.0.0.1", 0)
        address.append(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        ready.set()
        await stop.wait()
        listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield address[0]
    finally:
        stops[0]()
        thread.join(10)
        assert not thread.is_alive()
