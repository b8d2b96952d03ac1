"""Sampling (sources: MOSS 1.6): goldens of the official class, published Philox vectors, and
statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from hocket.core import MAX_SEED
from hocket.kernels import cpu
from hocket.kernels.reference import sampling
from hocket.kernels.reference.philox import philox4x32, uniforms
from hocket.kernels.reference.sampling import probabilities
from hocket.kernels.types import DrawArgs
from tests.support import paths

GOLDEN = paths.GOLDEN / "local_tiny" / "golden_local.safetensors"
TRIPLES = [
    (0.7, 5, 1.0),
    (1.0, 0, 0.5),
    (1.0, 1, 1.0),
    (1.0, 50, 0.95),
    (1.2, 25, 1.0),
    (1.7, 25, 0.8),
]
#: p-values under this fail. The seeds are fixed, so a passing test stays passing.
ALPHA = 1e-4


Draw = Callable[..., Tensor]


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    return load_file(GOLDEN)


@pytest.fixture(scope="module", params=[sampling.draw_at, cpu.draw_at], ids=["reference", "cpu"])
def draw(request: pytest.FixtureRequest) -> Draw:
    """Both forms of a draw."""
    return cast("Draw", request.param)


def rows(
    batch: int, temperature: float = 1.0, k: int = 0, p: float = 1.0, penalty: float = 1.0
) -> DrawArgs:
    """Parameters equal in all rows."""
    return DrawArgs(
        torch.full((batch,), temperature),
        torch.full((batch,), p),
        torch.full((batch,), k, dtype=torch.int64),
        torch.full((batch,), penalty),
    )


def mixed_rows(index: Tensor) -> DrawArgs:
    """Parameters of the rows `index` that differ from row to row, greedy and disabled ones among
    them.
    """
    return DrawArgs(
        torch.tensor([0.0, 0.7, 1.0, 1.7])[index % 4],
        torch.tensor([0.8, 1.0, 0.5])[index % 3],
        torch.tensor([0, 5, 25, 1, 10_000, 64, 65])[index % 7],
        torch.tensor([1.0, 1.3])[index % 2],
    )


def p_value(observed: Tensor, expected: Tensor) -> float:
    """Of Pearson's chi-square; cells that expect fewer than five are pooled."""
    observed, expected = observed.double().flatten(), expected.double().flatten()
    rare = expected < 5
    if rare.any():
        observed = torch.cat((observed[~rare], observed[rare].sum().view(1)))
        expected = torch.cat((expected[~rare], expected[rare].sum().view(1)))
    cells = expected > 0
    assert observed[~cells].sum() == 0
    if cells.sum() == 1:
        return 1.0
    statistic = ((observed - expected)[cells] ** 2 / expected[cells]).sum()
    return float(torch.special.gammaincc((cells.sum() - 1).double() / 2, statistic / 2))


def words(text: str) -> Tensor:
    return torch.tensor([int(word, 16) for word in text.split()])


# --- counters
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    assert torch.equal(philox4x32(words(counter), words(key)), words(expected))


def test_uniforms_are_philox_of_seed_frame_and_slot() -> None:
    seed_B, frame_B = (
        torch.tensor([0x299F31D0_A4093822, 7, MAX_SEED]),
        torch.tensor([5, 0, 999_999]),
    )
    u_BK = uniforms(seed_B, frame_B, 13)
    assert u_BK.dtype == torch.float32
    for row, (seed, frame) in enumerate(zip(seed_B.tolist(), frame_B.tolist(), strict=True)):
        for slot in range(13):
            key = torch.tensor([seed & 0xFFFFFFFF, seed >> 32])
            word = int(philox4x32(torch.tensor([frame, slot, 0, 0]), key)[0])
            assert float(u_BK[row, slot]) == (word >> 8) / 2**24


def test_uniforms_stay_under_one_and_fill_the_interval() -> None:
    u_BK = uniforms(torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64), 10)
    assert u_BK.min() >= 0
    assert u_BK.max() < 1
    counts = torch.bincount((u_BK * 256).long().flatten(), minlength=256)
    assert p_value(counts, torch.full((256,), u_BK.numel() / 256)) > ALPHA


def test_every_bit_of_the_seed_matters() -> None:
    seed_B = torch.cat((torch.zeros(1, dtype=torch.int64), 2 ** torch.arange(63)))
    first_B = uniforms(seed_B, torch.zeros(64, dtype=torch.int64), 1).flatten()
    assert len(set(first_B.tolist())) == 64


@pytest.mark.parametrize("axis", ["frame", "slot", "seed", "high seed word"])
def test_neighbours_are_independent(axis: str) -> None:
    # 200,000 pairs of uniforms that differ by one in one counter or key word, in 16 x 16 cells.
    count = 16_384
    index_B, zero_B = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    u_BK = uniforms(index_B, zero_B + 3, 13)
    other_BK = {
        "frame": uniforms(index_B, zero_B + 4, 13),
        "slot": u_BK.roll(-1, 1),
        "seed": uniforms(index_B + 1, zero_B + 3, 13),
        "high seed word": uniforms(index_B + 2**32, zero_B + 3, 13),
    }[axis]
    cells = (u_BK * 16).long() * 16 + (other_BK * 16).long()
    counts = torch.bincount(cells.flatten(), minlength=256)
    assert p_value(counts, torch.full((256,), cells.numel() / 256)) > ALPHA


# --- probabilities
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("temperature", "k", "p"), TRIPLES)
def test_probabilities_match_the_official_class(
    golden: dict[str, Tensor], temperature: float, k: int, p: float
) -> None:
    actual = probabilities(golden["sampling/logits"], rows(6, temperature, k, p))
    torch.testing.assert_close(
        actual, golden[f"sampling/probs_T{temperature}_k{k}_p{p}"], rtol=0, atol=1e-6
    )


def test_stop_probabilities_match_the_official_class(golden: dict[str, Tensor]) -> None:
    actual = probabilities(golden["sampling/binary_logits"], rows(6, 1.0, 50, 1.0))
    torch.testing.assert_close(actual, golden["sampling/binary_probs_T1_k50_p1"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("penalty", [1.0, 1.2, 2.0])
@pytest.mark.parametrize(("temperature", "k", "p"), [*TRIPLES, (0.0, 0, 1.0)])
def test_penalty_matches_the_official_class(
    golden: dict[str, Tensor], penalty: float, temperature: float, k: int, p: float
) -> None:
    logits, penalised = golden["sampling/logits"], golden[f"sampling/reppen_{penalty}"]
    # 64 is the pad code, which is not in the vocabulary.
    seen = torch.zeros(6, 65, dtype=torch.bool).scatter_(1, golden["sampling/prev"], True)[:, :64]
    actual = probabilities(logits, rows(6, temperature, k, p, penalty), seen)
    torch.testing.assert_close(
        actual, probabilities(penalised, rows(6, temperature, k, p)), rtol=0, atol=1e-6
    )
    if temperature == 0.0:
        assert torch.equal(actual.argmax(1), penalised.argmax(1))


def test_penalty_acts_before_top_k() -> None:
    logits = torch.tensor([[3.0, 2.5, 2.0, -1.0]])
    seen = torch.tensor([[True, False, False, False]])
    # 3 / 2 falls behind 2.5 and 2: top-k of two must choose those.
    actual = probabilities(logits, rows(1, k=2, penalty=2.0), seen)
    torch.testing.assert_close(actual[0, 1:3], torch.tensor([2.5, 2.0]).softmax(0))
    assert actual[0, [0, 3]].tolist() == [0.0, 0.0]


def test_top_p_measures_the_mass_that_top_k_left() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # After top-k of two the first code has 4/7 of the mass, more than 0.5; before it, it has 0.4.
    assert probabilities(logits, rows(1, k=2, p=0.5))[0].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_top_p_measures_the_mass_at_the_temperature() -> None:
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    # 0.6 > 0.5 alone; at temperature 2 the first code has 0.47.
    assert (probabilities(logits, rows(1, p=0.5)) > 0).sum() == 1
    assert (probabilities(logits, rows(1, 2.0, p=0.5)) > 0).sum() == 2


def test_ties_with_the_kth_survive_and_top_p_takes_the_lower_index_first() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 0.0]])
    assert (probabilities(logits, rows(1, k=2))[0] > 0).tolist() == [True, True, True, True, False]
    equal = torch.zeros(1, 4)
    assert probabilities(equal, rows(1, p=0.3))[0].tolist() == [0.5, 0.5, 0.0, 0.0]


def test_top_p_keeps_the_code_before_which_the_mass_is_exactly_p() -> None:
    # 0.5 is exact in binary: mass 0.5 does not exceed p = 0.5.
    assert (probabilities(torch.zeros(1, 4), rows(1, p=0.5))[0] > 0).tolist() == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("k", "p"), [(0, 1.0), (-1, 1.0), (7, 1.0), (8, 0.0), (10**6, -0.5), (0, 1.5)]
)
def test_thresholds_out_of_range_are_off(k: int, p: float) -> None:
    logits = torch.linspace(-2, 2, 7).view(1, 7)
    torch.testing.assert_close(probabilities(logits, rows(1, k=k, p=p)), logits.softmax(1))


def test_tiny_top_p_keeps_the_first_code() -> None:
    assert probabilities(torch.tensor([[0.0, 1.0, 0.5]]), rows(1, p=1e-30))[0].tolist() == [
        0.0,
        1.0,
        0.0,
    ]


def test_greedy_is_one_hot_at_the_first_best_code_whatever_the_thresholds() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
    for k, p in [(0, 1.0), (3, 0.1), (1, 1.0)]:
        assert probabilities(logits, rows(1, 0.0, k, p))[0].tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("temperature", [1e-40, 1e-30, 1e-6])
def test_vanishing_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([[-30.0, 20.0, 19.0, 5.0]])
    assert probabilities(logits, rows(1, temperature))[0].tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_widened_first(dtype: torch.dtype) -> None:
    logits = torch.linspace(-3, 3, 33).view(1, 33).to(dtype)
    parameters = rows(1, 1.7, 25, 0.8)
    assert torch.equal(probabilities(logits, parameters), probabilities(logits.float(), parameters))


# --- draws
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("temperature", "k", "p"), [(0.7, 5, 1.0), (1.0, 0, 0.5), (1.7, 25, 0.8), (1.0, 0, 1.0)]
)
def test_draws_follow_the_probabilities(
    draw: Draw, golden: dict[str, Tensor], temperature: float, k: int, p: float
) -> None:
    count = 200_000
    logits = golden["sampling/logits"][:1]
    expected = probabilities(logits, rows(1, temperature, k, p))[0]
    u_B = uniforms(torch.full((count // 10,), 2**40 + 3), torch.arange(count // 10), 10).flatten()
    codes_B = draw(logits.expand(count, -1), rows(count, temperature, k, p), u_B)
    assert p_value(torch.bincount(codes_B, minlength=64), expected.double() * count) > ALPHA


@pytest.mark.parametrize("codes", [2, 7, 64, 128, 1024, 1027])
@pytest.mark.parametrize("step", [0.0, 0.25], ids=["distinct", "tied"])
def test_a_row_does_not_depend_on_its_neighbours(draw: Draw, codes: int, step: float) -> None:
    generator = torch.Generator().manual_seed(codes)
    logits = 4 * torch.randn(84, codes, generator=generator)
    if step:
        logits = (logits / step).round() * step
    seen = torch.rand(84, codes, generator=generator) < 0.3
    index = torch.arange(84)
    u_B = uniforms(index, index, 1).flatten()
    together = probabilities(logits, mixed_rows(index), seen)
    codes_B = draw(logits, mixed_rows(index), u_B, seen)
    for size in (1, 2, 5):
        for start in range(0, 84, size):
            some = slice(start, start + size)
            args = mixed_rows(index[some])
            assert torch.equal(together[some], probabilities(logits[some], args, seen[some]))
            assert torch.equal(codes_B[some], draw(logits[some], args, u_B[some], seen[some]))


@given(
    k=st.sampled_from([-1, 0, 1, 2, 25, 63, 64, 65, 500]),
    p=st.sampled_from([0.0, 1e-6, 0.3, 0.5, 0.8, 0.95, 1.0]),
    temperature=st.sampled_from([0.0, 1e-40, 0.7, 1.0, 1.7]),
    step=st.sampled_from([0.0, 2.0**-6, 0.25, 4.0]),
    broken=st.lists(st.sampled_from([torch.nan, torch.inf, -torch.inf]), max_size=300),
    codes=st.sampled_from([100, 128, 129, 300, 1024]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=300, deadline=None)
def test_a_draw_inverts_the_probabilities_of_all_codes(
    draw: Draw,
    k: int,
    p: float,
    temperature: float,
    step: float,
    broken: list[float],
    codes: int,
    seed: int,
) -> None:
    """Whether it looked at all of them or at the best few: same codes, same order, for any u but at
    the very edges.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(1, codes, generator=generator)
    if step:
        logits = (logits / step).round() * step
    logits[0, torch.randperm(codes, generator=generator)[: len(broken)]] = torch.tensor(broken)[
        :codes
    ]
    cumulative = probabilities(logits, rows(1, temperature, k, p))[0].double().cumsum(0)
    u_B = torch.arange(512) / 512
    drawn_B = draw(logits.expand(512, -1), rows(512, temperature, k, p), u_B)
    # The steps of the distribution, moved by more than float32 sums can differ by.
    low_B, high_B = (
        torch.searchsorted(cumulative, u_B.double() + by, right=True) for by in (-2e-6, 2e-6)
    )
    last = int((cumulative < cumulative[-1]).sum())
    assert bool((drawn_B >= low_B).all())
    assert bool((drawn_B <= high_B.clamp(max=last)).all())


@pytest.mark.parametrize("u", [0.0, 2.0**-24, 0.5, 1 - 2.0**-24])
def test_a_code_of_zero_probability_is_never_drawn(draw: Draw, u: float) -> None:
    generator = torch.Generator().manual_seed(5)
    logits = 30 * torch.randn(2_000, 97, generator=generator)
    logits[:, :3] = logits[:, -3:] = -torch.inf
    parameters = mixed_rows(torch.arange(2_000))
    codes_B = draw(logits, parameters, torch.full((2_000,), u))
    drawn_B = probabilities(logits, parameters).gather(1, codes_B.unsqueeze(1))
    assert bool((drawn_B > 0).all())


def test_draw_inverts_the_distribution_in_vocabulary_order(draw: Draw) -> None:
    logits = torch.tensor([[0.125, 0.5, 0.25, 0.125]]).log().expand(9, -1)
    u_B = torch.tensor([0.0, 0.124, 0.126, 0.4, 0.624, 0.626, 0.874, 0.876, 0.999])
    assert draw(logits, rows(9), u_B).tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3]


def test_broken_logits_stay_in_range(draw: Draw) -> None:
    nan, inf = torch.nan, torch.inf
    logits = torch.tensor(
        [
            [nan, 1.0, 0.0],
            [inf, 1.0, inf],
            [nan] * 3,
            [-inf] * 3,
            [-inf, nan, 0.0],
            [inf, nan, -inf],
        ]
    )
    expected = torch.tensor(
        [
            [0.0, 0.731059, 0.268941],
            [0.5, 0, 0.5],
            [1 / 3] * 3,
            [1 / 3] * 3,
            [0, 0, 1.0],
            [1.0, 0, 0],
        ]
    )
    torch.testing.assert_close(probabilities(logits, rows(6)), expected, rtol=0, atol=1e-6)
    for temperature in (0.0, 1e-40, 1.0, 100.0):
        for u in (0.0, 1 - 2.0**-24):
            codes_B = draw(logits, rows(6, temperature, 2, 0.9), torch.full((6,), u))
            assert int(codes_B.min()) >= 0
            assert int(codes_B.max()) < 3


def test_a_negative_zero_equals_zero(draw: Draw) -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]])
    assert draw(logits, rows(2, 0.0), torch.full((2,), 0.9)).tolist() == [1, 1]
    # They tie for the best: a top-k of one keeps both.
    assert draw(logits, rows(2, k=1), torch.full((2,), 0.9)).tolist() == [2, 2]
