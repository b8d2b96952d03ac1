"""Which kernel stands for which plain operation."""

from __future__ import annotations

from collections.abc import Callable

from hocket.kernels import (
    elementwise,
    frame_attention,
    norms,
    paged_attention,
    reference,
    ring_append,
    ring_attention,
    rotary,
    sampler,
    scale_product,
    snake,
)

KERNELS: dict[Callable[..., object], Callable[..., object]] = {
    reference.rms_norm: norms.rms_norm,
    reference.add_rms_norm: norms.add_rms_norm,
    reference.rms_norm_fp8: norms.rms_norm_fp8,
    reference.add_rms_norm_fp8: norms.add_rms_norm_fp8,
    reference.layer_norm: norms.layer_norm,
    reference.add_layer_norm: norms.add_layer_norm,
    reference.layer_norm_to: norms.layer_norm_to,
    reference.scaled_add: norms.scaled_add,
    reference.scaled_add_layer_norm: norms.scaled_add_layer_norm,
    reference.silu_mul: elementwise.silu_mul,
    reference.silu_mul_fp8: elementwise.silu_mul_fp8,
    reference.gelu: elementwise.gelu,
    reference.quantize_rows: elementwise.quantize_rows,
    reference.scale_product: scale_product.scale_product,
    reference.embed_sum: elementwise.embed_sum,
    reference.norm_rotate_append: rotary.norm_rotate_append,
    reference.paged_attention: paged_attention.paged_attention,
    reference.frame_attention: frame_attention.frame_attention,
    reference.depth_attention: frame_attention.depth_attention,
    reference.draw: sampler.draw,
    reference.draw_and_embed: sampler.draw_and_embed,
    reference.rotate_append: ring_append.rotate_append,
    reference.ring_attention: ring_attention.ring_attention,
    reference.rotate_append_packed: ring_append.rotate_append_packed,
    reference.ring_attention_packed: ring_attention.ring_attention_packed,
    reference.snake: snake.snake,
}
