"""Rotations, appends to rings and copies between them against the references: what is written, and
what is not.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels.gpu import ring_append
from hocket.kernels.reference import rings as reference_rings
from hocket.kernels.types import Packed, RingWindow, Scaled
from hocket.models.moss_codec.transformer import Rotations
from tests.support.close import assert_close, some_product

DTYPES = [torch.float32, torch.bfloat16]
both = pytest.mark.parametrize("dtype", DTYPES, ids=str)
#: Ring, frames before, frames now, and where they begin: with a stream that has none, a gap, and
#: padding at the end.
STREAMS = [(4, 5, 3, 0), (0, 9, 0, 3), (1, 0, 2, 5), (2, 1234567, 1, 7)]
PACK_FRAMES, RINGS = 10, 5


def window_of(
    device: torch.device,
    tokens_per_frame: int,
    streams: list[tuple[int, int, int, int]] = STREAMS,
    frames: int = PACK_FRAMES,
) -> RingWindow:
    rows, starts, counts, firsts = (
        torch.tensor(numbers, device=device) for numbers in zip(*streams, strict=True)
    )
    return RingWindow(
        Packed(rows, starts, counts, firsts, frames, 3), tokens_per_frame, context=1, capacity=7
    )


def of_streams(x: Tensor, tokens_per_frame: int) -> Tensor:
    """The tokens that belong to streams."""
    return torch.cat(
        [
            x[first * tokens_per_frame :][: count * tokens_per_frame]
            for _, _, count, first in STREAMS
        ]
    )


def some_qkv(
    width: int, tokens: int, dtype: torch.dtype, device: torch.device, scaled: bool
) -> Tensor | Scaled:
    product = some_product((tokens, width), dtype, device, bias=scaled, seed=0)
    return product if scaled else product.plain()


@pytest.mark.parametrize(("tokens_per_frame", "size"), [(1, 2), (3, 8), (2, 20), (32, 64)])
def test_pair_turns(tokens_per_frame: int, size: int, device: torch.device) -> None:
    """Against the reference, and the reference against rotations of whole sequences."""
    window = window_of(device, tokens_per_frame)
    arguments = window, size, 10000.0
    expected = reference_rings.pair_turns(*arguments)
    positions = torch.cat([(start + torch.arange(count)) for _, start, count, _ in STREAMS]).to(
        device
    )
    token_positions = (
        positions[:, None] * tokens_per_frame + torch.arange(tokens_per_frame, device=device)
    ).flatten()
    angles = Rotations.of(token_positions[None], size, 10000.0).angles[0]
    assert torch.equal(of_streams(expected, tokens_per_frame)[:, ::2], angles.cos())
    assert torch.equal(of_streams(expected, tokens_per_frame)[:, 1::2], angles.sin())

    actual = of_streams(ring_append.pair_turns(*arguments), tokens_per_frame)
    # Frequencies differ by up to two roundings, which the position multiplies.
    off = torch.unflatten((actual - of_streams(expected, tokens_per_frame)).abs(), 1, (-1, 2)).amax(
        -1
    )
    assert (off <= 1e-6 + 3e-7 * angles).all()


def test_turns_far_from_the_beginning(device: torch.device) -> None:
    """The first pair rotates by the position: whole turns are subtracted exactly."""
    starts = [2**20 + 1, 2**28 + 32, 2**40]
    streams = [(row, start, 1, row) for row, start in enumerate(starts)]
    cos_sin_MK = (
        ring_append.pair_turns(window_of(device, 1, streams, len(starts)), 16, 10000.0)
        .cpu()
        .double()
    )
    angles = torch.tensor(starts).float().double()
    torch.testing.assert_close(cos_sin_MK[:, 0], angles.cos(), rtol=0.0, atol=1e-6)
    torch.testing.assert_close(cos_sin_MK[:, 1], angles.sin(), rtol=0.0, atol=1e-6)


@both
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    ("tokens_per_frame", "heads", "size"), [(1, 1, 2), (4, 2, 8), (3, 3, 20), (2, 12, 64)]
)
def test_append_rotated(
    tokens_per_frame: int,
    heads: int,
    size: int,
    scaled: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    window, tokens = window_of(device, tokens_per_frame), PACK_FRAMES * tokens_per_frame
    qkv = some_qkv(3 * heads * size, tokens, dtype, device, scaled)
    # Entries for tokens of no stream may hold anything.
    cos_sin_MK = torch.full((tokens, size), torch.nan, device=device)
    for (_, _, count, first), expected in zip(
        STREAMS, [reference_rings.pair_turns(window, size, 1e4)] * 4, strict=True
    ):
        own = slice(first * tokens_per_frame, (first + count) * tokens_per_frame)
        cos_sin_MK[own] = expected[own]
    shape = (RINGS, 3 * tokens_per_frame + 1, heads, size)
    (keys, values), (expected_keys, expected_values) = (
        [torch.full(shape, torch.nan, dtype=dtype, device=device) for _ in range(2)]
        for _ in range(2)
    )
    reference_rings.append_rotated(qkv, cos_sin_MK, window, expected_keys, expected_values)
    ring_append.append_rotated(qkv, cos_sin_MK, window, keys, values)
    written = ~expected_keys.isnan()
    assert int(written.sum()) == 6 * tokens_per_frame * heads * size
    assert torch.equal(~keys.isnan(), written)
    assert_close(keys[written], expected_keys[written])
    assert torch.equal(values.nan_to_num(), expected_values.nan_to_num())


def test_append_rotated_in_a_ring(device: torch.device) -> None:
    """The reference by hand: the key of position p, rotated by its angles, is in slot p mod C."""
    heads, size, capacity = 2, 4, 7
    window = window_of(device, 1)
    qkv_ME = some_qkv(3 * heads * size, PACK_FRAMES, torch.float32, device, scaled=False)
    assert isinstance(qkv_ME, Tensor)
    keys, values = torch.zeros(2, RINGS, capacity, heads, size, device=device)
    cos_sin_MK = reference_rings.pair_turns(window, size, 100.0)
    reference_rings.append_rotated(qkv_ME, cos_sin_MK, window, keys, values)
    for row, start, count, first in STREAMS:
        for place in range(count):
            _, key, value = qkv_ME[first + place].cpu().view(3, heads, size // 2, 2)
            angles = torch.tensor([start + place, (start + place) * 0.1])
            turned = torch.view_as_complex(key.contiguous()) * torch.polar(torch.ones(2), angles)
            slot = (start + place) % capacity
            off = 1e-5 if start < 1000 else 1e-1
            torch.testing.assert_close(
                keys[row, slot].cpu(), torch.view_as_real(turned).flatten(1), rtol=0.0, atol=off
            )
            assert torch.equal(values[row, slot].cpu(), value.flatten(1))


@pytest.mark.parametrize("module", [ring_append, reference_rings])
def test_a_pack_of_nothing_but_padding(module: object, device: torch.device) -> None:
    rings = torch.full((2, 3, 7, 2, 8), torch.nan, device=device)
    for frames in (1, 3):
        window = window_of(device, 2, [(row, 5, 0, 0) for row in range(3)], frames)
        qkv_ME = torch.ones(2 * frames, 48, device=device)
        cos_sin_MK = module.pair_turns(window, 8, 1e4)  # type: ignore[attr-defined]
        module.append_rotated(qkv_ME, cos_sin_MK, window, *rings)  # type: ignore[attr-defined]
        assert rings.isnan().all()


def test_streams_that_do_not_follow_one_another(device: torch.device) -> None:
    window = window_of(device, 1, [(0, 0, 2, 0), (1, 0, 1, 1)], 3)
    with pytest.raises(
        ValueError, match="begins at frame 1, before the stream before it ends: at 2"
    ):
        reference_rings.pair_turns(window, 4, 1e4)


# ---- copies between rings

CONTEXT, LAYERS, HEADS = 7, 3, 2


@pytest.mark.parametrize("frames", [0, 1, 3, 4, 25])
@pytest.mark.parametrize("capacities", [(9, 9), (9, 23), (23, 9)])
@pytest.mark.parametrize(("size", "dtype"), [(8, torch.float32), (1024, torch.bfloat16)])
def test_copy_rings(
    frames: int, capacities: tuple[int, int], size: int, dtype: torch.dtype, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(frames)
    rings, target = (
        torch.randn(2, LAYERS, rows, capacity, HEADS, size, generator=generator).to(device, dtype)
        for rows, capacity in zip((4, 5), capacities, strict=True)
    )
    move_3 = torch.tensor([3, 1, frames], device=device)
    expected, actual = target.clone(), target.clone()
    reference_rings.copy_rings(rings, move_3, expected, CONTEXT, 2)
    ring_append.copy_rings(rings, move_3, actual, CONTEXT, 2)
    assert torch.equal(actual, expected)
    # The last positions and nothing else, each of them where its own ring has it.
    for position in range(max(0, 2 * frames - CONTEXT), 2 * frames):
        slot, target_slot = (position % capacity for capacity in capacities)
        assert torch.equal(actual[:, :, 1, target_slot], rings[:, :, 3, slot])
    others = [row for row in range(5) if row != 1]
    assert torch.equal(actual[:, :, others], target[:, :, others])
    assert (actual != target).flatten(4).any(-1)[:, :, 1].sum(-1).eq(min(CONTEXT, 2 * frames)).all()


def test_rings_that_are_views_of_others_are_refused(device: torch.device) -> None:
    rings = torch.zeros(2, 1, 2, 4, 1, 8, device=device)
    with pytest.raises(ValueError, match="contiguous"):
        ring_append.copy_rings(
            rings[:, :, :, ::2], torch.tensor([0, 1, 1], device=device), rings, 2, 1
        )
