"""Commands that need no model answer without the imports that take seconds."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

#: PyTorch takes a second or two to import, the others a few tenths each.
SLOW = {"torch", "transformers", "huggingface_hub", "fastapi", "av", "tokenizers"}


@pytest.mark.parametrize(
    "command", [["--help"], ["--version"], ["say", "--help"], ["voices"], ["voices", "--json"]]
)
def test_what_needs_no_model_imports_nothing_slow(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hocket", *command],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout
    imported = set(re.findall(r"\| +(\w+)", done.stderr))
    assert "hocket" in imported
    assert not imported & SLOW
