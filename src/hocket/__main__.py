"""`python -m hocket` is the command line."""

from hocket.cli.app import main

main()
