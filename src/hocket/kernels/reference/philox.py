"""Random numbers for drawing codes: a pure function of seed and counter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_WORD = 0xFFFFFFFF
#: Multipliers and key increments of Philox4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random
#: numbers: as easy as 1, 2, 3", 2011), for the even counter words 0 and 2 and for the two key
#: words.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

#: Uniforms are multiples of 2**-24, the finest grid that float32 holds over all of [0, 1).
UNIFORM_BITS = 24


def philox4x32(counter: Tensor, key: Tensor) -> Tensor:
    """Philox4x32-10: four words [4, ...] from a counter [4, ...] and a key [2, ...], broadcast.

    All are int64 with values 0 .. 2**32 - 1. Products need 64 bits; int64 wraps, which keeps the
    relevant bits.
    """
    # The even words (0, 2) and the odd words (1, 3) go through a round together, in six operations.
    halves = torch.arange(2, device=key.device).view(2, *(1,) * (key.dim() - 1))
    multipliers = halves * (_MULTIPLIERS[1] - _MULTIPLIERS[0]) + _MULTIPLIERS[0]
    key_steps = halves * (_KEY_STEPS[1] - _KEY_STEPS[0]) + _KEY_STEPS[0]
    even, odd = counter[0::2], counter[1::2]
    for step in range(_ROUNDS):
        # Each half takes the other's product: its high word is mixed into the even words, its low
        # word becomes the odd.
        product = (even * multipliers).flip(0)
        # `odd` and the key have stray bits above 32 until here; one mask clears them.
        even = ((product >> 32) ^ odd ^ (key + key_steps * step)) & _WORD
        odd = product
    return torch.stack((even[0], odd[0], even[1], odd[1])) & _WORD


def uniforms(seed_B: Tensor, frame_B: Tensor, slots: int) -> Tensor:
    """float32 [B, slots] in [0, 1): uniforms of one frame, a pure function of (seed, frame, slot).

    `seed_B` and `frame_B` are int64 [B]. The key is the seed (low word, high word), the counter
    (frame, slot, 0, 0); the first output word's top 24 bits are kept.
    """
    slot_K = torch.arange(slots, device=seed_B.device)
    frame_BK = frame_B.unsqueeze(1).expand(-1, slots)
    zero_BK = torch.zeros_like(frame_BK)
    counter_4BK = torch.stack((frame_BK, zero_BK + slot_K, zero_BK, zero_BK))
    key_2B1 = torch.stack((seed_B & _WORD, (seed_B >> 32) & _WORD)).unsqueeze(2)
    word_BK = philox4x32(counter_4BK, key_2B1)[0]
    return (word_BK >> (32 - UNIFORM_BITS)).to(torch.float32) * 2.0**-UNIFORM_BITS


@dataclass(frozen=True, eq=False)
class FrameNoise:
    """Noise of one frame of B rows; each draw has its own slot."""

    #: int64 [B], 0 .. 2**63 - 1
    seed_B: Tensor
    #: int64 [B]
    frame_B: Tensor
    slots: int

    def uniform(self, slot: int) -> Tensor:
        """float32 [B] in [0, 1): noise of one draw. Kernels compute it themselves."""
        return self._uniforms[:, slot]

    @cached_property
    def fixed(self) -> NDArray[np.int64]:
        """[slots, B]: the uniforms in units of 2**-UNIFORM_BITS, for NumPy."""
        return (self._uniforms.T * 2.0**UNIFORM_BITS).long().numpy()

    @cached_property
    def _uniforms(self) -> Tensor:
        return uniforms(self.seed_B, self.frame_B, self.slots)
