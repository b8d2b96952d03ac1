"""FP8 matrix products (`EngineConfig.quantize`): weights scaled per output channel, activations per
row.

A value is an e4m3 float times a float32 scale of its row; a row's largest magnitude becomes 448,
e4m3's largest. On a GPU `_scaled_mm` runs with unit scales for whole matrices; the consumer of a
product applies the scales of rows and channels (`kernels.types.Scaled`). The library could apply
them, but is slower then, and on Hopper refuses some of the shapes that decoding has: many inputs,
few rows (https://github.com/pytorch/ao/issues/4582).
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from hocket.errors import ConfigError
from hocket.kernels import ops
from hocket.kernels.types import Rows8, Scaled

#: The library's kernels need both sizes of a weight to be multiples of this (16 bytes).
_SIZE_MULTIPLE = 16
#: Compute capability of the first GPUs that multiply FP8 (Ada; Hopper is 9.0).
_FIRST_CAPABILITY = (8, 9)


class Fp8Linear(nn.Module):
    """`nn.Linear` on 8-bit weights, not differentiable.

    It takes rows in either form; its product dequantises to the dtype of the layer that it was made
    from.
    """

    _one: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.dtype = linear.weight.dtype
        with torch.no_grad():
            weight = ops.quantize_rows(linear.weight)
        # Parameters, so that they count as weights.
        self.weight8 = nn.Parameter(weight.values, requires_grad=False)
        self.scale_N = nn.Parameter(weight.scales.squeeze(1), requires_grad=False)
        self.bias = linear.bias
        self.register_buffer("_one", torch.ones((), device=weight.values.device), persistent=False)

    def forward(self, x: Tensor | Rows8) -> Scaled:
        """[..., N] of [..., K]."""
        rows = x if isinstance(x, Rows8) else ops.quantize_rows(x)
        product_MN = self._product(rows.values.flatten(0, -2))
        return Scaled(
            product_MN.view(*rows.values.shape[:-1], -1), rows.scales, self.scale_N, self.bias
        )

    def _product(self, x8_MK: Tensor) -> Tensor:
        """[M, N], unscaled. It is at most 448 squared times K: far from the largest bfloat16."""
        if x8_MK.device.type == "cpu":
            return (x8_MK.float() @ self.weight8.float().t()).to(self.dtype)
        return torch._scaled_mm(
            x8_MK, self.weight8.t(), self._one, self._one, out_dtype=self.dtype, use_fast_accum=True
        )


Linear: TypeAlias = nn.Linear | Fp8Linear


class QuantizableBlock(nn.Module):
    """A transformer block all of whose linears (`Linear`) may be of either kind."""


def takes_fp8(linear: Linear) -> bool:
    """Whether a layer takes rows in 8 bits, so that their producer should round them."""
    return isinstance(linear, Fp8Linear)


def compute_dtype(linear: Linear) -> torch.dtype:
    """The dtype of a layer's inputs and outputs."""
    return linear.dtype if isinstance(linear, Fp8Linear) else linear.weight.dtype


def check_fp8_device(device: torch.device, setting: str = "quantize") -> None:
    """Raises ConfigError, which names the setting that needs FP8, for a device that cannot compute
    with it.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY:
        return
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    raise ConfigError(
        f"{setting} is fp8, which {name} cannot compute; use a GPU of compute capability "
        f"{'.'.join(map(str, _FIRST_CAPABILITY))} or later, or leave {setting} out",
        param=setting,
    )


def quantize_blocks(module: nn.Module, name: str) -> None:
    """Turn the linears of every `QuantizableBlock` in `module` into `Fp8Linear`, one by one,
    freeing as it goes.

    Layers outside of blocks (embeddings, heads, projections in and out) stay. `name` is the
    module's, for errors. Raises ConfigError, with nothing changed, when a layer's sizes do not fit.
    """
    found = [
        (".".join(filter(None, (name, block_name, part_name, child_name))), part, child_name, child)
        for block_name, block in module.named_modules()
        if isinstance(block, QuantizableBlock)
        for part_name, part in block.named_modules()
        for child_name, child in part.named_children()
        if isinstance(child, nn.Linear)
    ]
    for path, _, _, child in found:
        if child.in_features % _SIZE_MULTIPLE or child.out_features % _SIZE_MULTIPLE:
            raise ConfigError(
                f"quantize is fp8, and {path} has {child.in_features} inputs and "
                f"{child.out_features} outputs, not "
                f"multiples of {_SIZE_MULTIPLE}; leave quantize out for this model",
                param="quantize",
            )
    while found:
        # Popped, so that nothing here holds the old weights.
        _, part, child_name, child = found.pop()
        setattr(part, child_name, Fp8Linear(child))
        del child


def quantize_models(talker: object, codec: object | None) -> None:
    """Quantise a talker and a codec's decoder; its encoder stays as it is. Raises ConfigError."""
    if isinstance(talker, nn.Module):
        quantize_blocks(talker, "talker")
    if isinstance(codec, nn.Module):
        quantize_blocks(codec.get_submodule("decoder"), "codec.decoder")
