"""FP8 matrix products (`EngineConfig.quantize`): weights scaled per output channel, activations per row.

A value is an e4m3 float times a float32 scale of its row; a row's largest magnitude becomes 448, e4m3's largest. On a
GPU the product itself is a library's, with one scale for each whole matrix, namely 1; whoever takes it multiplies by
the rows' and the channels' scales (`kernels.scaled`). The library takes them as well, but is slower then, and on Hopper
refuses some of the shapes that decoding has: many inputs, few rows (https://github.com/pytorch/ao/issues/4582).
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from hocket.errors import ConfigError
from hocket.kernels import ops
from hocket.kernels.types import Rows8, Scaled

#: The library's kernels want both sizes of a weight to be multiples of this (16 bytes).
_SIZE_MULTIPLE = 16
#: Compute capability of the first GPUs that multiply FP8 (Ada; Hopper is 9.0).
_FIRST_CAPABILITY = (8, 9)


class Fp8Linear(nn.Module):
    """`nn.Linear` on 8-bit weights. It takes rows in either form; what it gives means the precision it was made of.

    Not differentiable.
    """

    _one: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.dtype = linear.weight.dtype
        with torch.no_grad():
            weight = ops.quantize_rows(linear.weight)
        # Parameters, so that they are counted where weights are.
        self.weight8 = nn.Parameter(weight.values, requires_grad=False)
        self.scale_N = nn.Parameter(weight.scales.squeeze(1), requires_grad=False)
        self.bias = linear.bias
        self.register_buffer("_one", torch.ones((), device=weight.values.device), persistent=False)

    def forward(self, x: Tensor | Rows8) -> Scaled:
        """[..., N] of [..., K]."""
        rows = x if isinstance(x, Rows8) else ops.quantize_rows(x)
        product_MN = self._product(rows.values.flatten(0, -2))
        return Scaled(product_MN.view(*rows.values.shape[:-1], -1), rows.scales, self.scale_N, self.bias)

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
    """Whether a layer wants its rows in 8 bits already."""
    return isinstance(linear, Fp8Linear)


def compute_dtype(linear: Linear) -> torch.dtype:
    """What a layer takes and gives."""
    return linear.dtype if isinstance(linear, Fp8Linear) else linear.weight.dtype


def check_fp8_device(device: torch.device, setting: str = "quantize") -> None:
    """Raises ConfigError, about the setting that asks for it, for a device that does not compute with FP8."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY:
        return
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    raise ConfigError(
        f"{setting} is fp8, which {name} cannot compute; use a GPU of compute capability "
        f"{'.'.join(map(str, _FIRST_CAPABILITY))} or later, or leave {setting} out",
        param=setting,
    )


def quantize_blocks(module: nn.Module, name: str) -> None:
    """Turn the linears of every `QuantizableBlock` in `module` into `Fp8Linear`, one by one, freeing as it goes.

    What is in no block (embeddings, heads, projections in and out) stays. `name` is the module's, for errors. Raises
    ConfigError, with nothing changed, when a layer's sizes do not fit.
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
                f"quantize is fp8, and {path} has {child.in_features} inputs and {child.out_features} outputs, not "
                f"multiples of {_SIZE_MULTIPLE}; leave quantize out for this model",
                param="quantize",
            )
    while found:
        # Popped, so that nothing here holds the old weights.
        _, part, child_name, child = found.pop()
        setattr(part, child_name, Fp8Linear(child))
        del child


def quantize_models(talker: object, codec: object | None) -> None:
    """8-bit weights for a talker and a codec's decoder; recordings are encoded as they were. Raises ConfigError."""
    if isinstance(talker, nn.Module):
        quantize_blocks(talker, "talker")
    if isinstance(codec, nn.Module):
        quantize_blocks(codec.get_submodule("decoder"), "codec.decoder")
