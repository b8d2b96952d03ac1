"""`python -m hocket` is the command line."""

from hocket.cli import main

main()
