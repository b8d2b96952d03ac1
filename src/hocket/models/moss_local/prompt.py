"""Builds the prompt of a request: rows of a text id and `n_vq` audio codes (sources: MOSS 1.2,
1.7).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hocket.core import PromptRows, ReferenceNeeds, SpeechRequest
from hocket.models.family import checked_codes
from hocket.models.moss_local.config import MossLocalConfig
from hocket.text.join import join_texts
from hocket.text.tokenizer import TextTokenizer


class MossLocalPrompt:
    """Builds prompts; holds what never changes between requests."""

    takes = frozenset(
        {"language", "instruction", "quality", "sound_event", "ambient_sound", "tokens", "join"}
    )

    def __init__(self, config: MossLocalConfig, tokenizer: TextTokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        # Pieces are tokenised one by one and their ids concatenated, as in training, so that no
        # token forms across the border of two pieces.
        encode = tokenizer.encode
        self._n_vq = config.n_vq
        self._head = [
            config.im_start_token_id,
            *encode("user\n"),
            *encode("<user_inst>\n- Reference(s):\n"),
        ]
        self._no_reference = encode("None")
        self._turn = [
            *encode("\n</user_inst>"),
            config.im_end_token_id,
            *encode("\n"),
            config.im_start_token_id,
            *encode("assistant\n"),
            config.audio_start_token_id,
        ]

    def needs(self, request: SpeechRequest) -> ReferenceNeeds:
        """Codes of every reference."""
        return ReferenceNeeds(codes=True, voice=False)

    def build(
        self,
        request: SpeechRequest,
        references: Sequence[NDArray[np.int64]],
        voices: Sequence[NDArray[np.float32]] = (),
    ) -> PromptRows:
        """Build the rows of `request`, whose references have the codes `references`, each [F, >=
        n_vq].

        Without `reference_text` the references are voices to clone. With it, the one reference is
        the beginning of the model's own answer. Raises InvalidRequestError naming `reference` when
        codes do not fit the model.
        """
        config = self._config
        codes_FN = [
            checked_codes(codes, number, self._n_vq, config.audio_codebook_sizes)
            for number, codes in enumerate(references, start=1)
        ]
        fields = self._tokenizer.encode(_fields(request))
        if request.reference_text is not None:
            (prefix_FN,) = codes_FN
            text = join_texts(request.reference_text, request.text, request.join)
            ids = [
                *self._head,
                *self._no_reference,
                *fields,
                *self._tokenizer.encode(text),
                *self._turn,
            ]
            return PromptRows(
                np.concatenate([self._text_rows(ids), self.frame_rows(prefix_FN)]), prefix_FN
            )

        parts = [self._text_rows(self._head if codes_FN else self._head + self._no_reference)]
        for reference_FN in codes_FN:
            parts.append(self._text_rows([config.audio_start_token_id]))
            parts.append(self._audio_rows(config.audio_user_slot_token_id, reference_FN))
            parts.append(self._text_rows([config.audio_end_token_id]))
        parts.append(self._text_rows([*fields, *self._tokenizer.encode(request.text), *self._turn]))
        return PromptRows(np.concatenate(parts), np.empty((0, self._n_vq), np.int64))

    def frame_rows(self, codes_FN: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows [F, 1 + n_vq] of generated frames, as they follow a prompt; training uses them
        too.
        """
        return self._audio_rows(self._config.audio_assistant_slot_token_id, codes_FN)

    def _text_rows(self, ids: list[int]) -> NDArray[np.int64]:
        rows = np.full((len(ids), 1 + self._n_vq), self._config.audio_pad_code, np.int64)
        rows[:, 0] = ids
        return rows

    def _audio_rows(self, slot_id: int, codes_FN: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.insert(codes_FN, 0, slot_id, axis=1)


def _fields(request: SpeechRequest) -> str:
    """The block of named fields as one piece; an absent or blank value is `None`."""
    values = {
        "Instruction": request.instruction,
        "Tokens": None if request.tokens is None else str(request.tokens),
        "Quality": request.quality,
        "Sound Event": request.sound_event,
        "Ambient Sound": request.ambient_sound,
        "Language": request.language,
    }
    lines = "".join(
        f"- {name}:\n{(value or '').strip() or 'None'}\n" for name, value in values.items()
    )
    return f"\n{lines}- Text:\n"
