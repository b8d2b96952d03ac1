"""Which kernel stands for which plain operation."""

from __future__ import annotations

from collections.abc import Callable

from hocket.kernels.gpu import (
    causal_conv,
    elementwise,
    frame_attention,
    norms,
    paged_attention,
    ring_append,
    ring_attention,
    ring_copy,
    rotary,
    sampler,
    scaled_rms_norm,
)
from hocket.kernels.reference import conv as reference_conv
from hocket.kernels.reference import rings as reference_rings
from hocket.kernels.reference import talker as reference

KERNELS: dict[Callable[..., object], Callable[..., object]] = {
    reference.add_rms_norm: norms.add_rms_norm,
    reference.add_layer_norm: norms.add_layer_norm,
    reference.layer_norm_to: norms.layer_norm_to,
    reference.scaled_add: norms.scaled_add,
    reference.scaled_add_layer_norm: norms.scaled_add_layer_norm,
    reference.silu_mul: elementwise.silu_mul,
    reference.silu: elementwise.silu,
    reference.gelu: elementwise.gelu,
    reference.quantize_rows: elementwise.quantize_rows,
    reference.embed_sum: elementwise.embed_sum,
    reference.norm_rotate_append: rotary.norm_rotate_append,
    reference.paged_attention: paged_attention.paged_attention,
    reference.frame_attention: frame_attention.frame_attention,
    reference.depth_attention: frame_attention.depth_attention,
    reference.draw: sampler.draw,
    reference.draw_and_embed: sampler.draw_and_embed,
    reference_rings.pair_turns: ring_append.pair_turns,
    reference_rings.append_rotated: ring_append.append_rotated,
    reference_rings.ring_attention: ring_attention.ring_attention,
    reference_rings.copy_rings: ring_copy.copy_rings,
    reference.scaled_add_rms_norm: scaled_rms_norm.scaled_add_rms_norm,
    reference_conv.causal_conv: causal_conv.causal_conv,
    reference_conv.depthwise_conv: causal_conv.depthwise_conv,
    reference_conv.keep_tail: causal_conv.keep_tail,
}
