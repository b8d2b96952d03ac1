"""The engine in one process: load a model, speak requests.

engine = Engine.load()
speech = engine.generate(SpeechRequest(text="Hello."))
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.config import EngineConfig
from hocket.core import MAX_SEED, AudioChunk, FinishReason, Speech, SpeechRequest, Timings
from hocket.engine.codec_runner import CodecRunner, DecodeItem
from hocket.engine.talker_runner import FrameItem, PrefillItem, TalkerRunner
from hocket.errors import ConfigError, InvalidRequestError
from hocket.models.checkpoint import resolve_checkpoint
from hocket.models.family import Codec, LoadedTalker, PromptRows
from hocket.models.registry import builtin_model, codec_folder, load_codec, load_talker
from hocket.prompt.reference import load_reference_codes, prepare_reference

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Engine:
    """Speaks one request at a time. `Engine.load` makes one."""

    def __init__(self, model: LoadedTalker, codec: Codec | None, config: EngineConfig) -> None:
        self.config = config
        self._model = model
        self._codec = codec
        talker = model.talker.config
        if codec is not None:
            _check_pair(model, codec)
        self.context_rows = min(config.max_context_rows, talker.max_positions)
        pages = -(-self.context_rows // config.page_rows)
        self._pages = range(1, pages + 1)
        self._talker_runner = TalkerRunner(model.talker, rows=1, pages=pages + 1, page_rows=config.page_rows)
        self._codec_runner = codec and CodecRunner(codec, rows=1, max_chunk_frames=max(config.chunk_frames))

    @classmethod
    def load(
        cls,
        model: str | Path | None = None,
        codec: str | Path | None = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        config: EngineConfig | None = None,
    ) -> Engine:
        """Load a checkpoint folder or hub id; no `model` is the built-in one.

        `codec` is a folder, a hub id, `None` for the one that the model names, or "none" to make codes only.
        Raises ConfigError, CheckpointError.
        """
        on = parse_device(device)
        precision = parse_dtype(dtype)
        folder = builtin_model() if model is None else resolve_checkpoint(model)
        talker = load_talker(folder, device=on, dtype=precision)
        loaded_codec = None
        if codec != "none":
            loaded_codec = load_codec(codec_folder(folder, codec), device=on, dtype=precision)
        return cls(talker, loaded_codec, config or EngineConfig())

    @property
    def sample_rate(self) -> int:
        """Of the audio, in Hz."""
        return self._codec.config.sample_rate if self._codec else self._model.talker.config.sampling_rate

    def generate(self, request: SpeechRequest) -> Speech:
        """Speak `request` and return everything. Raises InvalidRequestError, ReferenceAudioError."""
        seed = _seed(request)
        started = time.perf_counter()
        first_audio = float("nan")
        chunks: list[AudioChunk] = []
        for chunk in self.stream(request.model_copy(update={"seed": seed})):
            if not chunks:
                first_audio = time.perf_counter() - started
            chunks.append(chunk)
        reason = chunks[-1].finish_reason
        assert reason is not None
        return Speech(
            samples=np.concatenate([chunk.samples for chunk in chunks], axis=1),
            sample_rate=self.sample_rate,
            codes=np.concatenate([chunk.codes for chunk in chunks]),
            finish_reason=reason,
            seed=seed,
            timings=Timings(first_audio_seconds=first_audio, total_seconds=time.perf_counter() - started),
        )

    def stream(self, request: SpeechRequest) -> Iterator[AudioChunk]:
        """Yield audio as it is made: chunks of `config.chunk_frames` frames (its last value repeats).

        The last chunk carries the finish reason and may be empty. Errors as for `generate`, before the first chunk.
        """
        prompt = self._model.prompt.build(request, self._reference_codes(request))
        frames_left = self._frame_budget(request, len(prompt.rows))
        self._start(request, prompt)
        sizes = iter(self.config.chunk_frames)
        size = next(sizes)
        pending: list[NDArray[np.int64]] = []
        for codes, reason in self._frames(len(prompt.rows), frames_left):
            if codes is not None:
                pending.append(codes)
            if reason is not None or len(pending) == size:
                yield self._chunk(pending, reason)
                pending = []
                size = next(sizes, size)

    def _frames(self, position: int, budget: int) -> Iterator[tuple[NDArray[np.int64] | None, FinishReason | None]]:
        """Codes [N] frame by frame; the last item carries the finish reason."""
        for made in range(budget):
            item = FrameItem(row=0, position=position + made, pages=self._pages)
            stop_B, codes_BN = self._talker_runner.frame([item])
            if stop_B[0]:
                yield None, "stop"
                return
            last = made + 1 == budget
            yield codes_BN[0], "length" if last else None
            if not last:
                self._talker_runner.advance([item], codes_BN)

    def _start(self, request: SpeechRequest, prompt: PromptRows) -> None:
        assert request.seed is not None or request.sampling is not None
        self._talker_runner.start(0, self._model.sampling.overridden_by(request.sampling), _seed(request))
        step = self.config.prefill_chunk_rows
        for begin in range(0, len(prompt.rows), step):
            rows = prompt.rows[begin : begin + step]
            self._talker_runner.prefill([PrefillItem(row=0, rows=rows, start=begin, pages=self._pages)])
        if self._codec_runner is not None:
            self._codec_runner.start(0)
            self._codec_runner.prime(0, prompt.prefix_codes)

    def _chunk(self, frames: list[NDArray[np.int64]], reason: FinishReason | None) -> AudioChunk:
        n_vq = self._model.talker.config.n_vq
        codes = np.stack(frames) if frames else np.zeros((0, n_vq), np.int64)
        channels = self._codec.config.channels if self._codec else 1
        samples = np.zeros((channels, 0), np.float32)
        if frames and self._codec_runner is not None:
            (samples,) = self._codec_runner.decode([DecodeItem(0, codes)])
        return AudioChunk(samples=samples, sample_rate=self.sample_rate, codes=codes, finish_reason=reason)

    def _reference_codes(self, request: SpeechRequest) -> list[NDArray[np.int64]]:
        found = []
        for reference in request.references:
            codes = load_reference_codes(reference)
            if codes is None:
                if self._codec is None:
                    raise InvalidRequestError(
                        "reference audio needs a codec; load one, or give codes", param="reference"
                    )
                codec = self._codec.config
                samples = prepare_reference(
                    reference, sample_rate=codec.sample_rate, channels=codec.channels, limits=self.config.reference
                )
                with torch.inference_mode():
                    codes = self._codec.encode_whole(torch.from_numpy(samples), self._model.talker.config.n_vq).numpy()
            found.append(codes)
        return found

    def _frame_budget(self, request: SpeechRequest, prompt_rows: int) -> int:
        room = self.context_rows - prompt_rows
        if room < 1:
            raise InvalidRequestError(
                f"text and references take {prompt_rows} rows of a context of {self.context_rows}; shorten them",
                param="text",
            )
        if request.max_frames is None:
            return min(room, self.config.max_frames)
        if request.max_frames > room:
            raise InvalidRequestError(
                f"max_frames is {request.max_frames}, but after {prompt_rows} prompt rows only {room} fit the context",
                param="max_frames",
            )
        return request.max_frames


def _seed(request: SpeechRequest) -> int:
    return secrets.randbelow(MAX_SEED + 1) if request.seed is None else request.seed


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
    if talker.n_vq > audio.n_codebooks or max(talker.audio_codebook_sizes) > audio.codebook_size:
        raise ConfigError(
            f"the talker makes {talker.n_vq} codes a frame out of {max(talker.audio_codebook_sizes)}, the codec knows "
            f"{audio.n_codebooks} out of {audio.codebook_size}; give the codec that belongs to the model",
            param="codec",
        )
