"""Reference recordings to voice vectors: one recording per step, once per content, for families
that read vectors.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Set

import numpy as np
import torch
from numpy.typing import NDArray

from hocket.engine.references.encoder import Key
from hocket.models.family import VoiceEncoder

#: Vectors in the cache; a thousand vectors of 2,048 numbers take 8 MB.
MAX_VECTORS = 1024


class VoiceVectors:
    """Embeds prepared recordings and caches the vectors by content."""

    def __init__(self, encoder: VoiceEncoder) -> None:
        self._encoder = encoder
        self._device = next(encoder.parameters()).device
        self._waiting: OrderedDict[Key, torch.Tensor] = OrderedDict()
        self._vectors: OrderedDict[Key, NDArray[np.float32]] = OrderedDict()

    def check_length(self, samples: int) -> None:
        """Raise ReferenceAudioError when a recording of so many samples is too short to have a
        voice.
        """
        self._encoder.check_length(samples)

    def submit(self, samples_CS: NDArray[np.float32]) -> tuple[Key, NDArray[np.float32] | None]:
        """The vector [D] of a prepared recording if it is cached; otherwise a later `step` returns
        it by key.

        Raises ReferenceAudioError as `check_length` does.
        """
        self.check_length(samples_CS.shape[1])
        samples_S = np.ascontiguousarray(samples_CS.mean(axis=0))
        key = "voice-" + hashlib.blake2b(samples_S.tobytes(), digest_size=20).hexdigest()
        if key in self._vectors:
            self._vectors.move_to_end(key)
            return key, self._vectors[key]
        self._waiting[key] = torch.from_numpy(samples_S)
        return key, None

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
        self._vectors[key] = vector_D
        if len(self._vectors) > MAX_VECTORS:
            self._vectors.popitem(last=False)
        return {key: vector_D}
