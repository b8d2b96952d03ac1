"""Training data of the talker: coded utterances, in prompts of the product's own builder.

Three kinds of prompt, as requests have them (sources: MOSS 1.7). Without a reference the default
voice speaks. With one, its speaker says another text. A continuation starts with frames of the
first words of the text. Reference and target come from one speaker at about one speed, so that the
speed is cloned, too.
"""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hocket.core import SpeechRequest, StrictModel
from hocket.models.moss_local.prompt import MossLocalPrompt
from training.encode_data import unpack_codes

Rng = np.random.Generator


class PromptConfig(StrictModel):
    #: The teacher's voice that speaks when there is no reference.
    default_voice: str
    #: Shares by kind of the utterances by other voices; the rest is left out.
    clone_share: float
    continuation_share: float
    #: Share of the default voice's utterances that are cloned or continued as others are.
    default_clone_share: float
    #: Share of prompts whose target is two utterances, one after the other: longer texts.
    two_utterances_share: float
    #: Minimum and maximum frames of a reference.
    reference_frames: tuple[int, int]
    #: Largest difference of speed between reference and target.
    speed_tolerance: float
    #: Shares of prompts that name the language and that give the wanted length.
    language_share: float
    tokens_share: float
    #: Shares of texts without their last mark and in lower case, as people type.
    unpunctuated_share: float
    lower_case_share: float


@dataclass(frozen=True, slots=True)
class Utterance:
    text: str
    #: The teacher's voice or blend, and its speed.
    voice: str
    speed: float
    #: Where its codes lie in the bank.
    first: int
    frames: int


@dataclass(frozen=True, slots=True)
class Example:
    """A whole sequence: int64 `rows` [L, 1 + N]; the last `frames` of them are to be predicted, and
    then the stop.
    """

    rows: NDArray[np.int64]
    frames: int


def read_codes(folder: Path, frames: int, codebooks: int) -> NDArray[np.uint16]:
    """The codes [frames, codebooks] that `encode_data` wrote to `folder` in files of a million
    frames.
    """
    parts, left = [], frames
    for i in range(len(list(folder.glob("codes-*.npy")))):
        packed = np.load(folder / f"codes-{i}.npy")
        here = min(left, len(packed) * 8 // (codebooks * 10))
        parts.append(unpack_codes(packed, here, codebooks))
        left -= here
    if left:
        raise ValueError(f"{folder} lacks the codes of {left} frames; encode the speech again")
    return np.concatenate(parts)


class CodeBank:
    """All utterances of some CODES folders (`encode_data`), some of them held out by their text."""

    def __init__(
        self, folders: list[Path], *, codebooks: int, held_out_lines: int, seed: int
    ) -> None:
        codes: list[NDArray[np.uint16]] = []
        utterances: list[Utterance] = []
        offset = 0
        for folder in folders:
            with lzma.open(folder / "lines.jsonl.xz", "rt", encoding="utf-8") as file:
                utterances += [_utterance(json.loads(line), offset) for line in file]
            frames = utterances[-1].first + utterances[-1].frames - offset
            codes.append(read_codes(folder, frames, codebooks))
            offset += frames
        #: uint16 [F, N].
        self.codes = np.concatenate(codes)
        texts = sorted({utterance.text for utterance in utterances})
        held = set(
            np.random.default_rng(seed).choice(
                texts, min(held_out_lines, len(texts) // 10), replace=False
            )
        )
        self.training = [u for u in utterances if u.text not in held]
        self.held_out = [u for u in utterances if u.text in held]

    @property
    def hours(self) -> float:
        return sum(utterance.frames for utterance in self.training) / 12.5 / 3600

    def frames_of(self, utterance: Utterance) -> NDArray[np.int64]:
        return self.codes[utterance.first : utterance.first + utterance.frames].astype(np.int64)


def _utterance(row: dict[str, Any], offset: int) -> Utterance:
    voice = "+".join(
        name if share == 1 else f"{name}*{share:g}" for name, share in row["voice"].items()
    )
    return Utterance(row["text"], voice, row["speed"], offset + row["first"], row["frames"])


class Examples:
    """Random sequences from some of a bank's utterances."""

    def __init__(
        self,
        bank: CodeBank,
        utterances: list[Utterance],
        prompt: MossLocalPrompt,
        config: PromptConfig,
    ) -> None:
        self._bank, self._utterances, self._prompt, self._config = bank, utterances, prompt, config
        self._by_voice: dict[str, list[Utterance]] = defaultdict(list)
        for utterance in utterances:
            self._by_voice[utterance.voice].append(utterance)
        for members in self._by_voice.values():
            members.sort(key=lambda utterance: utterance.speed)
        self._speeds = {
            voice: np.array([u.speed for u in members]) for voice, members in self._by_voice.items()
        }

    def stream(self, rng: Rng) -> Iterator[Example]:
        """Yield endless passes over the utterances, each shuffled anew, without those that have no
        partner.
        """
        while True:
            for i in rng.permutation(len(self._utterances)):
                example = self._example(self._utterances[i], rng)
                if example is not None:
                    yield example

    def _example(self, target: Utterance, rng: Rng) -> Example | None:
        config = self._config
        is_default = target.voice == config.default_voice and target.speed == 1.0
        if is_default and rng.random() >= config.default_clone_share:
            return self._generation(target, rng)
        kind = rng.random()
        if kind < config.clone_share:
            return self._clone(target, rng)
        if kind < config.clone_share + config.continuation_share:
            return self._continuation(target, rng)
        return None

    def _generation(self, target: Utterance, rng: Rng) -> Example | None:
        text, frames_FN = self._spoken(target, rng)
        return self._build(text, frames_FN, None, None, rng)

    def _clone(self, target: Utterance, rng: Rng) -> Example | None:
        partner = self._partner(target, rng)
        if partner is None:
            return None
        text, frames_FN = self._spoken(target, rng)
        least, most = self._config.reference_frames
        reference_FN = self._bank.frames_of(partner)
        wanted = int(rng.integers(least, most + 1))
        if len(reference_FN) > wanted:
            start = int(rng.integers(0, len(reference_FN) - wanted + 1))
            reference_FN = reference_FN[start : start + wanted]
        return self._build(text, frames_FN, reference_FN, None, rng)

    def _continuation(self, target: Utterance, rng: Rng) -> Example | None:
        partner = self._partner(target, rng)
        if partner is None or partner.frames > self._config.reference_frames[1]:
            return None
        return self._build(
            self._typed(target.text, rng),
            self._bank.frames_of(target),
            self._bank.frames_of(partner),
            partner.text,
            rng,
        )

    def _spoken(self, target: Utterance, rng: Rng) -> tuple[str, NDArray[np.int64]]:
        """The target text and its codes, sometimes with another utterance appended."""
        frames_FN = self._bank.frames_of(target)
        text = target.text
        if rng.random() < self._config.two_utterances_share:
            second = self._partner(target, rng)
            if second is not None:
                text = f"{text} {second.text}"
                frames_FN = np.concatenate([frames_FN, self._bank.frames_of(second)])
        return self._typed(text, rng), frames_FN

    def _partner(self, target: Utterance, rng: Rng) -> Utterance | None:
        """Another utterance of the same voice at about the same speed."""
        speeds = self._speeds[target.voice]
        tolerance = self._config.speed_tolerance
        low = int(np.searchsorted(speeds, target.speed - tolerance, "left"))
        high = int(np.searchsorted(speeds, target.speed + tolerance, "right"))
        if high - low < 2:
            return None
        partner = self._by_voice[target.voice][int(rng.integers(low, high))]
        return None if partner.first == target.first else partner

    def _typed(self, text: str, rng: Rng) -> str:
        """The text, sometimes without its last mark or its capitals."""
        if rng.random() < self._config.unpunctuated_share:
            text = text.rstrip(".!") or text
        return text.lower() if rng.random() < self._config.lower_case_share else text

    def _build(
        self,
        text: str,
        frames_FN: NDArray[np.int64],
        reference_FN: NDArray[np.int64] | None,
        reference_text: str | None,
        rng: Rng,
    ) -> Example:
        references = [] if reference_FN is None else [reference_FN]
        request = SpeechRequest(
            text=text,
            language="English" if rng.random() < self._config.language_share else None,
            tokens=len(frames_FN) if rng.random() < self._config.tokens_share else None,
            reference=references,
            reference_text=reference_text,
        )
        prompt = self._prompt.build(request, references).rows
        return Example(np.concatenate([prompt, self._prompt.frame_rows(frames_FN)]), len(frames_FN))


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences of T rows, right-padded, and the M positions that predict something, padded
    too.
    """

    #: int16 [B, T, 1 + N].
    rows: NDArray[np.int16]
    #: int32 [M]: places in B * T whose output is trained: the row before a frame, and the last
    #: frame's, which stops.
    places: NDArray[np.int32]
    #: int16 [M, N]: the codes to predict; the pad code at a stop and in padding.
    targets: NDArray[np.int16]
    #: int8 [M]: 0 goes on, 1 stops, -1 is padding.
    stops: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class BatchShape:
    rows: int
    sequences: int
    places: int


def batch_shapes(
    row_buckets: tuple[int, ...], rows_per_batch: int, frame_share: float
) -> list[BatchShape]:
    """A shape for each bucket, shortest first: about `rows_per_batch` rows, of which `frame_share`
    predict.
    """
    counts = [(rows, max(1, rows_per_batch // rows)) for rows in row_buckets]
    return [BatchShape(rows, count, int(rows * count * frame_share)) for rows, count in counts]


class Batches:
    """Sorts a stream of examples into batches of few shapes, without examples that exceed the
    longest.
    """

    def __init__(
        self, shapes: list[BatchShape], pad_token_id: int, pad_code: int, codebooks: int
    ) -> None:
        self._shapes, self._pad_token_id, self._pad_code, self._codebooks = (
            shapes,
            pad_token_id,
            pad_code,
            codebooks,
        )

    def stream(self, examples: Iterator[Example]) -> Iterator[Batch]:
        waiting: list[list[Example]] = [[] for _ in self._shapes]
        places = [0] * len(self._shapes)
        for example in examples:
            fitting = [i for i, shape in enumerate(self._shapes) if len(example.rows) <= shape.rows]
            if not fitting:
                continue
            i = fitting[0]
            shape = self._shapes[i]
            if len(waiting[i]) == shape.sequences or places[i] + example.frames + 1 > shape.places:
                yield self.assemble(shape, waiting[i])
                waiting[i], places[i] = [], 0
            waiting[i].append(example)
            places[i] += example.frames + 1

    def assemble(self, shape: BatchShape, examples: list[Example]) -> Batch:
        """One batch of examples that fit `shape`."""
        rows = np.full((shape.sequences, shape.rows, 1 + self._codebooks), self._pad_code, np.int16)
        rows[:, :, 0] = self._pad_token_id
        places = np.zeros(shape.places, np.int32)
        targets = np.full((shape.places, self._codebooks), self._pad_code, np.int16)
        stops = np.full(shape.places, -1, np.int8)
        used = 0
        for b, example in enumerate(examples):
            length, frames = len(example.rows), example.frames
            rows[b, :length] = example.rows
            first = b * shape.rows + length - frames - 1
            places[used : used + frames + 1] = np.arange(first, first + frames + 1)
            targets[used : used + frames] = example.rows[length - frames :, 1:]
            stops[used : used + frames] = 0
            stops[used + frames] = 1
            used += frames + 1
        return Batch(rows, places, targets, stops)
