"""A tiny codec's recipe and speech, for the tests of its training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training.data import SpeechBank
from training.recipe import Recipe

from tests.support.tiny_codec import tiny_recipe, write_speech


@pytest.fixture
def recipe() -> Recipe:
    return tiny_recipe()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_speech(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def bank(data: Path) -> SpeechBank:
    return SpeechBank.read([data], torch.device("cpu"), validation_seconds=4.0)
