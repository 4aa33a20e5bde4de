"""The console command, also as ``python -m edgefl``."""

from edgefl.console import main

if __name__ == "__main__":
    main()
