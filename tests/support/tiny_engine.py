"""Engines on the golden checkpoints, and traffic for them: everything is drawn from seeds, time
included.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hocket.config import EngineConfig
from hocket.core import AudioArray, AudioChunk, RequestEnd, Samples, Sampling, SpeechRequest
from hocket.engine.build import EngineParts, assemble
from hocket.engine.engine import Engine
from hocket.engine.runners.talker import FramesInFlight, PageTable, TalkerRunner
from hocket.engine.scheduling.request import FrameBatch, PrefillItem
from hocket.models.codec import Codec
from hocket.models.family import LoadedTalker
from hocket.models.moss_local.talker import STOP, MossLocalTalker
from hocket.models.registry import load_codec, load_talker
from tests.support import tiny_qwen3
from tests.support.paths import GOLDEN

SAMPLE_RATE = 300
FRAME_SAMPLES = 24
N_VQ = 12

#: Small pages, so that 30 frames grow a request by several and memory runs out on the way.
STRICT = EngineConfig(strict=True, page_rows=4, max_context_rows=512, prefill_rows_per_step=64)
EAGER = STRICT.model_copy(update={"strict": False})


@cache
def codec() -> Codec:
    return load_codec(GOLDEN / "codec2_tiny", device=torch.device("cpu"), dtype=torch.float32)


@cache
def talker() -> LoadedTalker:
    """The golden talker unchanged: it stops after some 3 frames."""
    return load_talker(GOLDEN / "local_tiny", device=torch.device("cpu"), dtype=torch.float32)


def with_stop_head(weight_2D: Tensor) -> LoadedTalker:
    """The golden talker with another stop head; all weights are copies, so tests may edit them."""
    original = talker().talker
    assert isinstance(original, MossLocalTalker)
    edited = copy.deepcopy(original)
    with torch.no_grad():
        edited.stop_head.weight.copy_(weight_2D)
    return replace(talker(), talker=edited)


def stop_head_weight() -> Tensor:
    original = talker().talker
    assert isinstance(original, MossLocalTalker)
    return original.stop_head.weight.detach().clone()


@cache
def patient_talker() -> LoadedTalker:
    """Stops after 0 to 40 frames: the go logit has grown along the direction that hidden states
    have in common.
    """
    seen: list[Tensor] = []
    logits = MossLocalTalker.stop_logits

    def record(self: MossLocalTalker, y0_BD: Tensor) -> Tensor:
        seen.append(y0_BD)
        return logits(self, y0_BD)

    with mock.patch.object(MossLocalTalker, "stop_logits", record):
        engine(EAGER, talker()).generate_many(
            [SpeechRequest(text=f"Text {i}.", seed=i) for i in range(8)]
        )
    mean_D = torch.cat(seen).mean(0)
    weight_2D = stop_head_weight()
    weight_2D[1 - STOP] += 3.0 * mean_D / mean_D.norm()
    return with_stop_head(weight_2D)


@cache
def endless_talker() -> LoadedTalker:
    """Never stops: a logit of NaN is never drawn."""
    weight_2D = stop_head_weight()
    weight_2D[STOP] = torch.nan
    return with_stop_head(weight_2D)


@cache
def mute_talker() -> LoadedTalker:
    """Stops at its first frame."""
    weight_2D = stop_head_weight()
    weight_2D[1 - STOP] = torch.nan
    return with_stop_head(weight_2D)


class TickingClock:
    """Advances by a millisecond per reading, sometimes by 50: due times do not depend on the
    machine.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.now = 0.0

    def __call__(self) -> float:
        self.now += float(self._random.choice([0.001, 0.001, 0.001, 0.05]))
        return self.now


def engine(
    config: EngineConfig,
    model: LoadedTalker,
    *,
    with_codec: bool = True,
    clock: TickingClock | None = None,
) -> Engine:
    rate = model.talker.config.sampling_rate
    own_codec = next(one for one in (codec(), tiny_qwen3.codec()) if one.config.sample_rate == rate)
    parts = assemble(model, own_codec if with_codec else None, config)
    return from_parts(parts, clock)


def from_parts(parts: EngineParts, clock: TickingClock | None = None) -> Engine:
    return Engine(parts, clock=clock or TickingClock())


@dataclass(slots=True)
class Heard:
    """All that a client has received for one request."""

    engine: Engine
    codes: list[NDArray[np.int64]] = field(default_factory=list)
    samples: list[Samples] = field(default_factory=list)
    end: RequestEnd | None = None

    def take(self, chunk: AudioChunk) -> None:
        assert self.end is None, "a chunk after the last one"
        assert chunk.sample_rate == self.engine.sample_rate
        assert chunk.codes.dtype == np.int64
        assert chunk.samples.dtype == self.engine.config.samples
        self.codes.append(chunk.codes)
        self.samples.append(chunk.samples)
        self.end = chunk.end
        if chunk.end is None:
            frame_samples = round(self.engine.frame_seconds * self.engine.sample_rate)
            assert chunk.samples.shape == (self.engine.channels, len(chunk.codes) * frame_samples)
            assert len(chunk.codes) > 0
        else:
            assert chunk.samples.shape == (self.engine.channels, 0)

    @property
    def all_codes(self) -> NDArray[np.int64]:
        return np.concatenate([np.zeros((0, self.engine.parts.n_vq), np.int64), *self.codes])

    @property
    def all_samples(self) -> Samples:
        return np.concatenate(
            [np.zeros((self.engine.channels, 0), self.engine.config.samples), *self.samples], axis=1
        )

    @property
    def reason(self) -> str:
        assert self.end is not None
        return self.end.finish_reason

    def assert_same(self, other: Heard) -> None:
        """Bit for bit."""
        assert self.reason == other.reason
        assert np.array_equal(self.all_codes, other.all_codes)
        assert self.all_samples.tobytes() == other.all_samples.tobytes()

    def assert_begins(self, other: Heard) -> None:
        """This is the beginning of the other, bit for bit."""
        codes, samples = self.all_codes, self.all_samples
        assert np.array_equal(codes, other.all_codes[: len(codes)])
        assert samples.tobytes() == other.all_samples[:, : samples.shape[1]].tobytes()


class Listener:
    """All clients of an engine; checks its integrity after every step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.heard: dict[str, Heard] = {}
        #: Bits of the hidden state that each frame of a request was made from, by name and frame: a
        #: difference there seldom changes a code.
        self.hidden: dict[tuple[str, int], bytes] = {}
        runner = engine.parts.talker
        assert isinstance(runner, TalkerRunner)
        launch = runner.launch

        def record_and_launch(
            batch: FrameBatch, page_table: PageTable, items: Sequence[PrefillItem] = ()
        ) -> FramesInFlight:
            for request, frame in zip(
                batch.requests, batch.frame_index_3B[1].tolist(), strict=True
            ):
                self.hidden[request.id, frame] = runner._hidden_RD[request.row].numpy().tobytes()
            return launch(batch, page_table, items)

        runner.launch = record_and_launch  # type: ignore[method-assign]

    def add(
        self,
        request: SpeechRequest,
        *,
        priority: int = 0,
        streaming: bool = True,
        name: str | None = None,
    ) -> str:
        name = self.engine.add(request, request_id=name, priority=priority, streaming=streaming)
        assert name not in self.heard
        self.heard[name] = Heard(self.engine)
        return name

    def step(self) -> list[AudioChunk]:
        chunks = self.engine.step()
        self.engine.check_integrity()
        for chunk in chunks:
            self.heard[chunk.request_id].take(chunk)
        return chunks

    def hidden_of(self, name: str) -> list[bytes]:
        """Hidden states of the delivered frames, in order."""
        return [self.hidden[name, frame] for frame in range(len(self.heard[name].all_codes))]

    def run(self, limit: int = 5000) -> dict[str, Heard]:
        for _ in range(limit):
            if self.engine.idle:
                return self.heard
            self.step()
        raise AssertionError(f"not idle after {limit} steps: {self.engine.stats()}")

    def assert_all_is_back(self) -> None:
        assert self.engine.idle
        assert self.engine._failure is None
        stats = self.engine.stats().scheduler
        config = self.engine.config
        assert stats.rows_free == config.rows
        assert stats.waiting == stats.prefilling == stats.running == stats.ending == 0
        kv_rows = config.kv_rows or config.rows * self.engine.context_rows
        assert stats.pages_free + stats.pages_kept == -(-kv_rows // config.page_rows)


def hear(
    engine: Engine, requests: Iterable[SpeechRequest], *, streaming: bool = True
) -> list[Heard]:
    """All at once, in the order given."""
    listener = Listener(engine)
    names = [listener.add(request, streaming=streaming) for request in requests]
    heard = listener.run()
    listener.assert_all_is_back()
    return [heard[name] for name in names]


# ---- traffic

WORDS = (
    "the",
    "hocket",
    "takes",
    "one",
    "voice",
    "and",
    "then",
    "another,",
    "note",
    "by",
    "note;",
    "nobody",
    "waits",
)


@dataclass(frozen=True, slots=True)
class Call:
    """A request and how it is made."""

    request: SpeechRequest
    priority: int
    streaming: bool


def noise(seed: int, seconds: float) -> AudioArray:
    random = np.random.default_rng(seed)
    samples = 0.1 * random.standard_normal((2, int(seconds * SAMPLE_RATE)))
    return AudioArray(samples.astype(np.float32), SAMPLE_RATE)


def codes(seed: int, frames: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, 32, (frames, N_VQ))


@cache
def calls(count: int = 64, *, more_frames: int = 0) -> list[Call]:
    """Requests of every kind, for up to 30 and `more_frames` frames. Voices recur, so prefixes and
    codes are shared.
    """
    random = np.random.default_rng(0)
    voices = [
        None,
        None,
        codes(1, 9),
        codes(2, 23),
        noise(3, 0.9),
        noise(4, 2.3),
        [codes(5, 4), noise(3, 0.9)],
    ]
    made = []
    for _ in range(count):
        voice = voices[random.integers(len(voices))]
        is_continuation = (
            voice is not None and not isinstance(voice, list) and random.random() < 0.4
        )
        sampling = Sampling(
            temperature=float(random.choice([0.0, 0.8, 1.7])),
            top_p=float(random.choice([0.6, 0.95, 1.0])),
            top_k=int(random.choice([0, 5, 25])),
            repetition_penalty=float(random.choice([1.0, 1.3])),
            stop_temperature=float(random.choice([0.5, 1.0])),
        )
        request = SpeechRequest(
            text=" ".join(random.choice(WORDS, size=random.integers(1, 9))),
            language="English" if random.random() < 0.3 else None,
            reference=voice,
            reference_text="one voice and another" if is_continuation else None,
            sampling=sampling,
            seed=int(random.integers(2**62)),
            max_frames=int(random.integers(1, 31)) + more_frames,
        )
        made.append(
            Call(
                request,
                priority=int(random.choice([0, 0, 0, 1, 5])),
                streaming=bool(random.random() < 0.7),
            )
        )
    return made


@cache
def qwen3_calls(*, more_frames: int = 0) -> list[Call]:
    """`calls` for the other family."""
    random = np.random.default_rng(1)
    requests = tiny_qwen3.requests(WORDS, 64, more_frames)
    return [
        Call(one, int(random.choice([0, 0, 0, 1, 5])), bool(random.random() < 0.7))
        for one in requests
    ]


#: The golden talkers that the engine's own tests run on, with the traffic for each: a family adds
#: one that stops late and one that never stops. The endless ones are asked for 20 frames more: all
#: requests grow before the first one ends, so memory does run out.
TALKERS = {
    "patient": (patient_talker, calls, 0),
    "endless": (endless_talker, calls, 20),
    "patient qwen3": (tiny_qwen3.patient_talker, qwen3_calls, 0),
    "endless qwen3": (tiny_qwen3.endless_talker, qwen3_calls, 20),
}


def traffic(talker: str) -> tuple[LoadedTalker, list[Call]]:
    """A talker and the calls to make."""
    make_talker, make_calls, more_frames = TALKERS[talker]
    return make_talker(), make_calls(more_frames=more_frames)


def alone(number: int, talker: str) -> Heard:
    """Call `number` of a talker's traffic, in an engine of its own."""
    return _alone(number, talker)[0]


def hidden_alone(number: int, talker: str) -> list[bytes]:
    """Bits of the hidden states behind the frames of `alone`."""
    return _alone(number, talker)[1]


@cache
def _alone(number: int, talker: str) -> tuple[Heard, list[bytes]]:
    model, made = traffic(talker)
    listener = Listener(engine(STRICT.model_copy(update={"rows": 1}), model))
    name = listener.add(made[number].request, streaming=made[number].streaming)
    return listener.run()[name], listener.hidden_of(name)
