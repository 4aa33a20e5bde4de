"""``check_method``: check a method's contract in a tiny federation that really trains."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import ValidationError

from edgefl import registry
from edgefl.commands.check_method import rules
from edgefl.commands.check_method.federation import KINDS, TinyFederation, tiny_scenario
from edgefl.commands.check_method.findings import CheckReport, Findings
from edgefl.commands.check_method.hangs import HANG_SECONDS, Hung, Watch, hung_in
from edgefl.commands.check_method.schedule import check_schedule
from edgefl.commands.check_method.tasks import check_in_worker
from edgefl.commands.compose import blocks_of, compose
from edgefl.cost import Predictor
from edgefl.errors import EdgeflError, MethodError, UnknownName
from edgefl.methods import Method
from edgefl.training import Node
from edgefl.work.torch_device import device_of, threads


def check_method(
    method: str | type[Method],
    *,
    schedules: Sequence[str | Mapping[str, Any]] | None = None,
    kinds: Sequence[str] = KINDS,
    processes: bool = False,
    hang_after: float = HANG_SECONDS,
    **options: Any,
) -> CheckReport:
    """Check that a method keeps the rules that edgefl relies on, in a tiny federation under every schedule.

    Among the rules: predicted cost is measured cost, aggregation is pure and independent of the order of updates, the
    same seed gives the same bits.

    Args:
        method: The registered name of a method, or a class that needn't be registered yet.
        schedules: Names or sections (``{"name": "layerwise", "stages": [1, 1]}``); by default all registered
            schedules.
        kinds: The client kinds of the federation; those that the method lets take part are checked.
        processes: Whether it also trains in a worker process.  A script then needs ``if __name__ == "__main__"``, and
            steps and edits must be registered.
        hang_after: Seconds without a finished check after which it gives up; the report says where the method hung.
            It needs the main thread of Linux or macOS; elsewhere there is no limit.
        **options: Fields of the scenario's ``method`` section.

    Returns:
        A report: ``ok``, ``checks`` (how often each rule was checked), ``failures`` (a sentence for each failed check,
        with the kind and the stage) and ``refused`` (schedules that can't split the method's models, with the reason).
        ``str()`` of it is readable text.

    Raises:
        UnknownName: No method or schedule of this name is registered.
        MethodError: The method can't be loaded or made with these options.  Other errors are in the report.
    """
    owner = _class_of(method)
    name = method if isinstance(method, str) else owner.__name__
    section = _options("method", name, owner, options)
    watch = Watch(hang_after)
    findings, predictor = Findings(watch.renew), Predictor()
    federations: dict[str, TinyFederation] = {}

    def federation(needs: Mapping[str, Any]) -> TinyFederation:
        """The federation for schedules with these needs."""
        known = repr(needs)
        if known not in federations:
            scenario = tiny_scenario(kinds, {**owner.needs, **needs})
            setup = compose(scenario)
            setting = setup.method.setting
            made = _made(name, kinds, lambda: owner(section, setting))
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
                where = fields["name"]
                kind: Any = registry.get("schedule", fields["name"])
                options_of = _options("schedule", fields["name"], kind, fields)
                try:
                    its = federation(needs := getattr(kind, "needs", {}))
                    for name_of_kind in kinds if needs else ():
                        its.method.client_work(name_of_kind, 1)
                except EdgeflError as error:
                    if not federations:
                        raise
                    findings.refused[where] = str(error)
                    continue
                check_schedule(its, where, kind(options_of, blocks_of(its.method.setting.kinds)))
    except Hung as error:
        place = hung_in(error, getattr(sys.modules.get(owner.__module__), "__file__", None))
        findings.expect(rules.ANSWERS, where, False, f"no check was finished for {hang_after:g} s; it hung in {place}")
        return findings.report(name)
    if processes:
        for its in federations.values():
            check_in_worker(its)
    return findings.report(name)


def _made(name: str, kinds: Sequence[str], make: Callable[[], Method]) -> Method:
    """The method.  Raises MethodError, which names the plug-in and its file, if it can't be made."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        fault = error if isinstance(error, EdgeflError) else registry.plug_ins().fault(error) or registry.said(error)
        raise MethodError(f"the method {name!r} can't be made for clients with {', '.join(kinds)}: {fault}") from error


def _class_of(method: str | type[Method]) -> type[Method]:
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


def _options(noun: str, name: str, owner: Any, fields: Mapping[str, Any]) -> Any:
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
    """Run with one thread, as training does, and restore the global random generator."""
    with threads(1), torch.random.fork_rng([]):
        yield
