"""The golden Qwen3-TTS base checkpoint as a family under test: talkers that stop late or never, and
requests.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from hocket.core import AudioArray, Sampling, SpeechRequest
from hocket.models.codec import Codec
from hocket.models.family import LoadedTalker
from hocket.models.qwen3_tts.talker import Qwen3TtsTalker
from hocket.models.registry import load_codec, load_talker
from tests.support.paths import GOLDEN

FOLDER = GOLDEN / "qwen3_tts" / "base_1b7"
SAMPLE_RATE = 24_000
#: Probability of stopping at a typical hidden state: speech lasts some 6 frames.
STOP_PROBABILITY = 0.25


@cache
def codec() -> Codec:
    return load_codec(FOLDER / "speech_tokenizer", device=torch.device("cpu"), dtype=torch.float32)


@cache
def talker() -> LoadedTalker:
    return load_talker(FOLDER, device=torch.device("cpu"), dtype=torch.float32)


def _with_stop_weight(weight_D: Tensor) -> LoadedTalker:
    """The golden talker with another row of the first code's head where it scores stopping."""
    original = talker().talker
    assert isinstance(original, Qwen3TtsTalker)
    edited = copy.deepcopy(original)
    with torch.no_grad():
        edited.code_head.weight[edited.config.codec_eos_id] = weight_D
    return replace(talker(), talker=edited)


@cache
def endless_talker() -> LoadedTalker:
    """Never stops: a logit of NaN is never drawn."""
    return _with_stop_weight(torch.full((64,), torch.nan))


@cache
def patient_talker() -> LoadedTalker:
    """Stops after 2 to 40 frames: the stop's row has grown along the direction that hidden states
    have in common.
    """
    original = talker().talker
    assert isinstance(original, Qwen3TtsTalker)
    prompts = [
        talker().prompt.build(request, [], [np.ones(64, np.float32)])
        for request in _plain_requests()
    ]
    hidden: list[Tensor] = []
    with torch.no_grad():
        for prompt in prompts:
            x_1TD = original.embed(
                torch.from_numpy(prompt.rows)[None], torch.from_numpy(prompt.voice)[None]
            )
            hidden.append(original.backbone(x_1TD)[0])
        mean_D = torch.cat(hidden).mean(0)
        logits_V = original.code_head(mean_D)
        codes_V, stop = logits_V[:64], original.config.codec_eos_id
        wanted = codes_V.logsumexp(0) + np.log(STOP_PROBABILITY / (1 - STOP_PROBABILITY))
        return _with_stop_weight(
            original.code_head.weight[stop]
            + (wanted - logits_V[stop]) * mean_D / mean_D.dot(mean_D)
        )


def _plain_requests() -> list[SpeechRequest]:
    return [
        SpeechRequest(text=f"Text {i}.", reference=b"x", streaming_text=False) for i in range(8)
    ]


@cache
def voice(seed: int, seconds: float) -> AudioArray:
    random = np.random.default_rng(seed)
    samples = 0.1 * random.standard_normal((1, int(seconds * SAMPLE_RATE)))
    return AudioArray(samples.astype(np.float32), SAMPLE_RATE)


def requests(words: tuple[str, ...], count: int, more_frames: int) -> list[SpeechRequest]:
    """Requests of every kind: voices with and without transcript, text up front and a token per
    frame. Voices recur.
    """
    random = np.random.default_rng(0)
    voices = [voice(1, 0.6), voice(2, 0.93), voice(3, 2.1)]
    return [
        SpeechRequest(
            text=" ".join(random.choice(words, size=random.integers(1, 9))),
            language="English" if random.random() < 0.3 else None,
            reference=voices[random.integers(len(voices))],
            reference_text="one voice and another" if random.random() < 0.4 else None,
            streaming_text=[None, False][random.integers(2)],
            sampling=Sampling(
                temperature=float(random.choice([0.0, 0.9, 1.5])),
                top_k=int(random.choice([0, 20, 50])),
                repetition_penalty=float(random.choice([1.0, 1.05, 1.3])),
                predictor_temperature=[None, 0.0, 1.3][random.integers(3)],
                predictor_top_p=[None, 0.7][random.integers(2)],
            ),
            seed=int(random.integers(2**62)),
            max_frames=int(random.integers(1, 31)) + more_frames,
            min_frames=1 if random.random() < 0.2 else 0,
        )
        for _ in range(count)
    ]
