"""Where the repository and its golden checkpoints are."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
#: Checkpoints and tensors made with the official model classes; see tests/golden/*/README.md.
GOLDEN = REPOSITORY / "tests" / "golden"
