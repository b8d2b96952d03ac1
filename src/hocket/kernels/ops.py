"""The operations that models call: kernels on a GPU; on a CPU, and where gradients may be wanted, plain PyTorch.

There is no fallback: a kernel that cannot run raises.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import Tensor

from hocket.kernels.reference import conv as reference_conv
from hocket.kernels.reference import rings as reference_rings
from hocket.kernels.reference import talker as reference
from hocket.kernels.types.packed import Chunks
from hocket.kernels.types.scaled import Scaled

_F = TypeVar("_F", bound=Callable[..., object])


def use_kernels(x: Tensor | Scaled | Chunks) -> bool:
    """Whether operations on `x` run as kernels: on a GPU, in inference mode, which is where the engine runs models."""
    return x.device.type != "cpu" and torch.is_inference_mode_enabled()


@functools.cache
def _kernels() -> dict[Callable[..., object], Callable[..., object]]:
    # Here, because Triton is there only where PyTorch has been built for GPUs.
    from hocket.kernels.gpu.compiled import KERNELS

    return KERNELS


def _operation(twin: _F) -> _F:
    """`twin`, or its kernel where kernels are used; its first argument says which."""

    @functools.wraps(twin)
    def call(first: Tensor | Scaled | Chunks, *rest: object) -> object:
        if not use_kernels(first):
            return twin(first, *rest)
        # Triton launches on the current GPU, wherever its arguments are.
        with torch.cuda.device(first.device) if first.device.type == "cuda" else contextlib.nullcontext():
            return _kernels()[twin](first, *rest)

    return cast("_F", call)


add_rms_norm = _operation(reference.add_rms_norm)
add_layer_norm = _operation(reference.add_layer_norm)
layer_norm_to = _operation(reference.layer_norm_to)
scaled_add = _operation(reference.scaled_add)
scaled_add_layer_norm = _operation(reference.scaled_add_layer_norm)
silu_mul = _operation(reference.silu_mul)
silu = _operation(reference.silu)
gelu = _operation(reference.gelu)
quantize_rows = _operation(reference.quantize_rows)
embed_sum = _operation(reference.embed_sum)
norm_rotate_append = _operation(reference.norm_rotate_append)
paged_attention = _operation(reference.paged_attention)
frame_attention = _operation(reference.frame_attention)
depth_attention = _operation(reference.depth_attention)
draw = _operation(reference.draw)
draw_and_embed = _operation(reference.draw_and_embed)
pair_turns = _operation(reference_rings.pair_turns)
append_rotated = _operation(reference_rings.append_rotated)
ring_attention = _operation(reference_rings.ring_attention)
copy_rings = _operation(reference_rings.copy_rings)
scaled_add_rms_norm = _operation(reference.scaled_add_rms_norm)
causal_conv = _operation(reference_conv.causal_conv)
depthwise_conv = _operation(reference_conv.depthwise_conv)
keep_tail = _operation(reference_conv.keep_tail)
