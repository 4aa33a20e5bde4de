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


def raise_run_errors(read: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """A function that reads a run's records, and raises RunError where they don't fit together.

    Such records raise KeyError, TypeError and their like.  The message has the file that was changed, where digests
    tell that.  If the files are those that the run finished with, whoever made the folder rewrote the digests too, or
    the mistake is edgefl's own: the message says both, and ``edgefl --traceback`` shows where.
    """

    @wraps(read)
    def guard(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(run, *args, **kwargs)
        except EdgeflError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
            digested = run.is_finished
            differences = finished_differences(run.path) if digested else []
            told = f"no {error}" if isinstance(error, KeyError) else str(error)
            why = "; ".join(differences) or "its files hold other values than edgefl writes"
            if digested and not differences:
                why += ", or edgefl reads them wrongly (edgefl --traceback COMMAND shows where)"
            raise RunError(f"{run.path}: {why}: {told}") from error

    return guard
