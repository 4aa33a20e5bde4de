"""``edgefl.check``: check that a part keeps the rules that edgefl relies on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.commands.check.contract import check_contract
from edgefl.commands.check.federation import KINDS, played_scenario
from edgefl.commands.check.findings import CheckReport, Findings
from edgefl.commands.check.hangs import HANG_SECONDS, Watch
from edgefl.commands.check.played import check_runs
from edgefl.errors import UnknownName
from edgefl.methods import Method

PARTS = ("method", "schedule", "selection", "policy", "aggregation")
"""The kinds of parts that can be checked."""


def check(
    kind: str,
    part: str | type[Method],
    /,
    *,
    schedules: Sequence[str | Mapping[str, Any]] | None = None,
    kinds: Sequence[str] = KINDS,
    overrides: Sequence[str] = (),
    processes: bool = False,
    runs: bool = True,
    hang_after: float = HANG_SECONDS,
    **options: Any,
) -> CheckReport:
    """Check that a part keeps the rules that edgefl relies on, in a tiny federation that really trains.

    Of every part: a run with it is the same again in another process, whatever the global random state and the order
    of sets; an interrupted and resumed run equals one that wasn't; costs are those that were predicted.  Of a method
    under every schedule, and of a schedule with FedAvg, also works, training and aggregation in single steps.

    Args:
        kind: ``method``, ``schedule``, ``selection``, ``policy`` or ``aggregation``.
        part: The registered name, or the class of a method that needn't be registered yet, whose runs aren't checked.
        schedules: For a method: names or sections (``{"name": "layerwise", "stages": [1, 1]}``); by default all
            registered schedules.
        kinds: The client kinds of the federation; those that the method lets take part are checked.
        overrides: Changes of the runs' scenario, ``"round.window=1 min"``, such as another field that a part needs.
        processes: Whether a method also trains in a worker process.  A script then needs
            ``if __name__ == "__main__"``, and steps and edits must be registered.
        runs: Whether whole runs are checked; else the single steps alone.
        hang_after: Seconds without a finished check after which it gives up; the report says where the part hung.
            It needs the main thread of Linux or macOS; elsewhere there is no limit.
        **options: Fields of the part's section, such as a method's.

    Returns:
        A report: ``ok``, ``checks`` (how often each rule was checked), ``failures`` (a sentence for each failed check,
        with the place) and ``refused`` (schedules that can't split the method's models, with the reason).  ``str()`` of
        it is readable text.

    Raises:
        UnknownName: There is no such kind of part, or no part or schedule of this name.
        MethodError: The method can't be loaded or made with these options.  Other errors are in the report.
        ScenarioError: The part doesn't take these options.
    """
    if kind not in PARTS:
        raise UnknownName("kind of part that can be checked", kind, PARTS)
    name = part if isinstance(part, str) else part.__name__
    watch = Watch(hang_after)
    findings = Findings(watch.renew)
    if kind == "method":
        check_contract(findings, watch, part, schedules, kinds, processes, options)
    elif kind == "schedule":
        check_contract(findings, watch, "fedavg", [{"name": name, **options}], kinds, processes, {})
    if runs and isinstance(part, str) and not findings.failures:
        check_runs(findings, watch, played_scenario(kind, name, kinds, options, overrides))
    return findings.report(name)
