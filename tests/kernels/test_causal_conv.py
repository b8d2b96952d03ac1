"""Convolutions of packed chunks: references against `conv1d` of whole streams, kernels against
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels.gpu import causal_conv
from hocket.kernels.reference import conv as reference_conv
from hocket.kernels.types import Packed
from tests.support.close import assert_close

both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@dataclass(frozen=True)
class Column:
    """One column of the operations."""

    causal_conv: Callable[..., tuple[Tensor | None, Tensor | None]]
    depthwise_conv: Callable[..., Tensor]
    keep_tail: Callable[..., None]


REFERENCE = Column(
    reference_conv.causal_conv, reference_conv.depthwise_conv, reference_conv.keep_tail
)
KERNELS = Column(causal_conv.causal_conv, causal_conv.depthwise_conv, causal_conv.keep_tail)
columns = pytest.mark.parametrize("conv", [REFERENCE, KERNELS], ids=["reference", "gpu"])

#: Rounds of packs: the frames that each row is given.
ROUNDS = [{0: 2, 3: 1}, {3: 4}, {1: 1, 0: 1, 3: 2}, {0: 3, 1: 2}, {3: 1, 1: 1, 0: 1}]
ROWS, STREAMS = 5, 4


def some(
    *shape: int, seed: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def new_tails(columns: int, channels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A slice of a wider state, NaN all over."""
    wide = torch.full((ROWS, 3 + columns * channels + 5), torch.nan, dtype=dtype, device=device)
    return wide[:, 3 : 3 + columns * channels].view(ROWS, columns, channels)


def pack(counts: dict[int, int], seen: dict[int, int], frames: int, device: torch.device) -> Packed:
    """Chunks of `counts` frames on their rows, after `seen` frames, in a pack of so many frames;
    row 4 has none.
    """
    idle = [row for row in range(ROWS) if row not in counts][: STREAMS - len(counts)]
    rows, numbers = [*counts, *idle], [*counts.values(), *[0] * len(idle)]
    starts, firsts = [seen.get(row, 0) for row in rows], [sum(numbers[:s]) for s in range(STREAMS)]
    rows_S, starts_S, counts_S, firsts_S = torch.tensor(
        [rows, starts, numbers, firsts], device=device
    ).unbind(0)
    return Packed(rows_S, starts_S, counts_S, firsts_S, frames, max(numbers))


def by_rounds(x_RTC: Tensor, tokens: int) -> list[tuple[Packed, Tensor, dict[int, slice]]]:
    """Packs of `ROUNDS`, their inputs (NaN where there is no stream), and which tokens of its
    stream each row has.
    """
    found, seen = [], dict.fromkeys(range(ROWS), 0)
    for counts in ROUNDS:
        used = sum(counts.values())
        parts = {
            row: slice(seen[row] * tokens, (seen[row] + count) * tokens)
            for row, count in counts.items()
        }
        padding = x_RTC.new_full((tokens, x_RTC.shape[2]), torch.nan)
        x_MC = torch.cat([*(x_RTC[row, part] for row, part in parts.items()), padding])
        found.append((pack(counts, seen, used + 1, x_RTC.device), x_MC, parts))
        seen = {row: seen[row] + counts.get(row, 0) for row in seen}
    return found


@columns
@pytest.mark.parametrize(
    ("tokens", "channels", "outputs", "taps", "dilation"),
    [(1, 8, 20, 3, 1), (2, 33, 5, 7, 1), (4, 16, 48, 2, 1), (3, 24, 24, 7, 9), (5, 64, 1, 7, 3)],
)
def test_packs_give_what_whole_streams_give(
    conv: Column,
    tokens: int,
    channels: int,
    outputs: int,
    taps: int,
    dilation: int,
    device: torch.device,
) -> None:
    """The same for any chunks of a stream and any streams beside it. Unwritten memory is NaN."""
    length = tokens * 8
    x_RTC = some(ROWS, length, channels, seed=1, device=device)
    weight_PCO = some(taps, channels, outputs, seed=2, device=device)
    bias_O = some(outputs, seed=3, device=device)
    padded_RCL = F.pad(x_RTC.transpose(1, 2), ((taps - 1) * dilation, 0))
    wanted_RTO = F.conv1d(
        padded_RCL, weight_PCO.permute(2, 1, 0), bias_O, dilation=dilation
    ).transpose(1, 2)
    tails_RPC = new_tails((taps - 1) * dilation, channels, torch.float32, device)
    for packed, x_MC, parts in by_rounds(x_RTC, tokens):
        before_RPC = tails_RPC.clone()
        y_MO, bent_MO = conv.causal_conv(
            x_MC, packed, tails_RPC, weight_PCO, bias_O, dilation, None, None, True
        )
        conv.keep_tail(x_MC, packed, tails_RPC)
        assert bent_MO is None
        assert y_MO is not None
        assert y_MO.isfinite().all()
        begin = 0
        for row, part in parts.items():
            end = begin + part.stop - part.start
            torch.testing.assert_close(y_MO[begin:end], wanted_RTO[row, part], rtol=1e-5, atol=1e-4)
            begin = end
        idle = [row for row in range(ROWS) if row not in parts]
        assert torch.equal(tails_RPC[idle].nan_to_num(7.0), before_RPC[idle].nan_to_num(7.0))


@columns
@pytest.mark.parametrize(("tokens", "channels", "taps"), [(1, 40, 7), (2, 300, 3)])
def test_depthwise_packs_give_what_whole_streams_give(
    conv: Column, tokens: int, channels: int, taps: int, device: torch.device
) -> None:
    x_RTC = some(ROWS, tokens * 8, channels, seed=1, device=device)
    weight_PC, bias_C = (
        some(taps, channels, seed=2, device=device),
        some(channels, seed=3, device=device),
    )
    padded_RCL = F.pad(x_RTC.transpose(1, 2), (taps - 1, 0))
    wanted_RTC = F.conv1d(padded_RCL, weight_PC.t()[:, None], bias_C, groups=channels).transpose(
        1, 2
    )
    tails_RPC = new_tails(taps - 1, channels, torch.float32, device)
    for packed, x_MC, parts in by_rounds(x_RTC, tokens):
        y_MC = conv.depthwise_conv(x_MC, packed, tails_RPC, weight_PC, bias_C)
        conv.keep_tail(x_MC, packed, tails_RPC)
        assert y_MC.isfinite().all()
        begin = 0
        for row, part in parts.items():
            end = begin + part.stop - part.start
            torch.testing.assert_close(y_MC[begin:end], wanted_RTC[row, part], rtol=1e-5, atol=1e-5)
            begin = end


@both
@pytest.mark.parametrize(
    ("tokens", "channels", "outputs", "taps", "of"),
    [(3, 32, 48, 7, 48), (7, 64, 60, 2, 12), (2, 20, 33, 1, 33)],
)
def test_what_follows_a_convolution(
    tokens: int,
    channels: int,
    outputs: int,
    taps: int,
    of: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Bias, residual and activation, each rounded where the reference rounds; only requested
    outputs are made.
    """
    frames = 4
    x_MC = some(frames * tokens, channels, seed=1, device=device, dtype=dtype)
    weight_PCO = some(taps, channels, outputs, seed=2, device=device, dtype=dtype) / channels**0.5
    bias_O = some(of, seed=3, device=device, dtype=dtype)
    residual_MO = some(frames * tokens, outputs, seed=4, device=device, dtype=dtype)
    snake = some(of, seed=5, device=device).exp(), some(of, seed=6, device=device).exp()
    tails_RPC = (
        some(ROWS, taps - 1, channels, seed=7, device=device, dtype=dtype) if taps > 1 else None
    )
    packed = pack({2: 1, 0: 3}, {2: 5, 0: 0}, frames, device)
    for residual, keep in ((None, False), (residual_MO, True)):
        wanted = reference_conv.causal_conv(
            x_MC, packed, tails_RPC, weight_PCO, bias_O, 1, residual, snake, keep
        )
        found = causal_conv.causal_conv(
            x_MC, packed, tails_RPC, weight_PCO, bias_O, 1, residual, snake, keep
        )
        assert (found[0] is not None) == keep
        for one, other in zip(found, wanted, strict=True):
            if one is not None and other is not None:
                assert_near(one, other)


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """A sum that falls on the other side of a tie moves the residual's sum, and the sine of it, by
    a step.
    """
    if actual.dtype == torch.float32:
        torch.testing.assert_close(
            actual, expected, rtol=2e-5, atol=1e-5 * float(expected.abs().max())
        )
        return
    close = torch.isclose(actual.float(), expected.float(), rtol=2.0**-7, atol=2.0**-7)
    assert (~close).sum() <= 1 + close.numel() // 100


@both
def test_a_stream_keeps_its_bits_beside_others(dtype: torch.dtype, device: torch.device) -> None:
    tokens, channels, outputs = 3, 24, 40
    x_RTC = some(ROWS, 9 * tokens, channels, seed=1, device=device, dtype=dtype)
    weight_PCO = some(7, channels, outputs, seed=2, device=device, dtype=dtype)
    bias_O = some(outputs, seed=3, device=device, dtype=dtype)
    tails_RPC = some(ROWS, 6, channels, seed=7, device=device, dtype=dtype)
    found = []
    for order in ({2: 2, 0: 3}, {0: 3, 2: 2}):
        packed = pack(order, {2: 5, 0: 1}, 6, device)
        chunks = [x_RTC[row, : count * tokens] for row, count in order.items()]
        x_MC = torch.cat([*chunks, torch.full_like(x_RTC[0, :tokens], torch.nan)])
        y_MO, _ = causal_conv.causal_conv(
            x_MC, packed, tails_RPC, weight_PCO, bias_O, 1, None, None, True
        )
        assert y_MO is not None
        parts = torch.split(y_MO, [*(count * tokens for count in order.values()), tokens])
        found.append(dict(zip(order, parts[:-1], strict=True)))
    for row in (0, 2):
        assert torch.equal(found[0][row], found[1][row])


@both
def test_snake_in_a_kernel(dtype: torch.dtype, device: torch.device) -> None:
    """Angles of some tens of radians, the largest of real models, and of thousands."""
    x_MC = 4 * some(40, 16, seed=1, device=device, dtype=dtype)
    nothing, bias_O = (
        torch.eye(16, device=device, dtype=dtype)[None],
        torch.zeros(16, device=device, dtype=dtype),
    )
    packed = pack({0: 40}, {}, 40, device)
    for scale in (1.0, 100.0):
        snake = scale * some(16, seed=2, device=device).exp(), some(16, seed=3, device=device).exp()
        _, bent_MC = causal_conv.causal_conv(
            x_MC, packed, None, nothing, bias_O, 1, None, snake, False
        )
        assert bent_MC is not None
        wanted_MC = reference_conv.snake(x_MC.double(), *(factor.double() for factor in snake)).to(
            dtype
        )
        if scale == 1.0:
            assert_close(bent_MC, wanted_MC)
        else:
            torch.testing.assert_close(bent_MC.float(), wanted_MC.float(), rtol=2.0**-8, atol=2e-3)


def test_what_does_not_fit_is_refused(device: torch.device) -> None:
    x_MC, weight_PCO, bias_O = (
        torch.zeros(*shape, device=device) for shape in ((4, 16), (2, 16, 16), (16,))
    )
    packed = pack({0: 4}, {}, 4, device)
    with pytest.raises(ValueError, match="one tap needs none, more need one"):
        causal_conv.causal_conv(x_MC, packed, None, weight_PCO, bias_O, 1, None, None, True)
    with pytest.raises(ValueError, match="contiguous"):
        causal_conv.causal_conv(
            x_MC[:, ::2], packed, None, weight_PCO[:1, ::2], bias_O, 1, None, None, True
        )
