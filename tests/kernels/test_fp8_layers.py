"""Layers of 8 bits and whole quantised models on kernels, against their references."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.support.paths import GOLDEN

pytest.importorskip("triton")

from benchmarks.gpu.fp8_error import relative_error

from hocket.kernels import ops
from hocket.models.layers.fp8 import Fp8Linear, quantize_blocks
from hocket.models.moss_local.talker import MossLocalTalker
from hocket.models.registry import load_talker


def _some(*shape: int, device: torch.device, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


#: The last is a decode step's widest product: many inputs, few rows.
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 64, 48), (3, 96, 16), (33, 160, 320), (5, 9728, 2560)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_fp8_layer(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Against the same 8-bit numbers in float32; sums of the GPU's FP8 units are short of float32
    by some 10 bits.
    """
    plain = nn.Linear(inputs, outputs, dtype=dtype, device=device).requires_grad_(False)
    plain.weight.copy_(_some(outputs, inputs, device=device, seed=0) / inputs**0.5)
    plain.bias.copy_(_some(outputs, device=device, seed=1))
    layer = Fp8Linear(plain)
    with torch.inference_mode():
        row8 = ops.quantize_rows(_some(rows, inputs, device=device, seed=2).to(dtype))
        found_MN = layer(row8).plain()
    wanted_MN = (row8.values.float() * row8.scales) @ (
        layer.weight8.float() * layer.scale_N[:, None]
    ).t() + plain.bias
    assert found_MN.dtype == dtype
    assert found_MN.shape == (rows, outputs)
    assert relative_error(found_MN, wanted_MN) < 4e-3


def test_a_quantised_talker_on_kernels(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels and references may round an FP8 value to different sides, which moves little; a wrong
    scale moves all.
    """
    talker = copy.deepcopy(
        load_talker(GOLDEN / "local_tiny", device=device, dtype=torch.float32).talker
    )
    assert isinstance(talker, MossLocalTalker)
    x_BTD = 0.1 * _some(2, 5, talker.config.hidden_size, device=device, seed=0)
    with torch.inference_mode():
        exact = talker.backbone(x_BTD), talker.depth(x_BTD)
        quantize_blocks(talker, "talker")
        monkeypatch.setattr(ops, "column_of", lambda _: "reference")
        plain = talker.backbone(x_BTD), talker.depth(x_BTD)
        monkeypatch.setattr(ops, "column_of", lambda _: "gpu")
        on_kernels = talker.backbone(x_BTD), talker.depth(x_BTD)
    for found, expected, wanted in zip(on_kernels, plain, exact, strict=True):
        assert relative_error(found, expected) < 0.01 < relative_error(expected, wanted) < 0.2
