"""The contract of a method: works, costs, training and aggregation in a tiny federation that really trains."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import ValidationError

from edgefl import registry
from edgefl.commands.check import rules
from edgefl.commands.check.federation import TinyFederation, tiny_scenario
from edgefl.commands.check.findings import Findings
from edgefl.commands.check.hangs import Hung, Watch, hung_in
from edgefl.commands.check.schedule import check_schedule
from edgefl.commands.check.tasks import check_in_worker
from edgefl.commands.compose import blocks_of, compose
from edgefl.cost import Predictor
from edgefl.errors import EdgeflError, MethodError, UnknownName
from edgefl.methods import Method
from edgefl.training import Node
from edgefl.work.torch_device import device_of, threads


def check_contract(
    findings: Findings,
    watch: Watch,
    method: str | type[Method],
    schedules: Sequence[str | Mapping[str, Any]] | None,
    kinds: Sequence[str],
    processes: bool,
    options: Mapping[str, Any],
) -> None:
    """Check that a method keeps the rules that edgefl relies on, in a tiny federation under every schedule.

    ``options`` are fields of the scenario's ``method`` section.  Raises UnknownName if no schedule of a name is
    registered, and MethodError if the method can't be made with these options.
    """
    owner = class_of(method)
    name = method if isinstance(method, str) else owner.__name__
    section, predictor = options_of("method", name, owner, options), Predictor()
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
                its_options = options_of("schedule", fields["name"], kind, fields)
                try:
                    its = federation(needs := getattr(kind, "needs", {}))
                    for name_of_kind in kinds if needs else ():
                        for variant in its.method.variants[name_of_kind]:
                            its.method.client_work(name_of_kind, 1, variant)
                except EdgeflError as error:
                    if not federations:
                        raise
                    findings.refused[where] = str(error)
                    continue
                check_schedule(its, where, kind(its_options, blocks_of(its.method.setting.kinds)))
    except Hung as error:
        place = hung_in(error, getattr(sys.modules.get(owner.__module__), "__file__", None))
        fault = f"no check was finished for {watch.seconds:g} s; it hung in {place}"
        findings.expect(rules.ANSWERS, where, False, fault)
        return
    if processes:
        for its in federations.values():
            check_in_worker(its)


def _made(name: str, kinds: Sequence[str], make: Callable[[], Method]) -> Method:
    """The method.  Raises MethodError, which names the plug-in and its file, if it can't be made."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        fault = error if isinstance(error, EdgeflError) else registry.plug_ins().fault(error) or registry.said(error)
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


def options_of(noun: str, name: str, owner: Any, fields: Mapping[str, Any]) -> Any:
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
