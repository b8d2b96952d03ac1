"""Facts in a report about the machine and the command of a measurement."""

from __future__ import annotations

import sys

import pytest
import torch

from hocket.bench.environment import (
    cpu_name,
    device_facts,
    host_facts,
    module_command,
    package_versions,
)


def test_a_cpu_is_named_and_no_gpu_is_made_up() -> None:
    assert device_facts(torch.device("cpu")) == {
        "device": "cpu",
        "gpu": None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    host = host_facts()
    assert host["cpu"] == cpu_name() != ""
    assert host["versions"]["torch"]


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert package_versions("numpy", "no-such-package")["no-such-package"] is None
    assert "no-such-package" not in host_facts()["versions"]


def test_the_command_of_a_module_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "orig_argv", ["/usr/bin/python3", "-m", "benchmarks.a", "--json", "a b", "--resume"]
    )
    assert module_command("--resume") == "python -m benchmarks.a --json 'a b'"
