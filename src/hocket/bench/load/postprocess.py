"""After the load: judge words and voices of the answers, and keep the audio of bad ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from hocket.audio.io import decode_audio, write_audio
from hocket.bench.faults import Fault, ResponseError
from hocket.bench.http import Response
from hocket.bench.judge.asr import to_recogniser
from hocket.bench.judge.outcome import Outcome
from hocket.bench.judge.speaker_similarity import Embedding, SpeakerModel, similarity
from hocket.bench.judge.wer import count_errors
from hocket.bench.load.client import BenchClient
from hocket.bench.load.run_config import RunConfig

_MAX_REFERENCE_BYTES = 64 * 2**20
_MAX_REFERENCE_SECONDS = 600.0


def judge_content(
    config: RunConfig,
    client: BenchClient,
    outcomes: Sequence[Outcome],
    responses: Mapping[int, Response],
) -> None:
    """Transcribe every answer that has audio, and compare its voice. Raises HocketError when a
    model fails.
    """
    spoken = [outcome for outcome in outcomes if outcome.seconds > 0.0]

    @cache
    def reference(path: Path) -> Embedding:
        assert config.speaker_model is not None
        return embed_file(config.speaker_model, path)

    def one(outcome: Outcome) -> None:
        decoded = client.decode(outcome.index, responses[outcome.index])
        mono_S = to_recogniser(decoded.samples, decoded.sample_rate)
        if config.recogniser is not None:
            note_words(
                outcome, config.recogniser.words(mono_S, outcome.item.language), config.max_cer
            )
        if config.speaker_model is not None and outcome.item.reference is not None:
            alike = similarity(
                config.speaker_model.embed(mono_S), reference(outcome.item.reference)
            )
            outcome.similarity = alike if math.isfinite(alike) else None
            # NaN fails, too.
            if config.min_similarity is not None and not alike >= config.min_similarity:
                outcome.faults.append(
                    Fault("wrong_voice", f"{alike:.2f} alike, at least {config.min_similarity:g}")
                )

    workers = 1 if config.recogniser is None else config.recogniser.workers
    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(one, spoken):
            pass


def note_words(outcome: Outcome, transcript: str, max_cer: float) -> None:
    """Note the transcript, its errors, and a fault when there are too many."""
    errors = count_errors(outcome.item.text, transcript, outcome.item.language)
    outcome.heard_text = transcript
    outcome.word_errors, outcome.words = errors.word_errors, errors.words
    outcome.character_errors, outcome.characters = errors.character_errors, errors.characters
    if errors.cer > max_cer:
        outcome.faults.append(Fault("wrong_words", f"{100 * errors.cer:.0f} % of characters wrong"))


def embed_file(model: SpeakerModel, path: Path) -> Embedding:
    """Embed the voice of a recording. Raises AudioFileError."""
    audio = decode_audio(path, max_bytes=_MAX_REFERENCE_BYTES, max_seconds=_MAX_REFERENCE_SECONDS)
    return model.embed(to_recogniser(audio.samples, audio.sample_rate))


def keep_audio(
    folder: Path,
    prefix: str,
    max_kept: int,
    client: BenchClient,
    outcomes: Sequence[Outcome],
    responses: Mapping[int, Response],
) -> None:
    """Write up to `max_kept` failed answers, and as many with the worst words, to WAV files in
    `folder`.

    Raises AudioFileError.
    """
    failed = [outcome for outcome in outcomes if outcome.faults and outcome.seconds > 0.0][
        :max_kept
    ]
    worst = sorted(
        (outcome for outcome in outcomes if outcome.word_errors),
        key=lambda o: (o.word_errors or 0) / (o.words or 1),
    )
    worst = worst[max(0, len(worst) - max_kept) :]
    for outcome in {id(o): o for o in [*failed, *worst]}.values():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(ResponseError):
            decoded = client.decode(outcome.index, responses[outcome.index])
            path = folder / f"{prefix}{outcome.index}.wav"
            write_audio(path, decoded.samples, decoded.sample_rate)
            outcome.audio_file = f"{folder.name}/{path.name}"
