"""bf16 weights, autocast and gradients."""

from __future__ import annotations

import copy
from unittest import mock

import torch

from hocket.kernels import ops
from hocket.models.moss_codec.codec import MossCodec
from tests.support.moss_codec_helpers import golden, random_samples, stream, to_bf16, whole_wave

#: Root mean square error of the bf16 decoder over the rms of its output; 0.7e-2 was measured on the
#: golden codes.
BF16_RELATIVE_RMS = 1.5e-2


def _relative_rms(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def _bf16() -> MossCodec:
    return to_bf16(golden("codec2_tiny").codec)


def test_bf16_weights_stay_near_float32() -> None:
    v2, codec = golden("codec2_tiny"), _bf16()
    codes_TN = v2.tensors["decode/codes"].T
    wave_CS = codec.decode_whole(codes_TN)
    assert wave_CS.dtype == torch.float32
    assert 1e-4 < _relative_rms(wave_CS, v2.tensors["decode/offline"]) < BF16_RELATIVE_RMS
    for schedule in ([1] * 45, [5] * 9):
        assert (
            _relative_rms(stream(codec, codes_TN, schedule), v2.tensors["decode/offline"])
            < BF16_RELATIVE_RMS
        )


def test_bf16_keeps_keys_in_bf16_and_the_residual_in_float32() -> None:
    codec = _bf16()
    state = codec.new_decoder_state(1, 1)
    assert {
        ring.keys.dtype for stage in state.stages if stage is not None for ring in stage.layers
    } == {torch.bfloat16}
    seen: list[torch.dtype] = []
    codec.decoder[0].get_submodule("layers.0.in_proj").register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].dtype)
    )
    scaled_add = ops.scaled_add

    def spy(x: torch.Tensor, delta: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return scaled_add(x, delta, scale)

    with mock.patch.object(ops, "scaled_add", spy):
        whole_wave(codec, torch.zeros(3, 12, dtype=torch.int64))
    assert seen[:2] == [torch.bfloat16, torch.float32]


def test_autocast_is_the_same_arithmetic_as_bf16_weights() -> None:
    v2 = golden("codec2_tiny")
    codes_TN = v2.tensors["decode/codes"].T
    with torch.autocast("cpu", torch.bfloat16):
        autocast_CS = whole_wave(v2.codec, codes_TN)
    torch.testing.assert_close(autocast_CS, whole_wave(_bf16(), codes_TN), rtol=1e-6, atol=1e-6)


def test_quantizer_stays_float32_under_autocast() -> None:
    v2 = golden("codec2_tiny")
    latent_BTD = v2.tensors["encode/latent0"].T[None]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(
            v2.codec.quantizer.encode(latent_BTD, 12)[0].T, v2.tensors["encode/codes0"]
        )


def test_whole_sequences_are_differentiable() -> None:
    """Every weight of both chains gets a gradient, and the gradient is that of the function (by
    finite difference).
    """
    codec = copy.deepcopy(golden("codec2_tiny").codec).requires_grad_()
    frames = 20  # longer than every context, so the dense window takes part
    samples_BCS = random_samples(codec, frames * codec.config.frame_samples)[None].requires_grad_()
    loss = codec.decode_latent(codec.encode_latent(samples_BCS)).square().mean()
    weights = [*codec.encoder.parameters(), *codec.decoder.parameters()]
    gradients = torch.autograd.grad(loss, [samples_BCS, *weights])
    assert all(bool(gradient.isfinite().all()) and bool(gradient.any()) for gradient in gradients)

    direction_BCS = gradients[0] / gradients[0].norm()
    with torch.no_grad():
        ends = [
            codec.decode_latent(codec.encode_latent(samples_BCS + step * direction_BCS))
            .square()
            .mean()
            for step in (1e-2, -1e-2)
        ]
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-2, gradients[0].norm(), rtol=2e-2, atol=0)


def test_results_of_whole_files_may_enter_training() -> None:
    """Streaming runs in inference mode, whose tensors autograd refuses to save; whole-file results
    are ordinary.
    """
    codec = golden("codec2_tiny").codec
    codes_TN = codec.encode_whole(random_samples(codec, 72))
    assert not codes_TN.is_inference()
    assert not codec.decode_whole(codes_TN).is_inference()


def test_tables_follow_changed_codebooks() -> None:
    codec = to_bf16(golden("codec2_tiny").codec)
    quantizer = codec.quantizer
    codes_BTN = torch.tensor([[[1, 2, 3]]])
    before_BTD = quantizer.decode(codes_BTN)
    with torch.no_grad():
        quantizer.levels[1].codebook[2] += 1.0
    assert torch.equal(quantizer.decode(codes_BTN), before_BTD)
    quantizer.build_tables()
    summed = sum(level(codes_BTN[..., i]) for i, level in enumerate(quantizer.levels[:3]))
    torch.testing.assert_close(
        quantizer.decode(codes_BTN), quantizer.output_proj(summed), rtol=2e-5, atol=2e-5
    )
