"""Attention over pages against its other columns: steps and slices of prompts, odd shapes, poisoned
memory, bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from hocket.kernels import ops
from hocket.kernels.reference import talker as reference
from hocket.kernels.types import PagedBatch, PagedPlan

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@dataclass
class Case:
    """Entries over pages in which only what they wrote is finite."""

    q_BTHK: Tensor
    keys_NRGK: Tensor
    values_NRGK: Tensor
    table_BP: Tensor
    starts_B: Tensor
    counts_B: Tensor
    #: Scales of float8 keys and values.
    scales_NGR2: Tensor | None = None

    def run(self, order: list[int] | None = None) -> Tensor:
        """The kernel's output for these entries in this order."""
        return ops.paged_attention.gpu(*self.arguments(order))

    def arguments(
        self, order: list[int] | None = None
    ) -> tuple[Tensor, Tensor, Tensor, PagedPlan, Tensor | None]:
        chosen = slice(None) if order is None else order
        batch = PagedBatch(
            self.table_BP[chosen],
            self.starts_B[chosen].contiguous(),
            self.counts_B[chosen].contiguous(),
        )
        plan = PagedPlan.of(batch, self.q_BTHK.shape[1], self.keys_NRGK.shape[1])
        return (
            self.q_BTHK[chosen].contiguous(),
            self.keys_NRGK,
            self.values_NRGK,
            plan,
            self.scales_NGR2,
        )

    def in_fp8(self) -> Case:
        """The same with float8 keys and values; unwritten rows are NaN here, too."""
        (keys, key_scales), (values, value_scales) = (
            reference.quantize_heads(pages_NRGK)
            for pages_NRGK in (self.keys_NRGK, self.values_NRGK)
        )
        is_written = self.keys_NRGK.isfinite().all(-1)[..., None]
        scales = torch.stack((key_scales, value_scales), -1).where(is_written, torch.nan)
        return replace(
            self,
            keys_NRGK=keys,
            values_NRGK=values,
            scales_NGR2=scales.transpose(1, 2).contiguous(),
        )

    def check(self, out_BTHK: Tensor) -> None:
        """Against the reference, and what a CPU runs: all at once, and sequence by sequence."""
        tolerance, counts = TOLERANCE[self.q_BTHK.dtype], self.counts_B.tolist()
        for expected_BTHK in self.plain():
            for out_THK, expected_THK, count in zip(out_BTHK, expected_BTHK, counts, strict=True):
                torch.testing.assert_close(
                    out_THK[:count], expected_THK[:count], atol=tolerance, rtol=tolerance
                )
        for out_THK, count in zip(out_BTHK, counts, strict=True):
            assert not out_THK[count:].any()  # NaN is true

    def plain(self) -> list[Tensor]:
        """The outputs of the other columns."""
        q, keys, values, plan, scales = self.arguments()
        lengths = tuple((self.starts_B + self.counts_B).tolist())
        alone = replace(plan, batch=replace(plan.batch, lengths=lengths))
        attention = ops.paged_attention
        return [
            attention.reference(q, keys, values, plan, scales),
            attention.cpu(q, keys, values, plan, scales),
            attention.cpu(q, keys, values, alone, scales),
        ]


def make_case(
    device: torch.device,
    starts: list[int],
    counts: list[int],
    *,
    rows: int = 1,
    heads: int = 4,
    groups: int = 2,
    size: int = 16,
    page_rows: int = 16,
    dtype: torch.dtype = torch.float32,
    index: torch.dtype = torch.int64,
) -> Case:
    generator = torch.Generator().manual_seed(7)
    batch = len(starts)
    width = -(-max(start + rows for start in starts) // page_rows)
    table_BP = torch.randperm(batch * width, generator=generator).view(batch, width)
    pages = [torch.full((batch * width, page_rows, groups, size), torch.nan) for _ in range(2)]
    for pages_BP, start, count in zip(table_BP, starts, counts, strict=True):
        written = torch.arange(start + count)
        slots = pages_BP[written // page_rows] * page_rows + written % page_rows
        for each in pages:
            each.flatten(0, 1)[slots] = torch.randn(len(slots), groups, size, generator=generator)
    q_BTHK = torch.randn(batch, rows, heads, size, generator=generator)
    q_BTHK[torch.arange(rows) >= torch.tensor(counts)[:, None]] = torch.nan
    keys_NRGK, values_NRGK = (each.to(device, dtype) for each in pages)
    integers = (torch.tensor(each, dtype=index, device=device) for each in (starts, counts))
    return Case(
        q_BTHK.to(device, dtype), keys_NRGK, values_NRGK, table_BP.to(device, index), *integers
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize(
    ("heads", "groups", "size", "page_rows"),
    [(4, 4, 8, 4), (4, 2, 24, 16), (8, 2, 10, 32), (3, 1, 128, 32)],
)
@pytest.mark.parametrize(
    ("rows", "starts", "counts"),
    [
        (1, [0, 63, 64, 141, 30], [1, 1, 1, 1, 0]),
        (7, [0, 3, 60, 90, 5], [7, 1, 6, 7, 0]),
        (20, [0, 70], [20, 19]),
    ],
)
def test_agrees_with_the_other_columns(
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    groups: int,
    size: int,
    page_rows: int,
    is_fp8: bool,
    rows: int,
    starts: list[int],
    counts: list[int],
) -> None:
    case = make_case(
        device,
        starts,
        counts,
        rows=rows,
        heads=heads,
        groups=groups,
        size=size,
        page_rows=page_rows,
        dtype=dtype,
    )
    case = case.in_fp8() if is_fp8 else case
    case.check(case.run())


def test_heads_of_odd_sizes(device: torch.device) -> None:
    case = make_case(device, [0, 63, 30], [1, 1, 0], heads=8, size=9)
    case.check(case.run())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_float8_scores_and_values_of_any_size(device: torch.device, dtype: torch.dtype) -> None:
    """Heads 2^40 times as large as others, and zeros: the kernel multiplies in float16, which does
    not reach so far.
    """
    case = make_case(device, [200, 70, 5], [1, 1, 1], dtype=dtype)
    powers = torch.logspace(-20, 20, case.values_NRGK.shape[1], 2.0, device=device)[:, None, None]
    case.values_NRGK = (case.values_NRGK * powers).to(dtype)
    case.values_NRGK[:, 3] = 0.0
    case.keys_NRGK = case.keys_NRGK * 1e3
    case.q_BTHK *= 1e4
    case = case.in_fp8()
    out = case.run()
    for expected in case.plain():
        largest = float(expected.abs().max())
        torch.testing.assert_close(
            out, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * largest
        )


def test_float8_costs_what_its_mantissas_leave_out(device: torch.device) -> None:
    """A mantissa of 3 bits is off by up to 1/16 of itself, evenly spread: by 1/16/sqrt(3) rms at
    most. A value's error reaches the output as it is; a key's moves a score of about 1, and so its
    weight, by as much; their squares add up.
    """
    case = make_case(device, [250] * 8, [1] * 8, heads=16, size=128, dtype=torch.float32)
    exact, eighth = case.run(), case.in_fp8().run()
    error = float((eighth - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    assert 0.005 < error < 0.0625 * 3**-0.5 * 2**0.5


def test_float8_scales_are_the_smallest_powers_of_two(device: torch.device) -> None:
    largest = torch.tensor([448.0, 448.5, 224.0, 3.0e38, 2.0**-20, 0.0, 1.75, 1.76], device=device)
    x8, scale = reference.quantize_heads(
        largest[:, None, None].expand(-1, 1, 6)
        * torch.tensor([1, -1, 0.5, 0, 1, 1e-9], device=device)
    )
    wanted = torch.tensor(
        [1.0, 2.0, 0.5, 2.0**120, 2.0**-28, 2.0**-32, 2.0**-8, 2.0**-7], device=device
    )
    assert torch.equal(scale[:, 0].float(), wanted)
    assert (x8[:, 0, 0].float() * wanted - largest).abs().div(
        largest.clamp(min=1e-30)
    ).max() <= 2**-4
    assert (x8[:5, 0, 0].float() >= 224).all()


def test_integers_may_be_int32_and_the_table_part_of_a_wider_one(device: torch.device) -> None:
    case = make_case(device, [5, 40], [3, 2], rows=3, index=torch.int32)
    case.table_BP = torch.cat([case.table_BP, torch.full_like(case.table_BP, -1)], 1)[
        :, : case.table_BP.shape[1]
    ]
    case.check(case.run())


def test_pages_behind_a_sequence_are_never_read(device: torch.device) -> None:
    case = make_case(device, [5, 40], [3, 2], rows=3)
    expected = case.run()
    used_B1 = -(-(case.starts_B + case.counts_B) // case.keys_NRGK.shape[1])[:, None]
    behind_BP = torch.arange(case.table_BP.shape[1], device=device) >= used_B1
    assert behind_BP.any()
    case.table_BP = case.table_BP.masked_fill(behind_BP, 2**40)
    assert torch.equal(case.run(), expected)


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("entries", "longest"), [(1, 100), (1, 900), (6, 300), (70, 300), (1100, 300)]
)
def test_few_entries_share_the_device_and_give_what_many_do(
    device: torch.device, dtype: torch.dtype, is_fp8: bool, entries: int, longest: int
) -> None:
    """The longer a context and the fewer the entries, the more programs share it: results agree all
    the same.
    """
    if entries > 6 and device.type == "cpu":
        pytest.skip("takes minutes in the interpreter")
    starts = ([longest, 0, 126, 127, 128, 9] + [0] * entries)[:entries]
    counts = ([1, 1, 1, 1, 1, 0] + [1] * entries)[:entries]
    case = make_case(device, starts, counts, groups=1, dtype=dtype)
    case = case.in_fp8() if is_fp8 else case
    case.check(case.run())


@pytest.mark.parametrize(
    ("rows", "starts", "counts"),
    [(1, [0, 290, 64, 141], [1, 1, 1, 1]), (7, [0, 3, 60, 90], [7, 1, 6, 0])],
)
@pytest.mark.parametrize("is_fp8", [False, True])
def test_neither_place_nor_company_changes_a_bit(
    device: torch.device, rows: int, starts: list[int], counts: list[int], is_fp8: bool
) -> None:
    case = make_case(device, starts, counts, rows=rows, dtype=torch.bfloat16)
    case = case.in_fp8() if is_fp8 else case
    out = case.run()
    order = [2, 0, 3, 1]
    assert torch.equal(case.run(order), out[order])
    assert torch.equal(case.run([1, 1, 1, 1]), out[[1, 1, 1, 1]])


@pytest.mark.parametrize("is_fp8", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_of_a_sequence_give_the_bits_of_the_whole(
    device: torch.device, dtype: torch.dtype, is_fp8: bool
) -> None:
    whole = make_case(device, [0], [75], rows=80, dtype=dtype)
    whole = whole.in_fp8() if is_fp8 else whole
    out_THK = whole.run()[0]
    pieces = Case(
        whole.q_BTHK.view(4, 20, *whole.q_BTHK.shape[2:]),
        whole.keys_NRGK,
        whole.values_NRGK,
        whole.table_BP.repeat(4, 1),
        torch.tensor([0, 20, 40, 60], device=device),
        torch.tensor([20, 20, 20, 15], device=device),
        whole.scales_NGR2,
    )
    whole.check(out_THK[None])
    assert torch.equal(pieces.run().flatten(0, 1), out_THK)


def test_a_wide_score_does_not_overflow(device: torch.device) -> None:
    case = make_case(device, [200, 70], [1, 1])
    case.q_BTHK *= 1e4
    case.check(case.run())


def test_a_view_is_refused(device: torch.device) -> None:
    case = make_case(device, [4, 4], [2, 2], rows=2)
    case.keys_NRGK = case.keys_NRGK.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match="contiguous"):
        case.run()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs 4.3 GB of a CUDA device")
def test_pages_past_two_to_the_31_channels(device: torch.device) -> None:
    page_rows, groups, size = 32, 8, 128
    last = 2**31 // (page_rows * groups * size) + 1
    pages_NRGK = torch.empty(
        (last + 1, page_rows, groups, size), dtype=torch.bfloat16, device=device
    )
    near = make_case(
        device,
        [20],
        [1],
        heads=32,
        groups=groups,
        size=size,
        page_rows=page_rows,
        dtype=torch.bfloat16,
    )
    pages_NRGK[last] = near.keys_NRGK[0]
    near.values_NRGK = near.keys_NRGK
    far = Case(
        near.q_BTHK, pages_NRGK, pages_NRGK, near.table_BP + last, near.starts_B, near.counts_B
    )
    assert torch.equal(far.run(), near.run())
