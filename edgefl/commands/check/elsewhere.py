"""A run in a process of its own, for ``edgefl.check``: ``python -m edgefl.commands.check.elsewhere``, JSON on stdin."""

from __future__ import annotations

import json
import sys

from edgefl import registry
from edgefl.commands.check.played import seed_globals
from edgefl.commands.run.run import run


def main() -> None:
    """Run the scenario with the parts that the process which asks knows."""
    given = json.load(sys.stdin)
    files = [(path, source.encode("latin-1")) for path, source in given["files"]]
    registry.adopt(registry.ForWorkers(files, [tuple(part) for part in given["parts"]]))
    seed_globals(given["seed"])
    run(given["scenario"], output=given["output"])


if __name__ == "__main__":
    main()
