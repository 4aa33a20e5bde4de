"""``check_part``: check that a part keeps the rules that edgefl relies on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from edgefl import registry, seeds
from edgefl.cost.predict import Predictor
from edgefl.errors import EdgeflError, MethodError, UnknownName
from edgefl.methods import Method
from edgefl.setup.compose import blocks_of, compose
from edgefl.testing.findings import (
    HANG_SECONDS,
    CheckReport,
    CheckRule,
    Findings,
    HangWatch,
    Hung,
    hang_location,
)
from edgefl.testing.one_assignment import check_in_worker
from edgefl.testing.played import check_runs
from edgefl.testing.rounds import check_schedule
from edgefl.testing.tiny_federation import KINDS, TinyFederation, played_scenario, tiny_scenario
from edgefl.training import Node
from edgefl.work.torch_device import device_of, threads

PARTS = ("method", "schedule", "selection", "policy", "aggregation")
"""The sorts of parts that can be checked."""


def check_part(
    kind: str,
    name: str | type[Method],
    /,
    *,
    schedules: Sequence[str | Mapping[str, object]] | None = None,
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
        name: The registered name, or the class of a method that needn't be registered yet, whose runs aren't checked.
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
        UnknownName: There is no such sort of part, or no part or schedule of this name.
        MethodError: The method can't be loaded or made with these options.  Other errors are in the report.
        ScenarioError: The part doesn't take these options.
    """
    if kind not in PARTS:
        raise UnknownName("sort of part that can be checked", kind, PARTS)
    part, name = name, name if isinstance(name, str) else name.__name__
    watch = HangWatch(hang_after)
    findings = Findings(watch.renew)
    if kind == "method":
        check_contract(findings, watch, part, schedules, kinds, processes, options)
    elif kind == "schedule":
        check_contract(findings, watch, "fedavg", [{"name": name, **options}], kinds, processes, {})
    if runs and isinstance(part, str) and not findings.failures:
        check_runs(findings, watch, played_scenario(kind, name, kinds, options, overrides))
    return findings.report(name)


def check_contract(
    findings: Findings,
    watch: HangWatch,
    method: str | type[Method],
    schedules: Sequence[str | Mapping[str, object]] | None,
    kinds: Sequence[str],
    processes: bool,
    options: Mapping[str, object],
) -> None:
    """Check that a method keeps the rules that edgefl relies on, in a tiny federation under every schedule.

    ``options`` are fields of the scenario's ``method`` section.  Raises UnknownName if no schedule of a name is
    registered, and MethodError if the method can't be made with these options.
    """
    owner = class_of(method)
    name = method if isinstance(method, str) else owner.__name__
    section, predictor = options_of("method", name, owner, options), Predictor()
    federations: dict[str, TinyFederation] = {}

    def federation(needs: Mapping[str, object]) -> TinyFederation:
        """The federation for schedules with these needs."""
        known = repr(needs)
        if known not in federations:
            scenario = tiny_scenario(kinds, {**owner.needs, **needs})
            setup = compose(scenario)
            setting = setup.method.setting
            made = _make_method(name, kinds, lambda: owner(section, setting))
            node = Node(setup.clients, device_of("cpu"))
            federations[known] = TinyFederation(
                made, lambda: owner(section, setting), scenario, setup, findings, node, predictor
            )
        return federations[known]

    chosen = registry.names("schedule") if schedules is None else schedules
    where = "its construction"
    try:
        with watch.watching(), _one_thread():
            federation({})
            for wanted in chosen:
                fields = {"name": wanted} if isinstance(wanted, str) else dict(wanted)
                where = str(fields["name"])
                schedule: Any = registry.get("schedule", where)
                its_options = options_of("schedule", where, schedule, fields)
                try:
                    its = federation(needs := getattr(schedule, "needs", {}))
                    for kind in kinds if needs else ():
                        for variant in its.method.variants[kind]:
                            its.method.client_work(kind, 1, variant)
                except EdgeflError as error:
                    if not federations:
                        raise
                    findings.refused[where] = str(error)
                    continue
                check_schedule(its, where, schedule(its_options, blocks_of(its.method.setting.kinds)))
    except Hung as error:
        place = hang_location(error, getattr(sys.modules.get(owner.__module__), "__file__", None))
        fault = f"no check was finished for {watch.seconds:g} s; it hung in {place}"
        findings.expect(CheckRule.ANSWERS, where, False, fault)
        return
    if processes:
        for its in federations.values():
            check_in_worker(its)


def _make_method(name: str, kinds: Sequence[str], make: Callable[[], Method]) -> Method:
    """The method.  Raises MethodError, which names the plug-in and its file, if it can't be made."""
    try:
        return make()
    except registry.PASSED:
        raise
    except BaseException as error:
        fault = (
            error if isinstance(error, EdgeflError) else registry.plug_ins().fault(error) or registry.error_text(error)
        )
        raise MethodError(f"the method {name!r} can't be made for clients with {', '.join(kinds)}: {fault}") from error


def class_of(method: str | type[Method]) -> type[Method]:
    """The class that was given, or that is registered under this name."""
    owner: Any = method
    if isinstance(method, str):
        try:
            owner = registry.get("method", method)
        except UnknownName:
            raise
        except EdgeflError as error:
            raise MethodError(str(error)) from error
    if not (isinstance(owner, type) and issubclass(owner, Method)):
        raise MethodError(f"{owner!r} is not a subclass of edgefl.methods.Method")
    return owner


def options_of(noun: str, name: str, owner: Any, fields: Mapping[str, object]) -> Any:
    """The options of a method or schedule made of these fields; None if it has no ``Options``."""
    model = getattr(owner, "Options", None)
    if model is None:
        return None
    try:
        return model(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MethodError(f"the {noun} {name!r} doesn't take these options: {where}: {first['msg']}") from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run with one thread, as training does, with the global generators as they are in every check."""
    with threads(1), seeds.seeding_globals(0):
        yield
