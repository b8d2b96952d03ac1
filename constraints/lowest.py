"""The lowest version that pyproject.toml allows of each library, as constraints for this Python.

PyTorch is not among them: the Makefile's TORCH is its version.
"""

import re
import tomllib
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["dependencies"]:
        needed = Requirement(line)
        if needed.name == "torch" or (needed.marker and not needed.marker.evaluate()):
            continue
        (lowest,) = re.findall(r">=([\w.]+)", str(needed.specifier))
        print(f"{needed.name}=={lowest}")


main()
