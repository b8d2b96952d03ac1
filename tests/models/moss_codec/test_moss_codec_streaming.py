"""Streaming on rows equals the whole sequence for shapes, schedules and neighbours beyond the
golden files.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hocket.errors import InvalidRequestError
from hocket.models.moss_codec.codec import MossCodec
from tests.support.moss_codec_helpers import (
    assert_same,
    chain_config,
    golden,
    poison,
    random_codec,
    random_codes,
    random_samples,
    stream,
    whole_wave,
)

SHAPES: dict[str, dict[str, Any]] = {
    "mono-v2": chain_config(
        channels=1,
        patches=[4, 2],
        widths=[16, 24],
        heads=2,
        layers=1,
        contexts=[5, 3],
        n_codebooks=5,
    ),
    "stereo-deep": chain_config(
        channels=2,
        patches=[6, 2, 2, 1],
        widths=[16, 16, 32, 16],
        heads=4,
        layers=2,
        contexts=[9, 4, 6, 2],
        n_codebooks=3,
    ),
    "three-channels": chain_config(
        channels=3, patches=[3, 2], widths=[8, 8], heads=1, layers=2, contexts=[3, 7], n_codebooks=4
    ),
    "v1-without-equal-projections": chain_config(
        channels=None,
        patches=[16, 2],
        widths=[16, 12],
        heads=2,
        layers=2,
        contexts=[20, 10],
        n_codebooks=3,
    ),
    "one-token-contexts": chain_config(
        channels=2,
        patches=[4, 2],
        widths=[16, 16],
        heads=2,
        layers=2,
        contexts=[1, 1],
        n_codebooks=2,
    ),
}


@pytest.fixture(params=list(SHAPES), scope="module")
def codec(request: pytest.FixtureRequest) -> MossCodec:
    return random_codec(SHAPES[request.param])


@pytest.mark.parametrize("schedule", [[1] * 30, [7, 1, 2, 12, 3, 5], [13, 13, 4], [30]])
def test_any_chunking_equals_the_whole(codec: MossCodec, schedule: list[int]) -> None:
    codes_TN = random_codes(codec, 30, codec.config.n_codebooks)
    assert_same(stream(codec, codes_TN, schedule), whole_wave(codec, codes_TN))


def test_every_length_around_the_contexts(codec: MossCodec) -> None:
    """The whole sequence changes its mask where it outgrows a context; one frame more or less must
    not matter.
    """
    codes_TN = random_codes(codec, 14, codec.config.n_codebooks)
    wave_CS = stream(codec, codes_TN, [3, 3, 3, 3, 2])
    for frames in range(1, 15):
        assert_same(
            whole_wave(codec, codes_TN[:frames]), wave_CS[:, : frames * codec.config.frame_samples]
        )


def test_a_prefix_of_the_codebooks(codec: MossCodec) -> None:
    codes_TN = random_codes(codec, 20, codec.config.n_codebooks)
    for n in range(1, codec.config.n_codebooks + 1):
        assert_same(codec.decode_whole(codes_TN[:, :n]), whole_wave(codec, codes_TN[:, :n]))


def test_padding_leaves_no_trace(codec: MossCodec) -> None:
    """Three rows advance by different counts in calls of the state's longest chunk, padded with
    other codes.
    """
    longest = 6
    counts = [
        (6, 1, 0),
        (1, 6, 3),
        (5, 2, 6),
        (0, 6, 1),
        (6, 0, 6),
        (2, 5, 4),
        (6, 6, 6),
        (1, 1, 1),
    ]
    codes_RTN = random_codes(
        codec, 3, sum(max(c) for c in counts) + longest, codec.config.n_codebooks
    )
    noise_TN = random_codes(codec, longest, codec.config.n_codebooks, seed=99)
    state = poison(codec.new_decoder_state(4, longest))
    rows_B = torch.tensor([3, 0, 2])
    done, waves = [0, 0, 0], [[], [], []]  # type: tuple[list[int], list[list[torch.Tensor]]]
    for call in counts:
        chunk_BTN = noise_TN.repeat(3, 1, 1)
        for b, count in enumerate(call):
            chunk_BTN[b, :count] = codes_RTN[b, done[b] : done[b] + count]
        wave_BCS = codec.decode(chunk_BTN, state, rows_B, torch.tensor(call))
        for b, count in enumerate(call):
            waves[b].append(wave_BCS[b, :, : count * codec.config.frame_samples])
            done[b] += count
    for b in range(3):
        assert_same(torch.cat(waves[b], dim=-1), whole_wave(codec, codes_RTN[b, : done[b]]))
    assert state.offsets[rows_B].tolist() == done


def test_rows_that_are_not_named_are_untouched(codec: MossCodec) -> None:
    state = poison(codec.new_decoder_state(3, 4))
    codes_BTN = random_codes(codec, 2, 4, codec.config.n_codebooks)
    codec.decode(codes_BTN, state, torch.tensor([0, 1]))
    rings = [ring for stage in state.stages if stage is not None for ring in stage.layers]
    before = [(ring.keys.clone(), ring.values.clone()) for ring in rings]
    codec.decode(codes_BTN[:1], state, torch.tensor([2]))
    for ring, (keys, values) in zip(rings, before, strict=True):
        torch.testing.assert_close(ring.keys[:2], keys[:2], rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(ring.values[:2], values[:2], rtol=0, atol=0, equal_nan=True)
    assert state.offsets.tolist() == [4, 4, 4]


def test_a_reset_row_hears_nothing_of_the_last_stream(codec: MossCodec) -> None:
    codes_TN = random_codes(codec, 24, codec.config.n_codebooks)
    state, row_B = codec.new_decoder_state(2, 8), torch.tensor([1])
    for chunk_TN in torch.split(codes_TN, 8):
        codec.decode(chunk_TN[None], state, row_B)
    poison(state)
    state.reset(row_B)
    fresh_TN = random_codes(codec, 5, codec.config.n_codebooks, seed=5)
    first = codec.decode(fresh_TN[None, :2], state, row_B)[0]
    second = codec.decode(fresh_TN[None, 2:], state, row_B)[0]
    assert_same(torch.cat([first, second], dim=-1), whole_wave(codec, fresh_TN))


def test_encoder_padding_and_rows(codec: MossCodec) -> None:
    frame_samples = codec.config.frame_samples
    samples = [random_samples(codec, frames * frame_samples, seed=frames) for frames in (37, 5, 18)]
    for codes_TN, samples_CS in zip(codec.encode_batch(samples), samples, strict=True):
        with torch.no_grad():
            latent_BTD = codec.encode_latent(samples_CS[None])
        assert torch.equal(
            codes_TN, codec.quantizer.encode(latent_BTD, codec.config.n_codebooks)[0]
        )


def test_a_poisoned_neighbour_row_is_harmless() -> None:
    codec = golden("codec2_tiny").codec
    codes_TN = random_codes(codec, 20, 12)
    state = codec.new_decoder_state(3, 8)
    waves = []
    for chunk_TN in torch.split(codes_TN, 8):
        poison(state, rows=[0, 2])
        waves.append(codec.decode(chunk_TN[None], state, torch.tensor([1]))[0])
    assert_same(torch.cat(waves, dim=-1), whole_wave(codec, codes_TN))


def test_state_bytes_follow_context_and_chunk() -> None:
    codec = golden("codec2_tiny").codec
    # Decoder stages: 3 layers x 48 x (8 + 4), 2 x 32 x (10 + 8), 2 x 32 x (16 + 16); keys and
    # values, float32, 5 rows.
    assert codec.new_decoder_state(5, 4).nbytes == 5 * 2 * 4 * (
        3 * 48 * 12 + 2 * 32 * 18 + 2 * 32 * 32
    )


def test_bad_calls_say_what_is_wrong() -> None:
    codec = golden("codec2_tiny").codec
    state, row_B = codec.new_decoder_state(2, 4), torch.tensor([0])
    codes_BTN = random_codes(codec, 1, 4, 12)

    def fails(
        match: str, codes: torch.Tensor = codes_BTN, rows: torch.Tensor = row_B, counts: Any = None
    ) -> None:
        with pytest.raises(InvalidRequestError, match=match):
            codec.decode(codes, state, rows, counts)

    fails(
        "codes must be 0 .. 63, got .* 64", codes_BTN.clone().index_fill_(2, torch.tensor([11]), 64)
    )
    fails("codes must be 0 .. 63, got -1", codes_BTN.clone().index_fill_(2, torch.tensor([0]), -1))
    fails(r"int64 \[batch, frames, codebooks\]", codes_BTN[0])
    fails("int64", codes_BTN.float())
    fails("16 codebooks, 17", random_codes(codec, 1, 4, 17))
    fails("16 codebooks, 0", codes_BTN[:, :, :0])
    fails("1 .. 4 frames", random_codes(codec, 1, 5, 12))
    fails("1 .. 4 frames", codes_BTN[:, :0])
    fails("rows must be distinct", codes_BTN.repeat(2, 1, 1), torch.tensor([1, 1]))
    fails("rows must be distinct numbers 0 .. 1", rows=torch.tensor([2]))
    fails(r"rows must be int64 \[1\]", rows=torch.tensor([0, 1]))
    fails("counts must be 0 .. 4", counts=torch.tensor([5]))
    fails(r"counts must be int64 \[1\]", counts=torch.tensor([1.0]))
    assert state.offsets.tolist() == [0, 0], "a refused call changes nothing"

    with pytest.raises(InvalidRequestError, match="belongs to the decoder"):
        codec.encode(torch.zeros(1, 2, 24), state, row_B)
    for samples in (25, 0):
        with pytest.raises(InvalidRequestError, match="whole frames of 24"):
            codec.encode_latent(torch.zeros(1, 2, samples))
    with pytest.raises(InvalidRequestError, match=r"2 channel\(s\)"):
        codec.encode_whole(torch.zeros(1, 48))
    with pytest.raises(InvalidRequestError, match="float32"):
        codec.encode_whole(torch.zeros(2, 48, dtype=torch.float64))
    with pytest.raises(InvalidRequestError, match=r"codes must be 0 \.\. 63"):
        codec.decode_whole(torch.full((3, 12), 64))
    with pytest.raises(InvalidRequestError, match="at least one row"):
        codec.new_decoder_state(0, 4)
    assert codec.decode_whole(torch.zeros(0, 12, dtype=torch.int64)).shape == (2, 0)
