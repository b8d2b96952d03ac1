"""The registry: families are found by name, and imported only when they are needed."""

from __future__ import annotations

import subprocess
import sys

from tests.support.paths import GOLDEN, REPOSITORY

VOICES_WITHOUT_TORCH = """
import sys
from pathlib import Path
from hocket.models import registry
assert not [name for name in sys.modules if name.startswith("hocket.models.") and name != "hocket.models.registry"]
print(*registry.talker_extras(Path(sys.argv[1])).voices)
assert "torch" not in sys.modules
"""


def test_voices_are_found_without_torch() -> None:
    for folder, voice in (
        (REPOSITORY / "src/hocket/assets/mini", "default"),
        (GOLDEN / "qwen3_tts" / "custom_1b7", "vivian"),
    ):
        command = [sys.executable, "-c", VOICES_WITHOUT_TORCH, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert voice in done.stdout.split()
