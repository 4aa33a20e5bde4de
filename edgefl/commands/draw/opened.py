"""The run that a command is given, as it is now."""

from __future__ import annotations

import os
from pathlib import Path

from edgefl.errors import RunError
from edgefl.runs import Run, read_run


def opened(run: str | os.PathLike[str] | Run) -> Run:
    """The run as it is now.  Raises RunError, which names a run in ``runs`` if there is one of this name."""
    if isinstance(run, Run):
        return read_run(run.path)
    path = Path(run)
    if not path.exists() and not path.is_absolute() and (Path("runs") / path).is_dir():
        raise RunError(f"there is no run at {path}; did you mean {Path('runs') / path}?")
    if path.is_file() or (not path.exists() and path.suffix in (".yaml", ".yml")):
        raise RunError(f"{path} isn't the folder of a run: run a scenario first, with edgefl run")
    return read_run(path)
