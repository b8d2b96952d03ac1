"""The speaker encoder: official mel frames and vectors, the mel scale and shapes."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from hocket.checkpoint.weights import load_weights, stored_tensors
from hocket.errors import ConfigError, ReferenceAudioError
from hocket.models.qwen3_tts.speaker import (
    SpeakerConfig,
    SpeakerEncoder,
    log_mel,
    mel_filters,
    speaker_weight_table,
)
from tests.support.qwen3_codec_helpers import GOLDEN, golden_tensors

WAVE_S = golden_tensors()["speaker/wav"]


def raw_section(name: str = "base_1b7") -> dict[str, Any]:
    section: dict[str, Any] = json.loads((GOLDEN / name / "config.json").read_text())[
        "speaker_encoder_config"
    ]
    return section


@cache
def encoder(name: str = "base_1b7") -> SpeakerEncoder:
    config = SpeakerConfig.from_dict(raw_section(name))
    with torch.device("meta"):
        module = SpeakerEncoder(config)
    others = [
        stored
        for stored in stored_tensors(GOLDEN / name)
        if not stored.startswith("speaker_encoder.")
    ]
    table = list(speaker_weight_table(config))
    load_weights(module, GOLDEN / name, table, tied=others, device=torch.device("cpu"))
    return module.eval()


def test_official_mel_frames() -> None:
    mel_MT = log_mel(WAVE_S, 24_000, 128)
    # Difference of logarithms: 1e-4 is 0.01 %. Rounding of the spectrum reaches 1.2e-5 in its
    # quietest part.
    torch.testing.assert_close(mel_MT, golden_tensors()["speaker/mel"][0], rtol=0, atol=1e-4)
    assert mel_MT.shape == (128, len(WAVE_S) // 256)


@pytest.mark.parametrize("name", ["base_1b7", "base_0b6"])
def test_official_voices(name: str) -> None:
    """Vectors of all recordings that the golden requests clone, in both sizes."""
    tensors = golden_tensors(name)
    references = [key for key in tensors if "/ref/wav" in key]
    assert len(references) >= 2
    for key in references:
        voice_D = encoder(name).embed(tensors[key])
        expected_D = tensors[key.replace("/wav", "/speaker_embedding")]
        torch.testing.assert_close(voice_D, expected_D, rtol=2e-5, atol=2e-5)


def test_the_official_voice() -> None:
    voice_D = encoder().embed(WAVE_S)
    torch.testing.assert_close(voice_D, golden_tensors()["speaker/embedding"], rtol=2e-5, atol=2e-5)


def test_full_size_parameters() -> None:
    """Counts of the official class (sources: Qwen3 12); released files give the width only."""
    for width, parameters in ((2048, 12_001_088), (1024, 8_854_336)):
        config = SpeakerConfig.from_dict({"enc_dim": width, "sample_rate": 24_000})
        with torch.device("meta"):
            module = SpeakerEncoder(config)
        assert sum(parameter.numel() for parameter in module.parameters()) == parameters
        assert {entry.parameter for entry in speaker_weight_table(config)} == set(
            module.state_dict()
        )


def test_mel_filters_are_slaneys() -> None:
    """Centres on Slaney's scale (1000 Hz is mel 15), triangles of area 1 whatever their width."""
    filters_MF = mel_filters(24_000, 128)
    assert filters_MF.shape == (128, 513)
    hz = np.fft.rfftfreq(1024, 1 / 24_000)
    # The top of the scale: 15 mels up to 1 kHz, then ln(12) / (ln(6.4) / 27) more.
    step = (15 + np.log(12) * 27 / np.log(6.4)) / 129
    for m in (40, 90, 127):
        mel = (m + 1) * step
        centre = mel * 200 / 3 if mel < 15 else 1000 * np.exp((mel - 15) * np.log(6.4) / 27)
        assert abs(hz[filters_MF[m].argmax()] - centre) <= hz[1] / 2
    areas = filters_MF.sum(axis=1)[80:] * hz[1]
    np.testing.assert_allclose(areas, 1.0, atol=0.02)


def test_a_recording_that_is_too_short_is_refused() -> None:
    config = encoder().config
    shortest = torch.randn(config.min_samples, generator=torch.Generator().manual_seed(0))
    assert encoder().embed(shortest).isfinite().all()
    with pytest.raises(ReferenceAudioError, match=f"has {config.min_samples - 1} samples"):
        encoder().embed(shortest[:-1])


def test_loudness_and_content_are_heard() -> None:
    """Nothing is normalised: half the level gives another vector, and so does another sound."""
    voice_D = encoder().embed(WAVE_S)
    noise_S = torch.randn(len(WAVE_S), generator=torch.Generator().manual_seed(1))
    for other in (0.5 * WAVE_S, WAVE_S.flip(0), noise_S):
        assert float((encoder().embed(other) - voice_D).abs().max()) > 1e-2


def test_a_wrong_dilation_would_show() -> None:
    module = SpeakerEncoder(
        SpeakerConfig.from_dict(raw_section() | {"enc_dilations": [1, 2, 3, 5, 1]})
    )
    module.load_state_dict(encoder().state_dict())
    assert float((module.embed(WAVE_S) - golden_tensors()["speaker/embedding"]).abs().max()) > 1e-2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"enc_channels": [16, 16, 48]}, "one length"),
        ({"enc_channels": [16, 16, 16, 16, 40]}, "the sum of those between"),
        ({"enc_channels": [16, 8, 16, 16, 40]}, "must be equal"),
        ({"enc_res2net_scale": 5}, "enc_res2net_scale 5 does not divide 16"),
        ({"enc_kernel_sizes": [4, 3, 3, 3, 1]}, "must be odd"),
        ({"enc_dim": "64"}, "enc_dim"),
    ],
)
def test_a_section_that_cannot_be_followed_names_its_key(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeakerConfig.from_dict(raw_section() | change)
