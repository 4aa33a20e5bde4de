"""``edgefl doctor`` as it is typed, and ``edgefl.doctor`` as it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edgefl.console.derived import OnProgress, command, option, silent

if TYPE_CHECKING:
    from edgefl.commands.doctor.answer import Health


@command(
    "edgefl doctor --quick", "edgefl doctor --quick --as json",
    answer="edgefl.commands.doctor.answer:Health", forms={"table": "edgefl.commands.doctor.answer:lines_of"},
    plain=True,
)  # fmt: skip
def doctor(
    *,
    quick: Annotated[bool, option("Leave out the runs, which take about ten seconds.")] = False,
    on_progress: OnProgress = silent,
) -> Health:
    """Check versions, GPU, cache, disk and memory.

    Two equal runs of a small scenario are compared, and a whole run with its rules, in a temporary folder that is
    removed.  The exit code is 1 if a check found an error.

    Returns:
        ``edgefl`` (its version), ``healthy`` (no check is an error) and the ``checks``, each with its ``name``,
        ``status``, what was ``found``, and ``advice``.

    Raises:
        KeyboardInterrupt: The runs were interrupted; nothing is left of them.  What is wrong raises nothing.

    Examples:
        >>> import edgefl
        >>> answer = edgefl.doctor(quick=True)
        >>> [(check.name, check.status) for check in answer.checks][:1]
        [('Python', 'ok')]
    """
    from edgefl import __version__
    from edgefl.commands.doctor.answer import ERROR, Health
    from edgefl.commands.doctor.machine_checks import machine_checks

    checks = list(machine_checks(not quick, on_progress))
    return Health(__version__, all(check.status != ERROR for check in checks), checks)
