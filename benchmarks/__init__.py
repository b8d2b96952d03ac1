"""Benchmarks that are run from the repository's root: `python -m benchmarks.gpu.check` and the
like.

`gpu` measures on a GPU, `host` the Python around it, `results` keeps reports that the documentation
quotes. Importing this package makes `hocket` importable from `src` where it is not installed.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("hocket") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
