"""Decoding against the golden tensors of the official classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hocket.models.codec import WHOLE_CHUNK_FRAMES
from tests.support.moss_codec_helpers import (
    TOLERANCE,
    assert_same,
    golden,
    poison,
    stream,
    whole_wave,
)


def test_lookup_is_both_projections_folded() -> None:
    v2 = golden("codec2_tiny")
    table = v2.tensors["lut/table"]
    assert_same(v2.codec.quantizer.lookup[: 12 * 64], table.flatten(0, 1))
    assert_same(v2.codec.quantizer.output_proj.bias.detach(), v2.tensors["lut/bias"])


def test_codes_become_the_golden_latent() -> None:
    v2 = golden("codec2_tiny")
    latent_BTD = v2.codec.quantizer.decode(v2.tensors["decode/codes"].T[None])
    assert_same(latent_BTD[0].T, v2.tensors["decode/latent"])


def test_every_decoder_stage() -> None:
    v2 = golden("codec2_tiny")
    x_BTD = v2.tensors["decode/latent"].T[None]
    with torch.no_grad():
        for i, stage in enumerate(v2.codec.decoder):
            x_BTD = stage(x_BTD)
            assert_same(x_BTD[0].T, v2.tensors[f"decode/stage{i}"])


@pytest.mark.parametrize("name", ["codec2_tiny", "codec1_tiny"])
def test_whole_decode(name: str) -> None:
    it = golden(name)
    codes_TN, wave_CS = it.tensors["decode/codes"].T, it.tensors["decode/offline"]
    assert_same(it.codec.decode_whole(codes_TN), wave_CS)
    assert_same(whole_wave(it.codec, codes_TN), wave_CS)


@pytest.mark.parametrize("schedule", ["ones", "ladder", "fives", "big"])
def test_every_golden_schedule(schedule: str) -> None:
    v2 = golden("codec2_tiny")
    wave_CS = stream(v2.codec, v2.tensors["decode/codes"].T, v2.notes["schedules"][schedule])
    assert_same(wave_CS, v2.tensors[f"stream/{schedule}"])
    assert_same(wave_CS, v2.tensors["decode/offline"])
    legacy_CS = v2.tensors[f"ring/{schedule}"]
    assert (wave_CS - legacy_CS).abs().max() > 0.5, (
        "the legacy ring forgets context; exact streaming must differ"
    )


@pytest.mark.parametrize(("seconds", "frames"), [("0.08", 1), ("0.24", 3), ("0.64", 8)])
def test_v1_streams_exactly_where_its_official_ring_does_not(seconds: str, frames: int) -> None:
    v1 = golden("codec1_tiny")
    codes_TN = v1.tensors["decode/codes"].T
    full, rest = divmod(codes_TN.shape[0], frames)
    wave_CS = stream(v1.codec, codes_TN, [frames] * full + [rest] * (rest > 0))
    assert_same(wave_CS, v1.tensors["decode/offline"])
    assert (wave_CS - v1.tensors[f"stream/chunk_{seconds}"]).abs().max() > 0.5


@pytest.mark.parametrize("name_all_rows", [False, True], ids=["named-rows", "zero-counts"])
def test_golden_batch_plan(name_all_rows: bool) -> None:
    """Rows that join and pause: named or not, or always named with a count of zero where they
    pause.
    """
    v2 = golden("codec2_tiny")
    codes = [v2.tensors[f"batch/codes{row}"].T for row in (0, 1)]
    state = poison(v2.codec.new_decoder_state(2, 8))
    done = [0, 0]
    waves: list[list[Tensor]] = [[], []]
    for frames, active in v2.notes["batch_plan"]:
        rows = [0, 1] if name_all_rows else [row for row in (1, 0) if active[row]]
        chunk_BTN = torch.stack(
            [(codes[r][done[r] :][:frames] if active[r] else codes[r][:frames]) for r in rows]
        )
        counts_B = torch.tensor([frames * active[row] for row in rows])
        wave_BCS = v2.codec.decode(chunk_BTN, state, torch.tensor(rows), counts_B)
        for wave_CS, row in zip(wave_BCS, rows, strict=True):
            if active[row]:
                waves[row].append(wave_CS)
                done[row] += frames
    for row in (0, 1):
        assert_same(torch.cat(waves[row], dim=-1), v2.tensors[f"batch/stream{row}"])
    assert state.offsets.tolist() == done


def test_whole_decode_works_in_bounded_chunks() -> None:
    codec = golden("codec2_tiny").codec
    tokens: list[int] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        tokens.append(inputs[0].shape[1])

    handle = codec.decoder[0].register_forward_pre_hook(record)
    codec.decode_whole(golden("codec2_tiny").tensors["decode/codes"].T)
    handle.remove()
    assert tokens == [WHOLE_CHUNK_FRAMES, 45 - WHOLE_CHUNK_FRAMES]


def test_tolerance_is_far_below_the_signal() -> None:
    assert golden("codec2_tiny").tensors["decode/offline"].std() > 1e4 * TOLERANCE
