"""The parent of a server's HTTP processes: starts them, counts their slots, replaces the dead."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from hocket.audio.reference_cache import ReferenceCache
from hocket.config import environment_with
from hocket.errors import EngineStoppedError, HocketError
from hocket.server.admission import Admission, HeldSlot
from hocket.server.errors import ApiError
from hocket.server.processes.channel import (
    Answer,
    AskCounts,
    Channel,
    Check,
    Close,
    Counts,
    Drain,
    Failed,
    GiveBack,
    Ready,
    Recall,
    Recalled,
    Refusal,
    Remember,
    Serving,
    SharedReference,
    Start,
    Take,
    ToParent,
    channel_to_process,
)
from hocket.worker.supervisor import HEALTHY_SECONDS, MAX_DELAY_SECONDS, MIN_DELAY_SECONDS

_LOG = logging.getLogger("hocket.server")


@dataclass(slots=True, eq=False)
class _Child:
    """A running HTTP process. Its slots are freed when it ends, for whatever reason."""

    process: Process
    #: Answers what it says.
    channel: Channel[ToParent] | None = None
    slots: dict[int, HeldSlot] = field(default_factory=dict)
    served: bool = False
    error: HocketError | None = None


class HttpProcesses:
    """`count` processes that take connections from `listener`, until `end`.

    A process that dies is replaced, with back-off; the connections of the others go on. One that
    ends before it has ever served is not replaced: `serve` raises its reason.
    """

    def __init__(
        self,
        count: int,
        listener: socket.socket,
        start: Start,
        admission: Admission,
        references: ReferenceCache,
        *,
        close_seconds: float,
    ) -> None:
        """`start` is for each of them, but for its number. What one reads from a recording is kept
        in `references` for the others. `close_seconds`: until `end` kills.
        """
        self._count, self._listener, self._start = count, listener, start
        self._admission, self._references = admission, references
        self._close_seconds = close_seconds
        self._children: dict[int, _Child] = {}
        #: Numbers of the processes that have reached their engines.
        self._ready: set[int] = set()
        self._all_ready = asyncio.Event()
        self._ending = asyncio.Event()

    @property
    def pids(self) -> list[int]:
        """The running processes."""
        return [child.process.pid for child in self._children.values()]

    async def serve(self) -> None:
        """Run the processes; returns when all have exited after `end`.

        Raises the HocketError of a process that could not start.
        """
        keeping = [asyncio.create_task(self._keep(number)) for number in range(self._count)]
        try:
            await asyncio.gather(*keeping)
        finally:
            self._ending.set()
            self._kill()
            await asyncio.gather(*keeping, return_exceptions=True)

    async def wait_ready(self) -> None:
        """Wait until each process has reached its engines."""
        await self._all_ready.wait()

    def drain(self) -> None:
        """Have the processes say that the server drains; `Admission` refuses already."""
        self._send_all(Drain())

    def end(self, *, at_once: bool) -> None:
        """Have the processes exit, which lets answers under way come to their end if not
        `at_once`.
        """
        self._ending.set()
        if at_once:
            self._kill()
        else:
            self._send_all(Close())
            asyncio.get_running_loop().call_later(self._close_seconds, self._kill)

    def _kill(self) -> None:
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.process.kill()

    def _send_all(self, message: Drain | Close) -> None:
        for child in self._children.values():
            if child.channel is not None:
                child.channel.send(message)

    async def _keep(self, number: int) -> None:
        """Keep one process running. Raises HocketError when the first cannot start."""
        delay, ever_served = MIN_DELAY_SECONDS, False
        loop = asyncio.get_running_loop()
        while not self._ending.is_set():
            started_at = loop.time()
            child, code = await self._run(number)
            ever_served |= child.served
            if self._ending.is_set():
                return
            if not ever_served:
                raise child.error or EngineStoppedError(
                    f"an HTTP process ended with code {code} before it served; its log says why"
                )
            if loop.time() - started_at >= HEALTHY_SECONDS:
                delay = MIN_DELAY_SECONDS
            _LOG.error(
                "event=http_process_died pid=%d code=%d restart_seconds=%.1f",
                child.process.pid,
                code,
                delay,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._ending.wait()
            delay = min(2 * delay, MAX_DELAY_SECONDS)

    async def _run(self, number: int) -> tuple[_Child, int]:
        """Run a process to its end; what is known of it, and its exit code (negative: a signal)."""
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = (theirs.fileno(), self._listener.fileno())
            # In a session of its own: Ctrl-C on a terminal reaches the parent alone.
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "hocket.server.processes.process",
                *map(str, descriptors),
                stdin=DEVNULL,
                pass_fds=descriptors,
                env=environment_with(PROMETHEUS_MULTIPROC_DIR=self._start.metrics_folder),
                start_new_session=True,
            )
        child = self._children[number] = _Child(process)
        lost = asyncio.Event()

        def on_lost() -> None:
            for slot in child.slots.values():
                self._admission.give_back(slot)
            child.slots.clear()
            lost.set()

        child.channel = channel = await channel_to_process(
            ours, lambda message: self._on_message(number, child, message), on_lost
        )
        channel.send(msgspec.structs.replace(self._start, number=number))
        if self._admission.draining:
            channel.send(Drain())
        if self._ending.is_set():
            channel.send(Close())
        code = await process.wait()
        await lost.wait()  # its last messages are read by then
        del self._children[number]
        return child, code

    def _on_message(self, number: int, child: _Child, message: ToParent) -> None:
        assert child.channel is not None
        if isinstance(message, Take):

            def take() -> None:
                child.slots[message.question_id] = self._admission.take(
                    message.caller, message.rows
                )

            child.channel.send(_answer(message.question_id, take))
        elif isinstance(message, Check):
            child.channel.send(
                _answer(
                    message.question_id,
                    lambda: self._admission.refuse(message.caller, message.rows),
                )
            )
        elif isinstance(message, GiveBack):
            slot = child.slots.pop(message.slot_id, None)
            if slot is not None:
                self._admission.give_back(slot)
        elif isinstance(message, AskCounts):
            admission = self._admission
            child.channel.send(Counts(message.question_id, admission.open, admission.refused))
        elif isinstance(message, Recall):
            found = self._references.recall(message.key)
            shared = None if found is None else SharedReference.of(found)
            child.channel.send(Recalled(message.question_id, shared))
        elif isinstance(message, Remember):
            self._references.remember(message.key, message.reference.encoded())
        elif isinstance(message, Serving):
            child.served = True
            _LOG.info("event=http_process_start pid=%d", child.process.pid)
        elif isinstance(message, Ready):
            self._ready.add(number)
            if len(self._ready) == self._count:
                self._all_ready.set()
        else:
            assert isinstance(message, Failed)
            child.error = message.error.error()


def _answer(question_id: int, ask: Callable[[], None]) -> Answer:
    try:
        ask()
    except ApiError as refused:
        return Answer(question_id, Refusal.of(refused))
    return Answer(question_id, None)
