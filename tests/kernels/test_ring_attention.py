"""Against the other columns: windows over rings at any offset, with NaN wherever no key exists."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels import ops
from hocket.kernels.gpu.ring_attention import FLOAT_TILES, HALF_TILES, ring_attention, tile_of
from hocket.kernels.types import Packed, RingWindow
from tests.support.close import some_product

#: Queries with their rotations, where they belong, and rings.
Arguments = tuple[Tensor, Tensor, RingWindow, Tensor, Tensor]
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


class Streams:
    """Random streams, and rings that hold their tokens up to `ends`, as far back as they reach."""

    def __init__(
        self,
        device: torch.device,
        *,
        ends: list[int],
        capacity: int,
        heads: int = 2,
        size: int = 16,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.device, self.capacity = device, capacity
        shape = (3, len(ends), max(ends), heads, size)
        self.q, self.k, self.v = (torch.randn(shape, generator=generator) * 2).to(device, dtype)
        # One row more than streams, and in another order.
        self.rows_B = torch.randperm(len(ends) + 1, generator=generator)[: len(ends)].to(device)
        self.keys, self.values = torch.empty(
            2, len(ends) + 1, capacity, heads, size, dtype=dtype, device=device
        )
        self.hold(capacity, ends)

    def hold(self, tokens: int, ends: list[int]) -> None:
        """Only the last so many tokens up to each end, NaN elsewhere."""
        self.keys.fill_(torch.nan)
        self.values.fill_(torch.nan)
        for stream, end in enumerate(ends):
            self.write(stream, max(0, end - tokens), end)

    def write(self, stream: int, start: int, end: int) -> None:
        slots = torch.arange(start, end, device=self.device) % self.capacity
        self.keys[self.rows_B[stream], slots] = self.k[stream, start:end]
        self.values[self.rows_B[stream], slots] = self.v[stream, start:end]

    def arguments(
        self, starts: list[int], tokens: int, context: int, order: list[int] | None = None
    ) -> Arguments:
        """Arguments for `tokens` tokens of each stream."""
        order = list(range(len(starts))) if order is None else order
        q_BTHK = torch.stack(
            [self.q[stream, starts[stream] : starts[stream] + tokens] for stream in order]
        )
        starts_B = torch.tensor([starts[stream] for stream in order], device=self.device)
        pack = Packed.padded(self.rows_B[order], starts_B, None, tokens)
        window = RingWindow(pack, 1, context, self.capacity)
        return *unturned(q_BTHK.flatten(0, 1)), window, self.keys, self.values


def unturned(q_MHK: Tensor) -> tuple[Tensor, Tensor]:
    """Queries beside keys and values that must not be read, and rotations by zero."""
    q_MD = q_MHK.flatten(1)
    cos_sin_MK = torch.tensor([1.0, 0.0], device=q_MD.device).repeat(len(q_MD), q_MHK.shape[2] // 2)
    return torch.cat((q_MD, torch.full_like(q_MD, torch.nan).repeat(1, 2)), 1), cos_sin_MK


def by_stream(out_MD: Tensor, streams: int) -> Tensor:
    """[B, T, D]"""
    return torch.unflatten(out_MD, 0, (streams, -1))


def check(streams: Streams, starts: list[int], tokens: int, context: int) -> None:
    """With NaN in every slot that no query may see."""
    streams.hold(context - 1 + tokens, [start + tokens for start in starts])
    arguments = streams.arguments(starts, tokens, context)
    got = ring_attention(*arguments)
    assert got.isfinite().all()
    tolerance = TOLERANCES[got.dtype]
    for column in (ops.ring_attention.reference, ops.ring_attention.cpu):
        torch.testing.assert_close(got, column(*arguments), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "size", "context", "tokens"),
    [
        (1, 8, 1, 1),
        (2, 24, 7, 1),
        (3, 16, 5, 6),
        (2, 64, 125, 4),
        (1, 24, 37, 70),
        (2, 64, 25, 80),
    ],
)
def test_streams_at_any_offset(
    device: torch.device, dtype: torch.dtype, heads: int, size: int, context: int, tokens: int
) -> None:
    """Some begin, some are within their first context, some have gone round their rings."""
    capacity = context + tokens
    starts = [0, 1, context // 2, capacity - 1, 3 * capacity + 5]
    streams = Streams(
        device,
        ends=[start + tokens for start in starts],
        capacity=capacity,
        heads=heads,
        size=size,
        dtype=dtype,
    )
    check(streams, starts, tokens, context)


def test_smallest_ring(device: torch.device) -> None:
    """The oldest key of the first query stands right after the newest token."""
    context, tokens = 9, 20
    streams = Streams(device, ends=[71 + tokens], capacity=context + tokens - 1)
    check(streams, [71], tokens, context)


def test_position_of_many_digits(device: torch.device) -> None:
    """Positions past 2 ** 31, at the same place in a ring and in a block of keys as small ones."""
    context, tokens, capacity = 9, 4, 16
    streams = Streams(device, ends=[100 + tokens], capacity=capacity)
    qkv, turns, window, *rings = streams.arguments([100], tokens, context)
    near = ring_attention(qkv, turns, window, *rings)
    far = replace(window, pack=replace(window.pack, starts_S=window.pack.starts_S + 2**36))
    assert torch.equal(near, ring_attention(qkv, turns, far, *rings))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_window_is_exact(device: torch.device, dtype: torch.dtype) -> None:
    """Values are one-hot in their position: a query's output names the positions that it saw."""
    context, tokens, start, capacity = 5, 12, 70, 32
    streams = Streams(
        device, ends=[start + tokens], capacity=capacity, heads=1, size=32, dtype=dtype
    )
    streams.v[0, :, 0] = torch.eye(32, device=device, dtype=dtype)[
        torch.arange(start + tokens, device=device) % 32
    ]
    streams.write(0, start + tokens - capacity, start + tokens)
    seen_TC = ring_attention(*streams.arguments([start], tokens, context)) > 0
    for token in range(tokens):
        expected = {
            position % 32 for position in range(start + token - context + 1, start + token + 1)
        }
        assert set(seen_TC[token].nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_order_of_rows_is_bitwise_free(device: torch.device, dtype: torch.dtype) -> None:
    context, tokens, starts = 11, 19, [0, 64, 3, 130]
    streams = Streams(device, ends=[start + tokens for start in starts], capacity=40, dtype=dtype)
    together = by_stream(ring_attention(*streams.arguments(starts, tokens, context)), 4)
    order = [2, 0, 3, 1]
    moved = by_stream(ring_attention(*streams.arguments(starts, tokens, context, order)), 4)
    assert torch.equal(moved, together[order])
    for stream in order:
        alone = ring_attention(*streams.arguments(starts, tokens, context, [stream]))
        assert torch.equal(alone, together[stream])


@pytest.mark.parametrize("chunks", [[96], [1] * 8 + [88], [5, 1, 31, 17, 42], [33, 63]])
def test_chunks_equal_the_whole(device: torch.device, chunks: list[int]) -> None:
    """Tokens arrive chunk by chunk in a ring that begins as NaN."""
    context, total = 21, 96
    streams = Streams(device, ends=[total], capacity=context + max(chunks), dtype=torch.float32)
    streams.hold(0, [total])
    start, outputs = 0, []
    for tokens in chunks:
        streams.write(0, start, start + tokens)
        outputs.append(ring_attention(*streams.arguments([start], tokens, context)))
        start += tokens
    age = torch.arange(total, device=device)[:, None] - torch.arange(total, device=device)
    q, k, v = (x.transpose(1, 2) for x in (streams.q, streams.k, streams.v))
    whole = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=(age >= 0) & (age < context)
    )
    torch.testing.assert_close(
        torch.cat(outputs), whole[0].transpose(0, 1).flatten(1), rtol=2e-5, atol=2e-5
    )


def test_place_in_a_chunk_is_bitwise_free(device: torch.device) -> None:
    """A query at any place of its tile: blocks of which it sees nothing change no bit."""
    context, tokens, end = 70, 16, 200
    streams = Streams(device, ends=[end], capacity=context + 40)
    last = [
        ring_attention(*streams.arguments([start], tokens, context))[180 - start]
        for start in range(180 - tokens + 1, 181)
    ]
    assert all(torch.equal(out, last[0]) for out in last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [None, False, True])
def test_queries_are_turned_and_scaled(
    device: torch.device, dtype: torch.dtype, bias: bool | None
) -> None:
    """Queries are rotated and scaled as they are loaded, to the bits of doing so before."""
    context, tokens, starts = 7, 5, [2, 50]
    streams = Streams(device, ends=[start + tokens for start in starts], capacity=16, dtype=dtype)
    _, _, window, *rings = streams.arguments(starts, tokens, context)
    scaled = some_product((2 * tokens, 3 * 32), dtype, device, bias=bool(bias), seed=1)
    qkv = scaled.plain() if bias is None else scaled
    cos_sin_MK = ops.pair_turns.reference(window, 16, 1e4)
    got = ring_attention(qkv, cos_sin_MK, window, *rings)
    tolerance = TOLERANCES[dtype]
    for column in (ops.ring_attention.reference, ops.ring_attention.cpu):
        expected = column(qkv, cos_sin_MK, window, *rings)
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    pairs = scaled.plain()[:, :32].float().view(-1, 2, 8, 2)
    cos, sin = cos_sin_MK.view(-1, 1, 8, 2).unbind(-1)
    even, odd = pairs.unbind(-1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(2).to(dtype)
    assert torch.equal(got, ring_attention(*unturned(turned), window, *rings))


def test_rings_too_small(device: torch.device) -> None:
    streams = Streams(device, ends=[8], capacity=10)
    with pytest.raises(ValueError, match="need rings of 11, not 10"):
        ring_attention(*streams.arguments([0], 8, 4))


# ---- packed


CONTEXT, TOKENS_PER_FRAME, MAX_FRAMES = 21, 6, 13
COUNTS = [3, MAX_FRAMES, 0, 1, 7, 0]
#: In frames. Some begin, one has gone round its ring, one begins where a block of keys does.
STARTS = [0, 1, 5, 64, 40, 0]


def packed_streams(
    device: torch.device, dtype: torch.dtype, heads: int = 2, size: int = 16
) -> Streams:
    """NaN in every slot that no token of theirs may see, and in the whole ring of one without
    frames.
    """
    ends = [(start + count) * TOKENS_PER_FRAME for start, count in zip(STARTS, COUNTS, strict=True)]
    capacity = CONTEXT + MAX_FRAMES * TOKENS_PER_FRAME
    streams = Streams(device, ends=ends, capacity=capacity, heads=heads, size=size, dtype=dtype)
    streams.hold(0, ends)
    for stream, (end, count) in enumerate(zip(ends, COUNTS, strict=True)):
        if count:
            streams.write(stream, max(0, end - count * TOKENS_PER_FRAME - CONTEXT + 1), end)
    return streams


def pack(
    streams: Streams, order: list[int], gap_frames: int, padding_frames: int
) -> tuple[Arguments, dict[int, slice]]:
    """Arguments, and where each stream's tokens are; behind the first stream and the last is
    padding, which is NaN.
    """
    firsts, queries, places, first = [], [], {}, 0
    padding = torch.full_like(streams.q[0, :TOKENS_PER_FRAME], torch.nan)
    for stream in order:
        start, tokens = STARTS[stream] * TOKENS_PER_FRAME, COUNTS[stream] * TOKENS_PER_FRAME
        frames_behind = (
            gap_frames if stream == order[0] else padding_frames if stream == order[-1] else 0
        )
        queries += [streams.q[stream, start : start + tokens], *[padding] * frames_behind]
        firsts.append(first)
        places[stream] = slice(first * TOKENS_PER_FRAME, first * TOKENS_PER_FRAME + tokens)
        first += COUNTS[stream] + frames_behind
    numbers = ([numbers[stream] for stream in order] for numbers in (STARTS, COUNTS))
    starts_S, counts_S, firsts_S = (
        torch.tensor(x, device=streams.device) for x in (*numbers, firsts)
    )
    pack = Packed(streams.rows_B[order], starts_S, counts_S, firsts_S, first, MAX_FRAMES)
    window = RingWindow(pack, TOKENS_PER_FRAME, CONTEXT, streams.capacity)
    return (*unturned(torch.cat(queries)), window, streams.keys, streams.values), places


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "size"), [(2, 16), (1, 24)])
@pytest.mark.parametrize(("gap_frames", "padding_frames"), [(0, 0), (2, 30)])
def test_packed_streams_are_each_as_alone(
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    size: int,
    gap_frames: int,
    padding_frames: int,
) -> None:
    """Bitwise as in a batch of their own, which has a tile as large; the reference agrees, and has
    them as alone, too.
    """
    streams = packed_streams(device, dtype, heads, size)
    arguments, places = pack(streams, [0, 1, 2, 3, 4, 5], gap_frames, padding_frames)
    out_MD = ring_attention(*arguments)
    expected_MD = ops.ring_attention.reference(*arguments)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out_MD, expected_MD, rtol=tolerance, atol=tolerance)
    padding = torch.ones(len(out_MD), dtype=torch.bool)
    for stream, place in places.items():
        padding[place] = False
        start, tokens = STARTS[stream] * TOKENS_PER_FRAME, COUNTS[stream] * TOKENS_PER_FRAME
        if tokens:
            alone = streams.arguments([start] * len(STARTS), tokens, CONTEXT, [stream])
            assert torch.equal(expected_MD[place], ops.ring_attention.reference(*alone))
            if tile_of(tokens, dtype) == tile_of(MAX_FRAMES * TOKENS_PER_FRAME, dtype):
                assert torch.equal(out_MD[place], ring_attention(*alone))
    assert int(padding.sum()) == (gap_frames + padding_frames) * TOKENS_PER_FRAME
    assert (out_MD[padding.to(device)] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_place_in_a_pack_is_bitwise_free(device: torch.device, dtype: torch.dtype) -> None:
    """Among packs that have room for as many tokens of a stream, and so the same tiles."""
    streams = packed_streams(device, dtype)
    arguments, places = pack(streams, [0, 1, 2, 3, 4, 5], 0, 0)
    out_MD = ring_attention(*arguments)
    for order in ([4, 5, 2, 1, 3, 0], [3, 2], [4, 2]):
        moved_arguments, moved = pack(streams, order, 1, MAX_FRAMES)
        moved_MD = ring_attention(*moved_arguments)
        for stream in order:
            assert torch.equal(moved_MD[moved[stream]], out_MD[places[stream]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", range(4))
def test_every_tile(device: torch.device, dtype: torch.dtype, number: int) -> None:
    """Chunks that fill a tile of each shape but for a token, and more than one of the largest."""
    tiles = HALF_TILES if dtype == torch.bfloat16 else FLOAT_TILES
    if number >= len(tiles):
        pytest.skip("float32 has fewer shapes")
    tokens = min(list(tiles)[number] - 1, 150)
    context, starts = 70, [0, 100, 333]
    streams = Streams(
        device,
        ends=[start + tokens for start in starts],
        capacity=context + tokens,
        heads=1,
        dtype=dtype,
    )
    check(streams, starts, tokens, context)


def test_rings_too_small_for_a_pack(device: torch.device) -> None:
    streams = Streams(device, ends=[8], capacity=10)
    one = torch.ones(1, dtype=torch.int64, device=device)
    window = RingWindow(Packed(streams.rows_B, 0 * one, one, 0 * one, 2, 2), 4, 4, streams.capacity)
    with pytest.raises(ValueError, match="need rings of 11, not 10"):
        ring_attention(*unturned(streams.q[0]), window, streams.keys, streams.values)
