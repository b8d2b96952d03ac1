"""The command line: one module for the commands, one for `say`, one for shared options."""

from hocket.cli.app import main

__all__ = ["main"]
