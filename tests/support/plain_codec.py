"""The codec written a second time, for tests: whole sequences, float64, straight from a
checkpoint's own tensors.

No state, no chunks, no fused or folded weights: what sources: Qwen3 9 and 10 say, a line each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class PlainCodec:
    def __init__(self, raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.encoder, self.decoder = raw["encoder_config"], raw["decoder_config"]
        self.n_codebooks: int = raw["encoder_valid_num_quantizers"]
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}

    def decode(self, codes_TN: Tensor) -> Tensor:
        """[T, N] -> [S]"""
        config = self.decoder
        x = sum(self._decoder_entry(k, codes_TN[:, k]) for k in range(codes_TN.shape[1]))
        assert isinstance(x, Tensor)
        x = self._conv("decoder.pre_conv.conv", x.T[None])
        h = self._linear("decoder.pre_transformer.input_proj", x.transpose(1, 2))
        for i in range(config["num_hidden_layers"]):
            h = self._layer(
                f"decoder.pre_transformer.layers.{i}", h, config, config["sliding_window"]
            )
        h = self._rms("decoder.pre_transformer.norm", h)
        x = self._linear("decoder.pre_transformer.output_proj", h).transpose(1, 2)
        for i, ratio in enumerate(config["upsampling_ratios"]):
            x = self._convnext(
                f"decoder.upsample.{i}.1",
                self._transposed(f"decoder.upsample.{i}.0.conv", x, ratio),
            )
        x = self._conv("decoder.decoder.0.conv", x)
        blocks = len(config["upsample_rates"])
        for i, rate in enumerate(config["upsample_rates"]):
            block = f"decoder.decoder.{i + 1}.block"
            x = self._transposed(f"{block}.1.conv", self._snake(f"{block}.0", x), rate)
            for unit, dilation in ((2, 1), (3, 3), (4, 9)):
                y = self._conv(
                    f"{block}.{unit}.conv1.conv",
                    self._snake(f"{block}.{unit}.act1", x),
                    dilation=dilation,
                )
                x = x + self._conv(
                    f"{block}.{unit}.conv2.conv", self._snake(f"{block}.{unit}.act2", y)
                )
        x = self._snake(f"decoder.decoder.{blocks + 1}", x)
        return self._conv(f"decoder.decoder.{blocks + 2}.conv", x).clamp(-1, 1)[0, 0]

    def encode(self, samples_S: Tensor) -> Tensor:
        """[S] -> [T, N]"""
        return self.quantise(self.latent(samples_S))

    def latent(self, samples_S: Tensor) -> Tensor:
        """[S] -> [T, width]: what the encoder's codebooks code."""
        config, chain = self.encoder, "encoder.encoder.layers"
        x = self._conv(f"{chain}.0.conv", samples_S.double()[None, None])
        position = 1
        for ratio in reversed(config["upsampling_ratios"]):
            for j in range(config["num_residual_layers"]):
                unit = f"{chain}.{position}.block"
                y = self._conv(
                    f"{unit}.1.conv", F.elu(x), dilation=config["dilation_growth_rate"] ** j
                )
                x = x + self._conv(f"{unit}.3.conv", F.elu(y))
                position += 1
            x = self._conv(f"{chain}.{position + 1}.conv", F.elu(x), stride=ratio)
            position += 2
        h = self._conv(f"{chain}.{position + 1}.conv", F.elu(x)).transpose(1, 2)
        for i in range(config["num_hidden_layers"]):
            h = self._layer(f"encoder.encoder_transformer.layers.{i}", h, config, None)
        return self._conv("encoder.downsample.conv", h.transpose(1, 2), stride=2, mode="replicate")[
            0
        ].T

    def quantise(self, latent_TD: Tensor) -> Tensor:
        semantic, codes = self.encoder["num_semantic_quantizers"], []
        for group, levels in (("semantic", semantic), ("acoustic", self.n_codebooks - semantic)):
            prefix = f"encoder.quantizer.{group}_residual_vector_quantizer"
            projection = self.tensors.get(f"{prefix}.input_proj.weight")
            residual = latent_TD if projection is None else latent_TD @ projection[:, :, 0].T
            for i in range(levels):
                entries = self._entries(f"{prefix}.layers.{i}.codebook", "embed_sum")
                codes.append(
                    torch.cdist(
                        residual, entries, compute_mode="donot_use_mm_for_euclid_dist"
                    ).argmin(1)
                )
                residual = residual - entries[codes[-1]]
        return torch.stack(codes, 1)

    def _decoder_entry(self, k: int, codes_T: Tensor) -> Tensor:
        group, level = ("rvq_first", 0) if k == 0 else ("rvq_rest", k - 1)
        entries = self._entries(
            f"decoder.quantizer.{group}.vq.layers.{level}._codebook", "embedding_sum"
        )
        return (
            entries[codes_T]
            @ self.tensors[f"decoder.quantizer.{group}.output_proj.weight"][:, :, 0].T
        )

    def _entries(self, prefix: str, sums: str) -> Tensor:
        return (
            self.tensors[f"{prefix}.{sums}"]
            / self.tensors[f"{prefix}.cluster_usage"].clamp(min=1e-5)[:, None]
        )

    def _conv(
        self, name: str, x: Tensor, *, stride: int = 1, dilation: int = 1, mode: str = "constant"
    ) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        left = (weight.shape[2] - 1) * dilation + 1 - stride
        x = F.pad(x, (left, -x.shape[2] % stride), mode=mode)
        groups = x.shape[1] // weight.shape[1]
        return F.conv1d(x, weight, self.tensors.get(f"{name}.bias"), stride, 0, dilation, groups)

    def _transposed(self, name: str, x: Tensor, stride: int) -> Tensor:
        out = F.conv_transpose1d(
            x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"], stride
        )
        return out[:, :, : x.shape[2] * stride]

    def _snake(self, name: str, x: Tensor) -> Tensor:
        alpha, beta = (self.tensors[f"{name}.{part}"].exp()[:, None] for part in ("alpha", "beta"))
        return x + (x * alpha).sin() ** 2 / (beta + 1e-9)

    def _convnext(self, name: str, x: Tensor) -> Tensor:
        h = self._conv(f"{name}.dwconv.conv", x).transpose(1, 2)
        h = F.layer_norm(
            h,
            h.shape[-1:],
            self.tensors[f"{name}.norm.weight"],
            self.tensors[f"{name}.norm.bias"],
            1e-6,
        )
        h = self._linear(f"{name}.pwconv2", F.gelu(self._linear(f"{name}.pwconv1", h)))
        return x + (self.tensors[f"{name}.gamma"] * h).transpose(1, 2)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def _rms(self, name: str, x: Tensor) -> Tensor:
        variance = x.square().mean(-1, keepdim=True)
        return self.tensors[f"{name}.weight"] * x / (variance + self.decoder["rms_norm_eps"]).sqrt()

    def _norm(self, name: str, x: Tensor) -> Tensor:
        bias = self.tensors.get(f"{name}.bias")
        if bias is None:
            return self._rms(name, x)
        return F.layer_norm(
            x, x.shape[-1:], self.tensors[f"{name}.weight"], bias, self.encoder["norm_eps"]
        )

    def _layer(self, name: str, x: Tensor, config: Mapping[str, Any], window: int | None) -> Tensor:
        heads = self._norm(f"{name}.input_layernorm", x)
        q, k, v = (
            torch.unflatten(
                self._linear(f"{name}.self_attn.{part}_proj", heads), 2, (-1, config["head_dim"])
            )
            for part in "qkv"
        )
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        q, k = (_rope(part, config["rope_theta"]) for part in (q, k))
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        visible = (distance >= 0) & (distance < (window or x.shape[1]))
        scores = (q @ k.transpose(2, 3) / config["head_dim"] ** 0.5).masked_fill(
            ~visible, -torch.inf
        )
        attended = self._linear(
            f"{name}.self_attn.o_proj", (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        )
        x = x + self.tensors[f"{name}.self_attn_layer_scale.scale"] * attended
        h = self._norm(f"{name}.post_attention_layernorm", x)
        if f"{name}.mlp.fc1.weight" in self.tensors:
            h = self._linear(f"{name}.mlp.fc2", F.gelu(self._linear(f"{name}.mlp.fc1", h)))
        else:
            gate = F.silu(self._linear(f"{name}.mlp.gate_proj", h))
            h = self._linear(f"{name}.mlp.down_proj", gate * self._linear(f"{name}.mlp.up_proj", h))
        return x + self.tensors[f"{name}.mlp_layer_scale.scale"] * h


def _rope(x_BHTD: Tensor, base: float) -> Tensor:
    half = x_BHTD.shape[3] // 2
    angles = torch.arange(x_BHTD.shape[2]).double()[:, None] / base ** (
        torch.arange(half).double() / half
    )
    one, other = x_BHTD[..., :half], x_BHTD[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)
