"""8-bit weights and activations: what is replaced, and how far results move."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.gpu.fp8_error import fp8_errors, relative_error
from benchmarks.gpu.fp8_error import main as fp8_error_command
from torch import Tensor, nn

from hocket.bench.engine.random_model import loaded_models
from hocket.config import EngineConfig
from hocket.engine.build import assemble
from hocket.errors import ConfigError
from hocket.kernels import ops
from hocket.kernels.reference import talker as reference
from hocket.models.layers.fp8 import Fp8Linear, compute_dtype, quantize_blocks, quantize_models
from hocket.models.layers.qwen3 import Qwen3Backbone
from hocket.models.layers.qwen3_config import Qwen3BackboneConfig
from hocket.models.moss_codec.codec import MossCodec
from hocket.models.moss_local.talker import MossLocalTalker
from hocket.models.qwen3_tts.talker import Qwen3TtsTalker
from hocket.models.registry import load_codec, load_talker
from tests.support.paths import REPOSITORY

CPU = torch.device("cpu")


def some(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(dtype: torch.dtype = torch.float32, *, bias: bool = True) -> nn.Linear:
    """96 to 48; no two outputs are of the same size."""
    made = nn.Linear(96, 48, bias=bias).requires_grad_(False)
    made.weight.copy_(some(48, 96, seed=0) * torch.logspace(-3, 3, 48)[:, None])
    if bias:
        made.bias.copy_(some(48, seed=1))
    return made.to(dtype)


def moss_talker() -> MossLocalTalker:
    talker = load_talker(
        REPOSITORY / "tests/golden/local_tiny", device=CPU, dtype=torch.float32
    ).talker
    assert isinstance(talker, MossLocalTalker)
    return talker


def moss_codec() -> MossCodec:
    codec = load_codec(REPOSITORY / "tests/golden/codec2_tiny", device=CPU, dtype=torch.float32)
    assert isinstance(codec, MossCodec)
    return codec


def quantised(module: nn.Module) -> set[str]:
    return {name for name, part in module.named_modules() if isinstance(part, Fp8Linear)}


def plain_linears(module: nn.Module) -> set[str]:
    return {name for name, part in module.named_modules() if isinstance(part, nn.Linear)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
def test_it_multiplies_what_the_eight_bits_say(dtype: torch.dtype, bias: bool) -> None:
    original = linear(dtype, bias=bias)
    fp8 = Fp8Linear(original)
    x = (some(2, 5, 96, seed=2) * torch.logspace(-2, 2, 5)[:, None]).to(dtype)
    rows = ops.quantize_rows(x)
    wanted = (rows.values.double() * rows.scales.double()) @ (
        fp8.weight8.double() * fp8.scale_N.double()[:, None]
    ).t()
    if bias:
        wanted = wanted + original.bias.double()
    out = fp8(x).plain()
    assert out.dtype == compute_dtype(fp8) == dtype
    assert out.shape == (2, 5, 48)
    # The product is rounded, and the result.
    rounding = torch.finfo(dtype).eps
    largest = wanted.abs().amax((0, 1))
    assert ((out.double() - wanted).abs() <= 4 * rounding * largest).all()
    assert torch.equal(fp8(rows).plain(), out)


def test_every_row_and_every_output_has_a_scale_of_its_own() -> None:
    original, sizes_M1 = linear(bias=False), torch.logspace(-6, 6, 64)[:, None]
    x_MK = some(64, 96, seed=3) * sizes_M1
    # Every element over the size that it should have.
    found_MN, wanted_MN = (
        out_MN / sizes_M1 / original.weight.norm(dim=1)
        for out_MN in (Fp8Linear(original)(x_MK).plain(), original(x_MK))
    )
    # 3 bits of mantissa: 2 to 3 % of error on either side, whatever the sizes of the neighbours.
    for found, wanted in [
        *zip(found_MN, wanted_MN, strict=True),
        *zip(found_MN.t(), wanted_MN.t(), strict=True),
    ]:
        assert 0.01 < relative_error(found, wanted) < 0.1


def test_rows_of_zeros() -> None:
    original = linear()
    original.weight[7] = 0.0
    x_MK = some(3, 96, seed=4)
    x_MK[1] = 0.0
    out_MN = Fp8Linear(original)(x_MK).plain()
    assert torch.equal(out_MN[1], original.bias)
    assert torch.equal(out_MN[:, 7], original.bias[7].expand(3))


def test_a_moss_talker() -> None:
    talker = copy.deepcopy(moss_talker())
    before = sum(parameter.nbytes for parameter in talker.parameters())
    blocks = [f"backbone.layers.{i}." for i in range(3)]
    parts = ("attention.qkv_proj", "attention.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    wanted = {block + part for block in blocks for part in parts}
    wanted |= {f"depth.blocks.0.{part}" for part in ("qkv_proj", "o_proj", "up_proj", "down_proj")}
    bits = sum(talker.get_submodule(name).get_parameter("weight").numel() for name in wanted)
    quantize_blocks(talker, "talker")
    assert quantised(talker) == wanted
    assert plain_linears(talker) == {"stop_head"}
    # Counted as weights, and the old ones are gone: one byte for four, and the scales.
    after = sum(parameter.nbytes for parameter in talker.parameters())
    scales = sum(talker.get_submodule(name).get_parameter("scale_N").nbytes for name in wanted)
    assert after == before - 3 * bits + scales


def test_rounding_and_scaling_take_no_passes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what a model in full precision runs, only attention's outputs are rounded."""
    talker, codec = copy.deepcopy(moss_talker()), copy.deepcopy(moss_codec())
    codes_TN = codec.encode_whole(0.1 * some(2, 480, seed=5))
    calls: Counter[str] = Counter()

    def counted(name: str, operation: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            calls[name] += 1
            return operation(*arguments)

        return call

    for name in vars(reference):
        if hasattr(ops, name) and not name.startswith("_") and callable(getattr(ops, name)):
            monkeypatch.setattr(ops, name, counted(name, getattr(ops, name)))

    def run() -> Counter[str]:
        calls.clear()
        x_BTD = some(1, 3, talker.config.hidden_size, seed=6)
        talker.backbone(x_BTD)
        talker.depth(x_BTD)
        codec.decode_whole(codes_TN)
        return calls.copy()

    before = run()
    layers = {"silu_mul": 3, "silu": 1, "gelu": 3 + 2 + 2}
    assert {name: before[name] for name in layers} == layers
    quantize_models(talker, codec)
    after = run()
    assert after - before == {"quantize_rows": sum(layers.values())}
    assert before - after == {}


def test_a_qwen3_talker() -> None:
    folder = REPOSITORY / "tests/golden/qwen3_tts/custom_1b7"
    talker = load_talker(folder, device=CPU, dtype=torch.float32).talker
    assert isinstance(talker, Qwen3TtsTalker)
    quantize_blocks(talker, "talker")
    found = quantised(talker)
    assert len(found) == 4 * (3 + 2)
    assert all(name.startswith(("backbone.layers.", "predictor.layers.layers.")) for name in found)
    assert plain_linears(talker) == {
        "text_fc1",
        "text_fc2",
        "code_head",
        "predictor.projection",
        "predictor.heads",
    }


def test_of_a_codec_the_decoder_alone() -> None:
    codec = copy.deepcopy(moss_codec())
    samples_CS = 0.1 * some(2, 480, seed=5)
    codes_TN = codec.encode_whole(samples_CS)
    heard_CS = codec.decode_whole(codes_TN)
    quantize_models(None, codec)
    found = quantised(codec)
    parts = ("in_proj", "out_proj", "ffn_in", "ffn_out")
    assert found == {
        f"decoder.{s}.layers.{i}.{part}"
        for s, n in ((0, 3), (2, 2), (4, 2))
        for i in range(n)
        for part in parts
    }
    assert torch.equal(codec.encode_whole(samples_CS), codes_TN)
    assert 0.001 < relative_error(codec.decode_whole(codes_TN), heard_CS) < 0.1


def test_sizes_that_do_not_fit_are_named_and_nothing_changes() -> None:
    config = Qwen3BackboneConfig(
        32, 2, 2, 1, 16, intermediate_size=40, norm_eps=1e-6, rope_theta=1e4
    )
    backbone = Qwen3Backbone(config)
    with pytest.raises(
        ConfigError, match=r"talker\.layers\.0\.mlp\.down_proj has 40 inputs and 32 outputs"
    ) as raised:
        quantize_blocks(backbone, "talker")
    assert raised.value.param == "quantize"
    assert not quantised(backbone)


def test_keys_and_values_in_fp8_need_such_a_gpu_too() -> None:
    model = load_talker(REPOSITORY / "tests/golden/local_tiny", device=CPU, dtype=torch.float32)
    with pytest.raises(
        ConfigError, match=r"kv_dtype is fp8, which cpu cannot compute; use a GPU"
    ) as raised:
        assemble(model, None, EngineConfig(kv_dtype="fp8"))
    assert raised.value.param == "kv_dtype"


def test_an_engine_on_a_cpu_says_that_it_cannot() -> None:
    model = load_talker(REPOSITORY / "tests/golden/local_tiny", device=CPU, dtype=torch.float32)
    with pytest.raises(
        ConfigError, match=r"quantize is fp8, which cpu cannot compute; use a GPU"
    ) as raised:
        assemble(model, moss_codec(), EngineConfig(quantize="fp8"))
    assert raised.value.param == "quantize"
    assert isinstance(model.talker, nn.Module)
    assert not quantised(model.talker)


@pytest.mark.parametrize(
    ("model", "codec"),
    [
        ("local_tiny", "codec2_tiny"),
        ("qwen3_tts/custom_1b7", "qwen3_tts/base_1b7/speech_tokenizer"),
    ],
)
def test_errors_part_by_part(golden: Path, model: str, codec: str) -> None:
    errors = fp8_errors(
        lambda dtype: loaded_models(
            str(golden / model), str(golden / codec), device=CPU, dtype=dtype
        ),
        rows=24,
        frames=6,
        seed=0,
    )
    assert list(errors) == ["backbone_hidden", "code_logits", "codec_samples"]
    for part in ("backbone_hidden", "code_logits"):
        assert 0.0 < errors[part]["bf16"] < 0.02 < errors[part]["fp8"] < 0.15
    hidden = errors["backbone_hidden"]
    assert hidden["bf16"] < hidden["fp8_kv"] < hidden["fp8"]
    codec_error = errors["codec_samples"]
    if model == "local_tiny":
        assert codec_error["bf16"] < 0.02 < codec_error["fp8"] < 0.15
    else:
        # Its transformer is a small part of the work, and stays.
        assert codec_error["bf16"] == codec_error["fp8"]


def test_the_report(
    golden: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "fp8.json"
    arguments = [
        "--model",
        str(golden / "local_tiny"),
        "--codec",
        str(golden / "codec2_tiny"),
        "--random-weights",
    ]
    arguments += ["--rows", "16", "--frames", "4", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["fp8_error.py", *arguments])
    fp8_error_command()
    report = json.loads(file.read_text())
    assert json.loads(capsys.readouterr().out) == report
    assert report["random_weights"]
    for part in report["relative_rms_error"].values():
        assert part["bf16"] < part["fp8"] < 0.15
