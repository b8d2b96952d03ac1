"""What a Qwen3-TTS checkpoint's files may say beside its dimensions."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from hocket.core import Sampling, SpeechRequest
from hocket.engine.engine import Engine
from hocket.errors import ConfigError
from hocket.models.qwen3_tts.family import recommended_sampling
from tests.support import paths

GOLDEN = paths.GOLDEN / "qwen3_tts"


def generation_file(folder: Path, **says: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(says))
    return folder


def test_how_long_speech_is_where_a_request_does_not_say(tmp_path: Path) -> None:
    """The last token gets no frame (sources: Qwen3 5, 7)."""
    found = recommended_sampling(generation_file(tmp_path, max_new_tokens=4))
    assert found.max_frames == found.overridden_by(Sampling(top_k=3)).max_frames == 3
    assert recommended_sampling(generation_file(tmp_path)).max_frames is None
    with pytest.raises(ConfigError, match="max_new_tokens"):
        recommended_sampling(generation_file(tmp_path, max_new_tokens=1))


def test_a_temperature_that_is_not_used_may_be_zero(tmp_path: Path) -> None:
    found = recommended_sampling(
        generation_file(tmp_path, do_sample=False, temperature=0.0, subtalker_temperature=0.0)
    )
    assert found.codes.temperature == 0.0


def test_a_speaker_that_no_voice_can_be_called_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(GOLDEN / "custom_1b7", tmp_path / "model")
    raw = json.loads((folder / "config.json").read_text())
    speakers = raw["talker_config"]["spk_id"]
    speakers["my voice"] = next(iter(speakers.values()))
    (folder / "config.json").write_text(json.dumps(raw))
    generation_file(folder, max_new_tokens=4)
    with caplog.at_level(logging.WARNING, logger="hocket"):
        engine = Engine.load(folder, GOLDEN / "base_1b7/speech_tokenizer")
    assert "speaker_left_out" in caplog.text
    assert "spk_id: 'my voice'" in caplog.text
    assert "my voice" not in engine.voices
    request = SpeechRequest(
        text="Hello there.", voice=next(name for name in engine.voices if name in speakers), seed=1
    )
    speech = engine.generate(request)
    assert (len(speech.codes), speech.finish_reason) == (3, "length")
    longer = engine.generate(request.model_copy(update={"max_frames": 6, "min_frames": 6}))
    assert len(longer.codes) == 6
