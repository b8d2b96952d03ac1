"""Every operation in plain PyTorch: what the kernels are tested against, and what a CPU runs.

But for drawing and for attention over pages and rings: there a CPU has forms that prepare once what all layers share
(`models/sampling.py`, `kv_cache.py`, `codec_state.py`), to which the same goldens apply.

Letters as in `core.py`; M are rows of whatever batch, S slots of a cache. Operations write only into what they say.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hocket.models.noise import uniforms
from hocket.models.sampling import DrawRules
from hocket.models.sampling import draw as draw_by_rules

# ---- norms and activations. Each [..., D], rows contiguous.


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm (spec/moss 1.3): float32 inside, rounded to the dtype of `x` *before* the weight."""
    return F.rms_norm(x, (x.shape[-1],), None, eps) * weight_D


def add_rms_norm(x: Tensor, delta: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`x + delta`, rounded to their dtype, and the `rms_norm` of that."""
    total = x + delta
    return total, rms_norm(total, weight_D, eps)


def layer_norm(x: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    """Layer norm, float32 inside, in the dtype of `x`."""
    return F.layer_norm(x, (x.shape[-1],), weight_D, bias_D, eps)


def add_layer_norm(x: Tensor, delta: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`x + delta`, rounded to their dtype, and the `layer_norm` of that."""
    total = x + delta
    return total, layer_norm(total, weight_D, bias_D, eps)


def layer_norm_to(x: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`layer_norm` of a float32 residual stream, rounded to `dtype`."""
    return layer_norm(x, weight_D, bias_D, eps).to(dtype)


def scaled_add(x: Tensor, delta: Tensor, scale_D: Tensor) -> Tensor:
    """`x + scale * delta` of a float32 residual stream; `delta` may be of a lower precision."""
    return x + scale_D * delta


def scaled_add_layer_norm(
    x: Tensor, delta: Tensor, scale_D: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`scaled_add`, float32, and the `layer_norm` of that in the dtype of `delta`."""
    total = scaled_add(x, delta, scale_D)
    return total, layer_norm_to(total, weight_D, bias_D, eps, delta.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of [..., 2 F], gate first; silu is rounded before the product."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def gelu(x: Tensor) -> Tensor:
    """`x * Phi(x)`, Phi the normal distribution function (the form with erf): float32 inside, in the dtype of `x`."""
    return F.gelu(x)


# ---- FP8


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [M, K] as float8 e4m3 and float32 scales [M, 1], so that `x8.float() * scale` is about `x`.

    A row's largest magnitude becomes 448, e4m3's largest; a row of zeros has scale 1.
    """
    largest_M1 = x.float().abs().amax(-1, keepdim=True)
    scale_M1 = torch.where(largest_M1 > 0, largest_M1 / 448.0, 1.0)
    return (x.float() / scale_M1).clamp(-448.0, 448.0).to(torch.float8_e4m3fn), scale_M1


def rms_norm_fp8(x: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`quantize_rows` of the `rms_norm`."""
    return quantize_rows(rms_norm(x, weight_D, eps))


def add_rms_norm_fp8(x: Tensor, delta: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """`x + delta`, rounded to their dtype, and `quantize_rows` of its `rms_norm`."""
    total, normed = add_rms_norm(x, delta, weight_D, eps)
    return total, *quantize_rows(normed)


def silu_mul_fp8(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """`quantize_rows` of `silu_mul`."""
    return quantize_rows(silu_mul(gate_up))


def scale_product(product_MN: Tensor, scale_M1: Tensor, scale_N: Tensor, bias_N: Tensor | None) -> Tensor:
    """A product of two `quantize_rows`, in its dtype: scaled by both (float32) and with the bias, rounded once."""
    scaled_MN = product_MN.float() * scale_M1 * scale_N
    return (scaled_MN if bias_N is None else scaled_MN + bias_N.float()).to(product_MN.dtype)


# ---- embeddings


def embed_sum(text_VD: Tensor, codes_WD: Tensor, text_M: Tensor, ids_MN: Tensor) -> Tensor:
    """[M, D]: row `text_M` of one table plus rows `ids_MN` (int64) of another; a negative id adds nothing.

    Summed left to right in the tables' dtype, text first, so that bfloat16 rounds as officially (spec/moss 1.2).
    """
    x_MD = F.embedding(text_M, text_VD)
    for ids_M in ids_MN.unbind(-1):
        rows_MD = F.embedding(ids_M.clamp(min=0), codes_WD)
        x_MD = x_MD + rows_MD.masked_fill(ids_M[..., None] < 0, 0.0)
    return x_MD


# ---- attention of a backbone


def norm_rotate_append(
    qkv_ME: Tensor,
    q_weight_K: Tensor,
    k_weight_K: Tensor,
    eps: float,
    cos_MK: Tensor,
    sin_MK: Tensor,
    slots_M: Tensor,
    keys_SGK: Tensor,
    values_SGK: Tensor,
) -> Tensor:
    """Queries [M, H, K] and, in the slots `slots_M` (int64) of a cache, keys and values of M new rows.

    `qkv_ME` has H query heads, G key heads and G value heads of K channels one after another. Each query and key head
    gets an `rms_norm` (weights [K]), then rotates: `x * cos + x.roll(K / 2) * sin` (`models.layers.half_rope_tables`,
    in the dtype of `qkv_ME`; the products and the sum are each rounded to it).
    """
    groups, size = keys_SGK.shape[1:]
    qkv_MHK = qkv_ME.unflatten(-1, (-1, size))
    heads = qkv_MHK.shape[1] - 2 * groups
    # Queries and keys are normed and rotated as one: on a CPU that halves the small operations.
    qk_MHK, v_MGK = qkv_MHK.split((heads + groups, groups), 1)
    weight_HK = torch.cat((q_weight_K.expand(heads, -1), k_weight_K.expand(groups, -1)))
    qk_MHK = F.rms_norm(qk_MHK, (size,), None, eps) * weight_HK
    qk_MHK = qk_MHK * cos_MK[:, None] + qk_MHK.roll(size // 2, -1) * sin_MK[:, None]
    keys_SGK.index_copy_(0, slots_M, qk_MHK[:, heads:])
    values_SGK.index_copy_(0, slots_M, v_MGK)
    return qk_MHK[:, :heads]


def paged_attention(
    q_BTHK: Tensor,
    keys_NRGK: Tensor,
    values_NRGK: Tensor,
    page_table_BP: Tensor,
    starts_B: Tensor,
    counts_B: Tensor,
) -> Tensor:
    """Causal attention [B, T, H, K] of T new rows of B sequences over pages that have them already.

    Pages are [pages, page_rows, G, K]; `page_table_BP` (integers) names each sequence's in order; new row t stands at
    position `starts_B + t` and sees positions up to its own. Rows from `counts_B` on are padding: their outputs are
    finite and mean nothing. Memory that a sequence has not written may hold anything, NaN included.
    """
    heads = q_BTHK.shape[2]
    rows = q_BTHK.shape[1]
    device = q_BTHK.device
    page_rows = keys_NRGK.shape[1]
    length = page_table_BP.shape[1] * page_rows
    cached_L = torch.arange(length, device=device)
    positions_BT = starts_B[:, None] + torch.arange(rows, device=device)
    visible_B1TL = (cached_L <= positions_BT[..., None])[:, None]
    unwritten_BL11 = (cached_L >= (starts_B + counts_B)[:, None])[..., None, None]
    k_BLGK, v_BLGK = (
        pages.index_select(0, page_table_BP.long().flatten())
        .view(len(q_BTHK), length, *pages.shape[2:])
        .masked_fill(unwritten_BL11, 0.0)
        for pages in (keys_NRGK, values_NRGK)
    )
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BLGK.transpose(1, 2),
        v_BLGK.transpose(1, 2),
        attn_mask=visible_B1TL,
        enable_gqa=heads != k_BLGK.shape[2],
    )
    return out_BHTK.transpose(1, 2)


# ---- attention within a frame


def frame_attention(q_BTHK: Tensor, keys_BPGK: Tensor, values_BPGK: Tensor, start: int) -> Tensor:
    """Causal attention [B, T, H, K] of positions `start ..` over the positions up to each, which are in the cache.

    P is at most 32. T is 1, or `start` is 0.
    """
    end = start + q_BTHK.shape[1]
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        keys_BPGK[:, :end].transpose(1, 2),
        values_BPGK[:, :end].transpose(1, 2),
        is_causal=start == 0,
        enable_gqa=True,
    )
    return out_BHTK.transpose(1, 2)


def depth_attention(
    qkv_BE: Tensor, cos_K: Tensor, sin_K: Tensor, keys_BHPK: Tensor, values_BHPK: Tensor, position: int
) -> Tensor:
    """[B, H * K] of one position of a frame: queries and keys rotate, keys and values join the cache, queries attend.

    `qkv_BE` has queries, keys and values of H heads one after another. Rotation: `x * cos + swapped(x) * sin`, where
    channels 2j and 2j + 1 change places (`models.layers.pair_rope_tables`), products and sum rounded to the dtype of
    `qkv_BE`. Writes into the cache at `position`; sees positions 0 .. `position`.
    """
    heads, _, size = keys_BHPK.shape[1:]
    qkv_B3HK = qkv_BE.view(len(qkv_BE), 3, heads, size)
    qk_B2HK = qkv_B3HK[:, :2]
    qk_B2HK = qk_B2HK * cos_K + qk_B2HK.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) * sin_K
    keys_BHPK[:, :, position] = qk_B2HK[:, 1]
    values_BHPK[:, :, position] = qkv_B3HK[:, 2]
    seen = position + 1
    out_BH1K = F.scaled_dot_product_attention(
        qk_B2HK[:, 0].unsqueeze(2), keys_BHPK[:, :, :seen], values_BHPK[:, :, :seen]
    )
    return out_BH1K.flatten(1)


# ---- drawing codes


def draw(
    logits_BV: Tensor,
    temperature_B: Tensor,
    top_p_B: Tensor,
    top_k_B: Tensor,
    penalty_B: Tensor | None,
    seen_BV: Tensor | None,
    seed_B: Tensor,
    frame_B: Tensor,
    slot: int,
) -> Tensor:
    """int64 [B]: a code of each row by `models.sampling.draw`, with the noise of (seed, frame, slot).

    Parameters as in `models.sampling.SamplingBatch`. `penalty_B` and `seen_BV` (bool) are given together.
    """
    rules = DrawRules.of(temperature_B, top_p_B, top_k_B, torch.ones_like(top_p_B) if penalty_B is None else penalty_B)
    return draw_by_rules(logits_BV, uniforms(seed_B, frame_B, slot + 1)[:, slot], rules, seen_BV)


def draw_and_embed(
    logits_BV: Tensor,
    temperature_B: Tensor,
    top_p_B: Tensor,
    top_k_B: Tensor,
    penalty_B: Tensor | None,
    seen_BV: Tensor | None,
    seed_B: Tensor,
    frame_B: Tensor,
    slot: int,
    table_VD: Tensor,
) -> tuple[Tensor, Tensor]:
    """`draw`, and the rows [B, D] of a table that the codes name."""
    code_B = draw(logits_BV, temperature_B, top_p_B, top_k_B, penalty_B, seen_BV, seed_B, frame_B, slot)
    return code_B, F.embedding(code_B, table_VD)


# ---- attention of a codec


def rotate_append(
    qkv_BTE: Tensor,
    cos_BTJ: Tensor,
    sin_BTJ: Tensor,
    rows_B: Tensor,
    starts_B: Tensor,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> Tensor:
    """Queries [B, T, H, K] and, in the rings of `rows_B`, keys and values of T new tokens from position `starts_B` on.

    `qkv_BTE` has queries, keys and values of H heads one after another. The channel pair (2j, 2j + 1), as a complex
    number, is multiplied by cos + i sin (float32 [B or 1, T, K / 2]) in float32, and rounded to the dtype of the rings.
    Position p goes to slot p mod C.
    """
    capacity, heads, size = keys_RCHK.shape[1:]
    batch, tokens = qkv_BTE.shape[:2]
    qkv_BT3HK = qkv_BTE.view(batch, tokens, 3, heads, size)
    pairs = qkv_BT3HK[:, :, :2].float().unflatten(-1, (-1, 2))
    even, odd = pairs.unbind(-1)
    cos, sin = cos_BTJ[:, :, None, None], sin_BTJ[:, :, None, None]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(keys_RCHK.dtype)
    q_BTHK, k_BTHK = turned.unbind(2)
    positions_BT = starts_B[:, None] + torch.arange(tokens, device=qkv_BTE.device)
    slots = (rows_B[:, None] * capacity + positions_BT % capacity).flatten()
    keys_RCHK.flatten(0, 1).index_copy_(0, slots, k_BTHK.flatten(0, 1))
    values_RCHK.flatten(0, 1).index_copy_(0, slots, qkv_BT3HK[:, :, 2].flatten(0, 1))
    return q_BTHK


def ring_attention(
    q_BTHK: Tensor, keys_RCHK: Tensor, values_RCHK: Tensor, rows_B: Tensor, starts_B: Tensor, context: int
) -> Tensor:
    """[B, T, H, K]: each new token attends to the `context` positions up to its own, of those that exist (0 and on).

    The new tokens are in the rings already. A slot whose position does not exist is never loaded, whatever it holds.
    C is at least context + T - 1.
    """
    capacity = keys_RCHK.shape[1]
    tokens, past = q_BTHK.shape[1], context - 1
    start_B1 = starts_B[:, None]
    keys_BL = start_B1 + torch.arange(-past, tokens, device=q_BTHK.device)
    exists_BL = keys_BL >= 0
    slots_BL = rows_B[:, None] * capacity + torch.where(exists_BL, keys_BL, start_B1) % capacity
    band_TL = torch.ones(tokens, past + tokens, dtype=torch.bool, device=q_BTHK.device).triu_().tril_(past)
    k_BLHK, v_BLHK = (
        ring.flatten(0, 1).index_select(0, slots_BL.flatten()).view(*slots_BL.shape, *ring.shape[2:])
        for ring in (keys_RCHK, values_RCHK)
    )
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BLHK.transpose(1, 2),
        v_BLHK.transpose(1, 2),
        attn_mask=(band_TL & exists_BL[:, None])[:, None],
    )
    return out_BHTK.transpose(1, 2)


# ---- attention of a codec, packed: chunks of S streams one behind the other without padding between them, of F frames.
# Every frame has n tokens, and M = F * n; tables are contiguous.


def rotate_append_packed(
    qkv_ME: Tensor,
    cos_MJ: Tensor,
    sin_MJ: Tensor,
    frame_rows_F: Tensor,
    frame_positions_F: Tensor,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
) -> Tensor:
    """Queries [M, H, K] and, in the rings `frame_rows_F`, keys and values of frames: `rotate_append` for each.

    `frame_positions_F` (int64) counts frames since the start of a stream. A frame of row -1 is padding: nothing of it
    is stored, and its queries mean nothing, but are finite if its tokens are.
    """
    heads, size = keys_RCHK.shape[2:]
    tokens = len(qkv_ME) // len(frame_rows_F)
    qkv_FTE, cos_FTJ, sin_FTJ = (x.unflatten(0, (-1, tokens)) for x in (qkv_ME, cos_MJ, sin_MJ))
    real_F = frame_rows_F >= 0
    q_FTHK = keys_RCHK.new_zeros(len(frame_rows_F), tokens, heads, size)
    chunks = (x[real_F] for x in (qkv_FTE, cos_FTJ, sin_FTJ, frame_rows_F, frame_positions_F * tokens))
    q_FTHK[real_F] = rotate_append(*chunks, keys_RCHK, values_RCHK)
    return q_FTHK.flatten(0, 1)


def ring_attention_packed(
    q_MHK: Tensor,
    keys_RCHK: Tensor,
    values_RCHK: Tensor,
    rows_S: Tensor,
    starts_S: Tensor,
    counts_S: Tensor,
    firsts_S: Tensor,
    tokens_per_frame: int,
    max_frames: int,
    context: int,
) -> Tensor:
    """[M, H, K]: `ring_attention` of streams of 0 to `max_frames` frames each; tokens of no stream get zeros.

    int64 [S], all in frames: how many stream s has seen before (`starts_S`), how many it has now (`counts_S`), and
    where in the pack they begin (`firsts_S`). C is at least context + max_frames * tokens_per_frame - 1.
    """
    out_MHK = torch.zeros_like(q_MHK)
    for stream, (first, count) in enumerate(zip(firsts_S.tolist(), counts_S.tolist(), strict=True)):
        if count:
            chunk = slice(first * tokens_per_frame, (first + count) * tokens_per_frame)
            row_1, start_1 = rows_S[stream, None], starts_S[stream, None] * tokens_per_frame
            out_MHK[chunk] = ring_attention(q_MHK[None, chunk], keys_RCHK, values_RCHK, row_1, start_1, context)[0]
    return out_MHK


# ---- activation of a codec


def snake(x_BCT: Tensor, rate_C1: Tensor, gain_C1: Tensor) -> Tensor:
    """`x + sin(rate * x) ** 2 * gain` per channel (spec/qwen3 9), float32 inside, in the dtype of `x_BCT`."""
    wide = x_BCT.float()
    return torch.addcmul(wide, (wide * rate_C1).sin_().square_(), gain_C1).to(x_BCT.dtype)
