"""How many CPU threads an engine uses, and that they sleep while they wait."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from tests.support.tiny_engine import EAGER, STRICT, engine, patient_talker

WAIT_POLICY = "import os, {}; print(os.environ.get('OMP_WAIT_POLICY'))"


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("policy", "threads"), [("PASSIVE", 2), ("passive", 2), ("ACTIVE", 1), (None, 1)]
)
def test_a_small_model_takes_all_threads_where_they_sleep(
    monkeypatch: pytest.MonkeyPatch, policy: str | None, threads: int
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    engine(EAGER, patient_talker())
    assert torch.get_num_threads() == threads


def test_a_number_that_is_given_counts_but_not_in_strict_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    engine(EAGER.model_copy(update={"cpu_threads": 2}), patient_talker())
    assert torch.get_num_threads() == 2
    engine(STRICT.model_copy(update={"cpu_threads": 2}), patient_talker())
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("imports", "before", "after"),
    [("hocket", None, "PASSIVE"), ("hocket", "ACTIVE", "ACTIVE"), ("torch, hocket", None, "None")],
)
def test_importing_hocket_before_torch_lets_threads_sleep(
    monkeypatch: pytest.MonkeyPatch, imports: str, before: str | None, after: str
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if before:
        monkeypatch.setenv("OMP_WAIT_POLICY", before)
    command = [sys.executable, "-c", WAIT_POLICY.format(imports)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == after
