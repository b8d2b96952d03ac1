"""Reference recordings to voice vectors: one recording per step, for families that read vectors."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Set

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.engine.references.codes import Key
from hocket.models.family import VoiceEncoder


class VoiceVectors:
    """A queue of prepared recordings, which it embeds."""

    def __init__(self, encoder: VoiceEncoder) -> None:
        self._encoder = encoder
        self._device = next(encoder.parameters()).device
        self._waiting: OrderedDict[Key, torch.Tensor] = OrderedDict()

    @property
    def idle(self) -> bool:
        """`step` would do nothing."""
        return not self._waiting

    def check_length(self, samples: int) -> None:
        """Raise ReferenceAudioError when a recording of so many samples is too short to have a
        voice.
        """
        self._encoder.check_length(samples)

    def submit(self, key: Key, samples_CS: NDArray[np.float32]) -> None:
        """Queue a recording whose length has been checked; a later `step` returns its vector
        [D].
        """
        self._waiting[key] = torch.from_numpy(np.ascontiguousarray(samples_CS.mean(axis=0)))

    def step(self, wanted: Set[Key]) -> dict[Key, NDArray[np.float32]]:
        """Embed the first waiting recording and return its vector; drop recordings that are no
        longer `wanted`.
        """
        for key in self._waiting.keys() - wanted:
            del self._waiting[key]
        if not self._waiting:
            return {}
        key, samples_S = self._waiting.popitem(last=False)
        vector_D = self._encoder.embed(samples_S.to(self._device)).float().cpu().numpy()
        return {key: vector_D}


def voice_encoder_fingerprint(encoder: VoiceEncoder) -> str:
    """Identifies a speaker encoder by a sample of its weights."""
    digest = hashlib.blake2b(digest_size=20)
    for parameter in encoder.parameters():
        digest.update(str(tuple(parameter.shape)).encode())
        digest.update(parameter.detach().flatten()[:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()
