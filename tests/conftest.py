"""Shared by all tests: golden folders, and one thread, so that two cores serve two test runs evenly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder of the golden checkpoints and tensors."""
    return GOLDEN
