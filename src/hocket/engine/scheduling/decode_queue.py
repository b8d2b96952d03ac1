"""Schedules the codec: chunk sizes, playback deadlines, and a bounded wait for larger batches.

A stream is *due* at the latest moment at which its next chunk should be launched: at once for the
first chunk, and a margin before its player runs dry for the others. Batches are formed by due time.
The due time of a waiting chunk does not move, so every chunk becomes the earliest one in the end,
and none starves.

Where chunks are packed, first chunks may go in batches of their own, beside the others.
"""

from __future__ import annotations

import math

from hocket.config import ChunkPolicy
from hocket.engine.scheduling.request import DecodeBatch, DecodeItem, Request


class DecodeQueue:
    """The streams with a chunk to decode.

    A frame counts once its stop flag was read back, so no code behind a stop is ever decoded.
    """

    __slots__ = (
        "_first_chunks",
        "_first_chunks_apart",
        "_first_in_flight",
        "_fixed_chunks",
        "_frame_seconds",
        "_in_flight",
        "_margin",
        "_max_wait",
        "_pack_frames",
        "_ready",
        "_slack",
        "policy",
        "underruns",
    )

    def __init__(
        self,
        policy: ChunkPolicy,
        frame_seconds: float,
        *,
        fixed_chunks: bool = False,
        pack_frames: int = 0,
    ) -> None:
        """With `fixed_chunks` a stream is split and padded as if it were alone.

        `pack_frames` is the maximum frames of a pack: chunks of any sizes, decoded together without
        padding. 0: chunks are padded. First chunks are packed beside the others if the policy says
        so.
        """
        self.policy = policy
        self._pack_frames = pack_frames
        self._fixed_chunks = fixed_chunks
        #: Chunks that came back after their player had run dry: underruns.
        self.underruns = 0
        self._frame_seconds = frame_seconds
        self._margin = policy.deadline_margin_ms / 1000
        self._max_wait = policy.max_wait_ms / 1000
        self._slack = policy.offline_slack_ms / 1000
        self._ready: list[Request] = []
        self._in_flight = 0
        #: First chunks have a queue of their own where they are packed beside the others.
        self._first_chunks_apart = pack_frames > 0 and policy.first_batch_frames > 0
        self._first_chunks: list[Request] = []
        self._first_in_flight = False

    @property
    def ready(self) -> int:
        """Streams with a chunk to decode."""
        return len(self._ready) + len(self._first_chunks)

    def start(self, request: Request) -> None:
        """Put a new request at the start of the ramp of chunk sizes."""
        request.stage = 0 if request.streaming else len(self.policy.sizes) - 1
        request.chunk_frames = self.policy.sizes[request.stage]

    def update(self, request: Request, now: float) -> None:
        """Note that `request` has new frames, or its last one: it is ready with a whole chunk, or
        with its tail.
        """
        undecoded = request.frames - request.sent
        wanted = request.chunk_frames if request.finish_reason is None else 1
        if undecoded < wanted or not request.codec_ready or not math.isnan(request.ready_at):
            return
        if self._first_chunks_apart and request.streaming and request.decoded == 0 < request.sent:
            return  # its first chunk is in flight on another stream, and order must be kept
        request.ready_at = now
        self._queue_of(request).append(request)

    def discard(self, request: Request) -> None:
        """Drop the undecoded frames of `request`."""
        if not math.isnan(request.ready_at):
            request.ready_at = math.nan
            self._queue_of(request).remove(request)

    def next_batch(self, now: float, generating: int) -> DecodeBatch | None:
        """The chunks to decode now; `generating` is the number of streams that still get frames."""
        if self._first_chunks and not self._first_in_flight:
            return self._first_batch(now)
        if not self._ready or self._in_flight >= self.policy.max_in_flight:
            return None
        self._ready.sort(key=self._due)
        head = self._ready[0]
        if self._worth_waiting(head, now, generating):
            return None
        width = head.chunk_frames
        chosen = self._choose_packed() if self._pack_frames else self._choose(head)
        items = self._send_all(chosen, self._ready, now)
        self._in_flight += 1
        if not self._fixed_chunks:
            longest = max(item.count for item in items)
            width = next(size for size in self.policy.sizes if size >= longest)
        return DecodeBatch(items, width)

    def _first_batch(self, now: float) -> DecodeBatch:
        """As many first chunks as fit into a batch; all have the same size, even if more frames are
        ready.
        """
        width = self.policy.first_chunk_frames
        some = self._first_chunks[
            : min(self.policy.max_batch, self.policy.first_batch_frames // width)
        ]
        chosen = [(request, min(request.frames, width)) for request in some]
        self._first_in_flight = True
        return DecodeBatch(self._send_all(chosen, self._first_chunks, now), width, is_first=True)

    def _send_all(
        self, chosen: list[tuple[Request, int]], queue: list[Request], now: float
    ) -> list[DecodeItem]:
        items = [self._send(request, count, now) for request, count in chosen]
        taken = {request for request, _ in chosen}
        queue[:] = [request for request in queue if request not in taken]
        for request, _ in chosen:
            self.update(request, now)
        return items

    def _choose(self, head: Request) -> list[tuple[Request, int]]:
        """The streams of a batch that is padded to one size, and the frames of each."""
        chosen = self._ready
        if self._fixed_chunks:
            chosen = [
                request for request in self._ready if request.chunk_frames == head.chunk_frames
            ]
        elif self._is_first(head):
            limit = self.policy.first_chunk_frames
            chosen = [request for request in self._ready if self._count(request) <= limit]
        return [(request, self._count(request)) for request in chosen[: self.policy.max_batch]]

    def _choose_packed(self) -> list[tuple[Request, int]]:
        """The streams of a pack, and the frames of each: as many as the pack holds, and for each
        stream all that are ready, up to a steady chunk.
        """
        policy, chosen = self.policy, []
        left = self._pack_frames
        for request in self._ready[: policy.max_batch]:
            count = min(request.frames - request.sent, policy.steady_chunk_frames, left)
            if count == 0:
                break
            chosen.append((request, count))
            left -= count
        return chosen

    def collect(self, batch: DecodeBatch, now: float) -> None:
        """Account for `batch`, whose audio has come back. Batches come back in launch order, and so
        do batches of first chunks among themselves.
        """
        if batch.is_first:
            self._first_in_flight = False
        else:
            self._in_flight -= 1
        for item in batch.items:
            request = item.request
            if request.decoded == 0:
                request.first_audio_at = request.play_start = now
            elif request.streaming and request.wants_audio:
                late = now - (request.play_start + request.decoded * self._frame_seconds)
                if late > 0.0:
                    # The player stalled for this long, so all later chunks are due this much later.
                    request.play_start += late
                    request.late_seconds = max(request.late_seconds, late)
                    self.underruns += 1
            request.decoded += item.count
            if batch.is_first and request.wants_audio:
                self.update(request, now)

    def _worth_waiting(self, head: Request, now: float, generating: int) -> bool:
        if len(self._ready) >= self.policy.min_batch or self._due(head) <= now:
            return False
        if now - min(request.ready_at for request in self._ready) >= self._max_wait:
            return False
        return generating > sum(request.finish_reason is None for request in self._ready)

    def _is_first(self, request: Request) -> bool:
        return request.streaming and request.sent == 0

    def _queue_of(self, request: Request) -> list[Request]:
        return (
            self._first_chunks
            if self._first_chunks_apart and self._is_first(request)
            else self._ready
        )

    def _due(self, request: Request) -> float:
        if not request.streaming:
            return request.ready_at + self._slack
        if request.sent == 0:
            return request.ready_at
        return request.play_start + request.sent * self._frame_seconds - self._margin

    def _count(self, request: Request) -> int:
        """Frames to decode for a request: its chunk, or up to a steady one for a tail and after
        frames have piled up.
        """
        undecoded = request.frames - request.sent
        if self._fixed_chunks:
            return min(undecoded, request.chunk_frames)
        steady = self.policy.steady_chunk_frames
        ramp_is_over = undecoded >= steady or request.finish_reason is not None
        return min(
            undecoded,
            steady if ramp_is_over and not self._is_first(request) else request.chunk_frames,
        )

    def _send(self, request: Request, count: int, now: float) -> DecodeItem:
        item = DecodeItem(request, request.sent, count)
        if request.sent == 0:
            # An estimate until the audio comes back; it only makes the second chunk more urgent.
            request.play_start = now
        request.sent += item.count
        if count >= request.chunk_frames:
            request.stage = min(request.stage + 1, len(self.policy.sizes) - 1)
        request.chunk_frames = self.policy.sizes[request.stage]
        request.ready_at = math.nan
        return item
