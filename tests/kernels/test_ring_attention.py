"""Against the plain twin: windows over rings at any offset, with NaN wherever no key exists."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels import reference
from hocket.kernels.ring_attention import ring_attention, ring_attention_packed

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
        self.keys, self.values = torch.empty(2, len(ends) + 1, capacity, heads, size, dtype=dtype, device=device)
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
        self, starts: list[int], tokens: int, order: list[int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        order = list(range(len(starts))) if order is None else order
        q_BTHK = torch.stack([self.q[stream, starts[stream] : starts[stream] + tokens] for stream in order])
        starts_B = torch.tensor([starts[stream] for stream in order], device=self.device)
        return q_BTHK, self.keys, self.values, self.rows_B[order], starts_B


def check(streams: Streams, starts: list[int], tokens: int, context: int) -> None:
    """With NaN in every slot that no query may see."""
    streams.hold(context - 1 + tokens, [start + tokens for start in starts])
    arguments = streams.arguments(starts, tokens)
    got = ring_attention(*arguments, context)
    expected = reference.ring_attention(*arguments, context)
    assert got.isfinite().all()
    tolerance = TOLERANCES[got.dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


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
        device, ends=[start + tokens for start in starts], capacity=capacity, heads=heads, size=size, dtype=dtype
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
    q, keys, values, rows_B, starts_B = streams.arguments([100], tokens)
    near = ring_attention(q, keys, values, rows_B, starts_B, context)
    far = ring_attention(q, keys, values, rows_B, starts_B + 2**36, context)
    assert torch.equal(near, far)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_window_is_exact(device: torch.device, dtype: torch.dtype) -> None:
    """Values are one-hot in their position: a query's output names whom it saw."""
    context, tokens, start, capacity = 5, 12, 70, 32
    streams = Streams(device, ends=[start + tokens], capacity=capacity, heads=1, size=32, dtype=dtype)
    streams.v[0, :, 0] = torch.eye(32, device=device, dtype=dtype)[torch.arange(start + tokens, device=device) % 32]
    streams.write(0, start + tokens - capacity, start + tokens)
    seen_TC = ring_attention(*streams.arguments([start], tokens), context)[0, :, 0] > 0
    for token in range(tokens):
        expected = {position % 32 for position in range(start + token - context + 1, start + token + 1)}
        assert set(seen_TC[token].nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_order_of_rows_is_bitwise_free(device: torch.device, dtype: torch.dtype) -> None:
    context, tokens, starts = 11, 19, [0, 64, 3, 130]
    streams = Streams(device, ends=[start + tokens for start in starts], capacity=40, dtype=dtype)
    together = ring_attention(*streams.arguments(starts, tokens), context)
    order = [2, 0, 3, 1]
    assert torch.equal(ring_attention(*streams.arguments(starts, tokens, order), context), together[order])
    for stream in order:
        alone = ring_attention(*streams.arguments(starts, tokens, [stream]), context)
        assert torch.equal(alone[0], together[stream])


@pytest.mark.parametrize("chunks", [[96], [1] * 8 + [88], [5, 1, 31, 17, 42], [33, 63]])
def test_chunks_equal_the_whole(device: torch.device, chunks: list[int]) -> None:
    """Tokens arrive chunk by chunk in a ring that begins as NaN."""
    context, total = 21, 96
    streams = Streams(device, ends=[total], capacity=context + max(chunks), dtype=torch.float32)
    streams.hold(0, [total])
    start, outputs = 0, []
    for tokens in chunks:
        streams.write(0, start, start + tokens)
        outputs.append(ring_attention(*streams.arguments([start], tokens), context))
        start += tokens
    age = torch.arange(total, device=device)[:, None] - torch.arange(total, device=device)
    whole = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (streams.q, streams.k, streams.v)), attn_mask=(age >= 0) & (age < context)
    )
    torch.testing.assert_close(torch.cat(outputs, 1), whole.transpose(1, 2), rtol=2e-5, atol=2e-5)


def test_place_in_a_chunk_is_bitwise_free(device: torch.device) -> None:
    """A query at any place of its tile: blocks of which it sees nothing change no bit."""
    context, tokens, end = 70, 16, 200
    streams = Streams(device, ends=[end], capacity=context + 40)
    last = [
        ring_attention(*streams.arguments([start], tokens), context)[0, 180 - start]
        for start in range(180 - tokens + 1, 181)
    ]
    assert all(torch.equal(out, last[0]) for out in last)


def test_queries_that_are_a_view(device: torch.device) -> None:
    """Queries lie beside keys and values in one projection."""
    context, tokens, starts = 7, 5, [2, 50]
    streams = Streams(device, ends=[start + tokens for start in starts], capacity=16)
    q_BTHK, *others = streams.arguments(starts, tokens)
    view = torch.cat((q_BTHK, torch.full_like(q_BTHK, torch.nan)), 2)[:, :, :2]
    assert not view.is_contiguous()
    assert torch.equal(ring_attention(view, *others, context), ring_attention(q_BTHK, *others, context))


def test_rings_too_small(device: torch.device) -> None:
    streams = Streams(device, ends=[8], capacity=10)
    with pytest.raises(ValueError, match="need rings of 11, not 10"):
        ring_attention(*streams.arguments([0], 8), 4)


# ---- packed


CONTEXT, TOKENS_PER_FRAME, MAX_FRAMES = 21, 6, 13
COUNTS = [3, MAX_FRAMES, 0, 1, 7, 0]
#: In frames. Some begin, one has gone round its ring, one begins where a block of keys does.
STARTS = [0, 1, 5, 64, 40, 0]


def packed_streams(device: torch.device, dtype: torch.dtype, heads: int = 2, size: int = 16) -> Streams:
    """NaN in every slot that no token of theirs may see, and in the whole ring of one without frames."""
    ends = [(start + count) * TOKENS_PER_FRAME for start, count in zip(STARTS, COUNTS, strict=True)]
    capacity = CONTEXT + MAX_FRAMES * TOKENS_PER_FRAME
    streams = Streams(device, ends=ends, capacity=capacity, heads=heads, size=size, dtype=dtype)
    streams.hold(0, ends)
    for stream, (end, count) in enumerate(zip(ends, COUNTS, strict=True)):
        if count:
            streams.write(stream, max(0, end - count * TOKENS_PER_FRAME - CONTEXT + 1), end)
    return streams


def attend_packed(streams: Streams, order: list[int], padding_frames: int) -> tuple[Tensor, dict[int, slice]]:
    """Outputs and where each stream's are; padding behind the last, whose queries are NaN."""
    firsts, queries, places, first = [], [], {}, 0
    for stream in order:
        start, tokens = STARTS[stream] * TOKENS_PER_FRAME, COUNTS[stream] * TOKENS_PER_FRAME
        queries.append(streams.q[stream, start : start + tokens])
        firsts.append(first)
        places[stream] = slice(first * TOKENS_PER_FRAME, first * TOKENS_PER_FRAME + tokens)
        first += COUNTS[stream]
    queries.append(torch.full_like(streams.q[0, : padding_frames * TOKENS_PER_FRAME], torch.nan))
    numbers = ([numbers[stream] for stream in order] for numbers in (STARTS, COUNTS))
    starts_S, counts_S, firsts_S = (torch.tensor(x, device=streams.device) for x in (*numbers, firsts))
    out_MHK = ring_attention_packed(
        torch.cat(queries),
        streams.keys,
        streams.values,
        streams.rows_B[order],
        starts_S,
        counts_S,
        firsts_S,
        TOKENS_PER_FRAME,
        MAX_FRAMES,
        CONTEXT,
    )
    return out_MHK, places


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "size"), [(2, 16), (1, 24)])
def test_packed_streams_are_each_as_alone(device: torch.device, dtype: torch.dtype, heads: int, size: int) -> None:
    """Bitwise as in a batch of their own, which has a tile as large; and near the twin, which has a stream a time."""
    streams = packed_streams(device, dtype, heads, size)
    out_MHK, places = attend_packed(streams, [0, 1, 2, 3, 4, 5], padding_frames=2)
    assert out_MHK.isfinite().all()
    for stream, place in places.items():
        start, tokens = STARTS[stream] * TOKENS_PER_FRAME, COUNTS[stream] * TOKENS_PER_FRAME
        if tokens:
            arguments = streams.arguments([start] * len(STARTS), tokens, [stream])
            expected = reference.ring_attention(*arguments, CONTEXT)[0]
            tolerance = TOLERANCES[dtype]
            torch.testing.assert_close(out_MHK[place], expected, rtol=tolerance, atol=tolerance)
            # A tile of as many queries: rows of it that do not exist change nothing.
            if tokens > 32:
                assert torch.equal(out_MHK[place], ring_attention(*arguments, CONTEXT)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_place_in_a_pack_is_bitwise_free(device: torch.device, dtype: torch.dtype) -> None:
    streams = packed_streams(device, dtype)
    out_MHK, places = attend_packed(streams, [0, 1, 2, 3, 4, 5], padding_frames=0)
    for order in ([4, 5, 2, 1, 3, 0], [3], [4, 2]):
        moved_MHK, moved = attend_packed(streams, order, padding_frames=1)
        for stream in order:
            assert torch.equal(moved_MHK[moved[stream]], out_MHK[places[stream]])


def test_packed_twin(device: torch.device) -> None:
    """Kernel and twin take the same arguments, in the same order."""
    streams = packed_streams(device, torch.float32)
    seen = torch.cat([streams.q[s, STARTS[s] * 6 : (STARTS[s] + COUNTS[s]) * 6] for s in range(len(STARTS))])
    counts_S = torch.tensor(COUNTS, device=device)
    arguments = (
        seen,
        streams.keys,
        streams.values,
        streams.rows_B,
        torch.tensor(STARTS, device=device),
        counts_S,
        counts_S.cumsum(0) - counts_S,
        TOKENS_PER_FRAME,
        MAX_FRAMES,
        CONTEXT,
    )
    expected = reference.ring_attention_packed(*arguments)
    torch.testing.assert_close(ring_attention_packed(*arguments), expected, rtol=2e-5, atol=2e-5)


def test_packed_rings_too_small(device: torch.device) -> None:
    streams = Streams(device, ends=[8], capacity=10)
    one = torch.ones(1, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="need rings of 11, not 10"):
        ring_attention_packed(
            streams.q[0], streams.keys, streams.values, streams.rows_B, 0 * one, one, 0 * one, 4, 2, 4
        )
