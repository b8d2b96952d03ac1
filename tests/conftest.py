"""Shared by all tests: golden folders, and one thread, so that two cores serve two test runs
evenly.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hocket.models.registry import builtin_model
from tests.support.babble import make_babble
from tests.support.paths import GOLDEN


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the golden checkpoints and tensors."""
    return GOLDEN


@pytest.fixture(scope="session")
def babble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a checkpoint that is complete, tiny and makes no sense, with the codec of the
    package.
    """
    folder = tmp_path_factory.mktemp("babble")
    make_babble(folder)
    (folder / "codec").symlink_to(builtin_model() / "codec")
    return folder
