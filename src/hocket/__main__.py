"""Entry point of `python -m hocket`: the command line."""

from hocket.cli.app import main

main()
