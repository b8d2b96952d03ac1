"""A talker that babbles: MOSS-TTS-Local's layout at a tiny size with random weights, for the codec
of the package.

Tests that need a checkpoint and no sense use it (fixture `babble`): it loads in no time and stops
after some 3 s of speech. Its codes are random; the same seed makes the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Array = NDArray[np.float32]

SAMPLE_RATE = 24_000
#: Shape of the trained codec beside it.
N_VQ, CODEBOOK = 10, 1024
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 128, 4, 4, 2, 32, 256
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|user_slot|>",
    "<|gen_slot|>",
]
VOCAB = 256 + len(SPECIAL)
#: A frame ends the speech with this probability: about 3 s of babble.
STOP_PROBABILITY = 1 / 38


def byte_alphabet() -> list[str]:
    """The printable stand-in of each byte value that byte-level tokenizers use, in byte order."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def tokenizer() -> dict[str, object]:
    """A byte-level BPE without merges: one token a byte, then the special ones."""
    added = [
        {
            "id": 256 + i,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, name in enumerate(SPECIAL)
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    vocab = {symbol: i for i, symbol in enumerate(byte_alphabet())}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {**model, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []},
    }


def talker_config() -> dict[str, object]:
    qwen3 = {
        "model_type": "qwen3",
        "vocab_size": VOCAB,
        "max_position_embeddings": 8192,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
    }
    gpt2 = {
        "model_type": "gpt2",
        "n_embd": HIDDEN,
        "n_head": 4,
        "n_inner": FFN,
        "n_layer": 1,
        "n_positions": N_VQ + 1,
        "activation_function": "silu",
        "layer_norm_epsilon": 1e-6,
        "position_embedding_type": "rope",
        "rope_base": 1e6,
    }
    ids = {name: 256 + i for i, name in enumerate(SPECIAL)}
    return {
        "architectures": ["MossTTSLocalModel"],
        "model_type": "moss_tts_local",
        "qwen3_config": qwen3,
        "language_config": qwen3,
        "gpt2_config": gpt2,
        "n_vq": N_VQ,
        "audio_codebook_sizes": [CODEBOOK] * N_VQ,
        "audio_vocab_size": CODEBOOK,
        "audio_pad_token_id": CODEBOOK,
        "audio_pad_code": CODEBOOK,
        "pad_token_id": ids["<|endoftext|>"],
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "audio_user_slot_token_id": ids["<|user_slot|>"],
        "audio_assistant_slot_token_id": ids["<|gen_slot|>"],
        "audio_assistant_gen_slot_token_id": ids["<|gen_slot|>"],
        "sampling_rate": SAMPLE_RATE,
        "local_text_head_mode": "binary",
        "local_transformer_layers": 1,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "tie_word_embeddings": True,
    }


def talker_tensors(rng: np.random.Generator) -> dict[str, Array]:
    def normal(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.05).astype(np.float32)

    ones, zeros = np.ones(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32)
    # The final norm's bias dominates the depth output, so that the stop head's two logits are
    # nearly constant.
    final_bias = rng.standard_normal(HIDDEN).astype(np.float32)
    half_gap = (
        0.5 * np.log(STOP_PROBABILITY / (1 - STOP_PROBABILITY)) / float(final_bias @ final_bias)
    )
    tensors: dict[str, Array] = {
        "transformer.embed_tokens.weight": normal(VOCAB, HIDDEN),
        "transformer.norm.weight": ones,
        "local_transformer.ln_f.weight": ones * np.float32(0.1),
        "local_transformer.ln_f.bias": final_bias,
        "local_text_lm_head.weight": np.stack(
            [-half_gap * final_bias, half_gap * final_bias]
        ).astype(np.float32),
    }
    for i in range(LAYERS):
        layer = f"transformer.layers.{i}"
        tensors |= {
            f"{layer}.input_layernorm.weight": ones,
            f"{layer}.post_attention_layernorm.weight": ones,
            f"{layer}.self_attn.q_proj.weight": normal(HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.k_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.v_proj.weight": normal(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{layer}.self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD_DIM),
            f"{layer}.self_attn.q_norm.weight": np.ones(HEAD_DIM, np.float32),
            f"{layer}.self_attn.k_norm.weight": np.ones(HEAD_DIM, np.float32),
            f"{layer}.mlp.gate_proj.weight": normal(FFN, HIDDEN),
            f"{layer}.mlp.up_proj.weight": normal(FFN, HIDDEN),
            f"{layer}.mlp.down_proj.weight": normal(HIDDEN, FFN),
        }
    block = "local_transformer.h.0"
    for name, out_dim, in_dim in [
        ("attn.c_attn", 3 * HIDDEN, HIDDEN),
        ("attn.c_proj", HIDDEN, HIDDEN),
        ("mlp.fc_in", FFN, HIDDEN),
        ("mlp.fc_out", HIDDEN, FFN),
    ]:
        tensors |= {
            f"{block}.{name}.weight": normal(out_dim, in_dim),
            f"{block}.{name}.bias": np.zeros(out_dim, np.float32),
        }
    for name in ("ln_1", "ln_2"):
        tensors |= {f"{block}.{name}.weight": ones.copy(), f"{block}.{name}.bias": zeros.copy()}
    for k in range(N_VQ):
        tensors[f"audio_embeddings.{k}.weight"] = normal(CODEBOOK, HIDDEN)
    return tensors


def make_babble(folder: Path) -> None:
    """Write the talker checkpoint to `folder`. The tied heads, copies of the embeddings, are left
    out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(talker_config(), indent=1) + "\n", encoding="utf-8"
    )
    (folder / "tokenizer.json").write_text(
        json.dumps(tokenizer(), ensure_ascii=False) + "\n", encoding="utf-8"
    )
    weights = folder / "model.safetensors"
    save_file(talker_tensors(np.random.default_rng(20261129)), weights, metadata={"format": "pt"})
    weights.chmod(
        0o644
    )  # safetensors makes it 0600, which an installation for several users could not read
