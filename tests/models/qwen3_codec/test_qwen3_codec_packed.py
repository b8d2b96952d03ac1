"""Packed chunks of many streams: each equals its stream alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hocket.engine.runners.padding import packed_batch
from hocket.models.qwen3_codec.codec import Qwen3Codec
from tests.support.qwen3_codec_helpers import SHAPES, Pair, poison, random_codes, random_pair

ROWS, MOST_FRAMES, SIZE = 5, 4, 9
#: Frames of each row, pack by pack; rows begin at different times, and pause.
SCHEDULE = [
    {0: 4, 3: 1},
    {3: 4, 1: 1, 0: 3},
    {1: 2},
    {0: 1, 3: 1, 1: 1, 4: 4},
    {4: 1, 0: 2},
    {1: 4, 3: 4, 4: 1},
]


@pytest.fixture(params=list(SHAPES), scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return random_pair(SHAPES[request.param], tmp_path_factory.mktemp("codec"))


def spoken(codec: Qwen3Codec, codes_RTN: Tensor) -> dict[int, Tensor]:
    """Decoded samples [S] of each row of `SCHEDULE`."""
    state = poison(codec.new_decoder_state(ROWS, MOST_FRAMES))
    done = dict.fromkeys(range(ROWS), 0)
    heard: dict[int, list[Tensor]] = {row: [] for row in range(ROWS)}
    samples = codec.config.frame_samples
    for counts in SCHEDULE:
        pieces = [
            codes_RTN[row, done[row] : done[row] + count].numpy() for row, count in counts.items()
        ]
        arrays = packed_batch(list(counts), pieces, SIZE + 1, 4, ROWS)
        streams_3S, codes_FN = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
        rows_S, counts_S, firsts_S = streams_3S.unbind(0)
        pack = state.pack(rows_S, counts_S, firsts_S, len(codes_FN), MOST_FRAMES)
        wave_S = codec.decode_packed(codes_FN, state, pack)[0]
        begin = 0
        for row, count in counts.items():
            heard[row].append(wave_S[begin * samples : (begin + count) * samples])
            begin, done[row] = begin + count, done[row] + count
    assert state.offsets.tolist() == list(done.values())
    return {row: torch.cat(waves) for row, waves in heard.items() if waves}


def test_packed_streams_are_what_they_are_alone(pair: Pair) -> None:
    codes_RTN = random_codes(pair.codec, ROWS, 12, pair.codec.config.n_codebooks)
    waves = spoken(pair.codec, codes_RTN)
    assert sorted(waves) == [0, 1, 3, 4]
    for row, wave_S in waves.items():
        frames = len(wave_S) // pair.codec.config.frame_samples
        truth_S = pair.plain.decode(codes_RTN[row, :frames])
        torch.testing.assert_close(wave_S.double(), truth_S, rtol=0, atol=2e-5)


def test_padded_chunks_are_packs_with_gaps(pair: Pair) -> None:
    codes_BTN = random_codes(pair.codec, 2, 6, pair.codec.config.n_codebooks)
    state, rows_B = poison(pair.codec.new_decoder_state(3, 3)), torch.tensor([2, 0])
    counts = [[3, 1], [1, 0], [2, 3], [0, 2]]
    done, heard, samples = [0, 0], [[], []], pair.codec.config.frame_samples  # type: tuple[list[int], list[list[Tensor]], int]
    for call in counts:
        chunk_BTN = torch.zeros(2, 3, codes_BTN.shape[2], dtype=torch.int64)
        for b, count in enumerate(call):
            chunk_BTN[b, :count] = codes_BTN[b, done[b] : done[b] + count]
        wave_BCS = pair.codec.decode(chunk_BTN, state, rows_B, torch.tensor(call))
        for b, count in enumerate(call):
            heard[b].append(wave_BCS[b, 0, : count * samples])
            done[b] += count
    for b in range(2):
        truth_S = pair.plain.decode(codes_BTN[b, : done[b]])
        torch.testing.assert_close(torch.cat(heard[b]).double(), truth_S, rtol=0, atol=2e-5)
