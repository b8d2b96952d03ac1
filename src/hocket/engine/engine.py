"""The engine: many requests in one process, one row each, driven by one synchronous `step()`.

    engine = Engine.load()
    speech = engine.generate(SpeechRequest(text="Hello."))

`generate`, `generate_many` and `stream` drive `step()` themselves; a server calls `add`, `step` and `cancel`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.config import EngineConfig
from hocket.core import AudioChunk, FinishReason, Reference, RequestEnd, Speech, SpeechRequest
from hocket.engine.codec_runner import STRICT_BATCH_STREAMS, CodecRunner, SamplesInFlight
from hocket.engine.job import Job, resolve_seed
from hocket.engine.references import Key, ReferenceEncoder
from hocket.engine.request import DecodeItem, FrameBatch, SchedulerStats
from hocket.engine.runaway import frame_budget
from hocket.engine.scheduler import Scheduler, SchedulerConfig
from hocket.engine.talker_runner import FramesInFlight, TalkerRunner
from hocket.errors import CapacityError, ConfigError, HocketError, InvalidRequestError
from hocket.models.checkpoint import resolve_checkpoint
from hocket.models.family import Codec, LoadedTalker
from hocket.models.registry import builtin_model, codec_folder, load_codec, load_talker
from hocket.progress import progress_bar
from hocket.prompt.reference import load_reference_codes, prepare_reference

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Engine:
    """One model on one device. Not thread-safe: whoever owns it calls it. `Engine.load` makes one."""

    def __init__(
        self,
        model: LoadedTalker,
        codec: Codec | None,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config = config = config or EngineConfig()
        self._model, self._codec, self._clock = model, codec, clock
        talker = model.talker.config
        device = next(model.talker.parameters()).device
        if codec is not None:
            _check_pair(model, codec)
        if config.strict and device.type == "cpu":
            # With more threads a row's bits depend on which thread computed it (seen in matrix products of 7 rows and
            # in attention of one query, PyTorch 2.13), so on its place in the batch.
            torch.set_num_threads(1)
        self.context_rows = min(config.max_context_rows, talker.max_positions)
        kv_rows = config.kv_rows or config.rows * self.context_rows
        pages = 1 + -(-kv_rows // config.page_rows)
        self.frame_seconds = 0.08 if codec is None else codec.config.frame_samples / codec.config.sample_rate
        chunks = config.chunks
        if config.strict:
            most = min(chunks.max_batch, STRICT_BATCH_STREAMS)
            chunks = chunks.model_copy(update={"max_batch": most, "min_batch": min(chunks.min_batch, most)})
        self._scheduler = Scheduler(
            SchedulerConfig(
                rows=config.rows,
                pages=pages,
                page_rows=config.page_rows,
                max_context_rows=self.context_rows,
                prefill_rows_per_step=max(config.prefill_rows_per_step, config.page_rows),
                max_waiting=config.max_waiting,
                prefix_cache=config.prefix_cache,
            ),
            None if codec is None else chunks,
            frame_seconds=self.frame_seconds,
            fixed_chunks=config.strict,
        )
        self._talker_runner = TalkerRunner(
            model.talker,
            rows=config.rows,
            pages=pages,
            page_rows=config.page_rows,
            max_frames=self.context_rows,
            strict=config.strict,
        )
        self._codec_runner = None
        self._references = None
        if codec is not None:
            self._codec_runner = CodecRunner(
                codec, rows=config.rows, max_chunk_frames=max(config.chunks.sizes), strict=config.strict
            )
            self._references = ReferenceEncoder(
                codec, n_codebooks=talker.n_vq, config=config.reference_cache, fixed_batch=config.strict
            )
        self._lookahead = config.lookahead if config.lookahead is not None else device.type == "cuda"
        #: Every open request, by id.
        self._jobs: dict[str, Job] = {}
        #: Those that wait for their references' codes, in order of arrival.
        self._preparing: list[Job] = []
        #: Those whose codec row has yet to hear the recording that they continue.
        self._priming: list[Job] = []
        self._frames_in_flight: deque[FramesInFlight] = deque()
        self._samples_in_flight: deque[SamplesInFlight] = deque()
        #: Chunks for whoever calls `step`.
        self._ready: list[AudioChunk] = []
        self._names = 0
        self._no_samples = np.zeros((self.channels, 0), np.float32)
        self._no_codes = np.zeros((0, talker.n_vq), np.int64)

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        codec: str | Path | None = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        rows: int | None = None,
        strict: bool | None = None,
        config: EngineConfig | None = None,
    ) -> Engine:
        """Load a checkpoint folder or hub id; no `model` is the built-in one.

        `codec` is a folder, a hub id, `None` for the one that the model names, or "none" to make codes only. `rows` and
        `strict` overrule `config`'s. Raises ConfigError, CheckpointError.
        """
        on, precision = parse_device(device), parse_dtype(dtype)
        wishes = {name: value for name, value in (("rows", rows), ("strict", strict)) if value is not None}
        config = (config or EngineConfig()).model_copy(update=wishes)
        folder = builtin_model() if model is None else resolve_checkpoint(model)
        talker = load_talker(folder, device=on, dtype=precision)
        loaded_codec = None
        if codec != "none":
            loaded_codec = load_codec(codec_folder(folder, codec), device=on, dtype=precision)
        return cls(talker, loaded_codec, config)

    @property
    def sample_rate(self) -> int:
        """Of the audio, in Hz."""
        return self._codec.config.sample_rate if self._codec else self._model.talker.config.sampling_rate

    @property
    def channels(self) -> int:
        return self._codec.config.channels if self._codec else 1

    # ---- requests in one call

    def generate(self, request: SpeechRequest) -> Speech:
        """Speak `request` and return everything. Raises InvalidRequestError, ReferenceAudioError."""
        return self.generate_many([request])[0]

    def generate_many(self, requests: Iterable[SpeechRequest]) -> list[Speech]:
        """Speak all `requests`, as many at a time as there are rows; results in the order given.

        Shows one progress bar on a terminal. Raises the first error, after ending the other requests.
        """
        requests = list(requests)
        waiting = deque(requests)
        jobs: list[Job] = []
        try:
            with progress_bar(len(requests)) as show:
                while waiting or any(job.end is None for job in jobs):
                    while waiting and len(self._jobs) < 2 * self.config.rows:
                        jobs.append(self._open(waiting.popleft(), streaming=False, outbox=deque()))
                    self._advance()
                    show(sum(job.end is not None for job in jobs))
        finally:
            self._close(jobs)
        return [self._speech(job) for job in jobs]

    def stream(self, request: SpeechRequest) -> Iterator[AudioChunk]:
        """Yield audio as it is made, in chunks of `config.chunks`; the last one carries how it ended, and no samples.

        Errors as for `generate`. Closing the iterator cancels the request; other open requests go on meanwhile.
        """
        outbox: deque[AudioChunk] = deque()
        job = self._open(request, streaming=True, outbox=outbox)
        try:
            while job.end is None or outbox:
                self._advance()
                while outbox:
                    chunk = outbox.popleft()
                    if chunk.end is not None and chunk.end.error is not None:
                        raise chunk.end.error
                    yield chunk
        finally:
            self._close([job])

    # ---- requests step by step

    def add(
        self, request: SpeechRequest, *, request_id: str | None = None, priority: int = 0, streaming: bool = True
    ) -> str:
        """Queue a request and return its id; `step` returns its chunks.

        `streaming=False` says that only the whole is wanted: it is decoded in large chunks. Higher `priority` goes
        first. Raises InvalidRequestError, ReferenceAudioError, and CapacityError when the queue is full.
        """
        return self._open(request, request_id=request_id, priority=priority, streaming=streaming).id

    def cancel(self, request_id: str) -> None:
        """End a request wherever it is; its last chunk says `cancelled`. No effect on one that is over."""
        job = self._jobs.get(request_id)
        if job is None:
            return
        if job.scheduled is not None:
            self._scheduler.finish(job.scheduled, "cancelled", self._clock())
        else:
            job.cancelled = True

    @property
    def idle(self) -> bool:
        """No request is open, so `step` would do nothing."""
        return not self._jobs

    def step(self) -> list[AudioChunk]:
        """Do the next piece of everybody's work and return the audio that became ready, in order of each request."""
        self._advance()
        chunks, self._ready = self._ready, []
        return chunks

    def _advance(self) -> None:
        self._prepare()
        self._admit()
        self._prefill()
        self._frames()
        self._prime()
        self._decode()
        self._finish()
        if self.idle:
            self.check_integrity()

    def stats(self) -> SchedulerStats:
        """Rows, pages, queues and counters, as they are now."""
        return self._scheduler.stats()

    def check_integrity(self) -> None:
        """Raise HocketError unless every row and page is where the requests say it is."""
        self._scheduler.check_integrity()

    # ---- one step

    def _prepare(self) -> None:
        """Encode a piece of the references that requests wait for, and queue those that have all of theirs."""
        if not self._preparing:
            return
        assert self._references is not None
        finished = self._references.step()
        for job in list(self._preparing):
            job.take_references(finished)
            if not (job.cancelled or job.has_references):
                continue
            self._preparing.remove(job)
            try:
                if not job.cancelled:
                    self._schedule(job)
                    continue
            except HocketError as error:  # a prompt too long for the model, say: known only now
                job.error = error
            self._end(job, "cancelled" if job.cancelled else "error")

    def _admit(self) -> None:
        for scheduled in self._scheduler.admit(self._clock()):
            job = self._jobs[scheduled.id]
            if job.started:  # preempted before: its row kept everything but the K/V
                continue
            job.started = True
            self._talker_runner.start(scheduled.row, job.sampling, job.seed)
            if self._codec_runner is not None:
                self._codec_runner.start(scheduled.row)
                if job.needs_priming:
                    self._priming.append(job)

    def _prefill(self) -> None:
        if items := self._scheduler.next_prefill():
            self._talker_runner.prefill(items, self._scheduler.page_table)
            self._scheduler.finish_prefill(items, self._clock())

    def _frames(self) -> None:
        """Launch a frame of everybody, then read what was launched before (or just now, without lookahead)."""
        batch = self._scheduler.next_frames()
        if batch.requests:
            self._frames_in_flight.append(self._talker_runner.launch(batch, self._scheduler.page_table))
        ahead = 1 if self._lookahead and batch.requests else 0
        while len(self._frames_in_flight) > ahead:
            flight = self._frames_in_flight.popleft()
            stopped, codes_BN = self._talker_runner.collect(flight)
            self._note_frames(flight.batch, stopped, codes_BN)

    def _note_frames(self, batch: FrameBatch, stopped: list[bool], codes_BN: NDArray[np.int64]) -> None:
        now = self._clock()
        before = [scheduled.frames for scheduled in batch.requests]
        self._scheduler.collect_frames(batch, stopped, now)
        for codes_N, scheduled, frames in zip(codes_BN, batch.requests, before, strict=True):
            # What was launched behind a stop, a cancel or the limit does not count.
            if scheduled.frames > frames and self._jobs[scheduled.id].note_frame(codes_N):
                self._scheduler.finish(scheduled, "runaway", now)

    def _prime(self) -> None:
        """Let the codec hear a chunk of the recordings that are being continued; as many streams as a batch takes."""
        if not self._priming:
            return
        assert self._codec_runner is not None
        jobs = self._priming[: self._scheduler.max_decode_batch]
        size = self._codec_runner.max_chunk_frames
        pieces = [job.prefix_codes[job.primed : job.primed + size] for job in jobs]
        self._codec_runner.prime([job.in_scheduler.row for job in jobs], pieces)
        for job, piece in zip(jobs, pieces, strict=True):
            job.primed += len(piece)
            if not job.needs_priming:
                self._priming.remove(job)
                self._scheduler.codec_is_ready(job.in_scheduler, self._clock())

    def _decode(self) -> None:
        """Launch the chunks that are due, then collect those launched before (or just now, without lookahead)."""
        if self._codec_runner is None:
            return
        batch = self._scheduler.next_decode(self._clock())
        if batch is not None:
            self._samples_in_flight.append(self._codec_runner.launch(batch, self._talker_runner.codes_RFN))
        ahead = 1 if self._lookahead and batch is not None else 0
        while len(self._samples_in_flight) > ahead:
            flight = self._samples_in_flight.popleft()
            samples = self._codec_runner.collect(flight)
            now = self._clock()
            self._scheduler.collect_decode(flight.batch, now)
            for item, samples_CS in zip(flight.batch.items, samples, strict=True):
                if item.request.wants_audio:
                    self._deliver(item, samples_CS, now)

    def _finish(self) -> None:
        for scheduled in self._scheduler.release_finished():
            assert scheduled.finish_reason is not None
            self._end(self._jobs[scheduled.id], scheduled.finish_reason)

    # ---- requests on their way in and out

    def _open(
        self,
        request: SpeechRequest,
        *,
        request_id: str | None = None,
        priority: int = 0,
        streaming: bool,
        outbox: deque[AudioChunk] | None = None,
    ) -> Job:
        if request_id is None:
            self._names += 1
            request_id = f"request-{self._names}"
        if request_id in self._jobs:
            raise InvalidRequestError(
                f"a request {request_id!r} is open already; choose another id", param="request_id"
            )
        if len(self._preparing) >= self.config.max_waiting:
            raise CapacityError(f"{self.config.max_waiting} requests are waiting already; try again later")
        job = Job(
            id=request_id,
            request=request,
            seed=resolve_seed(request),
            sampling=self._model.sampling.overridden_by(request.sampling),
            priority=priority,
            streaming=streaming,
            added_at=self._clock(),
            outbox=outbox,
        )
        job.references = [self._reference(reference) for reference in request.references]
        if job.has_references:
            self._schedule(job)
        else:
            self._preparing.append(job)
        self._jobs[job.id] = job
        return job

    def _reference(self, reference: Reference) -> NDArray[np.int64] | Key:
        """Its codes, or the key under which they are being made."""
        codes = load_reference_codes(reference)
        if codes is not None:
            return codes
        if self._codec is None or self._references is None:
            raise InvalidRequestError("reference audio needs a codec; load one, or give codes", param="reference")
        codec = self._codec.config
        key, codes = self._references.submit(
            prepare_reference(
                reference, sample_rate=codec.sample_rate, channels=codec.channels, limits=self.config.reference
            )
        )
        return key if codes is None else codes

    def _schedule(self, job: Job) -> None:
        """Build the prompt and queue the request. Raises InvalidRequestError, CapacityError."""
        codes = [reference for reference in job.references if not isinstance(reference, str)]
        job.prompt = self._model.prompt.build(job.request, codes)
        max_frames = self._frame_limit(job, len(job.prompt.rows))
        job.watch(self.config.runaway, self.frame_seconds)
        job.scheduled = self._scheduler.add(
            job.id,
            job.prompt.rows,
            max_frames=max_frames,
            now=job.added_at,
            priority=job.priority,
            streaming=job.streaming,
            codec_ready=not job.needs_priming,
        )

    def _frame_limit(self, job: Job, prompt_rows: int) -> int:
        """The most frames that the request may have; sets what reaching it means."""
        room = self.context_rows - prompt_rows
        if room < 1:
            raise InvalidRequestError(
                f"text and references take {prompt_rows} rows of a context of {self.context_rows}; shorten them",
                param="text",
            )
        wish = job.request.max_frames
        if wish is not None and wish > room:
            raise InvalidRequestError(
                f"max_frames is {wish}, but after {prompt_rows} prompt rows only {room} fit the context",
                param="max_frames",
            )
        limit = min(room, self.config.max_frames if wish is None else wish)
        budget = frame_budget(
            self.config.runaway, job.request.text, self.frame_seconds, wanted_frames=job.request.tokens
        )
        if budget is not None and budget < limit:
            job.limit_reason = "runaway"
            return budget
        return limit

    def _deliver(self, item: DecodeItem, samples_CS: NDArray[np.float32], now: float) -> None:
        job = self._jobs[item.request.id]
        if job.note_audio(samples_CS, self.sample_rate):
            self._scheduler.finish(item.request, "runaway", now)
        codes = np.stack(job.frames[item.start : item.start + item.count])
        self._emit(job, AudioChunk(job.id, samples_CS, self.sample_rate, codes))

    def _end(self, job: Job, reason: FinishReason) -> None:
        """The only place where requests leave the engine."""
        del self._jobs[job.id]
        if job in self._priming:
            self._priming.remove(job)
        job.end = RequestEnd(
            finish_reason=job.limit_reason if reason == "length" else reason,
            seed=job.seed,
            timings=job.timings(self._clock()),
            error=job.error,
        )
        # Without a codec the codes were not delivered yet.
        codes = self._no_codes if self._codec or not job.frames else np.stack(job.frames)
        self._emit(job, AudioChunk(job.id, self._no_samples, self.sample_rate, codes, job.end))

    def _emit(self, job: Job, chunk: AudioChunk) -> None:
        (self._ready if job.outbox is None else job.outbox).append(chunk)

    # ---- callers inside the engine

    def _close(self, jobs: list[Job]) -> None:
        """End those of `jobs` that are still open, and wait until they hold nothing."""
        for job in jobs:
            if job.end is None:
                self.cancel(job.id)
        while any(job.end is None for job in jobs):
            self._advance()

    def _speech(self, job: Job) -> Speech:
        assert job.end is not None
        assert job.outbox is not None
        if job.end.error is not None:
            raise job.end.error
        return Speech(
            samples=np.concatenate([chunk.samples for chunk in job.outbox], axis=1),
            sample_rate=self.sample_rate,
            codes=np.concatenate([chunk.codes for chunk in job.outbox]),
            finish_reason=job.end.finish_reason,
            seed=job.end.seed,
            timings=job.end.timings,
        )


def parse_dtype(name: str) -> torch.dtype:
    """ "float32" or "bfloat16"; raises ConfigError."""
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; use one of {', '.join(DTYPES)}", param="dtype")
    return DTYPES[name]


def parse_device(name: str) -> torch.device:
    """ "cpu", "cuda" or "cuda:N"; raises ConfigError when it is another or not there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device is {name!r}; use cpu, cuda or cuda:N", param="device") from None
    if device.type not in {"cpu", "cuda"}:
        raise ConfigError(f"device is {name!r}; use cpu, cuda or cuda:N", param="device")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no CUDA device is available here; use --device cpu", param="device")
    return device


def _check_pair(model: LoadedTalker, codec: Codec) -> None:
    talker, audio = model.talker.config, codec.config
    if talker.sampling_rate != audio.sample_rate:
        raise ConfigError(
            f"the talker was made for {talker.sampling_rate} Hz and the codec makes {audio.sample_rate} Hz; "
            "give the codec that belongs to the model",
            param="codec",
        )
    entries = max(talker.audio_codebook_sizes)
    if talker.n_vq > audio.n_codebooks or entries > audio.codebook_size:
        raise ConfigError(
            f"the talker makes {talker.n_vq} codes a frame out of {entries}, the codec knows {audio.n_codebooks} "
            f"out of {audio.codebook_size}; give the codec that belongs to the model",
            param="codec",
        )
