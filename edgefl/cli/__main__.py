"""Runs the command line with ``python -m edgefl.cli``."""

from edgefl.cli import main

main()
