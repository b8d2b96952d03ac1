"""A speech server that needs almost no time, so that a load generator measures itself against it.

    python -m hocket.bench.load.stub_server [--rate 48000] [--channels 2] [--chunk-ms 80]
                                            [--seconds 4] [--pace 1]

It prints its port and serves until standard input closes. Every response is raw PCM noise in
chunks: the first one at once, the rest at `pace` times the speed of a player (0: all at once).
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import numpy as np
import uvloop

HOST = "127.0.0.1"


class Stub:
    """Responds to any request with the same noise."""

    def __init__(
        self, *, rate: int, channels: int, chunk_seconds: float, seconds: float, pace: float
    ) -> None:
        noise = np.random.default_rng(0).normal(
            0.0, 3000.0, (round(rate * chunk_seconds), channels)
        )
        body = noise.astype("<i2").tobytes()
        self._chunk = b"%x\r\n" % len(body) + body + b"\r\n"
        self._head = (
            "HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\n"
            f"X-Sample-Rate: {rate}\r\nX-Channels: {channels}\r\n"
            "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        ).encode()
        self._chunks = max(1, round(seconds / chunk_seconds))
        self._interval = chunk_seconds / pace if pace else 0.0

    async def respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the one request of a connection."""
        loop = asyncio.get_running_loop()
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(_content_length(head))
            begin = loop.time()
            writer.write(self._head + self._chunk)
            for i in range(1, self._chunks):
                late = begin + i * self._interval - loop.time()
                if late > 0:
                    await asyncio.sleep(late)
                writer.write(self._chunk)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return int(value)
    return 0


async def _serve(stub: Stub) -> None:
    server = await asyncio.start_server(stub.respond, HOST, 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description="A speech server that needs almost no time.")
    parser.add_argument("--rate", type=int, default=48_000)
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--chunk-ms", type=float, default=80.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--pace", type=float, default=1.0)
    arguments = parser.parse_args()
    stub = Stub(
        rate=arguments.rate,
        channels=arguments.channels,
        chunk_seconds=arguments.chunk_ms / 1000,
        seconds=arguments.seconds,
        pace=arguments.pace,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(stub))


if __name__ == "__main__":
    main()
