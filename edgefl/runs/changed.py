"""What types can't see of a changed folder, such as a kind that is in one table and not in another."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from edgefl.errors import EdgeflError, RunError
from edgefl.runs.folders import finished_differences
from edgefl.runs.reading import Run

P = ParamSpec("P")
T = TypeVar("T")


def guarded(read: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """A function that reads a run's records, which says so where it fails because somebody changed them.

    Records that don't fit together raise KeyError, TypeError and their like.  If the run is finished and its files are
    those that it finished with, the mistake is edgefl's own, and the error goes through.  Otherwise RunError is raised:
    with the file that was changed, where digests tell that.
    """

    @wraps(read)
    def guard(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(run, *args, **kwargs)
        except EdgeflError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
            digested = run.finished and run.format > 1
            differences = finished_differences(run.path) if digested else []
            if digested and not differences:
                raise
            told = f"no {error}" if isinstance(error, KeyError) else str(error)
            why = "; ".join(differences) or "its files hold other values than edgefl writes"
            raise RunError(f"{run.path}: {why}: {told}") from error

    return guard
