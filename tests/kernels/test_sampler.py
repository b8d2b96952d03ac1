"""The drawing kernel against the reference and the form that a CPU runs: odd parameters, and broken
logits.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from hocket.kernels import cpu
from hocket.kernels.gpu import sampler
from hocket.kernels.reference import sampling
from hocket.kernels.reference.philox import FrameNoise, uniforms
from hocket.kernels.reference.sampling import draw_at, probabilities
from hocket.kernels.types import DrawArgs

#: Scores that overflow are meant to; the interpreter's NumPy warns of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

#: How near a uniform may be to the edge between two codes for float32 to take the other one, and
#: how near (relatively) the mass before a code to top-p for it to be in one nucleus and not in the
#: other.
EDGE = 1e-5
NUCLEUS_EDGE = 2e-6
LARGEST = torch.finfo(torch.float32).max

#: Temperature, top-p, top-k (below 0: so many less than V) and penalty. No top-p is a multiple of 1
#: / V, where equal codes would make the nucleus a matter of rounding.
RULES = [
    (0.8, 0.8917, 10, 1.1),
    (1.0, 1.0, 0, 1.0),
    (1.0, 0.0, 10**6, 1.0),
    (1.0, 0.8917, 1, 1.0),
    (1.0, 1e-20, 0, 1.0),
    (1.0, 1.0 - 2.0**-24, 0, 1.0),
    (1e30, 0.7717, 0, 1.0),
    (1e-6, 0.8917, 5, 1.0),
    (0.0, 0.5317, 3, 1.3),
    (0.7, 0.5317, -1, 0.7),
    (1.3, 0.3117, 2**62, 2.0),
]


def _kinds_of_logits(codes: int, generator: torch.Generator) -> list[Tensor]:
    """Rows float32 [V], each of its own kind."""

    def some() -> Tensor:
        return torch.randn(codes, generator=generator) * 3

    def with_some(value: float) -> Tensor:
        return some().masked_fill_(torch.rand(codes, generator=generator) < 0.3, value)

    last = torch.arange(codes) == codes - 1
    zeros = torch.zeros(codes)
    zeros[::2] = -0.0
    zeros[-1] = 1e-36
    return [
        some(),
        some().round(),
        torch.full((codes,), 1.5),
        with_some(math.nan),
        with_some(-math.inf),
        some().masked_fill_(last, math.inf),
        torch.full((codes,), -math.inf),
        torch.full((codes,), math.nan),
        torch.full((codes,), -math.inf).masked_fill_(last, -7.0),
        torch.tensor([-LARGEST, LARGEST]).repeat(codes)[:codes],
        zeros,
        some() * 1e-3 + 100,
    ]


_Arguments = tuple[Tensor, DrawArgs, FrameNoise, int]


class _Batch:
    """Rows of logits and their parameters."""

    def __init__(
        self, logits_BV: Tensor, rules: list[tuple[float, float, int, float]], device: torch.device
    ) -> None:
        generator = torch.Generator().manual_seed(len(rules))
        rows, codes = logits_BV.shape
        columns = list(zip(*rules, strict=True))
        self.logits_BV = logits_BV.to(device)
        self.temperature_B, self.top_p_B, self.penalty_B = (
            torch.tensor(columns[n], dtype=torch.float32, device=device) for n in (0, 1, 3)
        )
        self.top_k_B = torch.tensor([k if k >= 0 else codes + k for k in columns[2]], device=device)
        self.seen_BV = (torch.rand(rows, codes, generator=generator) < 0.3).to(device)
        self.seed_B = torch.randint(0, 2**63 - 1, (rows,), generator=generator).to(device)
        self.frame_B = torch.randint(0, 3000, (rows,), generator=generator).to(device)

    def arguments(self, slot: int) -> _Arguments:
        return self.logits_BV, self._args(), FrameNoise(self.seed_B, self.frame_B, slot + 1), slot

    def draw(self, slot: int, is_penalised: bool = True) -> Tensor:
        """The kernel's codes."""
        return sampler.draw(*self.arguments(slot), self.seen_BV if is_penalised else None)

    def assert_drawn(self, code_B: Tensor, slot: int, is_penalised: bool = True) -> None:
        """The reference's codes, or for uniforms at an edge the code on its other side; none
        without probability.
        """
        seen_BV = self.seen_BV if is_penalised else None
        u_B = uniforms(self.seed_B, self.frame_B, slot + 1)[:, slot]
        near_B = torch.stack(
            [
                draw_at(self.logits_BV, args, (u_B + change).clamp(0.0, 1.0 - 2.0**-24), seen_BV)
                for change in (-EDGE, 0.0, EDGE)
                for args in (self._args(1.0 - NUCLEUS_EDGE), self._args(1.0 + NUCLEUS_EDGE))
            ]
        )
        first_B, last_B = near_B.amin(0), near_B.amax(0)
        assert code_B.dtype == torch.int64
        columns = [sampling.draw, cpu.draw] if code_B.device.type == "cpu" else [sampling.draw]
        for expected_B in (draw(*self.arguments(slot), seen_BV) for draw in columns):
            assert ((first_B <= code_B) & (code_B <= last_B)).all(), (
                code_B,
                expected_B,
                first_B,
                last_B,
            )
            assert (code_B != expected_B).sum() <= max(1, len(code_B) // 100)
        probs_BV = probabilities(self.logits_BV, self._args(1.0 + NUCLEUS_EDGE), seen_BV)
        assert (probs_BV.gather(1, code_B[:, None]) > 0).all()

    def _args(self, top_p_factor: float = 1.0) -> DrawArgs:
        return DrawArgs(
            self.temperature_B, self.top_p_B * top_p_factor, self.top_k_B, self.penalty_B
        )


def _cases(codes: int, device: torch.device, every: int) -> _Batch:
    """All kinds of logits with all rules; a CPU, where a row takes 0.1 s, draws every n-th."""
    kinds = _kinds_of_logits(codes, torch.Generator().manual_seed(codes))
    pairs = list(itertools.product(kinds, RULES))[:: every if device.type == "cpu" else 1]
    return _Batch(
        torch.stack([logits_V for logits_V, _ in pairs]), [rules for _, rules in pairs], device
    )


@pytest.mark.parametrize(
    ("codes", "every"), [(2, 7), (16, 5), (40, 5), (1000, 13), (1024, 13), (2049, 13)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_draws_as_the_reference_does(
    codes: int, every: int, dtype: torch.dtype, device: torch.device
) -> None:
    batch = _cases(codes, device, every)
    batch.logits_BV = batch.logits_BV.to(dtype)
    is_penalised = dtype == torch.float32
    code_B = batch.draw(4, is_penalised)
    batch.assert_drawn(code_B, 4, is_penalised)


def test_penalised_bfloat16_logits(device: torch.device) -> None:
    batch = _cases(100, device, 7)
    batch.logits_BV = batch.logits_BV.bfloat16()
    batch.assert_drawn(batch.draw(0), 0)


def test_many_ordinary_rows(device: torch.device) -> None:
    rows = 50 if device.type == "cpu" else 20000
    generator = torch.Generator().manual_seed(0)
    logits_BV = torch.randn(rows, 300, generator=generator) * 3
    rules = [RULES[n % len(RULES)] for n in range(rows)]
    batch = _Batch(logits_BV, rules, device)
    batch.assert_drawn(batch.draw(32), 32)


def test_noise_is_that_of_seed_frame_and_slot(device: torch.device) -> None:
    """Equal codes, a power of two of them: the code is the uniform's leading bits."""
    bits = 12
    seed_B = torch.tensor([0, 1, 2**32 - 1, 2**32, 2**63 - 1, 0x0123456789ABCDEF], device=device)
    frame_B = torch.tensor([0, 1, 2**31 + 5, 77, 2**32 - 1, 4], device=device)
    ones_B, no_top_k_B = torch.ones(len(seed_B), device=device), torch.zeros_like(seed_B)
    logits_BV = torch.zeros(len(seed_B), 2**bits, device=device)
    for slot in (0, 1, 16, 32):
        args = DrawArgs(ones_B, ones_B, no_top_k_B, ones_B)
        code_B = sampler.draw(logits_BV, args, FrameNoise(seed_B, frame_B, slot + 1), slot)
        u_B = uniforms(seed_B, frame_B, slot + 1)[:, slot]
        assert torch.equal(code_B, (u_B * 2.0**bits).long())


def test_of_equal_codes_the_lower_come_first(device: torch.device) -> None:
    """Four of eight equal best codes are in the nucleus: those with the lowest numbers."""
    rows = 24
    logits_BV = torch.tensor([5.0, 0.0]).repeat(rows, 8).to(device)
    rules = [(1.0, 0.45, 0, 1.0)] * rows
    code_B = _Batch(logits_BV, rules, device).draw(0, False)
    assert set(code_B.tolist()) == {0, 2, 4, 6}


def test_greedy_takes_the_lowest_of_the_best(device: torch.device) -> None:
    logits_BV = torch.tensor(
        [[1.0, 3.0, 3.0, -2.0, 3.0], [-1.0, -1.0, -3.0, -1.0, -2.0]], device=device
    )
    batch = _Batch(logits_BV, [(0.0, 1.0, 0, 2.0)] * 2, device)
    batch.seen_BV = torch.tensor(
        [[0, 1, 0, 0, 0], [1, 1, 1, 0, 0]], dtype=torch.bool, device=device
    )
    assert batch.draw(0).tolist() == [2, 3]


@pytest.mark.parametrize("rules", [(0.0, 1.0, 0, 1.0), (1.0, 1.0, 1, 1.0), (1.0, 0.1, 0, 1.0)])
def test_zeros_are_equal_and_the_smallest_number_is_more(
    rules: tuple[float, float, int, float], device: torch.device
) -> None:
    least = 2.0**-149
    logits_BV = torch.tensor(
        [[-0.0, -least, 0.0, least], [-least, -0.0, 0.0, -least]], device=device
    )
    code_B = _Batch(logits_BV, [rules] * 2, device).draw(0, False)
    assert code_B[0] == 3
    # Top-k keeps both zeros; greedy and a small nucleus take the first.
    assert code_B[1] == 1 or (rules[2] == 1 and code_B[1] == 2)


def test_a_row_does_not_depend_on_its_neighbours(device: torch.device) -> None:
    batch = _cases(40, device, 11)
    code_B = batch.draw(2)
    order_B = torch.randperm(len(code_B), generator=torch.Generator().manual_seed(1)).to(device)
    order_B = order_B[: len(order_B) // 2]
    for name, value in vars(batch).items():
        setattr(batch, name, value[order_B])
    assert torch.equal(batch.draw(2), code_B[order_B])


@pytest.mark.parametrize("channels", [1, 24, 4100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_embeds_what_it_draws(channels: int, dtype: torch.dtype, device: torch.device) -> None:
    """From rows that lie apart, as slices of logits, of codes seen and of tables do."""
    rows, codes = 4, 20
    generator = torch.Generator().manual_seed(channels)
    batch = _Batch(torch.randn(rows, codes, generator=generator), RULES[:rows], device)
    apart = _Batch(batch.logits_BV, RULES[:rows], device)
    apart.logits_BV = torch.full((rows, codes + 5), math.nan, device=device)[
        :, 2 : codes + 2
    ].copy_(batch.logits_BV)
    apart.seen_BV = torch.ones(rows, 3, codes + 1, dtype=torch.bool, device=device)[
        :, 1, :codes
    ].copy_(batch.seen_BV)
    table_VD = torch.randn(codes + 3, channels + 2, generator=generator).to(device, dtype)[
        :, 1 : channels + 1
    ]
    expected_B = batch.draw(7)
    code_B, x_BD = sampler.draw_and_embed(*apart.arguments(7), table_VD, apart.seen_BV)
    assert torch.equal(code_B, expected_B)
    assert x_BD.dtype == dtype
    assert torch.equal(x_BD, table_VD[code_B])


def test_what_it_does_not_take_is_refused(device: torch.device) -> None:
    batch = _Batch(torch.zeros(1, 4), RULES[:1], device)
    logits_BV, args, noise, slot = batch.arguments(0)
    with pytest.raises(ValueError, match="at most 32768"):
        sampler.draw(torch.zeros(1, 32769, device=device), args, noise, slot)
    apart_B = torch.ones(1, 2, device=device).expand(2, 2)[:, 0]
    with pytest.raises(ValueError, match="contiguous vectors"):
        sampler.draw(logits_BV, replace(args, top_p_B=apart_B), noise, slot)
