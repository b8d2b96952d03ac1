"""The operations that models call, and the only place that decides which implementation of one
runs.

An operation has up to three columns with one signature: `reference` says in plain PyTorch what it
computes, `cpu` is a faster form of it on a CPU (the reference itself where there is none), and
`gpu` launches a Triton kernel. There is no fallback: a kernel that cannot run raises.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, cast

import torch

from hocket.kernels import cpu
from hocket.kernels.reference import conv, rings, sampling, talker


class OnDevice(Protocol):
    """An operation's first argument: a tensor, or a type of `kernels.types` made of tensors of one
    device.
    """

    @property
    def device(self) -> torch.device: ...


_First = TypeVar("_First", bound=OnDevice)
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result", covariant=True)
Column = Literal["reference", "cpu", "gpu"]

#: Compared as an object: `device.type` makes a string, which takes ten times as long.
_CPU = torch.device("cpu")


def column_of(device: torch.device) -> Column:
    """Kernels run on a GPU in inference mode, where the engine runs models; gradients need the
    reference.
    """
    if device == _CPU:
        return "cpu"
    return "gpu" if torch.is_inference_mode_enabled() else "reference"


class Operation(Generic[_First, _Rest, _Result]):
    """One operation; calling it runs the column of its first argument's device."""

    def __init__(
        self,
        reference: Callable[Concatenate[_First, _Rest], _Result],
        cpu: Callable[Concatenate[_First, _Rest], _Result],
        gpu: str,
    ) -> None:
        self.name = gpu.partition(":")[2]
        self.reference = reference
        self.cpu = cpu
        self._gpu_path = gpu

    @functools.cached_property
    def gpu(self) -> Callable[Concatenate[_First, _Rest], _Result]:
        """The kernel, imported when it is first used: Triton comes with PyTorch for GPUs alone."""
        module, _, name = self._gpu_path.partition(":")
        kernel = getattr(importlib.import_module(module), name)
        return cast("Callable[Concatenate[_First, _Rest], _Result]", kernel)

    def __call__(self, first: _First, /, *rest: _Rest.args, **named: _Rest.kwargs) -> _Result:
        device = first.device
        column = column_of(device)
        if column == "cpu":
            return self.cpu(first, *rest, **named)
        if column == "reference":
            return self.reference(first, *rest, **named)
        # Triton launches on the current GPU, wherever its arguments are.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            return self.gpu(first, *rest, **named)


def operation(
    reference: Callable[Concatenate[_First, _Rest], _Result],
    *,
    gpu: str,
    cpu: Callable[Concatenate[_First, _Rest], _Result] | None = None,
) -> Operation[_First, _Rest, _Result]:
    """Declares an operation. `gpu` is "module:function" in `kernels.gpu`."""
    return Operation(reference, cpu or reference, f"hocket.kernels.gpu.{gpu}")


# Norms, activations and FP8
add_rms_norm = operation(talker.add_rms_norm, gpu="norms:add_rms_norm")
add_layer_norm = operation(talker.add_layer_norm, gpu="norms:add_layer_norm")
layer_norm_to = operation(talker.layer_norm_to, gpu="norms:layer_norm_to")
scaled_add = operation(talker.scaled_add, gpu="norms:scaled_add")
scaled_add_layer_norm = operation(talker.scaled_add_layer_norm, gpu="norms:scaled_add_layer_norm")
scaled_add_rms_norm = operation(talker.scaled_add_rms_norm, gpu="norms:scaled_add_rms_norm")
silu_mul = operation(talker.silu_mul, gpu="elementwise:silu_mul")
silu = operation(talker.silu, gpu="elementwise:silu")
gelu = operation(talker.gelu, gpu="elementwise:gelu")
quantize_rows = operation(talker.quantize_rows, gpu="elementwise:quantize_rows")

# A talker
embed_sum = operation(talker.embed_sum, gpu="elementwise:embed_sum")
norm_rotate_append = operation(talker.norm_rotate_append, gpu="rotary:norm_rotate_append")
paged_attention = operation(
    talker.paged_attention, cpu=cpu.paged_attention, gpu="paged_attention:paged_attention"
)
frame_attention = operation(talker.frame_attention, gpu="frame_attention:frame_attention")
depth_attention = operation(talker.depth_attention, gpu="frame_attention:depth_attention")
draw = operation(sampling.draw, cpu=cpu.draw, gpu="sampler:draw")
draw_and_embed = operation(
    sampling.draw_and_embed, cpu=cpu.draw_and_embed, gpu="sampler:draw_and_embed"
)

# A codec's packed chunks
pair_turns = operation(rings.pair_turns, cpu=cpu.pair_turns, gpu="ring_append:pair_turns")
append_rotated = operation(
    rings.append_rotated, cpu=cpu.append_rotated, gpu="ring_append:append_rotated"
)
ring_attention = operation(
    rings.ring_attention, cpu=cpu.ring_attention, gpu="ring_attention:ring_attention"
)
copy_rings = operation(rings.copy_rings, gpu="ring_append:copy_rings")
causal_conv = operation(conv.causal_conv, gpu="causal_conv:causal_conv")
depthwise_conv = operation(conv.depthwise_conv, gpu="causal_conv:depthwise_conv")
keep_tail = operation(conv.keep_tail, gpu="causal_conv:keep_tail")
