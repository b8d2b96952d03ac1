"""What is installed in the environment that runs this, as constraints: every package and its version.

PyTorch and what only its builds bring are the Makefile's TORCH and TRITON.
"""

import re
import sys
from importlib.metadata import distributions

NOT_HERE = re.compile(r"hocket|torch|triton|nvidia-.*|cuda-.*")


def main() -> None:
    pins = {}
    for found in distributions():
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()
        if not NOT_HERE.fullmatch(name):
            pins[name] = found.version.partition("+")[0]
    python = ".".join(map(str, sys.version_info[:2]))
    print(f"# What was tested with Python {python}; made by `make constraints`, not by hand.")
    for name, version in sorted(pins.items()):
        print(f"{name}=={version}")


main()
