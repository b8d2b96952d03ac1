"""The backbone and its paged cache: every way of feeding rows gives what the whole sequence
gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from hocket.kernels.types import FP8, SCRATCH_PAGE, PagedBatch
from hocket.models.layers.basic import (
    RMSNorm,
    half_rope_tables,
    pair_rope_tables,
    rotate_halves,
    rotate_pairs,
)
from hocket.models.layers.kv_cache import KVPages
from hocket.models.layers.qwen3 import Qwen3Backbone
from hocket.models.layers.qwen3_config import Qwen3BackboneConfig

CPU = torch.device("cpu")
PAGE_ROWS = 4
LENGTHS = (13, 1, 8)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(
    scope="module", params=[(4, 2), (3, 1), (2, 2)], ids=["grouped", "one_kv_head", "ungrouped"]
)
def backbone(request: pytest.FixtureRequest) -> Qwen3Backbone:
    heads, kv_heads = request.param
    torch.manual_seed(0)
    config = Qwen3BackboneConfig(
        hidden_size=24,
        layers=2,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=16,
        intermediate_size=40,
        norm_eps=1e-6,
        rope_theta=1e6,
    )
    backbone = Qwen3Backbone(config).requires_grad_(False)
    for parameter in backbone.parameters():
        parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.3)
    return backbone


def poisoned_pages(
    backbone: Qwen3Backbone, pages: int, dtype: torch.dtype = torch.float32
) -> KVPages:
    config = backbone.config
    kv = KVPages.allocate(
        config.layers, pages, PAGE_ROWS, config.kv_heads, config.head_dim, dtype, CPU
    )
    for tensor in (kv.keys, kv.values, kv.scales):
        if tensor is not None:
            tensor.fill_(torch.nan)
    return kv


def inputs(backbone: Qwen3Backbone, rows: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, rows, backbone.config.hidden_size, generator=generator)


def naive_attention_backbone(backbone: Qwen3Backbone, x_TD: Tensor) -> Tensor:
    """The same weights, one head and one query at a time, in float64."""
    config, x_TD = backbone.config, x_TD.double()
    rows, size = len(x_TD), config.head_dim
    angles = torch.arange(rows).double()[:, None] * config.rope_theta ** (
        -torch.arange(0, size, 2).double() / size
    )
    turn = torch.polar(torch.ones_like(angles), angles)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight.double()

    def rotate(x_TK: Tensor) -> Tensor:
        turned = torch.complex(x_TK[:, : size // 2], x_TK[:, size // 2 :]) * turn
        return torch.cat((turned.real, turned.imag), -1)

    weights = {name: value.double() for name, value in backbone.state_dict().items()}
    for i in range(config.layers):
        layer = {name: weights[f"layers.{i}.{name}.weight"] for name in _layer_names()}
        heads_HTK = (
            (norm(x_TD, layer["input_norm"]) @ layer["attention.qkv_proj"].T)
            .view(rows, -1, size)
            .unbind(1)
        )
        out: list[Tensor] = []
        for h in range(config.heads):
            g = config.heads + h // (config.heads // config.kv_heads)
            q_TK = rotate(norm(heads_HTK[h], layer["attention.q_norm"]))
            k_TK = rotate(norm(heads_HTK[g], layer["attention.k_norm"]))
            v_TK = heads_HTK[g + config.kv_heads]
            attended = [
                (k_TK[: t + 1] @ q_TK[t] / math.sqrt(size)).softmax(0) @ v_TK[: t + 1]
                for t in range(rows)
            ]
            out.append(torch.stack(attended))
        x_TD = x_TD + torch.cat(out, -1) @ layer["attention.o_proj"].T
        gate, up = (norm(x_TD, layer["post_attention_norm"]) @ layer["mlp.gate_up_proj"].T).chunk(
            2, -1
        )
        x_TD = x_TD + (gate * gate.sigmoid() * up) @ layer["mlp.down_proj"].T
    return norm(x_TD, weights["norm.weight"])


def _layer_names() -> tuple[str, ...]:
    attention = ("qkv_proj", "o_proj", "q_norm", "k_norm")
    return (
        "input_norm",
        "post_attention_norm",
        "mlp.gate_up_proj",
        "mlp.down_proj",
        *(f"attention.{name}" for name in attention),
    )


def test_the_whole_sequence_is_what_the_definition_says(backbone: Qwen3Backbone) -> None:
    x_BTD = inputs(backbone, 11)
    torch.testing.assert_close(
        backbone(x_BTD)[0].double(),
        naive_attention_backbone(backbone, x_BTD[0]),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("pieces", [(13,), (1,) * 13, (4, 4, 5), (3, 10), (12, 1)])
def test_any_chunking_through_pages_is_the_whole(
    backbone: Qwen3Backbone, pieces: tuple[int, ...]
) -> None:
    x_BTD = inputs(backbone, 13)
    kv = poisoned_pages(backbone, 8)
    table_BP = torch.tensor([[5, 2, 7, 1]])
    out, start = [], 0
    for piece in pieces:
        batch = PagedBatch(table_BP, torch.tensor([start]), torch.tensor([piece]))
        out.append(backbone(x_BTD[:, start : start + piece], kv, batch))
        start += piece
    torch.testing.assert_close(torch.cat(out, 1), backbone(x_BTD), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pieces", [(13,), (1,) * 13, (3, 10)])
def test_pages_of_8_bits_are_the_whole_but_for_their_rounding(
    backbone: Qwen3Backbone, pieces: tuple[int, ...]
) -> None:
    """A row's bits do not depend on how the rows before it came: rounding is each row's own."""
    x_BTD = inputs(backbone, 13)
    kv = poisoned_pages(backbone, 8, FP8)
    out, start = [], 0
    for piece in pieces:
        batch = PagedBatch(
            torch.tensor([[5, 2, 7, 1]]), torch.tensor([start]), torch.tensor([piece])
        )
        out.append(backbone(x_BTD[:, start : start + piece], kv, batch))
        start += piece
    paged_BTD, whole_BTD = torch.cat(out, 1), backbone(x_BTD)
    assert 1e-4 < (paged_BTD - whole_BTD).norm() / whole_BTD.norm() < 0.1
    assert kv.scales is not None
    assert kv.scales[:, [2, 5, 7]].isfinite().all()
    assert kv.scales[:, [3, 4, 6]].isnan().all()


def ragged(
    backbone: Qwen3Backbone, padding: float, first_seed: int
) -> tuple[Tensor, KVPages, PagedBatch]:
    """LENGTHS sequences and one padding sequence, right-padded with `padding`; unused table entries
    are scratch.
    """
    kv = poisoned_pages(backbone, 9)
    x_BTD = torch.full((4, max(LENGTHS), backbone.config.hidden_size), padding)
    for b, length in enumerate(LENGTHS):
        x_BTD[b, :length] = inputs(backbone, length, seed=first_seed if b == 0 else 10 + b)[0]
    table_BP = torch.tensor([[3, 1, 8, 2], [4, 0, 0, 0], [7, 5, 0, 0], [0, 0, 0, 0]])
    return (
        x_BTD,
        kv,
        PagedBatch(table_BP, torch.zeros(4, dtype=torch.int64), torch.tensor([*LENGTHS, 0])),
    )


@pytest.mark.parametrize("padding", [0.0, torch.nan, 1e30])
def test_a_ragged_batch_is_each_sequence_alone(backbone: Qwen3Backbone, padding: float) -> None:
    x_BTD, kv, batch = ragged(backbone, padding, first_seed=10)
    out_BTD = backbone(x_BTD, kv, batch)
    for b, length in enumerate(LENGTHS):
        whole = backbone(x_BTD[b : b + 1, :length])[0]
        torch.testing.assert_close(out_BTD[b, :length], whole, rtol=1e-4, atol=1e-5)
    # One step further: the scratch page by now holds the padding, which must stay as invisible as
    # it was.
    starts_B, ones_B = torch.tensor([*LENGTHS, 0]), torch.tensor([1, 1, 0, 0])
    table_BP = batch.page_table_BP
    # Three rows of padding after the new one reach past the end of the first sequence's table.
    step_BTD = torch.full_like(x_BTD[:, :4], padding)
    step_BTD[:, 0] = 1.0
    step_BD = backbone(step_BTD, kv, PagedBatch(table_BP, starts_B, ones_B))[:, 0]
    for b, length in enumerate(LENGTHS[:2]):
        longer = torch.cat((x_BTD[b : b + 1, :length], torch.ones_like(x_BTD[:1, :1])), 1)
        torch.testing.assert_close(step_BD[b], backbone(longer)[0, -1], rtol=1e-4, atol=1e-5)


def test_no_row_depends_on_another_rows_content(backbone: Qwen3Backbone) -> None:
    x_BTD, kv, batch = ragged(backbone, 0.0, first_seed=10)
    other_BTD, other_kv, _ = ragged(backbone, torch.nan, first_seed=99)
    out_BTD, other_out_BTD = backbone(x_BTD, kv, batch), backbone(other_BTD, other_kv, batch)
    assert not torch.equal(out_BTD[0], other_out_BTD[0])
    for b in (1, 2):
        assert torch.equal(out_BTD[b, : LENGTHS[b]], other_out_BTD[b, : LENGTHS[b]])


def test_only_a_sequences_own_rows_are_written(backbone: Qwen3Backbone) -> None:
    x_BTD, kv, batch = ragged(backbone, 0.0, first_seed=10)
    backbone(x_BTD, kv, batch)
    written = ~kv.keys.isnan().any(-1).any(-1)
    assert torch.equal(written, ~kv.values.isnan().any(-1).any(-1))
    expected = torch.zeros(9, PAGE_ROWS, dtype=torch.bool)
    for b, length in enumerate(LENGTHS):
        for position in range(length):
            expected[batch.page_table_BP[b, position // PAGE_ROWS], position % PAGE_ROWS] = True
    for layer_written in written:
        assert torch.equal(layer_written[SCRATCH_PAGE + 1 :], expected[SCRATCH_PAGE + 1 :])


def test_a_prefix_that_another_sequence_cached_is_read_in_place(backbone: Qwen3Backbone) -> None:
    x_BTD, other_BTD = inputs(backbone, 10), inputs(backbone, 10, seed=2)
    other_BTD[:, : 2 * PAGE_ROWS] = x_BTD[:, : 2 * PAGE_ROWS]
    kv = poisoned_pages(backbone, 6)
    zero_B, ten_B, shared_B = torch.tensor([0]), torch.tensor([10]), torch.tensor([2 * PAGE_ROWS])
    backbone(x_BTD, kv, PagedBatch(torch.tensor([[1, 2, 3]]), zero_B, ten_B))
    tail_BTD = other_BTD[:, 2 * PAGE_ROWS :]
    out_BTD = backbone(
        tail_BTD, kv, PagedBatch(torch.tensor([[1, 2, 4]]), shared_B, ten_B - shared_B)
    )
    torch.testing.assert_close(
        out_BTD, backbone(other_BTD)[:, 2 * PAGE_ROWS :], rtol=1e-4, atol=1e-5
    )


def test_the_cache_comes_with_a_batch_or_not_at_all(backbone: Qwen3Backbone) -> None:
    with pytest.raises(ValueError, match="only one of kv and batch"):
        backbone(inputs(backbone, 2), poisoned_pages(backbone, 2))


def test_rms_norm_rounds_before_the_weight() -> None:
    norm = RMSNorm(64, 1e-6).to(torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    norm.weight.copy_(torch.rand(64, generator=generator) + 0.5)
    x = torch.randn(50, 64, generator=generator).to(torch.bfloat16)
    wide = x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert torch.equal(norm(x), wide.to(torch.bfloat16) * norm.weight)
    assert not torch.equal(norm(x), (wide * norm.weight.float()).to(torch.bfloat16))


def test_rotations_turn_their_own_pairs() -> None:
    """A unit vector on a pair's first channel at position p becomes (cos, sin) of p / base**(2j /
    size) there.
    """
    size, base, positions = 8, 100.0, torch.arange(5)
    for j in range(size // 2):
        angles = positions / base ** (2 * j / size)
        for first, second, out in (
            (
                j,
                j + size // 2,
                rotate_halves(
                    _unit(size, j), half_rope_tables(positions, size, base, torch.float32)
                ),
            ),
            (
                2 * j,
                2 * j + 1,
                rotate_pairs(
                    _unit(size, 2 * j), pair_rope_tables(positions, size, base, torch.float32)
                ),
            ),
        ):
            wanted = torch.zeros(5, size)
            wanted[:, first], wanted[:, second] = angles.cos(), angles.sin()
            torch.testing.assert_close(out, wanted)


def _unit(size: int, channel: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor([channel]), size).float()
