"""Writes what is installed in the environment that runs this as constraints for its Python.

PyTorch and what only its builds bring are the Makefile's TORCH and TRITON.
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

NOT_HERE = re.compile(r"hocket|torch|triton|nvidia-.*|cuda-.*")


def main() -> None:
    pins = {}
    for found in distributions():
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
        if not NOT_HERE.fullmatch(name):
            pins[name] = found.version.partition("+")[0]
    python = ".".join(map(str, sys.version_info[:2]))
    lines = [f"# What was tested with Python {python}; made by `make constraints`, not by hand."]
    lines += [f"{name}=={version}" for name, version in sorted(pins.items())]
    path = Path(__file__).parent / f"python{python}.txt"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    print(f"{path.name}: {len(pins)} versions")


main()
