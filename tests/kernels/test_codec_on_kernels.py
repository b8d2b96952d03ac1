"""A codec of convolutions, packed, on the kernels: on a CPU in the interpreter, which wants a small
one.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from hocket.bench.engine.random_model import fill
from hocket.engine.runners.padding import packed_batch
from hocket.kernels import ops
from hocket.models.qwen3_codec.codec import Qwen3Codec
from hocket.models.qwen3_codec.family import codec_plan
from tests.support.paths import GOLDEN

pytest.importorskip("triton")

CONFIG = GOLDEN / "qwen3_tts/base_1b7/speech_tokenizer/config.json"
#: 12 samples a frame.
SAMPLES = 12


def small_codec(device: torch.device) -> Qwen3Codec:
    """A codec with random weights, large enough for every part to show in the samples."""
    raw = json.loads(CONFIG.read_text())
    raw |= {"input_sample_rate": 120, "output_sample_rate": 120}
    raw |= {"encode_downsample_rate": SAMPLES, "decode_upsample_rate": SAMPLES}
    raw["decoder_config"] |= {
        "upsample_rates": [3, 2],
        "upsampling_ratios": [2],
        "decoder_dim": 96,
        "latent_dim": 24,
    }
    raw["encoder_config"] |= {"sampling_rate": 120, "upsampling_ratios": [3, 2]}
    codec = codec_plan(raw, torch.float32).empty()
    assert isinstance(codec, Qwen3Codec)
    fill(codec, device=device, seed=0)
    for parameter in codec.decoder.parameters():
        if parameter.dim() > 1:
            parameter.mul_(30 / parameter[0].numel() ** 0.5)
    codec.finalize()
    return codec


def test_packs_on_kernels(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that begin, go on and rest; what the state's memory held before is NaN."""
    codec, waves = small_codec(device), []
    codes_RTN = np.random.default_rng(0).integers(0, 64, (4, 12, 16))
    for column in ("gpu", "reference", "cpu"):
        monkeypatch.setattr(ops, "column_of", lambda _, column=column: column)
        state, done, heard = codec.new_decoder_state(4, 4), [0] * 4, []
        state.tails.fill_(torch.nan)
        for counts in ({0: 4, 3: 1}, {3: 4, 1: 1, 0: 3}, {1: 2}, {0: 1, 3: 1, 1: 1}):
            pieces = [
                codes_RTN[row, done[row] : done[row] + count] for row, count in counts.items()
            ]
            arrays = packed_batch(list(counts), pieces, 10, 4, 4)
            streams_3S, codes_FN = (torch.from_numpy(array).to(device) for array in arrays)
            rows_S, counts_S, firsts_S = streams_3S.unbind(0)
            pack = state.pack(rows_S, counts_S, firsts_S, frames=len(codes_FN), max_frames=4)
            wave_CS = codec.decode_packed(codes_FN, state, pack)
            heard.append(wave_CS[:, : sum(counts.values()) * SAMPLES].cpu())
            for row, count in counts.items():
                done[row] += count
        waves.append(torch.cat(heard, 1))
    assert 0.01 < float(waves[0].abs().mean()) < 0.99
    for plain_CS in waves[1:]:
        torch.testing.assert_close(waves[0], plain_CS, atol=1e-4, rtol=0)
