"""Reference recordings to what a model reads from them: codes, a voice vector, or both.

A queue of work and nothing else: `hocket.audio.reference_cache` keeps results, its owner sees to it
that a recording is submitted once.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hocket.core import EncodedReference
from hocket.engine.references.codes import CodeEncoder, Key, codec_fingerprint
from hocket.engine.references.speaker_vectors import VoiceVectors, voice_encoder_fingerprint
from hocket.errors import HocketError
from hocket.models.codec import Codec
from hocket.models.family import VoiceEncoder


@dataclass(slots=True, eq=False)
class _Work:
    """What is still being made of a recording, and what has been."""

    needs_codes: bool
    needs_voice: bool
    made: EncodedReference


class ReferenceEncoder:
    """Encodes prepared recordings, a bounded part per `step`."""

    def __init__(
        self,
        codec: Codec | None,
        voice_encoder: VoiceEncoder | None,
        *,
        n_codebooks: int,
        fixed_batch: bool,
    ) -> None:
        """Codes have the first `n_codebooks` codebooks. `fixed_batch`: all calls of the codec's
        encoder have one shape.
        """
        self._codes = (
            None
            if codec is None
            else CodeEncoder(codec, n_codebooks=n_codebooks, fixed_batch=fixed_batch)
        )
        self._vectors = None if voice_encoder is None else VoiceVectors(voice_encoder)
        #: Identity of what this makes: that of the weights, and of what rounding depends on.
        self.identity = _identity(codec, voice_encoder, n_codebooks, fixed_batch)
        self._work: dict[Key, _Work] = {}
        self._keys = map("recording-{}".format, itertools.count(1))

    @property
    def makes_codes(self) -> bool:
        """There is a codec."""
        return self._codes is not None

    @property
    def makes_voices(self) -> bool:
        """The family reads voice vectors."""
        return self._vectors is not None

    @property
    def nbytes(self) -> int:
        """Bytes of the encoder's state."""
        return 0 if self._codes is None else self._codes.nbytes

    @property
    def idle(self) -> bool:
        """`step` would do nothing."""
        return not self._work

    def check(self, samples_CS: NDArray[np.float32], *, codes: bool, voice: bool) -> None:
        """Raise the ReferenceAudioError that `submit` would raise."""
        if codes:
            assert self._codes is not None
            self._codes.check_length(samples_CS.shape[1])
        if voice:
            assert self._vectors is not None
            self._vectors.check_length(samples_CS.shape[1])

    def submit(self, samples_CS: NDArray[np.float32], *, codes: bool, voice: bool) -> Key:
        """Queue a prepared recording, float32 [C, S] at the codec's rate; a later `step` returns
        its codes or voice vector, or both, under this key.

        Raises ReferenceAudioError for a recording that is too short or too long.
        """
        self.check(samples_CS, codes=codes, voice=voice)
        key = next(self._keys)
        if codes:
            assert self._codes is not None
            self._codes.submit(key, samples_CS)
        if voice:
            assert self._vectors is not None
            self._vectors.submit(key, samples_CS)
        self._work[key] = _Work(codes, voice, EncodedReference())
        return key

    def step(self, wanted: Set[Key]) -> dict[Key, EncodedReference | HocketError]:
        """Do the next part; returns the recordings that are complete, and errors of those that
        cannot be encoded.

        Recordings that are no longer `wanted` are dropped.
        """
        for key in self._work.keys() - wanted:
            del self._work[key]
        for key, codes in ({} if self._codes is None else self._codes.step(wanted)).items():
            work = self._work[key]
            work.made, work.needs_codes = replace(work.made, codes=codes), False
        for key, voice in ({} if self._vectors is None else self._vectors.step(wanted)).items():
            work = self._work[key]
            work.made, work.needs_voice = replace(work.made, voice=voice), False
        done: dict[Key, EncodedReference | HocketError] = {
            key: work.made
            for key, work in self._work.items()
            if not (work.needs_codes or work.needs_voice)
        }
        for key in done:
            del self._work[key]
        return done


def _identity(
    codec: Codec | None, voice_encoder: VoiceEncoder | None, n_codebooks: int, fixed_batch: bool
) -> str:
    facts: list[object] = []
    if codec is not None:
        # Rounding depends on device and shapes.
        device = next(codec.parameters()).device
        facts += [codec_fingerprint(codec), n_codebooks, device.type, fixed_batch]
    if voice_encoder is not None:
        device = next(voice_encoder.parameters()).device
        facts += [voice_encoder_fingerprint(voice_encoder), device.type]
    return hashlib.blake2b(repr(facts).encode(), digest_size=20).hexdigest()
