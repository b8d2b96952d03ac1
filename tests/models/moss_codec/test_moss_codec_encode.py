"""Encoding against the golden tensors of the official classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hocket.models.codec import WHOLE_CHUNK_FRAMES
from tests.support.moss_codec_helpers import (
    assert_same,
    chain_config,
    golden,
    poison,
    random_codec,
    random_samples,
)


@pytest.mark.parametrize("i", [0, 1])
def test_codes_are_identical(i: int) -> None:
    v2 = golden("codec2_tiny")
    wave_CS = v2.tensors[f"encode/wav{i}"]
    assert torch.equal(v2.codec.encode_whole(wave_CS, 12).T, v2.tensors[f"encode/codes{i}"])
    assert torch.equal(v2.codec.encode_whole(wave_CS).T, v2.tensors[f"encode/codes{i}_all16"])


def test_v1_codes_are_identical() -> None:
    v1 = golden("codec1_tiny")
    assert torch.equal(
        v1.codec.encode_whole(v1.tensors["encode/wav"]).T, v1.tensors["encode/codes"]
    )


@pytest.mark.parametrize("i", [0, 1])
def test_every_encoder_stage_and_the_latent(i: int) -> None:
    v2 = golden("codec2_tiny")
    wave_CS = v2.tensors[f"encode/wav{i}"]
    padded_BCS = F.pad(wave_CS, (0, -wave_CS.shape[1] % v2.codec.config.frame_samples))[None]
    x_BTD = padded_BCS.transpose(1, 2).reshape(1, -1, 1)
    with torch.no_grad():
        latent_BTD = v2.codec.encode_latent(padded_BCS)
        for n, stage in enumerate(v2.codec.encoder):
            x_BTD = stage(x_BTD)
            assert_same(x_BTD[0].T, v2.tensors[f"encode/wav{i}_stage{n}"])
    frames = wave_CS.shape[1] // v2.codec.config.frame_samples
    assert_same(latent_BTD[0, :frames].T, v2.tensors[f"encode/latent{i}"])
    assert torch.equal(
        v2.codec.quantizer.encode(latent_BTD[:, :frames], 12)[0].T, v2.tensors[f"encode/codes{i}"]
    )


def test_batch_of_different_lengths_equals_each_alone() -> None:
    v2 = golden("codec2_tiny")
    lengths = [700, 1000, 23, 24, WHOLE_CHUNK_FRAMES * 24, 2 * WHOLE_CHUNK_FRAMES * 24 + 24 + 5]
    samples = [random_samples(v2.codec, length, seed=length) for length in lengths]
    batched = v2.codec.encode_batch(samples, 12)
    assert [codes.shape[0] for codes in batched] == [
        29,
        41,
        0,
        1,
        WHOLE_CHUNK_FRAMES,
        2 * WHOLE_CHUNK_FRAMES + 1,
    ]
    for codes_TN, samples_CS in zip(batched, samples, strict=True):
        assert torch.equal(codes_TN, v2.codec.encode_whole(samples_CS, 12))


@pytest.mark.parametrize("schedule", [[1] * 41, [5, 1, 8, 8, 3, 8, 8], [41]])
def test_streamed_encoding_is_exact(schedule: list[int]) -> None:
    v2 = golden("codec2_tiny")
    codec, frame_samples = v2.codec, v2.codec.config.frame_samples
    state, row_B = poison(codec.new_encoder_state(2, max(schedule))), torch.tensor([1])
    wave_CS = v2.tensors["encode/wav1"][:, : 41 * frame_samples]
    chunks = torch.split(wave_CS, [frames * frame_samples for frames in schedule], dim=1)
    codes_TN = torch.cat(
        [codec.encode(chunk_CS[None], state, row_B, n_codebooks=12)[0] for chunk_CS in chunks]
    )
    assert torch.equal(codes_TN.T, v2.tensors["encode/codes1"])


def test_long_audio_equals_the_whole_sequence() -> None:
    codec = random_codec(
        chain_config(
            channels=1,
            patches=[4, 2],
            widths=[16, 24],
            heads=2,
            layers=2,
            contexts=[7, 9],
            n_codebooks=3,
        )
    )
    samples_CS = random_samples(codec, 100 * codec.config.frame_samples)
    with torch.no_grad():
        expected_TN = codec.quantizer.encode(codec.encode_latent(samples_CS[None]), 3)[0]
    assert torch.equal(codec.encode_whole(samples_CS), expected_TN)


def test_fewer_codebooks_are_a_prefix() -> None:
    v2 = golden("codec2_tiny")
    codes_TN = v2.codec.encode_whole(v2.tensors["encode/wav0"])
    assert torch.equal(v2.codec.encode_whole(v2.tensors["encode/wav0"], 3), codes_TN[:, :3])


def test_nothing_to_encode() -> None:
    codec = golden("codec2_tiny").codec
    assert codec.encode_batch([]) == []
    assert codec.encode_whole(torch.zeros(2, 23)).shape == (0, 16)
