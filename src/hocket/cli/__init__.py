"""The `hocket` command line, above all other packages. Only `main`, the entry point, is for others.

Commands import what they need when they run, so that `--help`, `voices` and refusals answer without
torch.
"""

from hocket.cli.app import main

__all__ = ["main"]
