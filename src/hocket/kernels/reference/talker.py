"""Every operation in plain PyTorch: what the kernels are tested against, and what a CPU runs.

A CPU draws, and attends over pages and rings, by other forms, which prepare once what all layers
share (`kernels.cpu`).

Letters as in `core.py`; M are rows of whatever batch, S slots of a cache. Operations write only
into what they say.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hocket.kernels.types import PagedPlan, Rows8, Scaled, plain

# ---- norms, activations and FP8. Each [..., D], rows contiguous. With `to_fp8` the last result is
# `quantize_rows`.


def quantize_rows(x: Tensor) -> Rows8:
    """Rows [..., K] as float8 e4m3 with float32 scales [..., 1]; `values.float() * scales`
    approximates `x`.

    A row's largest magnitude becomes 448, e4m3's largest: rows are multiplied by the inverse of
    their scale. Scales and inverses are kept normal numbers, so rows under 5e-36 stay smaller, and
    a row of zeros is one.
    """
    largest = x.float().abs().amax(-1, keepdim=True).clamp(min=448.0 * 2.0**-126)
    inverse = torch.full_like(largest, 448.0) / largest
    return Rows8((x.float() * inverse).to(torch.float8_e4m3fn), largest / 448.0)


def _finished(x: Tensor, to_fp8: bool) -> Tensor | Rows8:
    return quantize_rows(x) if to_fp8 else x


def add_rms_norm(
    x: Tensor, delta: Tensor | Scaled | None, weight_D: Tensor, eps: float, to_fp8: bool = False
) -> tuple[Tensor, Tensor | Rows8]:
    """`x + delta`, rounded to their dtype (`x` itself without a delta), and the root-mean-square
    norm of that.

    The norm (sources: MOSS 1.3) is float32 inside, rounded to the dtype of `x` *before* the weight
    multiplies.
    """
    total = x if delta is None else x + plain(delta)
    return total, _finished(F.rms_norm(total, (x.shape[-1],), None, eps) * weight_D, to_fp8)


def add_layer_norm(
    x: Tensor,
    delta: Tensor | Scaled | None,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    to_fp8: bool = False,
) -> tuple[Tensor, Tensor | Rows8]:
    """`x + delta`, rounded to their dtype (`x` itself without a delta), and the layer norm of that,
    float32 inside.
    """
    total = x if delta is None else x + plain(delta)
    return total, _finished(F.layer_norm(total, (x.shape[-1],), weight_D, bias_D, eps), to_fp8)


def layer_norm_to(
    x: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    dtype: torch.dtype,
    to_fp8: bool = False,
) -> Tensor | Rows8:
    """Layer norm of a float32 residual stream, rounded to `dtype`."""
    return _finished(F.layer_norm(x, (x.shape[-1],), weight_D, bias_D, eps).to(dtype), to_fp8)


def scaled_add(x: Tensor, delta: Tensor | Scaled, scale_D: Tensor) -> Tensor:
    """`x + scale * delta` of a float32 residual stream; `delta` may be of a lower precision."""
    return x + scale_D * plain(delta)


def scaled_add_layer_norm(
    x: Tensor,
    delta: Tensor | Scaled,
    scale_D: Tensor,
    weight_D: Tensor,
    bias_D: Tensor,
    eps: float,
    to_fp8: bool = False,
) -> tuple[Tensor, Tensor | Rows8]:
    """`scaled_add`, float32, and the `layer_norm_to` of that in the dtype of `delta`."""
    total = scaled_add(x, delta, scale_D)
    return total, layer_norm_to(total, weight_D, bias_D, eps, delta.dtype, to_fp8)


def _activation_input(x: Tensor | Scaled, to_fp8: bool) -> Tensor:
    """`x` dequantised. With `to_fp8` it stays float32: nothing is rounded before the 8 bits."""
    if not to_fp8:
        return plain(x)
    return x.wide() if isinstance(x, Scaled) else x.float()


def scaled_add_rms_norm(
    x: Tensor,
    delta: Tensor | None,
    scale_D: Tensor | None,
    weight_D: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """`scaled_add`, float32 (`x` itself without `delta` and scale), and the `rms_norm` of that in
    `dtype`.
    """
    total = x if delta is None or scale_D is None else x + scale_D * delta
    return total, F.rms_norm(total, (total.shape[-1],), weight_D, eps).to(dtype)


def silu_mul(gate_up: Tensor | Scaled, to_fp8: bool = False) -> Tensor | Rows8:
    """`silu(gate) * up` of [..., 2 F], gate first; silu is rounded before the product."""
    gate, up = _activation_input(gate_up, to_fp8).chunk(2, -1)
    return _finished(F.silu(gate) * up, to_fp8)


def silu(x: Tensor | Scaled, to_fp8: bool = False) -> Tensor | Rows8:
    """`x / (1 + exp(-x))`, float32 inside, in the dtype of `x`."""
    return _finished(F.silu(_activation_input(x, to_fp8)), to_fp8)


def gelu(x: Tensor | Scaled, to_fp8: bool = False) -> Tensor | Rows8:
    """`x * Phi(x)`, Phi the normal distribution function (the form with erf): float32 inside, in
    the dtype of `x`.
    """
    return _finished(F.gelu(_activation_input(x, to_fp8)), to_fp8)


# ---- embeddings


def embed_sum(text_VD: Tensor, codes_WD: Tensor, text_M: Tensor, ids_MN: Tensor) -> Tensor:
    """[M, D]: row `text_M` of one table plus rows `ids_MN` (int64) of another; a negative id adds
    nothing.

    Summed left to right in the tables' dtype, text first, so that bfloat16 rounds as officially
    (sources: MOSS 1.2).
    """
    x_MD = F.embedding(text_M, text_VD)
    for ids_M in ids_MN.unbind(-1):
        rows_MD = F.embedding(ids_M.clamp(min=0), codes_WD)
        x_MD = x_MD + rows_MD.masked_fill(ids_M[..., None] < 0, 0.0)
    return x_MD


# ---- attention of a backbone


def quantize_heads(x_MGK: Tensor) -> tuple[Tensor, Tensor]:
    """Heads as float8 e4m3 and their scales, bfloat16 [M, G], so that `x8 * scale` is about `x`.

    A scale is the smallest power of two, from 2^-32 on, that brings its head within 448. It scales
    exactly, and costs no precision: e4m3's own exponents reach from a head's largest channel down
    to one 14,000 times smaller.
    """
    bits_MG = x_MGK.float().abs().amax(-1).view(torch.int32)
    # 448 is 1.75 * 2^8: a mantissa over 1.75 carries into the exponent.
    exponent_MG = (((bits_MG + 0x1FFFFF) >> 23) - 8).clamp(min=95)
    scale_MG = (exponent_MG << 23).view(torch.float32)
    return (x_MGK.float() / scale_MG[..., None]).to(torch.float8_e4m3fn), scale_MG.bfloat16()


def norm_rotate_append(
    qkv_ME: Tensor | Scaled,
    q_weight_K: Tensor,
    k_weight_K: Tensor,
    eps: float,
    cos_MK: Tensor,
    sin_MK: Tensor,
    slots_M: Tensor,
    keys_SGK: Tensor,
    values_SGK: Tensor,
    scales_NGR2: Tensor | None = None,
) -> Tensor:
    """Queries [M, H, K] and, in the slots `slots_M` (int64) of a cache, keys and values of M new
    rows.

    `qkv_ME` has H query heads, G key heads and G value heads of K channels (an even number) one
    after another. Each query and key head gets an `rms_norm` (weights [K]), then rotates: `x * cos
    + x.roll(K / 2) * sin` (`models.layers.half_rope_tables`, in the dtype of `qkv_ME`; the products
    and the sum are each rounded to it). With scales the cache is of float8 e4m3, and heads are kept
    as `quantize_heads` makes them: the scales of row r of page n, the key's and the value's, are
    `scales_NGR2[n, :, r]`, and the row's slot is n * R + r.
    """
    qkv_ME = plain(qkv_ME)
    groups, size = keys_SGK.shape[1:]
    qkv_MHK = torch.unflatten(qkv_ME, -1, (-1, size))
    heads = qkv_MHK.shape[1] - 2 * groups
    # Queries and keys are normed and rotated as one: on a CPU that halves the small operations.
    qk_MHK, v_MGK = qkv_MHK[:, : heads + groups], qkv_MHK[:, heads + groups :]
    weight_HK = torch.cat((q_weight_K.expand(heads, -1), k_weight_K.expand(groups, -1)))
    qk_MHK = F.rms_norm(qk_MHK, (size,), None, eps) * weight_HK
    qk_MHK = qk_MHK * cos_MK[:, None] + qk_MHK.roll(size // 2, -1) * sin_MK[:, None]
    k_MGK = qk_MHK[:, heads:]
    if scales_NGR2 is not None:
        page_rows = scales_NGR2.shape[2]
        (k_MGK, k_scale_MG), (v_MGK, v_scale_MG) = quantize_heads(k_MGK), quantize_heads(v_MGK)
        scales_MG2 = torch.stack((k_scale_MG, v_scale_MG), -1)
        scales_NGR2.transpose(1, 2)[slots_M // page_rows, slots_M % page_rows] = scales_MG2
        # A CPU copies float8 by index as bytes only.
        k_MGK, v_MGK, keys_SGK, values_SGK = (
            x.view(torch.uint8) for x in (k_MGK, v_MGK, keys_SGK, values_SGK)
        )
    keys_SGK.index_copy_(0, slots_M, k_MGK)
    values_SGK.index_copy_(0, slots_M, v_MGK)
    return qk_MHK[:, :heads]


def paged_attention(
    q_BTHK: Tensor,
    keys_NRGK: Tensor,
    values_NRGK: Tensor,
    plan: PagedPlan,
    scales_NGR2: Tensor | None = None,
) -> Tensor:
    """Causal attention [B, T, H, K] of T new rows of B sequences over pages that have them already.

    Pages are [pages, page_rows, G, K], with scales (bfloat16; those of a key, then of a value) of
    float8 e4m3. New row t of a sequence stands at position `starts_B + t` of `plan.batch` and sees
    positions up to its own. Rows from `counts_B` on are padding: their outputs are finite and mean
    nothing. Memory that a sequence has not written may hold anything, NaN included.
    """
    page_table_BP, starts_B, counts_B = (
        plan.batch.page_table_BP,
        plan.batch.starts_B,
        plan.batch.counts_B,
    )
    heads = q_BTHK.shape[2]
    rows = q_BTHK.shape[1]
    device = q_BTHK.device
    page_rows = keys_NRGK.shape[1]
    length = page_table_BP.shape[1] * page_rows
    cached_L = torch.arange(length, device=device)
    positions_BT = starts_B[:, None] + torch.arange(rows, device=device)
    visible_B1TL = (cached_L <= positions_BT[..., None])[:, None]
    unwritten_BL11 = (cached_L >= (starts_B + counts_B)[:, None])[..., None, None]
    scales = (None, None) if scales_NGR2 is None else scales_NGR2.unbind(-1)
    k_BLGK, v_BLGK = (
        gather_pages(pages, scales_NGR, page_table_BP, q_BTHK.dtype).masked_fill(
            unwritten_BL11, 0.0
        )
        for pages, scales_NGR in zip((keys_NRGK, values_NRGK), scales, strict=True)
    )
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BLGK.transpose(1, 2),
        v_BLGK.transpose(1, 2),
        attn_mask=visible_B1TL,
        enable_gqa=heads != k_BLGK.shape[2],
    )
    return out_BHTK.transpose(1, 2)


def gather_pages(
    pages_NRGK: Tensor, scales_NGR: Tensor | None, page_table_BP: Tensor, dtype: torch.dtype
) -> Tensor:
    """[B, L, G, K] of the rows of each sequence's pages in order, float8 ones times their scales,
    in `dtype`.
    """
    batch, table = len(page_table_BP), page_table_BP.flatten()
    rows_BLGK = pages_NRGK.index_select(0, table).view(batch, -1, *pages_NRGK.shape[2:])
    if scales_NGR is None:
        return rows_BLGK
    scales_BLG = (
        scales_NGR.index_select(0, table).transpose(1, 2).reshape(batch, -1, pages_NRGK.shape[2])
    )
    return (rows_BLGK.float() * scales_BLG[..., None]).to(dtype)


# ---- attention within a frame


def frame_attention(
    qkv_BTE: Tensor | Scaled,
    q_weight_K: Tensor,
    k_weight_K: Tensor,
    eps: float,
    cos_PK: Tensor,
    sin_PK: Tensor,
    keys_BPGK: Tensor,
    values_BPGK: Tensor,
    start: int,
) -> Tensor:
    """[B, T, H * K] of positions `start ..` of a frame, the same in all rows: `norm_rotate_append`,
    then attention.

    Tables are those of all positions. Keys and values join the cache; a query sees the positions up
    to its own. P is at most 32. T is 1, or `start` is 0.
    """
    (batch, tokens, _), (positions, groups, size) = qkv_BTE.shape, keys_BPGK.shape[1:]
    end = start + tokens
    places_T = torch.arange(start, end, device=keys_BPGK.device)
    slots_BT = torch.arange(batch, device=keys_BPGK.device)[:, None] * positions + places_T
    cos_MK, sin_MK = (table_PK[start:end].repeat(batch, 1) for table_PK in (cos_PK, sin_PK))
    keys_SGK, values_SGK = (
        cache_BPGK.view(-1, groups, size) for cache_BPGK in (keys_BPGK, values_BPGK)
    )
    q_MHK = norm_rotate_append(
        plain(qkv_BTE).flatten(0, 1),
        q_weight_K,
        k_weight_K,
        eps,
        cos_MK,
        sin_MK,
        slots_BT.flatten(),
        keys_SGK,
        values_SGK,
    )
    out_BHTK = F.scaled_dot_product_attention(
        torch.unflatten(q_MHK, 0, (batch, tokens)).transpose(1, 2),
        keys_BPGK[:, :end].transpose(1, 2),
        values_BPGK[:, :end].transpose(1, 2),
        is_causal=start == 0,
        enable_gqa=q_MHK.shape[1] != groups,
    )
    return out_BHTK.transpose(1, 2).flatten(2)


def depth_attention(
    qkv_BE: Tensor | Scaled,
    cos_K: Tensor,
    sin_K: Tensor,
    keys_BHPK: Tensor,
    values_BHPK: Tensor,
    position: int,
) -> Tensor:
    """[B, H * K] of one position of a frame: queries and keys rotate, keys and values join the
    cache, queries attend.

    `qkv_BE` has queries, keys and values of H heads one after another. Rotation: `x * cos +
    swapped(x) * sin`, where channels 2j and 2j + 1 swap (`models.layers.pair_rope_tables`),
    products and sum rounded to the dtype of `qkv_BE`. Writes into the cache at `position`; sees
    positions 0 .. `position`.
    """
    heads, _, size = keys_BHPK.shape[1:]
    qkv_B3HK = plain(qkv_BE).view(-1, 3, heads, size)
    qk_B2HK = qkv_B3HK[:, :2]
    qk_B2HK = qk_B2HK * cos_K + torch.unflatten(qk_B2HK, -1, (-1, 2)).flip(-1).flatten(-2) * sin_K
    keys_BHPK[:, :, position] = qk_B2HK[:, 1]
    values_BHPK[:, :, position] = qkv_B3HK[:, 2]
    seen = position + 1
    out_BH1K = F.scaled_dot_product_attention(
        qk_B2HK[:, 0].unsqueeze(2), keys_BHPK[:, :, :seen], values_BHPK[:, :, :seen]
    )
    return out_BH1K.flatten(1)
